// SPDX-License-Identifier: Apache-2.0

//! Remote clusters of the agent: as text, and how they are configured.

pub(crate) mod enable;
mod remote_config;
mod secret;

use jiff::Timestamp;
use skep_base_api_client::Client;
use skep_base_api_types::{ClusterMeshStatus, StatusResponse, clusters_summary};

/// What checks of remote clusters say without any.
pub(crate) const DISABLED: &str = "Unable to retrieve cluster configurations: open /var/lib/cilium/clustermesh/: \
                                   no such file or directory\nThis is expected when Cluster Mesh is disabled\n";

/// Whether the agent may have remote clusters; one that does not answer may.
pub(crate) fn is_configured(agent: &Client) -> bool {
    let answer = agent.get::<StatusResponse>("healthz", &[]);
    !answer.is_ok_and(|answer| answer.cluster_mesh.is_none())
}

/// The line about all clusters and, below it, those that are not ready or all of them.
pub(crate) fn clusters(mesh: &ClusterMeshStatus, all: bool, now: Timestamp) -> String {
    let mut out = format!("ClusterMesh:\t{}\n", clusters_summary(&mesh.clusters));
    for cluster in mesh.clusters.iter().filter(|cluster| all || !cluster.ready) {
        for line in cluster.text(now).lines() {
            out.push_str(&format!("   {line}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use skep_base_api_types::RemoteClusterStatus;

    use super::*;

    #[test]
    fn clusters_that_are_ready_are_shown_on_demand() {
        let cluster = |name: &str, ready| RemoteClusterStatus {
            name: name.to_owned(),
            ready,
            status: "as it is".to_owned(),
            ..RemoteClusterStatus::default()
        };
        let mesh = ClusterMeshStatus {
            clusters: vec![cluster("alder", true), cluster("birch", false)],
        };
        let first_lines = |all| {
            let text = clusters(&mesh, all, Timestamp::UNIX_EPOCH);
            let lines = text.lines().filter(|line| !line.contains('└'));
            lines
                .map(|line| line.split(',').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };

        assert_eq!(
            first_lines(false),
            ["ClusterMesh:\t1/2 remote clusters ready", "   birch: not-ready"]
        );
        assert_eq!(
            first_lines(true),
            [
                "ClusterMesh:\t1/2 remote clusters ready",
                "   alder: ready",
                "   birch: not-ready"
            ]
        );
        let text = clusters(&mesh, false, Timestamp::UNIX_EPOCH);
        assert!(text.contains("\n   └  as it is\n"), "{text}");
    }
}
