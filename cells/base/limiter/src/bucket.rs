// SPDX-License-Identifier: Apache-2.0

//! A token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// What rounding may lack of a token.
const ROUNDING: f64 = 1e-6;

/// Tokens come at a rate, up to a burst.
#[derive(Debug)]
pub(crate) struct Bucket {
    tokens: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(burst: f64) -> Self {
        Self {
            tokens: burst,
            at: None,
        }
    }

    /// Adds the tokens that have come since the last call. To be called before the rate changes, too.
    pub(crate) fn refill(&mut self, rate: f64, burst: f64, now: Instant) {
        let passed = self
            .at
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.tokens = (self.tokens + passed * rate).min(burst);
    }

    /// Takes a token, or returns in what time there is one at this rate, which is more than 0.
    pub(crate) fn take(&mut self, rate: f64) -> Result<(), Duration> {
        if self.tokens >= 1.0 - ROUNDING {
            self.tokens = (self.tokens - 1.0).max(0.0);
            return Ok(());
        }
        // A rate of one token in many years is no rate that a clock can be set to.
        Err(Duration::try_from_secs_f64((1.0 - self.tokens) / rate).unwrap_or(Duration::MAX))
    }
}
