// SPDX-License-Identifier: Apache-2.0

//! The client of the shell.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use crate::{END, ERROR, MARKERS};

/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// How long [`Client::connect_patiently`] tries.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why a command was not run or failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket, or this user may not connect to it.
    #[error("cannot connect to {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// The connection broke; the process may have ended.
    #[error("connection to the shell lost")]
    Lost(#[source] io::Error),
    /// The other side closed the connection before the command had ended.
    #[error("connection closed by the shell")]
    Closed,
    /// The command failed.
    #[error("{0}")]
    Command(String),
}

impl ClientError {
    /// What to print while [`Client::connect_patiently`] retries.
    pub fn retry_text(&self) -> String {
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        format!("Dialing failed: {self}{}. Retrying...", cause.unwrap_or_default())
    }
}

/// A connection to the shell of a running process.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Client {
    /// Connects to the socket at `path`.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let stream = UnixStream::connect(path)
            .await
            .map_err(|cause| ClientError::Connect {
                path: path.to_owned(),
                cause,
            })?;
        let (reader, writer) = stream.into_split();
        Ok(Self {
            reader: BufReader::new(reader),
            writer,
        })
    }

    /// Tries to connect for up to 15 seconds; `waiting` is called for every failed attempt but the last.
    pub async fn connect_patiently(
        path: impl AsRef<Path>,
        mut waiting: impl FnMut(&ClientError),
    ) -> Result<Self, ClientError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::connect(&path).await {
                Err(error) if Instant::now() + PAUSE <= deadline => waiting(&error),
                result => return result,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Runs a command and passes what it prints to `print` as it comes. Dropping the future in between makes the
    /// connection unusable; drop the client as well, which cancels the command.
    pub async fn run(&mut self, command: &str, mut print: impl FnMut(&str)) -> Result<(), ClientError> {
        let command = command.replace('\n', " ");
        self.writer
            .write_all(format!("{command}\n").as_bytes())
            .await
            .map_err(ClientError::Lost)?;
        loop {
            let mut line = Vec::new();
            let count = self
                .reader
                .read_until(b'\n', &mut line)
                .await
                .map_err(ClientError::Lost)?;
            if count == 0 {
                return Err(ClientError::Closed);
            }
            let line = String::from_utf8_lossy(&line);
            let content = line.strip_suffix('\n').unwrap_or(&line);
            if let Some(text) = content.strip_suffix(END) {
                if !text.is_empty() {
                    print(text);
                }
                return Ok(());
            }
            if let Some(error) = content.strip_suffix(ERROR) {
                return Err(ClientError::Command(error.to_owned()));
            }
            if !MARKERS.contains(&content) {
                print(&line);
            }
        }
    }

    /// Possible completions of the last word of `line`: names of commands, or what the command suggests.
    pub async fn complete(&mut self, line: &str) -> Result<Vec<String>, ClientError> {
        let line = line.trim_start();
        let query = match line.split_once(' ') {
            None => format!("help -a '{}'", line.replace('\'', "''")),
            Some((command, rest)) => format!("{command} --autocomplete='{}'", rest.replace('\'', "''")),
        };
        let mut text = String::new();
        match self.run(&query, |chunk| text.push_str(chunk)).await {
            Ok(()) => Ok(text
                .lines()
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect()),
            // A command that does not exist has nothing to suggest.
            Err(ClientError::Command(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
