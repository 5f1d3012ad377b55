// SPDX-License-Identifier: Apache-2.0

//! When a row was written.

use std::sync::Arc;

use hive_script::text::human_duration_nanos;
use jiff::{SignedDuration, Timestamp};
use statedb::clock::Clock;

/// A time, and the clock that its age is measured by.
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

    /// Time since then; negative if it is in the future.
    pub fn age(&self) -> SignedDuration {
        self.clock.since(self.at)
    }

    /// The age as tables show it, such as `60s`.
    pub(super) fn age_text(&self) -> String {
        let nanos = self.age().as_nanos().clamp(i64::MIN.into(), i64::MAX.into());
        human_duration_nanos(i64::try_from(nanos).unwrap_or(i64::MAX))
    }
}
