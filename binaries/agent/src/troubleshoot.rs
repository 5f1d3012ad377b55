// SPDX-License-Identifier: Apache-2.0

//! Cell: the command `clustermesh/troubleshoot`.
//!
//! Configuration files are read anew and connections are made anew, so it may succeed where the mesh has not reconnected yet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hive::{Cell, Cfg, Member};
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec};
use skep_clustermesh::{ClusterMesh, ClusterMeshSettings};
use skep_kvstore_etcd::troubleshoot::troubleshoot;

hive::catalogue!(cell);

/// Checks connections to remote clusters, step by step.
pub(crate) fn cell() -> Cell {
    Cell::module(
        "clustermesh-troubleshoot",
        "Checks connections to remote clusters",
    )
    .provide(command)
}

fn command(mesh: Arc<ClusterMesh>, settings: Cfg<ClusterMeshSettings>) -> Member<CommandHandle> {
    let timeout = Flag::duration("timeout", Duration::from_secs(5), "How long each check may take");
    Member(Arc::new(Troubleshoot {
        spec: Spec::new("clustermesh/troubleshoot", "Check connections to remote clusters")
            .args("[cluster]...")
            .detail("Checks all clusters that are configured, or those that are named.")
            .flag(timeout),
        mesh,
        directory: settings.clustermesh_config.clone(),
    }))
}

struct Troubleshoot {
    spec: Spec,
    mesh: Arc<ClusterMesh>,
    directory: PathBuf,
}

impl Troubleshoot {
    /// The clusters to check: all, or those that are named.
    fn names(&self, wanted: &[String]) -> Result<Vec<String>, CommandError> {
        let configured: Vec<String> = self.mesh.status().into_iter().map(|one| one.name).collect();
        if let Some(name) = wanted.iter().find(|name| !configured.contains(name)) {
            return Err(CommandError::new(format_args!(
                "cluster `{name}` is not configured"
            )));
        }
        Ok(match wanted {
            [] => configured,
            _ => wanted.to_vec(),
        })
    }

    async fn check(&self, names: &[String], limit: Duration) -> String {
        let mut text = format!("Found {} remote cluster configurations\n", names.len());
        for name in names {
            let findings = troubleshoot(&self.directory.join(name), limit).await;
            text.push_str(&format!("\nRemote cluster \"{name}\":\n{}", findings.text));
        }
        text
    }
}

#[async_trait]
impl Command for Troubleshoot {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let names = self.names(inv.args())?;
        let checked = self.check(&names, inv.duration("timeout"));
        Ok(Outcome::stdout(cx.until_interrupted(checked).await?))
    }
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};

    use super::*;

    async fn check(wanted: &[&str]) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let text = "endpoints:\n- http://127.0.0.1:9\n";
        std::fs::write(directory.path().join("alder"), text).unwrap();
        let hive = Hive::new([
            statedb::cell(),
            skep_clustermesh_types::cell(),
            skep_kvstore_etcd::cell(),
            skep_clustermesh::cell(),
            skep_identity_cache::cell(),
            // Without an observer there is no mesh.
            skep_clustermesh::identities::cell(),
        ])
        .root::<Arc<ClusterMesh>>();
        let config = format!("--clustermesh-config={}", directory.path().display());
        let args = ["--cluster-id=9", "--cluster-name=birch", config.as_str()];
        let running = testing::start_with(hive, Settings::new().args(args)).await;
        let mesh: Arc<ClusterMesh> = running.get().unwrap();
        let configured = async {
            while mesh.status().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), configured)
            .await
            .unwrap();
        let command = Troubleshoot {
            spec: Spec::new("clustermesh/troubleshoot", ""),
            mesh,
            directory: directory.path().to_owned(),
        };

        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let found = match command.names(&wanted) {
            Ok(names) => Ok(command.check(&names, Duration::from_secs(5)).await),
            Err(error) => Err(error.to_string()),
        };
        testing::stop(running).await;
        found
    }

    #[tokio::test]
    async fn each_cluster_that_is_configured_is_checked() {
        let text = check(&[]).await.unwrap();

        assert!(
            text.starts_with(
                "Found 1 remote cluster configurations\n\nRemote cluster \"alder\":\n📄 Configuration path: "
            ),
            "{text}"
        );
        assert!(text.contains("   - http://127.0.0.1:9\n     ❌ "), "{text}");
    }

    #[tokio::test]
    async fn a_cluster_that_is_not_configured_is_an_error() {
        assert_eq!(
            check(&["maple"]).await,
            Err("cluster `maple` is not configured".to_owned())
        );
    }
}
