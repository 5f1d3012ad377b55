// SPDX-License-Identifier: Apache-2.0

//! Cell: the command `clustermesh/troubleshoot`.
//!
//! Configuration files are read anew and connections are made anew, so it may succeed where the mesh has not reconnected yet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hive::{Cell, Cfg, Member};
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_mesh::ClusterMeshSettings;
use skep_clustermesh_mesh::troubleshoot::RemoteClusters;

hive::catalogue!(cell);

/// Checks connections to remote clusters, step by step.
pub(crate) fn cell() -> Cell {
    Cell::module(
        "clustermesh-troubleshoot",
        "Checks connections to remote clusters",
    )
    .provide(command)
}

fn command(settings: Cfg<ClusterMeshSettings>, cluster: Cfg<ClusterSettings>) -> Member<CommandHandle> {
    Member(Arc::new(Troubleshoot::new(
        settings.clustermesh_config.clone(),
        cluster.info().name.to_string(),
    )))
}

struct Troubleshoot {
    spec: Spec,
    /// Empty if there is no mesh.
    directory: PathBuf,
    /// Name of the local cluster, whose own file does not count.
    local: String,
}

impl Troubleshoot {
    fn new(directory: PathBuf, local: String) -> Self {
        let timeout = Flag::duration("timeout", Duration::from_secs(5), "How long each check may take");
        Self {
            spec: Spec::new("clustermesh/troubleshoot", "Check connections to remote clusters")
                .args("[cluster]...")
                .detail("Checks all clusters that are configured, or those that are named.")
                .flag(timeout),
            directory,
            local,
        }
    }

    async fn check(&self, names: &[String], limit: Duration) -> Result<String, CommandError> {
        if self.directory.as_os_str().is_empty() {
            return Err(CommandError::new(
                "there is no cluster mesh: clustermesh-config is not set",
            ));
        }
        let clusters = RemoteClusters::select(&self.directory, names, Some(&self.local))
            .map_err(|error| CommandError::chain(&error))?;
        let findings = clusters.check(limit).await;
        if findings.failed.is_empty() {
            return Ok(findings.text);
        }
        let names = findings.failed.join("`, `");
        // What was found is printed all the same, and `skep troubleshoot clustermesh` exits with 1.
        let output = Output {
            stdout: findings.text,
            stderr: String::new(),
        };
        Err(CommandError::new(format!("checks failed of `{names}`")).with_output(output))
    }
}

#[async_trait]
impl Command for Troubleshoot {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let checked = self.check(inv.args(), inv.duration("timeout"));
        Ok(Outcome::stdout(cx.until_interrupted(checked).await??))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is printed, and the error.
    async fn check(names: &[&str]) -> (String, String) {
        let directory = tempfile::tempdir().unwrap();
        for name in ["alder", "birch", "Bad_Name"] {
            let text = "endpoints:\n- http://127.0.0.1:9\n";
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let command = Troubleshoot::new(directory.path().to_owned(), "birch".to_owned());
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let error = command.check(&names, Duration::from_secs(5)).await;
        match error.expect_err("nothing listens there") {
            CommandError::WithOutput { output, error } => (output.stdout, error.to_string()),
            error => (String::new(), error.to_string()),
        }
    }

    #[tokio::test]
    async fn each_remote_cluster_that_is_configured_is_checked() {
        let (text, error) = check(&[]).await;

        assert_eq!(error, "checks failed of `Bad_Name`, `alder`");
        assert!(
            text.starts_with("Found 2 remote cluster configurations\n\nRemote cluster \"Bad_Name\":\n"),
            "{text}"
        );
        assert!(text.contains("   - http://127.0.0.1:9\n     ❌ "), "{text}");
    }

    /// It was checked as if the mesh used it, and not mentioned by the command of the agent.
    #[tokio::test]
    async fn a_cluster_whose_name_is_invalid_is_a_failure() {
        let (text, error) = check(&["Bad_Name"]).await;

        assert_eq!(error, "checks failed of `Bad_Name`");
        assert!(
            text.contains("❌ Cannot use the configuration: invalid cluster name `Bad_Name`: "),
            "{text}"
        );
    }

    #[tokio::test]
    async fn what_is_not_configured_is_an_error() {
        let (text, error) = check(&["maple"]).await;
        assert_eq!(text, "");
        assert!(
            error.starts_with("cluster `maple` is not configured in `/"),
            "{error}"
        );

        let none = Troubleshoot::new(PathBuf::new(), "birch".to_owned());
        let error = none.check(&[], Duration::ZERO).await.unwrap_err().to_string();
        assert_eq!(error, "there is no cluster mesh: clustermesh-config is not set");
    }
}
