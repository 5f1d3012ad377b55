// SPDX-License-Identifier: Apache-2.0

//! Processes of the lab: started in their namespaces, logging to a file, ended with the lab.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::OnceLock,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use crate::{enter::Placement, folder};

/// How long a process may take to enter its namespaces.
const PLACING: Duration = Duration::from_secs(10);

/// Why a process did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("starting `{name}`")]
    Spawn {
        /// Name of the process in the lab.
        name: String,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// It ended before it was in its namespaces; its log says why.
    #[error("`{name}` did not enter its namespaces, see {}: {tail}", log.display())]
    Placing {
        /// Name of the process in the lab.
        name: String,
        log: PathBuf,
        /// The last line of the log.
        tail: String,
    },
}

/// A running process of the lab. Dropping it kills it, unless it was started detached.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Child,
    go: Option<ChildStdin>,
}

impl Process {
    /// Starts a process and waits until its namespaces exist. If the placement asks for a handshake, the
    /// program itself starts when [`Process::go`] is called.
    ///
    /// # Errors
    /// When it cannot be started or does not enter its namespaces.
    pub async fn place(name: &str, placement: &Placement, log: &Path) -> Result<Self, ProcessError> {
        let spawn = |cause: io::Error| ProcessError::Spawn {
            name: name.to_owned(),
            cause,
        };
        let file = open_log(log).map_err(spawn)?;
        let mut command = Command::new(own_program());
        command
            .args(placement.arguments())
            .stderr(file.try_clone().map_err(spawn)?)
            .env("RUST_BACKTRACE", "1")
            .kill_on_drop(true);
        if placement.handshake {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).stdout(file);
        }
        let mut child = command.spawn().map_err(spawn)?;
        let pid = child.id().unwrap_or_default();
        let go = child.stdin.take();
        if let Some(out) = child.stdout.take() {
            let mut lines = BufReader::new(out).lines();
            let placed = timeout(PLACING, lines.next_line()).await;
            if !matches!(placed, Ok(Ok(Some(line))) if line == "placed") {
                let tail = last_line(log);
                return Err(ProcessError::Placing {
                    name: name.to_owned(),
                    log: log.to_owned(),
                    tail,
                });
            }
            // What the program prints later goes to the log.
            tokio::spawn(drain(lines.into_inner(), log.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            pid,
            child,
            go,
        })
    }

    /// Starts a process in a process group of its own, which outlives this one.
    pub fn place_detached(name: &str, placement: &Placement, log: &Path) -> Result<Self, ProcessError> {
        let spawn = |cause: io::Error| ProcessError::Spawn {
            name: name.to_owned(),
            cause,
        };
        let file = open_log(log).map_err(spawn)?;
        let child = Command::new(own_program())
            .args(placement.arguments())
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(spawn)?)
            .stderr(file)
            // A signal to the terminal's group is not meant for it.
            .process_group(0)
            .spawn()
            .map_err(spawn)?;
        let pid = child.id().unwrap_or_default();
        Ok(Self {
            name: name.to_owned(),
            pid,
            child,
            go: None,
        })
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Completes the handshake: the process executes its program.
    pub async fn go(&mut self) -> Result<(), ProcessError> {
        let Some(mut go) = self.go.take() else {
            return Ok(());
        };
        go.write_all(b"go\n").await.map_err(|cause| ProcessError::Spawn {
            name: self.name.clone(),
            cause,
        })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks it to end, and kills it when it has not within `patience`. Returns whether it ended by itself.
    pub async fn stop(mut self, patience: Duration) -> bool {
        if let Ok(pid) = i32::try_from(self.pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if timeout(patience, self.child.wait()).await.is_ok() {
            return true;
        }
        let _ = self.child.kill().await;
        false
    }

    /// Kills it at once, as a crash would.
    pub async fn kill(mut self) {
        let _ = self.child.kill().await;
    }
}

/// Waits for a signal to end: Ctrl-C, `SIGTERM`, or a terminal that was closed.
pub async fn interrupted() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

static PROGRAM: OnceLock<OsString> = OnceLock::new();

/// The lab's program, by which it starts its processes: the running one, also when its file was replaced
/// meanwhile, unless [`use_program`] named another.
#[must_use]
pub fn own_program() -> OsString {
    PROGRAM.get().cloned().unwrap_or_else(|| "/proc/self/exe".into())
}

/// The folder of the lab's program, where the other programs are.
#[must_use]
pub fn own_folder() -> Option<PathBuf> {
    let program = std::fs::canonicalize(own_program()).ok()?;
    program.parent().map(Path::to_owned)
}

/// The program called `name`: beside the lab's program, or in the search path.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own_folder().into_iter().chain(std::env::split_paths(&path));
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|candidate| candidate.is_file())
}

/// Sets the lab's program, for callers that are another program. The first call counts.
pub fn use_program(program: OsString) {
    let _ = PROGRAM.set(program);
}

/// The exit code that a shell reports: 128 and the number of the signal that ended the program.
#[must_use]
pub fn shell_code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(1)
}

/// The last line of a log, for messages.
#[must_use]
pub fn last_line(log: &Path) -> String {
    last_lines(log, 1)
}

/// The last lines of a log that are not empty, for messages.
#[must_use]
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        folder::make(parent)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

async fn drain(mut out: BufReader<tokio::process::ChildStdout>, log: PathBuf) {
    let Ok(mut file) = tokio::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .await
    else {
        return;
    };
    if let Err(err) = tokio::io::copy_buf(&mut out, &mut file).await {
        tracing::debug!(error = %err, log = %log.display(), "Cannot write output of process");
    }
    let _ = file.flush().await;
}

/// The command that starts a program on a node or in a pod.
pub(crate) fn placed(placement: &Placement) -> Command {
    let mut command = Command::new(own_program());
    command.args(placement.arguments()).kill_on_drop(true);
    // The lab's own tools are found by name: `skep status`.
    if let Some(folder) = own_folder() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(folder).chain(std::env::split_paths(&path));
        if let Ok(joined) = std::env::join_paths(all) {
            command.env("PATH", joined);
        }
    }
    command
}
