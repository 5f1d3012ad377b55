// SPDX-License-Identifier: Apache-2.0

//! Settings: who the local cluster is.

use super::{ClusterInfo, ClusterName};
use crate::clusters::MaxConnectedClusters;
use hive::Cell;
use hive::config::Faults;

/// Name and id of the local cluster, and the size of the mesh. Cells read it as `Cfg<ClusterSettings>`.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = ClusterSettings::check)]
pub struct ClusterSettings {
    /// Name of the cluster: at most 32 lower-case letters, digits and dashes. Must not be `default` if the
    /// cluster has an id.
    #[config(default = "default")]
    pub cluster_name: String,
    /// Id of the cluster, unique in the mesh: 1 to `max-connected-clusters`, or 0 outside of a mesh.
    #[config(default = 0)]
    pub cluster_id: u32,
    /// Maximum number of clusters in the mesh: 255 or 511. Must be the same in all clusters and must not
    /// change.
    #[config(default = 255)]
    pub max_connected_clusters: u32,
}

/// Cell: declares [`ClusterSettings`].
pub fn cell() -> Cell {
    Cell::module("cluster-info", "Name and id of the local cluster").config::<ClusterSettings>()
}

impl ClusterSettings {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.cluster_name.parse::<ClusterName>() {
            faults.add("cluster-name", error.to_string());
        }
        if let Err(error) = MaxConnectedClusters::try_from(self.max_connected_clusters) {
            faults.add("max-connected-clusters", error.to_string());
        }
        for error in self.info().check().err().into_iter().flatten() {
            faults.add("cluster-id", error.to_string());
        }
    }

    /// The local cluster. Settings were checked: what is invalid counts as not set.
    pub fn info(&self) -> ClusterInfo {
        ClusterInfo {
            name: self.cluster_name.parse().unwrap_or_default(),
            id: self.cluster_id,
            max_connected_clusters: MaxConnectedClusters::try_from(self.max_connected_clusters)
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};

    use super::*;

    fn faults(args: &[&str]) -> String {
        let settings = Settings::new().args(args.iter().copied());
        let hive = Hive::new([
            cell(),
            Cell::module("reader", "Reads").run(|_: hive::Cfg<ClusterSettings>| ()),
        ]);
        match hive.plan(settings) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn settings_of_a_mesh_are_checked_together() {
        assert_eq!(faults(&["--cluster-id=7", "--cluster-name=alder"]), "");
        assert_eq!(faults(&[]), "");
        for (args, expected) in [
            (
                &["--cluster-id=7"][..],
                "cannot use default cluster name with cluster id 7",
            ),
            (
                &["--cluster-id=256", "--cluster-name=a"],
                "invalid cluster id 256: it must be from 0 to 255",
            ),
            (&["--cluster-name=Alder"], "invalid cluster name `Alder`"),
            (
                &["--max-connected-clusters=300"],
                "unsupported number of clusters 300",
            ),
        ] {
            let faults = faults(args);
            assert!(faults.contains(expected), "{expected} in {faults}");
        }
        let settings = [
            "--cluster-id=511",
            "--cluster-name=a",
            "--max-connected-clusters=511",
        ];
        assert_eq!(faults(&settings), "");
    }
}
