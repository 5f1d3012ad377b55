// SPDX-License-Identifier: Apache-2.0

//! Network namespaces of this node's pods, where container runtimes and CNI plugins pin them.

use std::{path::PathBuf, sync::Arc};

use skep_socketlb::PodNetworks;

/// Where runtimes pin namespaces.
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

/// Pinned namespaces as a value of the hive.
pub(crate) fn networks() -> Arc<dyn PodNetworks> {
    Arc::new(PinnedNetworks)
}
