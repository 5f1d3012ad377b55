// SPDX-License-Identifier: Apache-2.0

use std::{io, path::PathBuf};

/// Why a request to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent listens; is it running, and is the socket path right?
    #[error("cannot reach the agent at {} (is it running?)", socket.display())]
    Unreachable {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The agent listens on a unix socket only.
    #[error(
        "`{address}` is no unix socket: the agent is reached at a path such as unix:///var/run/cilium/cilium.sock"
    )]
    Address { address: String },

    /// The connection broke, there was no answer in time, or it was no HTTP.
    #[error("connection to the agent broke at {request}")]
    Broken {
        request: String,
        #[source]
        source: io::Error,
    },

    /// The agent answered with an error.
    #[error("the agent answered {status} to {request}: {text}")]
    Refused {
        request: String,
        status: u16,
        /// Its text, without the quotes of JSON.
        text: String,
    },

    /// The body of a request or an answer is not of its model.
    #[error("cannot read or write the JSON of {request}")]
    Json {
        request: String,
        #[source]
        source: serde_json::Error,
    },

    /// The caller could not use what came; is the disk full?
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

impl ClientError {
    /// Status of an answer that is an error.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The agent limits requests (429) or is starting (503): try again later.
    pub fn is_busy(&self) -> bool {
        matches!(self.status(), Some(429 | 503))
    }
}
