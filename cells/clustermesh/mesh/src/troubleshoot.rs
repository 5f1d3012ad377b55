// SPDX-License-Identifier: Apache-2.0

//! Checks the connections to remote clusters step by step. Configuration files are read anew and connections are made anew, so
//! that it may succeed where a running program has not reconnected yet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use skep_clustermesh_types::ClusterName;
use skep_kvstore_etcd::ConfigSource;
use skep_kvstore_etcd::troubleshoot::{troubleshoot, unusable};

use crate::directory::{MARK, names, read_text};

#[derive(Debug, thiserror::Error)]
pub enum TroubleshootError {
    /// The directory must exist: see `clustermesh-config`.
    #[error("cannot read the configurations of remote clusters in `{}`", path.display())]
    Directory {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
    /// There is no file of that name with the word `endpoints:`.
    #[error("cluster `{name}` is not configured in `{}`", directory.display())]
    Unknown {
        name: String,
        /// Where there is no file of it.
        directory: PathBuf,
    },
}

#[derive(Clone, Debug)]
pub struct ClusterFindings {
    /// What was checked, and how that went.
    pub text: String,
    /// Names of the clusters with a check that failed.
    pub failed: Vec<String>,
}

/// Remote clusters, by the files of a directory: also of files that the mesh does not use.
#[derive(Debug)]
pub struct RemoteClusters {
    directory: PathBuf,
    names: Vec<String>,
}

impl RemoteClusters {
    /// The clusters that these names select; all but `local` if there are none.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read, or has no file of a name.
    pub fn select(
        directory: &Path,
        wanted: &[String],
        local: Option<&str>,
    ) -> Result<Self, TroubleshootError> {
        let mut names = configured(directory).map_err(|cause| TroubleshootError::Directory {
            path: directory.to_owned(),
            cause,
        })?;
        if let Some(name) = wanted.iter().find(|name| !names.contains(name)) {
            return Err(TroubleshootError::Unknown {
                name: name.clone(),
                directory: directory.to_owned(),
            });
        }
        if wanted.is_empty() {
            names.retain(|name| Some(name.as_str()) != local);
        } else {
            names.retain(|name| wanted.contains(name));
        }
        Ok(Self {
            directory: directory.to_owned(),
            names,
        })
    }

    /// Checks them one after the other. No check takes longer than `limit`.
    pub async fn check(&self, limit: Duration) -> ClusterFindings {
        let mut all = ClusterFindings {
            text: format!("Found {} remote cluster configurations\n", self.names.len()),
            failed: Vec::new(),
        };
        for name in &self.names {
            let path = self.directory.join(name);
            let findings = match name.parse::<ClusterName>() {
                Ok(_) => troubleshoot(&ConfigSource::File(path), limit).await,
                // The mesh does not read it.
                Err(error) => unusable(&path, &error),
            };
            all.text
                .push_str(&format!("\nRemote cluster \"{name}\":\n{}", findings.text));
            if !findings.is_healthy {
                all.failed.push(name.clone());
            }
        }
        all
    }
}

/// The files that count as configurations, sorted: certificates may be beside them.
fn configured(directory: &Path) -> std::io::Result<Vec<String>> {
    let is_configuration = |name: &str, path: &Path| match read_text(path) {
        Ok(text) => text.is_some_and(|text| text.contains(MARK)),
        Err(_) => name.parse::<ClusterName>().is_ok(),
    };
    let mut found = names(directory)?;
    found.retain(|(name, path)| is_configuration(name, path));
    found.sort_unstable();
    Ok(found.into_iter().map(|(name, _)| name).collect())
}
