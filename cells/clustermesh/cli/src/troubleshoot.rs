// SPDX-License-Identifier: Apache-2.0

//! Tries connections to etcd step by step. Configuration files are read anew, so that it may succeed where a running program
//! has not reconnected yet.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use skep_clustermesh_mesh::troubleshoot::RemoteClusters;
use skep_kvstore_etcd::ConfigSource;
use skep_kvstore_etcd::troubleshoot::troubleshoot;
use tokio::runtime::Builder;

use crate::line;

/// The etcd of the own cluster.
#[derive(Args, Clone, Debug)]
pub struct OwnOptions {
    /// Configuration file of the etcd client; default: mounted by the chart.
    #[arg(long)]
    pub etcd_config: Option<PathBuf>,
    /// Timeout of each check.
    #[arg(long, default_value = "5s", value_parser = line::duration)]
    pub timeout: Duration,
}

/// The etcds of remote clusters.
#[derive(Args, Clone, Debug)]
pub struct RemoteOptions {
    /// Names of the clusters; default: all.
    pub names: Vec<String>,
    /// Include the local cluster if the directory has a file for it.
    #[arg(long)]
    pub include_local: bool,
    /// Directory with the configurations of remote clusters.
    #[arg(
        long,
        env = "CILIUM_CLUSTERMESH_CONFIG",
        default_value = "/var/lib/cilium/clustermesh"
    )]
    pub clustermesh_config: PathBuf,
    /// Name of the local cluster.
    #[arg(long, env = "CILIUM_CLUSTER_NAME", default_value = "")]
    pub local_cluster_name: String,
    /// Timeout of each check.
    #[arg(long, default_value = "5s", value_parser = line::duration)]
    pub timeout: Duration,
}

/// Why nothing can be checked.
#[derive(Debug, thiserror::Error)]
pub enum TroubleshootError {
    /// See there.
    #[error(transparent)]
    Remote(#[from] skep_clustermesh_mesh::troubleshoot::TroubleshootError),
    /// The program cannot start threads or open sockets.
    #[error("cannot start")]
    Runtime(#[source] std::io::Error),
}

/// Checks the etcd of the own cluster, by default that of the configuration `usual`. Returns what was found, and whether all
/// is fine.
pub fn own(options: &OwnOptions, usual: &str) -> Result<(String, bool), TroubleshootError> {
    let file = options.etcd_config.clone().unwrap_or_else(|| usual.into());
    let findings = block_on(troubleshoot(&ConfigSource::File(file), options.timeout))?;
    Ok((findings.text, findings.is_healthy))
}

/// Checks the etcds of remote clusters. Returns what was found, and whether all is fine.
pub fn remote(options: &RemoteOptions) -> Result<(String, bool), TroubleshootError> {
    let local = (!options.include_local).then_some(options.local_cluster_name.as_str());
    let clusters = RemoteClusters::select(&options.clustermesh_config, &options.names, local)?;
    let findings = block_on(clusters.check(options.timeout))?;
    Ok((findings.text, findings.failed.is_empty()))
}

fn block_on<F: Future>(check: F) -> Result<F::Output, TroubleshootError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(TroubleshootError::Runtime)?.block_on(check))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn options(directory: &Path, names: &[&str]) -> RemoteOptions {
        RemoteOptions {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            include_local: false,
            clustermesh_config: directory.to_owned(),
            local_cluster_name: "birch".to_owned(),
            timeout: Duration::from_secs(5),
        }
    }

    #[test]
    fn configured_clusters_are_checked_without_the_local_one() {
        let folder = tempfile::tempdir().expect("there is a folder");
        for name in ["alder", "birch", "maple"] {
            std::fs::write(folder.path().join(name), "endpoints: [\"http://127.0.0.1:1\"]")
                .expect("it is written");
        }
        std::fs::write(folder.path().join("common-etcd-client.key"), "no configuration")
            .expect("it is written");
        std::fs::create_dir(folder.path().join("..data")).expect("it is made");
        let check = |options: &RemoteOptions| remote(options).expect("there is a directory");

        let (text, is_healthy) = check(&options(folder.path(), &[]));
        assert!(!is_healthy, "nothing listens there");
        assert!(
            text.starts_with("Found 2 remote cluster configurations\n\nRemote cluster \"alder\":\n📄 "),
            "{text}"
        );
        assert!(text.contains("\nRemote cluster \"maple\":\n"), "{text}");

        let (text, _) = check(&options(folder.path(), &["maple"]));
        assert!(
            text.starts_with("Found 1 remote cluster configurations\n\nRemote cluster \"maple\":\n"),
            "{text}"
        );
        let mut with_local = options(folder.path(), &[]);
        with_local.include_local = true;
        assert!(check(&with_local).0.starts_with("Found 3 "));
        std::fs::write(
            folder.path().join("Bad_Name"),
            "endpoints: [\"http://127.0.0.1:1\"]",
        )
        .expect("it is written");
        let (text, is_healthy) = check(&options(folder.path(), &["Bad_Name"]));
        assert!(!is_healthy, "{text}");
        assert!(
            text.contains("\n❌ Cannot use the configuration: invalid cluster name `Bad_Name`: it must be "),
            "{text}"
        );
        assert!(!text.contains("✅"), "{text}");
        let error = remote(&options(folder.path(), &["oak"]))
            .expect_err("there is none")
            .to_string();
        assert!(error.contains("cluster `oak` is not configured"), "{error}");
        let error = remote(&options(Path::new("/nonexistent"), &[]))
            .expect_err("there is none")
            .to_string();
        assert!(error.contains("`/nonexistent`"), "{error}");
    }

    #[test]
    fn an_etcd_that_does_not_answer_and_a_missing_file_are_told() {
        let folder = tempfile::tempdir().expect("there is a folder");
        let file = folder.path().join("etcd.config");
        std::fs::write(&file, "endpoints: [\"http://127.0.0.1:1\"]").expect("it is written");
        let timeout = Duration::from_secs(5);
        let named = |etcd_config| OwnOptions { etcd_config, timeout };

        let (text, is_healthy) = own(&named(Some(file.clone())), "/nonexistent").expect("there are sockets");
        assert!(!is_healthy, "{text}");
        assert!(text.contains("- http://127.0.0.1:1\n"), "{text}");
        let usual = own(&named(None), &file.to_string_lossy()).expect("there are sockets");
        assert!(
            !usual.1 && usual.0.contains("- http://127.0.0.1:1\n"),
            "{}",
            usual.0
        );
        let (text, is_healthy) = own(&named(None), "/nonexistent").expect("there are sockets");
        assert!(!is_healthy && text.contains("/nonexistent"), "{text}");
    }
}
