// SPDX-License-Identifier: Apache-2.0

//! Clocks for tests.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::clock::Clock;

/// A clock that always shows the same time and reports the same age for every time.
///
/// ```
/// use statedb::{clock::Clock, testing::FixedClock};
///
/// let clock = FixedClock { now: "2000-01-01T10:30:00Z".parse()?, age: jiff::SignedDuration::from_mins(1) };
/// assert_eq!(clock.since(clock.now()).as_secs(), 60);
/// # Ok::<(), jiff::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FixedClock {
    /// The time it shows.
    pub now: Timestamp,
    /// The age of every time.
    pub age: SignedDuration,
}

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn since(&self, _: Timestamp) -> SignedDuration {
        self.age
    }
}

/// A clock that starts at the Unix epoch and runs with tokio's, which a test can pause and advance.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock(Instant);

impl TokioClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.0.elapsed()
    }
}
