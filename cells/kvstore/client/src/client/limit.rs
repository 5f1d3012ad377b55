// SPDX-License-Identifier: Apache-2.0

//! Limits how many operations a client does.

use std::sync::Arc;

use skep_base_limiter::{Limiter, Parameters, Permit, Recorder};

use crate::options::RateLimit;

/// The limits of a client: those of the bootstrap first.
#[derive(Debug)]
pub(crate) struct Limit {
    limiter: Limiter,
    rate: f64,
}

impl Limit {
    pub(crate) fn new(limit: RateLimit, name: String, recorder: Arc<dyn Recorder>) -> Self {
        let parameters = Parameters {
            rate: limit.bootstrap_qps.unwrap_or(limit.qps).into(),
            // The burst is that of normal operation also during the bootstrap.
            burst: limit.qps,
            parallel: match limit.max_inflight {
                0 => limit.qps,
                max => max,
            },
            ..Parameters::default()
        };
        Self {
            limiter: Limiter::new(name, parameters, recorder),
            rate: limit.qps.into(),
        }
    }

    /// From now on the rate is that of normal operation.
    pub(crate) fn bootstrapped(&self) {
        self.limiter.set_rate(self.rate);
    }

    /// Waits until an operation may begin.
    pub(crate) async fn acquire(&self) -> Permit<'_> {
        let admitted = self.limiter.acquire().await;
        admitted.expect("there is no longest wait")
    }

    /// Waits for a place among the operations under way, without a token: for what is part of an operation.
    pub(crate) async fn place(&self) -> Permit<'_> {
        self.limiter.place().await
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::operation::NoRecorder;

    async fn times(limit: &Limit, count: usize) -> Vec<u128> {
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..count {
            drop(limit.acquire().await);
            times.push((start.elapsed().as_millis() + 5) / 10 * 10);
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn the_bootstrap_has_a_rate_of_its_own() {
        let limit = RateLimit {
            qps: 1,
            bootstrap_qps: Some(10),
            max_inflight: 0,
        };
        let limit = Limit::new(limit, "etcd".to_owned(), Arc::new(NoRecorder));
        assert_eq!(times(&limit, 3).await, [0, 100, 200]);

        limit.bootstrapped();

        assert_eq!(times(&limit, 2).await, [1000, 2000]);
    }
}
