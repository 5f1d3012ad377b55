// SPDX-License-Identifier: Apache-2.0

//! Commands of programs that connect to remote clusters:
//!
//! - [`completion`] makes completion scripts for shells;
//! - [`shell`] runs commands in it;
//! - [`status`] asks such a program how the clusters are, at its `GET /v1/cluster`;
//! - [`troubleshoot`] tries the connections itself, from the configuration files;
//! - [`mod@line`] reads command lines and prints results.

pub mod completion;
pub mod line;
pub mod shell;
pub mod status;
pub mod troubleshoot;
