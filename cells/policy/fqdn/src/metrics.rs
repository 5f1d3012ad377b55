// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use std::time::Duration;

use skep_base_metrics::{Counter, CounterVec, Gauge, GaugeVec, HistogramVec, Metrics};

/// Metrics of names.
#[derive(Debug, Metrics)]
#[metrics(prefix = "fqdn")]
pub(crate) struct NameMetrics {
    /// Names that garbage collection removed.
    #[metric(name = "gc_deletions_total")]
    pub(crate) deletions: Counter,
    /// Selectors of names that policies use.
    #[metric(name = "selectors")]
    pub(crate) selectors: Gauge,
    /// Names in the cache of an endpoint.
    #[metric(name = "active_names", labels = ["endpoint"], disabled)]
    pub(crate) names: GaugeVec,
    /// Addresses in the cache of an endpoint.
    #[metric(name = "active_ips", labels = ["endpoint"], disabled)]
    pub(crate) addresses: GaugeVec,
    /// Expired addresses that connections of an endpoint may use.
    #[metric(name = "alive_zombie_connections", labels = ["endpoint"], disabled)]
    pub(crate) zombies: GaugeVec,
    /// DNS queries that were rejected because too many were in flight.
    #[metric(name = "semaphore_rejected_total", disabled)]
    pub(crate) rejected: Counter,
}

/// Metrics of the DNS proxy.
#[derive(Debug, Metrics)]
#[metrics(prefix = "proxy")]
pub(crate) struct ProxyMetrics {
    /// Time of DNS queries by part.
    #[metric(name = "upstream_reply_seconds", labels = ["error", "protocol_l7", "scope"])]
    reply: HistogramVec,
    /// Redirects to proxies.
    #[metric(name = "redirects", labels = ["protocol_l7"])]
    pub(crate) redirects: GaugeVec,
    /// DNS answers that were passed on before policies allowed their addresses.
    #[metric(name = "datapath_update_timeout_total", disabled)]
    pub(crate) timeouts: Counter,
}

/// Metrics of queries.
#[derive(Debug, Metrics)]
#[metrics(prefix = "policy")]
pub(crate) struct QueryMetrics {
    /// Requests and answers of proxies by verdict.
    #[metric(name = "l7_total", labels = ["rule", "proxy_type"])]
    total: CounterVec,
}

impl QueryMetrics {
    /// `received`, `forwarded`, `denied` or `parse_errors`.
    pub(crate) fn count(&self, rule: &'static str) {
        self.total.with([rule, "fqdn"]).inc();
    }
}

/// Times of a query.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) semaphore: Duration,
    pub(crate) policy: Duration,
    pub(crate) upstream: Duration,
    pub(crate) dataplane: Duration,
    pub(crate) total: Duration,
}

impl ProxyMetrics {
    /// `error` is `allow`, `denied`, `proxyErr` or `timeout`.
    pub(crate) fn observe(&self, error: &'static str, times: &Times) {
        let processing = times.total.saturating_sub(times.upstream + times.semaphore);
        for (scope, time) in [
            ("totalTime", times.total),
            ("upstreamTime", times.upstream),
            ("processingTime", processing),
            ("semaphoreTime", times.semaphore),
            ("policyCheckTime", times.policy),
            ("dataplaneTime", times.dataplane),
        ] {
            self.reply.with([error, "dns", scope]).observe(time.as_secs_f64());
        }
    }
}
