// SPDX-License-Identifier: Apache-2.0

//! Reads the settings again while the program runs: after SIGHUP, and when a config directory or file has
//! changed.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::notify::Notifier;
use crate::config::Settings;
use crate::engine::Engine;

/// A running hive and where its settings come from.
#[derive(Clone)]
pub(super) struct Reloading {
    pub(super) engine: Weak<Engine>,
    pub(super) settings: Settings,
    pub(super) notifier: Option<Notifier>,
}

impl Reloading {
    /// Reads all sources again. Faults are logged; then nothing changes.
    pub(super) async fn reload(&self) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        if let Some(notifier) = &self.notifier {
            notifier.send("RELOADING=1\n");
        }
        let settings = self.settings.clone();
        let result = tokio::task::spawn_blocking(move || engine.reload(settings)).await;
        match result {
            Ok(Ok(reload)) => {
                tracing::info!(
                    applied = reload.applied.join(","),
                    restart_needed = reload.drift.join(","),
                    "Settings read again"
                );
            }
            Ok(Err(report)) => {
                for finding in report.errors() {
                    tracing::error!(code = %finding.code, "{}; settings stay as they are", finding.message);
                }
            }
            Err(error) => tracing::error!(%error, "Settings could not be read again"),
        }
        if let Some(notifier) = &self.notifier {
            notifier.send("READY=1\n");
        }
    }

    /// Reloads whenever a config directory or file has changed.
    pub(super) async fn watch(self, every: Duration) {
        let mut loaded = Print::of(&self.settings);
        let mut last = loaded.clone();
        loop {
            tokio::time::sleep(every).await;
            let now = Print::of(&self.settings);
            // Files that are being written look different twice; a mounted ConfigMap changes at once.
            if now != loaded && (now == last || now.is_atomic()) {
                self.reload().await;
                loaded = now.clone();
            }
            last = now;
        }
    }
}

/// What config directories and files look like from outside.
#[derive(Clone, PartialEq)]
struct Print(Vec<Source>);

#[derive(Clone, PartialEq)]
enum Source {
    /// A mounted ConfigMap: its link `..data` names the version.
    Mounted(PathBuf),
    /// Files with time of change and size.
    Files(Vec<(PathBuf, Option<SystemTime>, u64)>),
}

impl Print {
    fn of(settings: &Settings) -> Self {
        let directories = settings.directories.iter().map(|directory| {
            if let Ok(version) = fs::read_link(directory.join("..data")) {
                return Source::Mounted(version);
            }
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let mut files: Vec<_> = entries.map(|entry| look(entry.path())).collect();
            files.sort();
            Source::Files(files)
        });
        let files = settings
            .files
            .iter()
            .map(|file| Source::Files(vec![look(file.clone())]));
        Self(directories.chain(files).collect())
    }

    fn is_atomic(&self) -> bool {
        self.0.iter().all(|source| matches!(source, Source::Mounted(_)))
    }
}

fn look(path: PathBuf) -> (PathBuf, Option<SystemTime>, u64) {
    match fs::metadata(&path) {
        Ok(data) => (path, data.modified().ok(), data.len()),
        Err(_) => (path, None, 0),
    }
}

/// Watches the sources if there are any to watch.
pub(super) fn watch(reloading: &Reloading, engine: &Arc<Engine>, every: Duration) {
    let nothing = reloading.settings.directories.is_empty() && reloading.settings.files.is_empty();
    if nothing || every.is_zero() {
        return;
    }
    let (watching, stopping) = (reloading.clone(), engine.shutdown.token());
    tokio::spawn(async move {
        tokio::select! {
            () = stopping.cancelled() => {}
            () = watching.watch(every) => {}
        }
    });
}
