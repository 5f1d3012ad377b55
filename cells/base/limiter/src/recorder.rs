// SPDX-License-Identifier: Apache-2.0

//! Who measures limiters.

use std::fmt;
use std::time::Duration;

use crate::parameters::Parameters;

/// How many requests a limiter admits now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Requests a second; 0 for no limit.
    pub rate: f64,
    /// Requests that are admitted at once after a pause.
    pub burst: f64,
    /// Requests under way; `None` for no limit.
    pub in_flight: Option<u32>,
    /// By what the limits were adjusted last; `None` if they are fixed.
    pub adjustment: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimiterUsage {
    pub in_flight: u32,
    /// How long the last requests waited, on average.
    pub mean_wait: Duration,
    /// How long the last requests took, without their wait, on average.
    pub mean_processing: Duration,
}

/// Measures limiters, by their names. All methods return at once.
pub trait Recorder: fmt::Debug + Send + Sync {
    fn made(&self, limiter: &str, parameters: &Parameters) {
        let _ = (limiter, parameters);
    }

    /// The limits of a limiter were set or adjusted.
    fn limits(&self, limiter: &str, limits: &Limits) {
        let _ = (limiter, limits);
    }

    /// A request was admitted, or has ended.
    fn usage(&self, limiter: &str, usage: &LimiterUsage) {
        let _ = (limiter, usage);
    }

    /// A request has ended and was answered, or waited for too long.
    fn processed(&self, limiter: &str, is_success: bool) {
        let _ = (limiter, is_success);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecorder;

impl Recorder for NoRecorder {}
