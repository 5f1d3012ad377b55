// SPDX-License-Identifier: Apache-2.0

//! The file source: a file that holds all services, for nodes without Kubernetes.
//!
//! The file is read at start and whenever its directory changed and then was quiet for a while. Each reading replaces
//! everything that came from the file, in one transaction. A file that is missing or can't be read changes nothing.
//! Writers replace it by a rename: what is there of a file that is being written may be a document too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::JobCtx;
use hive::config::open_regular;
use notify::{RecursiveMode, Watcher};
use parking_lot::Mutex;
use skep_loadbalancer_model::types::{L3n4Addr, ServiceName};
use skep_loadbalancer_model::{SERVICES_BY_NAME, Writer, WriterError};
use statedb::InitGuard;
use tokio::sync::Notify;

use super::document::{Document, DocumentError, Format, Skipped, names};
use crate::convert::Rules;

/// Why what a state file asks for is not in force.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The directory can't be watched. It must exist.
    #[error("cannot watch {}", directory.display())]
    Watch {
        /// Directory of the state file.
        directory: PathBuf,
        /// What the system said.
        #[source]
        cause: notify::Error,
    },
    /// The file can't be read, or is no regular file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The state file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The file holds something else. Everything stays as it was.
    #[error("{}", path.display())]
    Document {
        /// The state file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: DocumentError,
    },
    /// A service can't be written; the rest of the file is in force.
    #[error("service {service}")]
    Write {
        /// The service.
        service: ServiceName,
        /// What is wrong.
        #[source]
        cause: WriterError,
    },
    /// An object makes no service or backends; the rest of the file is in force.
    #[error("{}", path.display())]
    Skipped {
        /// The state file.
        path: PathBuf,
        /// What is left out.
        #[source]
        cause: Skipped,
    },
}

/// Keeps the tables in step with a state file.
pub(super) struct FileSource {
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) settle: Duration,
    pub(super) writer: Writer,
    pub(super) rules: Rules,
    pub(super) initializer: InitGuard,
    pub(super) state: Mutex<FileState>,
}

/// What the file said when it was last read.
#[derive(Default)]
pub(super) struct FileState {
    text: Option<String>,
    /// Services that the file has.
    held: BTreeSet<ServiceName>,
    /// Services, of whatever source, that the file has backends of.
    given: BTreeSet<ServiceName>,
    /// Keys of the file that mean nothing.
    unknown_keys: BTreeSet<String>,
    initialized: bool,
}

impl FileSource {
    /// Follows the file.
    pub(super) async fn follow(&self, cx: &JobCtx) -> Result<(), FileError> {
        let changed = Arc::new(Notify::new());
        // Before the first reading, so that no change is missed.
        let _watcher = self.watch(&changed)?;
        let settle = self.settle.max(Duration::from_millis(1));
        loop {
            match self.read() {
                Ok(Some(services)) => cx.health.ok(self.summary(services)),
                Ok(None) => cx.health.ok(format!("Waiting for {}", self.path.display())),
                Err(error) => cx.health.degraded("Cannot use the state file", &error),
            }
            changed.notified().await;
            // Restarted by each change: a writer may need several steps.
            while tokio::time::timeout(settle, changed.notified()).await.is_ok() {}
        }
    }

    fn summary(&self, services: usize) -> String {
        let keys = &self.state.lock().unknown_keys;
        let ignored = match keys.is_empty() {
            true => String::new(),
            false => format!(", ignored keys: {}", names(keys)),
        };
        format!("{services} services from {}{ignored}", self.path.display())
    }

    /// Watches the directory: a file that is replaced by a rename is another file.
    fn watch(&self, changed: &Arc<Notify>) -> Result<notify::RecommendedWatcher, FileError> {
        let directory = match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let error = |cause| FileError::Watch {
            directory: directory.to_owned(),
            cause,
        };
        let changed = changed.clone();
        let notify = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                changed.notify_one();
            }
        };
        let mut watcher = notify::recommended_watcher(notify).map_err(error)?;
        watcher
            .watch(directory, RecursiveMode::NonRecursive)
            .map_err(error)?;
        Ok(watcher)
    }

    /// Reads the file and writes what changed. Number of services in it, `None` if there was never a file.
    fn read(&self) -> Result<Option<usize>, FileError> {
        let mut state = self.state.lock();
        let text = match open_regular(&self.path).and_then(std::io::read_to_string) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.deliver(&mut state, None)?;
                return Ok(state.text.is_some().then_some(state.held.len()));
            }
            Err(cause) => {
                return Err(FileError::Read {
                    path: self.path.clone(),
                    cause,
                });
            }
        };
        if state.text.as_ref() == Some(&text) {
            return Ok(Some(state.held.len()));
        }
        let mut document =
            Document::parse(&text, self.format, &self.rules).map_err(|cause| FileError::Document {
                path: self.path.clone(),
                cause,
            })?;
        let services = document.services.len();
        let unknown_keys = std::mem::take(&mut document.unknown_keys);
        for key in unknown_keys.difference(&state.unknown_keys) {
            tracing::warn!(path = %self.path.display(), key, "Ignoring unknown key of the state file");
        }
        state.unknown_keys = unknown_keys;
        let mut skipped = std::mem::take(&mut document.skipped).into_iter();
        for error in skipped.as_slice() {
            tracing::warn!(path = %self.path.display(), %error, "Skipping object of the state file");
        }
        self.deliver(&mut state, Some(document))?;
        if let Some(cause) = skipped.next() {
            return Err(FileError::Skipped {
                path: self.path.clone(),
                cause,
            });
        }
        state.text = Some(text);
        Ok(Some(services))
    }

    /// Replaces what came from the file, and reports the source complete the first time.
    fn deliver(&self, state: &mut FileState, document: Option<Document>) -> Result<(), FileError> {
        let mut txn = self.writer.write();
        let result = match document {
            Some(document) => self.replace(&mut txn, state, document),
            None => Ok(()),
        };
        if !std::mem::replace(&mut state.initialized, true)
            && let Err(error) = txn.initialized(&self.initializer)
        {
            tracing::error!(%error, "Cannot mark the state file as initialized");
        }
        txn.commit();
        result
    }

    fn replace(
        &self,
        txn: &mut statedb::WriteTxn,
        state: &mut FileState,
        mut document: Document,
    ) -> Result<(), FileError> {
        let (writer, source) = (&self.writer, self.rules.source);
        let mut first_error = Ok(());
        let mut note = |service: &ServiceName, result: Result<(), WriterError>| {
            if let (Err(cause), Ok(())) = (result, &first_error) {
                first_error = Err(FileError::Write {
                    service: service.clone(),
                    cause,
                });
            }
        };
        let wanted: BTreeSet<ServiceName> = document
            .services
            .iter()
            .map(|converted| converted.service.name.clone())
            .collect();
        let services = writer.services();
        for name in state.held.iter().filter(|name| !wanted.contains(*name)) {
            // Another source may have taken it over.
            let row = services.get(&*txn, SERVICES_BY_NAME.key(name));
            if row.is_some_and(|row| row.source == source) {
                note(name, writer.delete_service_and_frontends(txn, name).map(drop));
            }
        }
        // Addresses may go from one service to another.
        for converted in &document.services {
            let keeps = |address: &L3n4Addr| {
                converted
                    .frontends
                    .iter()
                    .any(|frontend| frontend.address == *address)
            };
            let name = &converted.service.name;
            note(name, writer.release_frontends(txn, name, keeps));
        }
        for converted in std::mem::take(&mut document.services) {
            let name = converted.service.name.clone();
            note(
                &name,
                writer.upsert_service_and_frontends(txn, converted.service, converted.frontends),
            );
        }
        let given: BTreeSet<ServiceName> = document.backends.keys().cloned().collect();
        for name in state.given.iter().filter(|name| !given.contains(*name)) {
            note(name, writer.set_backends(txn, name, source, 0, Vec::new()));
        }
        for (name, backends) in document.backends {
            note(&name, writer.set_backends(txn, &name, source, 0, backends));
        }
        (state.held, state.given) = (wanted, given);
        first_error
    }
}
