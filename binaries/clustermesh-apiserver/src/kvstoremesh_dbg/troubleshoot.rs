// SPDX-License-Identifier: Apache-2.0

//! `kvstoremesh-dbg troubleshoot`: reads the configuration files itself, so it may succeed where a running kvstoremesh does not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use skep_kvstore_etcd::troubleshoot::troubleshoot;

use crate::line;

/// Checks the connections to remote clusters, step by step.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Names of the clusters to check; all if there are none.
    names: Vec<String>,
    /// Check the local cluster, too, if the directory has a file for it.
    #[arg(long)]
    include_local: bool,
    /// Directory with the configurations of remote clusters.
    #[arg(
        long,
        env = "CILIUM_CLUSTERMESH_CONFIG",
        default_value = "/var/lib/cilium/clustermesh"
    )]
    clustermesh_config: PathBuf,
    /// Name of the local cluster.
    #[arg(long, env = "CILIUM_CLUSTER_NAME", default_value = "")]
    local_cluster_name: String,
    /// How long each check may take.
    #[arg(long, default_value = "5s", value_parser = line::duration)]
    timeout: Duration,
}

/// Why nothing can be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TroubleshootError {
    /// The directory must exist: see `--clustermesh-config`.
    #[error("cannot read the configurations of remote clusters in `{}`", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// The program cannot start threads or open sockets.
    #[error("cannot start")]
    Runtime(#[source] std::io::Error),
    /// There is no file of that name with the word `endpoints:`.
    #[error("cluster `{name}` is not configured in `{}`", directory.display())]
    Unknown { name: String, directory: PathBuf },
}

/// Returns what was found, and whether all is fine.
pub(crate) fn run(options: &Options) -> Result<(String, bool), TroubleshootError> {
    let directory = &options.clustermesh_config;
    let mut names = configured(directory).map_err(|cause| TroubleshootError::Directory {
        path: directory.clone(),
        cause,
    })?;
    if let Some(name) = options.names.iter().find(|name| !names.contains(name)) {
        return Err(TroubleshootError::Unknown {
            name: name.clone(),
            directory: directory.clone(),
        });
    }
    if options.names.is_empty() {
        names.retain(|name| options.include_local || *name != options.local_cluster_name);
    } else {
        names.retain(|name| options.names.contains(name));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(TroubleshootError::Runtime)?;
    Ok(runtime.block_on(check(directory, &names, options.timeout)))
}

async fn check(directory: &Path, names: &[String], limit: Duration) -> (String, bool) {
    let mut text = format!("Found {} remote cluster configurations\n", names.len());
    let mut is_healthy = true;
    for name in names {
        let findings = troubleshoot(&directory.join(name), limit).await;
        text.push_str(&format!("\nRemote cluster \"{name}\":\n{}", findings.text));
        is_healthy &= findings.is_healthy;
    }
    (text, is_healthy)
}

/// The files that count as configurations, sorted: certificates may be beside them.
fn configured(directory: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let text = std::fs::read(entry.path()).unwrap_or_default();
        if String::from_utf8_lossy(&text).contains("endpoints:") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path, names: &[&str]) -> Options {
        Options {
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
        let check = |options: &Options| run(options).expect("there is a directory");

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
        let error = run(&options(folder.path(), &["oak"]))
            .expect_err("there is none")
            .to_string();
        assert!(error.contains("cluster `oak` is not configured"), "{error}");
        let error = run(&options(Path::new("/nonexistent"), &[]))
            .expect_err("there is none")
            .to_string();
        assert!(error.contains("`/nonexistent`"), "{error}");
    }
}
