// SPDX-License-Identifier: Apache-2.0

//! Intervals and the protocol of all routes that are made here.

use std::time::Duration;

use skep_base_net::packet::route::RouteProtocol;

/// Marks the routes that are made here, so that a later process finds them.
pub(crate) const PROTOCOL: RouteProtocol = RouteProtocol::Other(207);
/// How often routes are compared with those of the kernel.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Changes within this time are applied at once.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);
/// Pause before what failed is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// Runs netlink requests off the executor's threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
