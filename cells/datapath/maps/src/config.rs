// SPDX-License-Identifier: Apache-2.0

//! Settings of the maps.

use std::path::PathBuf;

use crate::BufferSettings;

/// Settings of the store of pinned maps.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Mount point of the BPF file system; mounted if missing.
    #[config(default = "/sys/fs/bpf", flag = "bpf-root")]
    pub bpf_root: PathBuf,
}

/// Settings of all maps, wherever they are.
#[derive(Debug, Clone, hive::Config)]
pub struct EventConfig {
    /// Event buffers of maps for `skep map events`: `<map>=enabled_<entries>_<ttl>`, comma-separated; `cilium_lxc` has one anyway.
    #[config(default = "", flag = "bpf-map-event-buffers")]
    pub buffers: BufferSettings,
}
