// SPDX-License-Identifier: Apache-2.0

//! Networks that packets of pods reach without masquerade, from the file of the ip-masq-agent.
//!
//! [`cell`] reads the file (a ConfigMap that is mounted) every few seconds and writes `cilium_ipmasq_v4` and
//! `cilium_ipmasq_v6`, which `cil_to_netdev` looks up. A file that cannot be read or has errors changes nothing.

mod cell;
mod file;

pub use cell::cell;
pub use file::{FileError, Networks};

hive::catalogue!(cell);
