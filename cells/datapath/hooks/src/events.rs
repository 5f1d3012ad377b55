// SPDX-License-Identifier: Apache-2.0

//! Options of the programs that change while the agent runs.

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

/// What an [`EventSwitch`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventState {
    /// `None`: those of the settings.
    pub options: Option<EventOptions>,
    /// An endpoint has debug events.
    pub endpoint_debug: bool,
}

/// Current events of the programs.
#[derive(Debug, Default)]
pub struct EventSwitch(watch::Sender<EventState>);

impl EventSwitch {
    pub fn set(&self, options: EventOptions) {
        self.change(|state| state.options = Some(options));
    }

    pub fn set_endpoint_debug(&self, is_on: bool) {
        self.change(|state| state.endpoint_debug = is_on);
    }

    /// The state, to read and follow.
    pub fn subscribe(&self) -> watch::Receiver<EventState> {
        self.0.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut EventState)) {
        self.0.send_if_modified(|state| {
            let before = *state;
            change(state);
            *state != before
        });
    }
}

/// Whether the programs enforce the rates of endpoints: they do once devices can pace packets.
#[derive(Debug, Default)]
pub struct RateSwitch(watch::Sender<bool>);

impl RateSwitch {
    pub fn set(&self, is_on: bool) {
        self.0
            .send_if_modified(|state| std::mem::replace(state, is_on) != is_on);
    }

    /// The state, to read and follow.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}
