// SPDX-License-Identifier: Apache-2.0

//! Cell: metrics of all limiters of a program, with Cilium's names. Provides: [`LimiterMetrics`].

use hive::Cell;
use skep_base_metrics::{CounterVec, GaugeVec, Metrics};

use crate::parameters::Parameters;
use crate::recorder::{LimiterUsage, Limits, Recorder};

hive::catalogue!(cell);

/// The metrics of limiters: every limiter of a program counts here.
pub fn cell() -> Cell {
    Cell::module("api-limiter-metrics", "Metrics of limiters of requests")
        .provide(skep_base_metrics::provided::<LimiterMetrics>)
}

/// What limiters do: `api_call` is the name of the limiter.
#[derive(Debug, Metrics)]
#[metrics(prefix = "api_limiter", labels = ["api_call", "value"])]
pub struct LimiterMetrics {
    /// Processed requests by outcome.
    #[metric(name = "processed_requests_total", labels = ["api_call", "outcome"])]
    processed: CounterVec,
    /// Mean and estimated processing duration.
    #[metric(name = "processing_duration_seconds")]
    processing: GaugeVec,
    /// Mean, minimum and maximum wait duration.
    #[metric(name = "wait_duration_seconds")]
    wait: GaugeVec,
    /// Requests in flight, current and maximum.
    #[metric(name = "requests_in_flight")]
    in_flight: GaugeVec,
    /// Rate limit per second and burst.
    #[metric(name = "rate_limit")]
    rate: GaugeVec,
    /// Last adjustment factor.
    #[metric(name = "adjustment_factor", labels = ["api_call"])]
    adjustment: GaugeVec,
}

fn set(family: &GaugeVec, limiter: &str, value: &str, to: f64) {
    family.with([limiter, value]).set(to);
}

impl Recorder for LimiterMetrics {
    fn made(&self, limiter: &str, parameters: &Parameters) {
        // Zero is no limit, and no estimate.
        for (family, value, duration) in [
            (&self.processing, "estimated", parameters.estimated_processing),
            (&self.wait, "min", parameters.min_wait),
            (&self.wait, "max", parameters.max_wait),
        ] {
            if !duration.is_zero() {
                set(family, limiter, value, duration.as_secs_f64());
            }
        }
    }

    fn limits(&self, limiter: &str, limits: &Limits) {
        if let Some(most) = limits.in_flight {
            set(&self.in_flight, limiter, "limit", f64::from(most));
        }
        if limits.rate > 0.0 {
            set(&self.rate, limiter, "limit", limits.rate);
            set(&self.rate, limiter, "burst", limits.burst);
        }
        if let Some(factor) = limits.adjustment {
            self.adjustment.with([limiter]).set(factor);
        }
    }

    fn usage(&self, limiter: &str, usage: &LimiterUsage) {
        let processing = usage.mean_processing.as_secs_f64();
        set(&self.processing, limiter, "mean", processing);
        set(&self.wait, limiter, "mean", usage.mean_wait.as_secs_f64());
        set(&self.in_flight, limiter, "in-flight", f64::from(usage.in_flight));
    }

    fn processed(&self, limiter: &str, is_success: bool) {
        let outcome = if is_success { "success" } else { "fail" };
        self.processed.with([limiter, outcome]).inc();
    }
}
