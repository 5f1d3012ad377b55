// SPDX-License-Identifier: Apache-2.0

//! State of a running lab: a file in its folder, replaced atomically.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{control_plane, plan::Lab};

/// Why the state of a lab cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Start it first: `skep-lab up`.
    #[error("there is no lab called `{name}`")]
    Missing { name: String },
    /// The folder belongs to another user, or the disk is full.
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// Written by another version; restart the lab.
    #[error("{} cannot be read", path.display())]
    Format {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "phase", content = "detail")]
pub enum Phase {
    /// Starting; the text says which step.
    Starting(String),
    Ready,
    /// The start failed; the text says why.
    Failed(String),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub lab: Lab,
    pub phase: Phase,
    pub supervisor: u32,
    /// URL of each cluster's API server on this machine's loopback.
    pub servers: BTreeMap<String, String>,
    /// Process in the network between the nodes, outside of them; 0 until there is one.
    #[serde(default)]
    pub outside: u32,
    /// Process on the machine behind the router; 0 until there is one.
    #[serde(default)]
    pub beyond: u32,
    /// Process that holds each node's namespaces.
    pub nodes: BTreeMap<String, u32>,
    /// Process of each node's agent; restarts change it.
    pub agents: BTreeMap<String, u32>,
}

impl State {
    /// Reads the state of the lab called `name`.
    ///
    /// # Errors
    /// When there is no such lab, or its file cannot be read.
    pub fn read(name: &str) -> Result<Self, StateError> {
        let path = file_in(&crate::plan::folder_of(name));
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(StateError::Missing {
                    name: name.to_owned(),
                });
            }
            Err(cause) => return Err(StateError::Io { path, cause }),
        };
        serde_json::from_slice(&text).map_err(|cause| StateError::Format { path, cause })
    }

    /// Writes it for others to read.
    pub fn write(&self) -> Result<(), StateError> {
        let folder = self.lab.folder();
        let path = file_in(&folder);
        let failed = |cause: io::Error| StateError::Io {
            path: path.clone(),
            cause,
        };
        let text = serde_json::to_vec_pretty(self).map_err(|cause| StateError::Format {
            path: path.clone(),
            cause,
        })?;
        fs::create_dir_all(&folder).map_err(failed)?;
        let fresh = path.with_extension("new");
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(failed)
    }

    /// The kubeconfig of one of its clusters.
    #[must_use]
    pub fn kubeconfig(&self, cluster: &str) -> Option<PathBuf> {
        self.servers.get(cluster)?;
        Some(control_plane::kubeconfig_in(&self.lab.folder(), cluster))
    }
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("state.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_it_was_written() {
        let name = format!("state-{}", std::process::id());
        let state = State {
            lab: Lab::plan(&name, 2, 1).unwrap(),
            phase: Phase::Starting("nodes".into()),
            supervisor: 7,
            servers: [("c1".to_owned(), "http://127.0.0.1:1".to_owned())].into(),
            outside: 0,
            beyond: 0,
            nodes: BTreeMap::new(),
            agents: BTreeMap::new(),
        };
        state.write().unwrap();

        let read = State::read(&name).unwrap();

        fs::remove_dir_all(state.lab.folder()).unwrap();
        assert_eq!(
            (read.lab, read.phase, read.supervisor),
            (state.lab.clone(), state.phase.clone(), 7)
        );
        assert_eq!(
            state.kubeconfig("c1").unwrap(),
            state.lab.folder().join("c1.kubeconfig")
        );
        assert_eq!(state.kubeconfig("c9"), None);
        assert!(matches!(State::read(&name), Err(StateError::Missing { .. })));
    }
}
