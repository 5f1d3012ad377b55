// SPDX-License-Identifier: Apache-2.0

//! Files of `static-cnp-path` → rows.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hive::{JobCtx, config::open_regular};
use notify::{RecursiveMode, Watcher};
use serde_json::Value;
use statedb::{Db, InitGuard, RwTable};
use tokio::{sync::Notify, time::timeout};

use crate::{
    kubernetes::trim,
    table::{Origin, PolicyRow},
};

/// Kind of the rows.
pub(crate) const KIND: &str = "file";
/// Changes within this time are read together: a writer may need several steps.
const QUIET: Duration = Duration::from_millis(100);

/// Why files are not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("cannot watch {}", directory.display())]
    Watch {
        directory: PathBuf,
        #[source]
        cause: notify::Error,
    },
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

/// A file holds something else: what it held last counts.
#[derive(Debug, thiserror::Error)]
enum FileFault {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("no YAML: {0}")]
    Yaml(#[from] serde_norway::Error),
    #[error("kind `{0}` is neither CiliumNetworkPolicy nor CiliumClusterwideNetworkPolicy")]
    Kind(String),
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Faults(String);

/// The policies of a directory.
pub(crate) struct PolicyFiles {
    pub(crate) directory: PathBuf,
    pub(crate) db: Db,
    pub(crate) table: RwTable<PolicyRow>,
    pub(crate) initializer: InitGuard,
}

impl PolicyFiles {
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), FilesError> {
        let changed = Arc::new(Notify::new());
        let note = changed.clone();
        let note = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                note.notify_one();
            }
        };
        // Before the first reading, so that no change is missed.
        let _watcher = notify::recommended_watcher(note)
            .and_then(|mut watcher| {
                watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
                Ok(watcher)
            })
            .map_err(|cause| FilesError::Watch {
                directory: self.directory.clone(),
                cause,
            })?;
        loop {
            let faults = self.read()?;
            match faults.is_empty() {
                true => cx.health.ok("Policies are those of the files"),
                false => {
                    let text: Vec<String> = faults
                        .iter()
                        .map(|(name, fault)| format!("{name}: {fault}"))
                        .collect();
                    cx.health
                        .degraded("Files are not applied", &Faults(text.join("; ")));
                }
            }
            changed.notified().await;
            while timeout(QUIET, changed.notified()).await.is_ok() {}
        }
    }

    /// Makes the rows those of the files; returns faults by name.
    fn read(&self) -> Result<BTreeMap<String, FileFault>, FilesError> {
        let error = |cause| FilesError::Read {
            path: self.directory.clone(),
            cause,
        };
        let mut faults = BTreeMap::new();
        let mut rows = BTreeMap::new();
        for entry in std::fs::read_dir(&self.directory).map_err(error)? {
            let path = entry.map_err(error)?.path();
            let Some(name) = policy_name(&path) else { continue };
            match self.row(&path, name) {
                Ok(row) => _ = rows.insert(name.to_owned(), Some(row)),
                Err(fault) => {
                    tracing::warn!(path = %path.display(), error = %hive::error_chain(&fault), "Failed to read policy file");
                    rows.insert(name.to_owned(), None);
                    faults.insert(name.to_owned(), fault);
                }
            }
        }
        let mut txn = self.db.write(&[&self.table]);
        let before = self.table.all(&txn).filter(|row| row.kind == KIND);
        let gone: Vec<_> = before
            .filter(|row| !rows.contains_key(&row.name))
            .cloned()
            .collect();
        for row in gone {
            self.table.delete(&mut txn, &row)?;
        }
        for row in rows.into_values().flatten() {
            let key = row.key();
            if self
                .table
                .get(&txn, PolicyRow::BY_KEY.key(&key))
                .is_none_or(|before| **before != row)
            {
                self.table.insert(&mut txn, row)?;
            }
        }
        txn.initialized(&self.initializer)?;
        txn.commit();
        Ok(faults)
    }

    fn row(&self, path: &Path, name: &str) -> Result<PolicyRow, FileFault> {
        let text = open_regular(path).and_then(io::read_to_string)?;
        let mut object: Value = serde_norway::from_str(&text)?;
        let kind = match object.get("kind").and_then(Value::as_str).unwrap_or_default() {
            kind @ ("CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy") => kind.to_owned(),
            other => return Err(FileFault::Kind(other.to_owned())),
        };
        trim(&mut object, &kind);
        Ok(PolicyRow {
            origin: Origin::Directory,
            kind: KIND,
            namespace: self.directory.display().to_string(),
            name: name.to_owned(),
            object: Arc::new(object),
        })
    }
}

/// Name of a file with a policy: a DNS subdomain (RFC 1123) that ends in `.yaml`. Others, such as those of editors, are not read.
fn policy_name(path: &Path) -> Option<&str> {
    let name = path.file_name().and_then(OsStr::to_str)?;
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let ends = label.bytes().next().zip(label.bytes().last());
        ends.is_some_and(|(first, last)| is_inner(first) && is_inner(last))
            && label.bytes().all(|byte| is_inner(byte) || byte == b'-')
    };
    (name.ends_with(".yaml") && name.len() <= 253 && name.split('.').all(is_label)).then_some(name)
}
