// SPDX-License-Identifier: Apache-2.0

//! Cell: keeps the CNI configuration of the node as configured. Provides: parts `cni-file` and `cni-chaining` of the
//! status. Requires: the settings of [`skep_base_settings`] and of logs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use hive::{Cell, Cfg, JobCtx, Jobs, Member, SpawnError, error_chain};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use skep_base_api::StatusProbe;
use skep_base_api_types::{CniChaining, State, Status, StatusResponse};
use skep_base_logging::LogConfig;
use skep_base_settings::AttachConfig;
use tokio::sync::Notify;

use crate::{
    config::{Chaining, CniConfConfig},
    file::{CniConf, WriteError},
    render::Logs,
};

/// Wait after a failure; grows with each one.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(120);
/// Changes of the directory within this time make one pass. An agent that is stopped after `uninstall-cni` does not write
/// the file again.
const QUIET: Duration = Duration::from_secs(2);

/// Keeps the CNI configuration of the node as configured.
pub fn cell() -> Cell {
    Cell::module("cni-config", "CNI configuration of the node")
        .config::<CniConfConfig>()
        .provide(CniConfStatus::new)
        .provide(probe)
        .run(start)
}

/// The result of the last pass.
pub(crate) struct CniConfStatus {
    file: Mutex<Status>,
    chaining: Chaining,
}

impl CniConfStatus {
    fn new(config: Cfg<CniConfConfig>, attach: Cfg<AttachConfig>) -> Arc<Self> {
        let file = match is_managed(&config) {
            false => Status::default(),
            true => Status {
                state: State::Warning,
                msg: "CNI configuration file not yet written".to_owned(),
            },
        };
        Arc::new(Self {
            file: Mutex::new(file),
            chaining: Chaining::new(&config, &attach),
        })
    }

    fn set(&self, path: &Path, result: &Result<(), WriteError>) -> String {
        let path = path.display();
        let (state, msg) = match result {
            Ok(()) => (
                State::Ok,
                format!("successfully wrote CNI configuration file to {path}"),
            ),
            Err(error) => {
                let error = error_chain(error);
                (
                    State::Failure,
                    format!("failed to write CNI configuration file {path}: {error}"),
                )
            }
        };
        *self.file.lock() = Status {
            state,
            msg: msg.clone(),
        };
        msg
    }
}

fn is_managed(config: &CniConfConfig) -> bool {
    !config.write_cni_conf_when_ready.as_os_str().is_empty()
}

pub(crate) struct Probe(pub(crate) Arc<CniConfStatus>);

fn probe(status: Arc<CniConfStatus>) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Probe(status)))
}

#[async_trait]
impl StatusProbe for Probe {
    fn name(&self) -> &'static str {
        "cni-config"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let file = self.0.file.lock().clone();
        response.cni_file = Some(file.clone());
        response.cni_chaining = Some(CniChaining {
            mode: self.0.chaining.mode.clone(),
        });
        (file.state == State::Failure).then_some(file)
    }

    fn failure(&self, msg: &str) -> String {
        format!(
            "{}    Could not write CNI config file: {msg}",
            env!("CARGO_PKG_VERSION")
        )
    }
}

fn start(
    config: Cfg<CniConfConfig>,
    log: Cfg<LogConfig>,
    status: Arc<CniConfStatus>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    if !is_managed(&config) {
        return Ok(());
    }
    let source = &config.read_cni_conf;
    let conf = CniConf {
        path: config.write_cni_conf_when_ready.clone(),
        source: (*source != PathBuf::new()).then(|| source.clone()),
        chaining: status.chaining.clone(),
        is_exclusive: config.cni_exclusive,
        logs: Logs {
            debug: log.debug,
            file: config.cni_log_file.clone(),
        },
    };
    jobs.keep("write-cni-file", Manager { conf, status }, Manager::follow)
}

struct Manager {
    conf: CniConf,
    status: Arc<CniConfStatus>,
}

impl Manager {
    async fn follow(&self, JobCtx { health, .. }: &JobCtx) {
        let changed = Arc::new(Notify::new());
        let mut watcher = None;
        let mut failures = 0;
        loop {
            // Before the pass, so that no change is missed; after it if that made the directory.
            self.watch(&mut watcher, &changed);
            let result = self.conf.write();
            self.watch(&mut watcher, &changed);
            let message = self.status.set(&self.conf.path, &result);
            failures = match &result {
                Ok(()) => 0,
                Err(_) => failures + 1,
            };
            match result {
                Ok(()) => health.ok(message),
                Err(error) => health.degraded("Failed to write CNI config file (will retry)", &error),
            }
            let retry = async {
                match failures {
                    0 => std::future::pending().await,
                    failures => tokio::time::sleep(RETRY.saturating_mul(failures).min(RETRY_MAX)).await,
                }
            };
            tokio::select! {
                () = retry => {}
                () = changed.notified() => tokio::time::sleep(QUIET).await,
            }
        }
    }

    /// Watches the directory if other files of it are renamed. Without that others may edit the file.
    fn watch(&self, watcher: &mut Option<RecommendedWatcher>, changed: &Arc<Notify>) {
        let directory = self.conf.directory();
        if watcher.is_some() || !self.conf.is_exclusive || !directory.is_dir() {
            return;
        }
        let changed = changed.clone();
        let note = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                changed.notify_one();
            }
        };
        let watched = notify::recommended_watcher(note).and_then(|mut watcher| {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watched {
            Ok(found) => *watcher = Some(found),
            Err(error) => {
                tracing::warn!(path = %directory.display(), %error, "Failed to watch CNI configuration directory");
            }
        }
    }
}
