// SPDX-License-Identifier: Apache-2.0

//! Limits the rate of requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket: `burst` requests at once, then `rate` a second. Waiting requests are served in order of arrival.
#[derive(Debug)]
pub(super) struct TokenBucket {
    /// Tokens a second; 0 for no limit.
    rate: f64,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Option<Instant>,
}

impl TokenBucket {
    pub(super) fn new(rate: f64, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            rate: rate.max(0.0),
            burst,
            state: Mutex::new(State {
                tokens: burst,
                at: None,
            }),
        }
    }

    /// Takes a token; returns the time after which the request may be sent.
    fn reserve(&self, now: Instant) -> Duration {
        if self.rate == 0.0 {
            return Duration::ZERO;
        }
        let mut state = self.state.lock();
        let passed = state
            .at
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        state.at = Some(now);
        state.tokens = (state.tokens + passed * self.rate).min(self.burst) - 1.0;
        if state.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::try_from_secs_f64(-state.tokens / self.rate).unwrap_or(Duration::MAX)
        }
    }

    /// Waits until a request may be sent.
    pub(super) async fn wait(&self) {
        let wait = self.reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_goes_at_once_and_the_rest_at_the_rate() {
        let bucket = TokenBucket::new(10.0, 3);
        let start = Instant::now();
        let mut times = Vec::new();

        for _ in 0..6 {
            bucket.wait().await;
            times.push(start.elapsed().as_millis() / 10 * 10);
        }

        assert_eq!(times, [0, 0, 0, 100, 200, 300]);
    }

    #[test]
    fn a_rate_of_next_to_nothing_is_a_wait_without_end() {
        let bucket = TokenBucket::new(f64::MIN_POSITIVE, 1);
        let now = Instant::now();

        assert_eq!(bucket.reserve(now), Duration::ZERO);
        assert_eq!(bucket.reserve(now), Duration::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_tokens_do_not_exceed_the_burst() {
        let bucket = TokenBucket::new(10.0, 2);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();

        for _ in 0..3 {
            bucket.wait().await;
        }

        assert_eq!(start.elapsed().as_millis() / 10 * 10, 100);
    }
}
