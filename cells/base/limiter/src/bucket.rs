// SPDX-License-Identifier: Apache-2.0

//! A token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// What rounding may lack of a token.
const ROUNDING: f64 = 1e-6;

/// Tokens come at a rate, up to a burst. It is full at first.
///
/// ```
/// use std::time::Duration;
/// use skep_base_limiter::TokenBucket;
///
/// let now = tokio::time::Instant::now();
/// let mut bucket = TokenBucket::new(10.0, 1.0);
/// assert_eq!(bucket.wait(now), Duration::ZERO);
/// bucket.take();
/// assert_eq!(bucket.wait(now), Duration::from_millis(100));
/// ```
#[derive(Debug, Clone)]
pub struct TokenBucket {
    rate: f64,
    burst: f64,
    /// Below 0 if tokens that have not come yet are taken.
    tokens: f64,
    at: Option<Instant>,
}

impl TokenBucket {
    /// A bucket with a rate, in tokens a second, and a burst. A rate of 0 is no limit.
    #[must_use]
    pub fn new(rate: f64, burst: f64) -> Self {
        Self {
            rate,
            burst,
            tokens: burst,
            at: None,
        }
    }

    /// Tokens a second; 0 for no limit.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    #[must_use]
    pub fn burst(&self) -> f64 {
        self.burst
    }

    /// Sets rate and burst from now on. Tokens stay, as far as the burst allows.
    pub fn set(&mut self, rate: f64, burst: f64, now: Instant) {
        self.refill(now);
        (self.rate, self.burst) = (rate, burst);
        self.tokens = self.tokens.min(burst);
    }

    /// How long it takes until there is a token to take; zero if there is one.
    pub fn wait(&mut self, now: Instant) -> Duration {
        self.refill(now);
        if self.rate <= 0.0 || self.tokens >= 1.0 - ROUNDING {
            return Duration::ZERO;
        }
        // A rate of one token in many years is no rate that a clock can be set to.
        Duration::try_from_secs_f64((1.0 - self.tokens) / self.rate).unwrap_or(Duration::MAX)
    }

    /// Takes a token. Without one it takes the next that comes: whoever [waits](Self::wait) then waits for the one after it.
    pub fn take(&mut self) {
        if self.rate > 0.0 {
            self.tokens -= 1.0;
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = self
            .at
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times, in hundredths of a second, at which `count` tokens can be taken in advance.
    fn times(bucket: &mut TokenBucket, now: Instant, count: usize) -> Vec<u128> {
        let take = || {
            let wait = bucket.wait(now);
            bucket.take();
            wait.as_millis() / 10
        };
        std::iter::repeat_with(take).take(count).collect()
    }

    #[test]
    fn burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = TokenBucket::new(10.0, 3.0);

        assert_eq!(times(&mut bucket, Instant::now(), 6), [0, 0, 0, 10, 20, 30]);
    }

    #[test]
    fn unused_tokens_do_not_exceed_the_burst() {
        let mut bucket = TokenBucket::new(10.0, 2.0);
        let now = Instant::now();
        times(&mut bucket, now, 1);

        let later = now + Duration::from_secs(60);

        assert_eq!(times(&mut bucket, later, 3), [0, 0, 10]);
    }

    #[test]
    fn another_rate_counts_from_then_on() {
        let mut bucket = TokenBucket::new(10.0, 4.0);
        let now = Instant::now();
        times(&mut bucket, now, 4);

        // Two tokens have come; one is left by the new burst.
        let then = now + Duration::from_millis(200);
        bucket.set(1.0, 1.0, then);

        assert_eq!(times(&mut bucket, then, 2), [0, 100]);
    }

    #[test]
    fn a_rate_of_next_to_nothing_is_a_wait_without_end() {
        let mut bucket = TokenBucket::new(f64::MIN_POSITIVE, 1.0);
        bucket.take();

        assert_eq!(bucket.wait(Instant::now()), Duration::MAX);
    }

    #[test]
    fn a_rate_of_nothing_is_no_limit() {
        let mut bucket = TokenBucket::new(0.0, 1.0);

        assert_eq!(times(&mut bucket, Instant::now(), 3), [0, 0, 0]);
    }
}
