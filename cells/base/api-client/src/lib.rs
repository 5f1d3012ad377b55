// SPDX-License-Identifier: Apache-2.0

//! Blocking client of the agent's API, over its unix socket: typed by `skep-base-api-types`, without an async runtime.
//!
//! Each request has a connection of its own. The client's timeout is that of each read and write: a long answer may take
//! longer.

mod client;
mod error;
mod http;

pub use client::{Client, DEFAULT_SOCKET};
pub use error::ClientError;
