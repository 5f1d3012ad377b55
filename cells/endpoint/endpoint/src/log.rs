// SPDX-License-Identifier: Apache-2.0

//! Events in the life of an endpoint.

use std::{borrow::Cow, collections::VecDeque, fmt, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::EndpointState;

/// Events that are kept of an endpoint.
const LONGEST: usize = 256;

/// Outcome of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusCode {
    #[default]
    Ok,
    Warning,
    Failure,
}

impl StatusCode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "Warning",
            Self::Failure => "Failure",
        }
    }
}

/// An event in the life of an endpoint.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub code: StatusCode,
    pub message: Cow<'static, str>,
    /// State after the event.
    pub state: EndpointState,
    pub at: Timestamp,
}

/// The last events of an endpoint; rows of one endpoint share it.
#[derive(Clone, Default)]
pub struct StatusLog(Arc<Mutex<VecDeque<LogEntry>>>);

impl StatusLog {
    pub(crate) fn add(&self, code: StatusCode, state: EndpointState, message: impl Into<Cow<'static, str>>) {
        let mut entries = self.0.lock();
        if entries.len() == LONGEST {
            entries.pop_back();
        }
        entries.push_front(LogEntry {
            code,
            message: message.into(),
            state,
            at: Timestamp::now(),
        });
    }

    pub(crate) fn ok(&self, state: EndpointState, message: impl Into<Cow<'static, str>>) {
        self.add(StatusCode::Ok, state, message);
    }

    /// Events, the last one first.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.0.lock().iter().cloned().collect()
    }

    pub fn last(&self) -> Option<LogEntry> {
        self.0.lock().front().cloned()
    }

    pub(crate) fn last_state(&self) -> Option<EndpointState> {
        self.0.lock().front().map(|entry| entry.state)
    }
}

impl PartialEq for StatusLog {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for StatusLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter()).finish()
    }
}
