// SPDX-License-Identifier: Apache-2.0

//! Service accounts: what namespaces and pods get, tokens, and who requests come from.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod events;
mod pods;
mod server;
mod tokens;
