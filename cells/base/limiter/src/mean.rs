// SPDX-License-Identifier: Apache-2.0

//! The mean of the last durations.

use std::collections::VecDeque;
use std::time::Duration;

/// The mean of the last durations.
#[derive(Debug)]
pub(crate) struct Mean {
    last: VecDeque<Duration>,
    over: usize,
}

impl Mean {
    /// A mean of so many durations; one at least.
    pub(crate) fn over(over: usize) -> Self {
        Self {
            last: VecDeque::new(),
            over: over.max(1),
        }
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        self.last.truncate(self.over - 1);
        self.last.push_front(duration);
    }

    /// The mean; zero if there is no duration.
    pub(crate) fn get(&self) -> Duration {
        let count = u32::try_from(self.last.len()).unwrap_or(u32::MAX);
        self.last.iter().sum::<Duration>() / count.max(1)
    }
}
