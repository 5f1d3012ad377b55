// SPDX-License-Identifier: Apache-2.0

//! Tests of the API server as its users see it. One program: linking each costs seconds.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod events;
mod ownership;
mod pods;
mod support;
