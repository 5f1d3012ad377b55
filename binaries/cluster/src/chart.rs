// SPDX-License-Identifier: Apache-2.0

//! The chart that this program carries, and Helm.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::access::Access;

const CHART: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/chart.tgz"));

/// Version of the chart.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why Helm did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelmError {
    /// Install it, or render the chart elsewhere.
    #[error(
        "helm is not on the PATH: install it (https://helm.sh/docs/intro/install), or apply deploy/manifest.yaml, \
         which is the chart rendered with defaults"
    )]
    Missing,
    /// A file cannot be written, or a program not be started.
    #[error("{what}")]
    Io {
        /// What was done.
        what: String,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// Helm says why.
    #[error("helm {command}: {message}")]
    Failed {
        /// Sub-command.
        command: String,
        /// Last lines of the standard error.
        message: String,
    },
    /// No version but the carried one is there. Use `--chart-directory`.
    #[error(
        "version {wanted} is not the one that this program carries ({VERSION}): use --chart-directory or --repository"
    )]
    Version {
        /// Version asked for.
        wanted: String,
    },
}

/// A chart on disk.
pub(crate) struct Chart {
    pub(crate) path: PathBuf,
    _folder: Option<TempDir>,
}

impl Chart {
    /// The chart of a folder, or the carried one.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Self, HelmError> {
        if let Some(folder) = folder {
            return Ok(Self {
                path: folder.to_owned(),
                _folder: None,
            });
        }
        let failed = |cause| HelmError::Io {
            what: "cannot unpack the chart".to_owned(),
            cause,
        };
        let folder = TempDir::with_prefix("skep-chart-").map_err(failed)?;
        tar::Archive::new(flate2::read::GzDecoder::new(CHART))
            .unpack(folder.path())
            .map_err(failed)?;
        Ok(Self {
            path: folder.path().join("skep"),
            _folder: Some(folder),
        })
    }
}

/// Runs Helm on the cluster of `access`.
pub(crate) struct Helm<'a> {
    access: &'a Access,
}

impl<'a> Helm<'a> {
    pub(crate) fn new(access: &'a Access) -> Self {
        Self { access }
    }

    fn command(&self, words: &[String]) -> Command {
        let options = &self.access.options;
        let mut command = Command::new("helm");
        command.args(words).args(["--namespace", &options.namespace]);
        if let Some(context) = &options.context {
            command.args(["--kube-context", context]);
        }
        if let Some(kubeconfig) = &options.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        if let Some(user) = &options.as_user {
            command.args(["--kube-as-user", user]);
        }
        for group in &options.as_group {
            command.args(["--kube-as-group", group]);
        }
        command
    }

    /// Runs Helm; returns its output.
    pub(crate) fn run(&self, words: &[String]) -> Result<String, HelmError> {
        let output = self.command(words).stdin(Stdio::null()).output();
        let output = output.map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => HelmError::Missing,
            _ => HelmError::Io {
                what: "cannot start helm".to_owned(),
                cause,
            },
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let message = errors.trim().trim_start_matches("Error: ").to_owned();
        Err(HelmError::Failed {
            command: words.first().cloned().unwrap_or_default(),
            message,
        })
    }

    /// Values that the user set; null if there is no release.
    pub(crate) fn values(&self) -> Result<Value, HelmError> {
        self.json(&["get", "values"])
    }

    /// Chart and version of the release, such as `skep-0.1.0`; empty if there is none.
    pub(crate) fn chart(&self) -> Result<String, HelmError> {
        let found = self.json(&["get", "metadata"])?;
        let part = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Ok(match (part("chart"), part("version")) {
            (chart, version) if chart.is_empty() => version,
            (chart, version) => format!("{chart}-{version}"),
        })
    }

    fn json(&self, words: &[&str]) -> Result<Value, HelmError> {
        let release = self.access.release();
        let words: Vec<String> = [words, &[release, "--output", "json"]]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect();
        match self.run(&words) {
            Ok(text) => Ok(serde_json::from_str(&text).unwrap_or_default()),
            Err(HelmError::Failed { message, .. }) if message.contains("not found") => Ok(Value::Null),
            Err(error) => Err(error),
        }
    }
}

/// A value as an option of Helm: `--set-json`, which needs no escapes.
pub(crate) fn set(path: &str, value: &Value) -> [String; 2] {
    ["--set-json".to_owned(), format!("{path}={value}")]
}
