// SPDX-License-Identifier: Apache-2.0

//! Integration tests, linked as one program.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

mod cleanup;
mod collect;
mod datapath;
mod enable_config;
mod flows;
#[cfg(feature = "kvstore")]
mod kvstore;
mod maps;
mod monitor;
mod recorded;
mod shell;
