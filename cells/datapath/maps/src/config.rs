// SPDX-License-Identifier: Apache-2.0

//! Settings of the store of pinned maps.

use std::path::PathBuf;

/// Settings of the store of pinned maps.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Root of the BPF file system, mounted if nothing is there.
    #[config(default = "/sys/fs/bpf", flag = "bpf-root")]
    pub bpf_root: PathBuf,
}
