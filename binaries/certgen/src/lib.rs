// SPDX-License-Identifier: Apache-2.0

//! Certificates of a cluster as Secrets: the authority, and those that it signs. Options and configuration are those of Cilium's
//! certgen; rights are those of the chart: Secrets of certificates are written, but never read.

mod authority;
mod config;
mod key;
mod secrets;

pub use config::{Certificate, ConfigError, Options};
pub use secrets::{GenerateError, generate};
