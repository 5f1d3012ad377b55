// SPDX-License-Identifier: Apache-2.0

//! Network namespaces of this node's pods, where container runtimes and CNI plugins pin them.

use std::{path::PathBuf, sync::Arc};

use hive::Cell;
use skep_datapath_hooks::PodNetworks;

const FOLDERS: [&str; 2] = ["/var/run/netns", "/var/run/docker/netns"];

struct PinnedNetworks;

impl PodNetworks for PinnedNetworks {
    fn namespaces(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = FOLDERS
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found
    }
}

hive::catalogue!(cell);

/// Reports to the datapath which network namespaces there are.
pub(crate) fn cell() -> Cell {
    Cell::module("pod-networks", "Network namespaces of pods").provide(networks)
}

/// Pinned namespaces as a value of the hive.
fn networks() -> Arc<dyn PodNetworks> {
    Arc::new(PinnedNetworks)
}
