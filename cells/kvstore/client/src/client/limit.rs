// SPDX-License-Identifier: Apache-2.0

//! Limits how many operations a client does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::operation::{LimiterUsage, Limits, Recorder};
use crate::options::RateLimit;

/// Over how many operations means are taken.
const MEAN_OVER: usize = 10;

/// A token bucket and a number of operations at once. Those who wait are served in order of arrival.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Name of the client.
    name: String,
    recorder: Arc<dyn Recorder>,
    bucket: Mutex<Bucket>,
    /// Rate after the bootstrap.
    rate: f64,
    max_inflight: Option<u32>,
    inflight: Option<Semaphore>,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    in_flight: u32,
    waits: Mean,
    processing: Mean,
}

/// The mean of the last durations.
#[derive(Debug, Default)]
struct Mean(VecDeque<Duration>);

impl Mean {
    fn add(&mut self, duration: Duration) {
        self.0.truncate(MEAN_OVER - 1);
        self.0.push_front(duration);
    }

    fn get(&self) -> Duration {
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.iter().sum::<Duration>() / count.max(1)
    }
}

#[derive(Debug)]
struct Bucket {
    /// Tokens a second; 0 for no limit.
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Option<Instant>,
}

/// Leave to do one operation; ends when dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    limiter: &'a Limiter,
    /// Since when the operation is under way; `None` while it waits for a token.
    since: Option<Instant>,
    #[expect(dead_code, reason = "held until the operation ends")]
    place: Option<SemaphorePermit<'a>>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.changed(|usage| {
            usage.in_flight -= 1;
            if let Some(since) = self.since {
                usage.processing.add(since.elapsed());
            }
        });
    }
}

impl Limiter {
    pub(crate) fn new(limit: RateLimit, name: String, recorder: Arc<dyn Recorder>) -> Self {
        let rate = f64::from(limit.qps);
        let inflight = match (limit.max_inflight, limit.qps) {
            (0, 0) => None,
            (0, qps) => Some(qps),
            (max, _) => Some(max),
        };
        let limiter = Self {
            name,
            recorder,
            bucket: Mutex::new(Bucket {
                rate: limit.bootstrap_qps.map_or(rate, f64::from),
                // The burst is that of normal operation also during the bootstrap.
                burst: rate.max(1.0),
                tokens: rate.max(1.0),
                at: None,
            }),
            rate,
            max_inflight: inflight,
            inflight: inflight.map(|max| Semaphore::new(max as usize)),
            usage: Mutex::default(),
        };
        limiter.record_limits(&limiter.bucket.lock());
        limiter
    }

    fn record_limits(&self, bucket: &Bucket) {
        let limits = Limits {
            rate: bucket.rate,
            burst: bucket.burst,
            in_flight: self.max_inflight,
        };
        self.recorder.limits(&self.name, &limits);
    }

    /// From now on the rate is that of normal operation.
    pub(crate) fn bootstrapped(&self) {
        let mut bucket = self.bucket.lock();
        bucket.refill(Instant::now());
        // Who waits already has a time; who comes now does not wait for them at the lower rate.
        bucket.tokens = bucket.tokens.max(0.0);
        bucket.rate = self.rate;
        self.record_limits(&bucket);
    }

    /// Waits until an operation may begin.
    pub(crate) async fn acquire(&self) -> Permit<'_> {
        // First a place, then a token: whoever waits for a place holds no token that others could use.
        let started = Instant::now();
        let mut permit = self.enter().await;
        let wait = self.bucket.lock().reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let now = Instant::now();
        permit.since = Some(now);
        self.changed(|usage| usage.waits.add(now - started));
        permit
    }

    /// Waits for a place among the operations under way, without a token: for what is part of an operation.
    pub(crate) async fn place(&self) -> Permit<'_> {
        let mut permit = self.enter().await;
        permit.since = Some(Instant::now());
        self.changed(|_| {});
        permit
    }

    async fn enter(&self) -> Permit<'_> {
        let place = match &self.inflight {
            // The semaphore is never closed.
            Some(inflight) => inflight.acquire().await.ok(),
            None => None,
        };
        self.usage.lock().in_flight += 1;
        Permit {
            limiter: self,
            since: None,
            place,
        }
    }

    /// Records a change of the usage.
    fn changed(&self, change: impl FnOnce(&mut Usage)) {
        let mut usage = self.usage.lock();
        change(&mut usage);
        let now = LimiterUsage {
            in_flight: usage.in_flight,
            mean_wait: usage.waits.get(),
            mean_processing: usage.processing.get(),
        };
        // With the lock: what is later is not overwritten.
        self.recorder.usage(&self.name, &now);
    }
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let passed = self
            .at
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
    }

    /// Takes a token, and returns after what time the operation may begin.
    fn reserve(&mut self, now: Instant) -> Duration {
        if self.rate <= 0.0 {
            return Duration::ZERO;
        }
        self.refill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.tokens / self.rate)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::NoRecorder;

    fn limiter(limit: RateLimit) -> Limiter {
        Limiter::new(limit, "etcd".to_owned(), Arc::new(NoRecorder))
    }

    async fn times(limiter: &Limiter, count: usize) -> Vec<u128> {
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..count {
            drop(limiter.acquire().await);
            times.push((start.elapsed().as_millis() + 5) / 10 * 10);
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let limiter = limiter(RateLimit {
            qps: 4,
            bootstrap_qps: None,
            max_inflight: 0,
        });

        assert_eq!(times(&limiter, 6).await, [0, 0, 0, 0, 250, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_bootstrap_has_a_rate_of_its_own() {
        let limiter = limiter(RateLimit {
            qps: 1,
            bootstrap_qps: Some(10),
            max_inflight: 0,
        });
        assert_eq!(times(&limiter, 3).await, [0, 100, 200]);

        limiter.bootstrapped();

        assert_eq!(times(&limiter, 2).await, [1000, 2000]);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_operations_are_under_way_at_once() {
        let limiter = limiter(RateLimit {
            qps: 0,
            bootstrap_qps: None,
            max_inflight: 2,
        });
        let first = limiter.acquire().await;
        let _second = limiter.acquire().await;

        let third = tokio::time::timeout(Duration::from_secs(60), limiter.acquire()).await;
        assert!(third.is_err());

        drop(first);
        limiter.acquire().await;
    }
}
