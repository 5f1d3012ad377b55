// SPDX-License-Identifier: Apache-2.0

//! Time as tables show it.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// A wall clock. Tests replace it to get reproducible tables.
pub trait Clock: Debug + Send + Sync {
    /// What time it is.
    fn now(&self) -> Timestamp;

    /// How long ago a time was.
    fn since(&self, time: Timestamp) -> SignedDuration {
        self.now().duration_since(time)
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that stands still: it always is `now`, and everything was `ago` before.
///
/// ```
/// use skep_k8s::clock::{Clock, FixedClock};
///
/// let clock = FixedClock { now: "2000-01-01T10:30:00Z".parse()?, ago: jiff::SignedDuration::from_mins(1) };
/// assert_eq!(clock.since(clock.now()).as_secs(), 60);
/// # Ok::<(), jiff::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FixedClock {
    /// What time it is.
    pub now: Timestamp,
    /// How long ago everything was.
    pub ago: SignedDuration,
}

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn since(&self, _: Timestamp) -> SignedDuration {
        self.ago
    }
}

/// A time and the clock that tells how long ago it was.
#[derive(Debug, Clone)]
pub struct Stamp {
    at: Timestamp,
    clock: Arc<dyn Clock>,
}

impl Stamp {
    /// Now.
    pub fn now(clock: &Arc<dyn Clock>) -> Self {
        Self::of(clock, clock.now())
    }

    /// A given time.
    pub fn of(clock: &Arc<dyn Clock>, at: Timestamp) -> Self {
        Self {
            at,
            clock: clock.clone(),
        }
    }

    /// The time.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// How long ago it was.
    pub fn age(&self) -> SignedDuration {
        self.clock.since(self.at)
    }
}
