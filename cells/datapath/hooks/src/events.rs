// SPDX-License-Identifier: Apache-2.0

//! What programs report, where it changes while the agent runs.

use tokio::sync::watch;

/// Events that the programs of the node report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventOptions {
    pub drops: bool,
    pub traces: bool,
    pub verdicts: bool,
    pub debug: bool,
    /// Level of aggregation: 0 none, 4 maximum.
    pub aggregation: u8,
}

/// Current [`EventOptions`]; `None`: those of the settings.
#[derive(Debug)]
pub struct EventSwitch(watch::Sender<Option<EventOptions>>);

impl Default for EventSwitch {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl EventSwitch {
    pub fn set(&self, options: EventOptions) {
        self.0.send_replace(Some(options));
    }

    /// The options, to read and follow.
    pub fn subscribe(&self) -> watch::Receiver<Option<EventOptions>> {
        self.0.subscribe()
    }
}
