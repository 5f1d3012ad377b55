// SPDX-License-Identifier: Apache-2.0

//! `skep clustermesh enable-config`: connects the cluster to a remote one.
//!
//! Either the configuration is written where a running agent looks for it, or the Secrets are printed that mount it in all
//! agents, the operator and kvstoremesh.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use jiff::Timestamp;
use serde_json::Value;
use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::{RemoteClusterStatus, StatusResponse};

use super::{
    remote_config::{COMMON, OptionsError, RemoteConfig, RemoteOptions},
    secret::{SecretError, Wanted, secrets},
};
use crate::{
    duration::duration,
    print::{self, Format},
};

/// How often the agent is asked whether the cluster is ready.
const PERIOD: Duration = Duration::from_millis(200);

/// Which cluster, and where its configuration goes.
#[derive(Debug, Args)]
pub(crate) struct EnableOptions {
    #[command(flatten)]
    remote: RemoteOptions,
    /// Print a Secret to apply instead of writing files of the local agent.
    #[arg(long)]
    manifest: bool,
    /// With --manifest: agents read the local cache of kvstoremesh; also print the Secret of kvstoremesh.
    #[arg(long, requires = "manifest")]
    kvstoremesh: bool,
    /// With --manifest: existing Secret to extend, from `kubectl get secret -o json`; `-` for standard input.
    #[arg(long, requires = "manifest", value_name = "FILE")]
    secret: Vec<PathBuf>,
    /// With --manifest: namespace of Cilium.
    #[arg(long, default_value = "kube-system", value_parser = namespace)]
    namespace: String,
    /// Overwrite an existing configuration of the cluster.
    #[arg(long)]
    replace: bool,
    /// Time to wait for synchronization with the remote cluster; 0s: do not wait.
    #[arg(long, default_value = "30s", value_parser = duration)]
    wait: Duration,
}

fn namespace(text: &str) -> Result<String, &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_valid = (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("expected the name of a namespace")
    }
}

/// Why a remote cluster was not configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnableError {
    /// The options do not make a configuration.
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The agent does not say where it looks for configurations; `--manifest` needs no agent.
    #[error("the agent cannot be asked where it reads configurations")]
    Agent(#[source] ClientError),
    /// The setting cannot be changed while the agent runs.
    #[error("the agent reads no remote clusters: set {setting} ({reason}) and restart it")]
    Disabled {
        setting: &'static str,
        reason: &'static str,
    },
    /// A cluster is not remote to itself.
    #[error("`{0}` is the cluster of the agent")]
    Own(String),
    /// Files of a mounted Secret cannot be written, and would be lost.
    #[error("`{}` is a mounted Secret or ConfigMap: apply what --manifest prints", .0.display())]
    Mounted(PathBuf),
    /// There is a configuration of that name.
    #[error("`{}` is there already, and differs; --replace overwrites it", .0.display())]
    Configured(PathBuf),
    /// The configuration would name files that are not there.
    #[error("`{}` is missing: give --ca, --cert and --key", .0.display())]
    Certificates(PathBuf),
    #[error("cannot write `{}`", path.display())]
    Write {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// The Secret cannot be printed in this form.
    #[error("cannot print the Secret")]
    Print(#[source] serde_json::Error),
}

/// Configures a remote cluster. Returns what to print, and whether the cluster is in use, as far as that was waited for.
pub(crate) fn run(
    agent: &Client,
    options: EnableOptions,
    format: Format,
) -> Result<(String, bool), EnableError> {
    let config = RemoteConfig::read(options.remote)?;
    if options.manifest {
        let wanted = Wanted {
            namespace: &options.namespace,
            is_cached: options.kvstoremesh,
            present: &options.secret,
            replaces: options.replace,
        };
        return Ok((manifest(&secrets(&config, &wanted)?, format)?, true));
    }
    let directory = directory(agent, &config)?;
    write(&config, &directory, options.replace)?;
    let path = directory.join(config.name.as_str());
    let mut text = format!("Configured cluster `{}` in {}\n", config.name, path.display());
    if options.wait.is_zero() {
        return Ok((text, true));
    }
    let found = wait_ready(agent, config.name.as_str(), options.wait)?;
    let (status, is_ready) = match &found {
        Some(cluster) => (cluster.text(Timestamp::now()), cluster.ready),
        None => ("The agent has not noticed it yet\n".to_owned(), false),
    };
    text.push_str(&status);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok((text, is_ready))
}

/// The Secrets as documents of YAML, or in another form one of them or a list.
fn manifest(secrets: &[Value], format: Format) -> Result<String, EnableError> {
    if matches!(format, Format::Json | Format::JsonPath(_)) {
        let document = match secrets {
            [one] => one.clone(),
            _ => serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": secrets }),
        };
        return print::document(&document, format).map_err(EnableError::Print);
    }
    let texts: Vec<String> = secrets
        .iter()
        .map(|secret| print::value(secret, Format::Yaml))
        .collect();
    Ok(texts.join("---\n"))
}

/// Where the agent looks for configurations, if it can use this one.
fn directory(agent: &Client, config: &RemoteConfig) -> Result<PathBuf, EnableError> {
    let settings: BTreeMap<String, String> = agent.get("settings", &[]).map_err(EnableError::Agent)?;
    let setting = |name: &str| settings.get(name).map_or("", String::as_str);
    if setting("clustermesh-config").is_empty() {
        return Err(EnableError::Disabled {
            setting: "clustermesh-config",
            reason: "the directory of configurations",
        });
    }
    if matches!(setting("cluster-id"), "" | "0") {
        return Err(EnableError::Disabled {
            setting: "cluster-id",
            reason: "an id that no other cluster of the mesh has",
        });
    }
    if setting("cluster-name") == config.name.as_str() {
        return Err(EnableError::Own(config.name.to_string()));
    }
    Ok(PathBuf::from(setting("clustermesh-config")))
}

/// Writes the certificates and then the configuration, which the agent notices.
fn write(config: &RemoteConfig, directory: &Path, replaces: bool) -> Result<(), EnableError> {
    // What kubelet makes for a mounted Secret.
    if directory.join("..data").symlink_metadata().is_ok() {
        return Err(EnableError::Mounted(directory.to_owned()));
    }
    if config.uses_common_certificates() {
        for suffix in ["-ca.crt", ".crt", ".key"] {
            let path = directory.join(format!("{COMMON}{suffix}"));
            if !path.exists() {
                return Err(EnableError::Certificates(path));
            }
        }
    }
    let text = config.file().text(directory);
    let mut files = config.certificates();
    files.push((config.name.to_string(), &*text));
    // Looked at before anything is written.
    for (name, text) in &files {
        let path = directory.join(name);
        let is_other = fs::read(&path).is_ok_and(|found| found != text.as_bytes());
        if is_other && !replaces {
            return Err(EnableError::Configured(path));
        }
    }
    for (name, text) in files {
        let path = directory.join(&name);
        put(directory, &path, text).map_err(|cause| EnableError::Write { path, cause })?;
    }
    Ok(())
}

/// Replaces a file atomically, readable for its owner only. The name of the temporary file is no valid name of a cluster.
fn put(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    let temporary = directory.join(format!(".skep-{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // Nothing is left of it, if that is possible.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Waits until the agent has read the cluster; returns how it is then, or at the end of the time.
fn wait_ready(
    agent: &Client,
    name: &str,
    limit: Duration,
) -> Result<Option<RemoteClusterStatus>, EnableError> {
    let until = Instant::now() + limit;
    loop {
        let answer: StatusResponse = agent.get("healthz", &[]).map_err(EnableError::Agent)?;
        let clusters = answer.cluster_mesh.map(|mesh| mesh.clusters).unwrap_or_default();
        let found = clusters.into_iter().find(|cluster| cluster.name == name);
        if found.as_ref().is_some_and(|cluster| cluster.ready) || Instant::now() >= until {
            return Ok(found);
        }
        std::thread::sleep(PERIOD);
    }
}
