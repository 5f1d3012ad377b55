// SPDX-License-Identifier: Apache-2.0

//! Deletions that the CNI plugin queued while the agent was away: `<state-dir>/deleteQueue/*.delete`.
//!
//! The plugin holds a shared lock on `lockfile` while it tries the API a last time and writes; the agent holds it alone while it
//! reads. Both are locks of the open file (`F_OFD_SETLK`), as Cilium's are. A plugin that finds no API just before the agent
//! listens queues a file after the first look: there is another one each minute.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use serde::Deserialize;
use tokio::time::sleep;

use crate::{Endpoints, Identifier};

const LOCK: &str = "lockfile";
/// Longest wait for a plugin that writes, and the time between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct DeletionQueue(Arc<Path>);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Request {
    container_id: String,
}

impl DeletionQueue {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join("deleteQueue").into())
    }

    /// Deletes the endpoints of queued files, and removes the files.
    pub(crate) async fn replay(&self, endpoints: &Endpoints) {
        let lock = match self.lock().await {
            Ok(lock) => Some(lock),
            Err(error) => {
                tracing::warn!(folder = %self.0.display(), %error, "Cannot lock deletion queue");
                None
            }
        };
        for path in self.files() {
            let text = fs::read_to_string(&path).unwrap_or_default();
            match names(&text) {
                Some(name) => {
                    let found = endpoints.find(&endpoints.db().read(), &name);
                    tracing::info!(%name, endpoints = found.len(), "Deleting endpoints of queued request");
                    for row in found {
                        if let Err(error) = endpoints.disconnect(row.id) {
                            tracing::warn!(endpoint = row.id, %error, "Cannot delete endpoint");
                        }
                    }
                }
                None => tracing::warn!(file = %path.display(), "Queued deletion names no endpoint"),
            }
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(file = %path.display(), %error, "Cannot remove queued deletion");
            }
        }
        drop(lock);
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut files: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "delete"))
            .collect();
        files.sort();
        files
    }

    async fn lock(&self) -> io::Result<File> {
        fs::create_dir_all(&self.0)?;
        let mut options = OpenOptions::new();
        options
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o644);
        let file = options.open(self.0.join(LOCK))?;
        let whole = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        let mut waited = Duration::ZERO;
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)) {
                Ok(_) => return Ok(file),
                Err(Errno::EAGAIN | Errno::EACCES) if waited < PATIENCE => {
                    sleep(POLL).await;
                    waited += POLL;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The endpoints that a file names: JSON with the container, or an identifier.
fn names(text: &str) -> Option<Identifier> {
    match serde_json::from_str::<Request>(text) {
        Ok(request) => {
            (!request.container_id.is_empty()).then_some(Identifier::Container(request.container_id))
        }
        Err(_) => text.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_a_container_or_an_endpoint() {
        let container = |id: &str| Some(Identifier::Container(id.to_owned()));
        assert_eq!(names(r#"{"container-id":"b213"}"#), container("b213"));
        assert_eq!(names("cilium-local:631"), Some(Identifier::Id(631)));
        assert_eq!(names("container-id:b213"), container("b213"));
        for text in ["", "{", r#"{"container-id":""}"#] {
            assert_eq!(names(text), None, "{text}");
        }
    }
}
