// SPDX-License-Identifier: Apache-2.0

//! The wall clock that the times in tables are from.
//!
//! Cells take an `Option<Arc<dyn Clock>>` and use [`SystemClock`] without one. Tests provide one of the clocks of
//! `testing`.

use std::fmt::Debug;

use jiff::{SignedDuration, Timestamp};

/// A wall clock. Tests replace it to get reproducible tables.
///
/// ```
/// use std::sync::Arc;
///
/// use statedb::{clock::Clock, reconciler::Config};
///
/// #[derive(Debug)]
/// struct Epoch;
/// impl Clock for Epoch {
///     fn now(&self) -> jiff::Timestamp { jiff::Timestamp::UNIX_EPOCH }
/// }
/// let config = Config { clock: Arc::new(Epoch), ..Config::default() };
/// assert_eq!(config.clock.now().as_second(), 0);
/// ```
pub trait Clock: Debug + Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// Time from `time` until now; negative if it is in the future.
    fn since(&self, time: Timestamp) -> SignedDuration {
        self.now().duration_since(time)
    }
}

/// The clock of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
