// SPDX-License-Identifier: Apache-2.0

//! A section: the commands since the last line that starts with `#`.

use std::time::Instant;

use super::Step;
use crate::State;

/// The section being run.
pub(super) struct Section {
    pub(super) steps: Vec<Step>,
    started: Option<Instant>,
}

impl Section {
    /// The start of a script, before any header.
    pub(super) fn new() -> Self {
        Self {
            steps: Vec::new(),
            started: None,
        }
    }

    /// Prints the header, without the newline: the duration comes behind it at the end. Log text is held back.
    pub(super) fn begin(&mut self, state: &mut State, header: &str) {
        state.log.write_now(header);
        state.log.hold();
        self.started = Some(Instant::now());
    }

    /// Prints the duration and what was held back.
    pub(super) fn end(&mut self, state: &mut State, ok: bool) {
        self.steps.clear();
        let (Some(started), Some(held)) = (self.started.take(), state.log.release()) else {
            return;
        };
        if held.is_empty() {
            state.log.write_now("\n");
            return;
        }
        state
            .log
            .write_now(&format!(" ({:.3}s)\n", started.elapsed().as_secs_f64()));
        if !(ok && state.quiet) {
            state.log.write_now(&held);
        }
    }

    /// Prints what was held back, without a duration: from here on log text is shown at once.
    pub(super) fn stream(&mut self, state: &mut State) {
        if let Some(held) = state.log.release() {
            state.log.write_now("\n");
            state.log.write_now(&held);
        }
    }
}
