// SPDX-License-Identifier: Apache-2.0

//! Processes of the control plane, restarted when they end.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    enter::Placement,
    process::{self, Process, ProcessError},
};

/// Delay before a process that ended is restarted.
const RESTART: Duration = Duration::from_millis(500);
/// How long a process may take to stop.
const STOP: Duration = Duration::from_secs(10);
/// Lines of a log that are shown when its process ends too early.
const LAST_WORDS: usize = 5;

/// A process ended before it was ready: its flags are invalid, or another one that it needs does not run.
#[derive(Debug, thiserror::Error)]
#[error("{program} of cluster {cluster} ended; the end of {}:\n{tail}", log.display())]
pub struct Ended {
    program: &'static str,
    cluster: String,
    log: PathBuf,
    tail: String,
}

/// A process that is restarted when it ends.
pub(crate) struct Restarter {
    cluster: String,
    program: &'static str,
    placement: Placement,
    log: PathBuf,
    process: Process,
    // While this file is there, the process is not restarted.
    hold: Option<PathBuf>,
}

impl Restarter {
    pub(crate) async fn start(
        cluster: &str,
        program: &'static str,
        placement: Placement,
        log: PathBuf,
    ) -> Result<Self, ProcessError> {
        Ok(Self {
            cluster: cluster.to_owned(),
            program,
            process: Process::place(program, &placement, &log).await?,
            placement,
            log,
            hold: None,
        })
    }

    /// Does not restart the process while file `hold` is there.
    pub(crate) fn held_by(self, hold: PathBuf) -> Self {
        Self {
            hold: Some(hold),
            ..self
        }
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Fails if the process has ended.
    pub(crate) fn has_ended(&mut self) -> Result<(), Ended> {
        if !self.process.has_ended() {
            return Ok(());
        }
        Err(Ended {
            program: self.program,
            cluster: self.cluster.clone(),
            tail: process::last_lines(&self.log, LAST_WORDS),
            log: self.log.clone(),
        })
    }

    /// Restarts the process when it ends, until stopped.
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let cluster = &self.cluster;
        loop {
            tokio::select! {
                ended = self.process.ended() => {
                    tracing::warn!(cluster, program = self.program, ?ended, "Program exited, restarting it");
                }
                () = stop.cancelled() => {
                    self.process.stop(STOP).await;
                    return;
                }
            }
            loop {
                tokio::select! {
                    () = tokio::time::sleep(RESTART) => {}
                    () = stop.cancelled() => return,
                }
                if !self.hold.as_deref().is_some_and(Path::exists) {
                    break;
                }
            }
            match Process::place(self.program, &self.placement, &self.log).await {
                Ok(process) => self.process = process,
                Err(err) => {
                    tracing::error!(cluster, error = %hive::error_chain(&err), "Cannot start program");
                    return;
                }
            }
        }
    }
}
