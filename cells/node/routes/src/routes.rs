// SPDX-License-Identifier: Apache-2.0

//! Intervals and the protocol of all routes that are made here.

use std::time::Duration;

use skep_base_net::packet::route::RouteProtocol;

/// Marks the routes that are made here, so that a later process finds them.
pub(crate) const PROTOCOL: RouteProtocol = RouteProtocol::Other(207);
/// Interval of comparisons with the kernel, for a few nodes.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Changes within this time are applied at once.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);
/// Pause before what failed is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// How often routes are compared with those of the kernel: 42 s for one node, 7 min for 1,000.
pub(crate) fn check_interval(nodes: usize) -> Duration {
    CHECK_INTERVAL.mul_f64((nodes as f64).ln_1p().max(0.5))
}

/// Runs netlink requests off the executor's threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nodes_are_compared_less_often() {
        let seconds = [0, 1, 10, 1000].map(|nodes| check_interval(nodes).as_secs());
        assert_eq!(seconds, [30, 41, 143, 414]);
    }
}
