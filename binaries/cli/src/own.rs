// SPDX-License-Identifier: Apache-2.0

//! Runs of this program and of others, for commands that collect their output.

use std::{
    ffi::OsString,
    io::{self, Read as _, Seek as _},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Longest run of a program.
const LONGEST: Duration = Duration::from_secs(30);
/// Most output that is kept.
const MOST: u64 = 64 << 20;

/// This program, with the sockets and the BPF file system of its own command line.
#[derive(Debug)]
pub(crate) struct Own {
    options: Vec<OsString>,
}

/// Output of a run.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    /// What went wrong.
    pub(crate) failure: Option<String>,
}

impl Own {
    /// `options`: those in front of each command.
    pub(crate) fn new(options: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            options: options.into_iter().collect(),
        }
    }

    /// Runs a command.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        match std::env::current_exe() {
            Ok(program) => {
                let mut command = Command::new(program);
                command.args(&self.options).args(words);
                run(command)
            }
            Err(error) => Output {
                stdout: Vec::new(),
                failure: Some(error.to_string()),
            },
        }
    }

    /// The text of a command's output, or of its failure.
    pub(crate) fn text(&self, words: &[&str]) -> String {
        let Output { stdout, failure } = self.run(words);
        let text = String::from_utf8_lossy(&stdout).into_owned();
        match failure {
            Some(failure) if text.is_empty() => format!("{failure}\n"),
            _ => text,
        }
    }
}

/// Runs a program to its end, or for as long as programs may run.
pub(crate) fn run(command: Command) -> Output {
    let failed = |error: io::Error| Output {
        stdout: Vec::new(),
        failure: Some(error.to_string()),
    };
    finished(command).unwrap_or_else(failed)
}

fn finished(mut command: Command) -> io::Result<Output> {
    let [mut stdout, mut stderr] = [unnamed_file()?, unnamed_file()?];
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() > LONGEST {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |file: &mut std::fs::File| -> io::Result<Vec<u8>> {
        file.rewind()?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let (stdout, errors) = (read(&mut stdout)?, read(&mut stderr)?);
    let errors = String::from_utf8_lossy(&errors);
    let failure = match status {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("{status}: {}", errors.trim())),
        None => Some(format!("no end after {} s: {}", LONGEST.as_secs(), errors.trim())),
    };
    Ok(Output { stdout, failure })
}

/// A file in memory, without the limits of a pipe.
fn unnamed_file() -> io::Result<std::fs::File> {
    let file = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}
