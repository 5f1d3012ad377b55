// SPDX-License-Identifier: Apache-2.0

//! What the API server needs of whoever runs the pods: their logs, and programs started in them.

use std::fmt::Debug;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

/// Runs the pods that this server stores: the kubelets of the cluster.
#[async_trait]
pub trait PodRuntime: Debug + Send + Sync {
    /// The log of a container.
    async fn log(
        &self,
        pod: &Value,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, Bytes>, PodRuntimeError>;

    /// Starts a program in a container.
    async fn exec(&self, pod: &Value, options: &ExecOptions) -> Result<Execution, PodRuntimeError>;
}

/// Why a log cannot be read, or a program not be started.
#[derive(Debug, thiserror::Error)]
pub enum PodRuntimeError {
    /// The container does not run, or did not run before: its status says why.
    #[error("{0}")]
    NotRunning(String),
    /// Ask for less.
    #[error("{0}")]
    Unsupported(String),
    /// What the operating system says.
    #[error("{what}: {cause}")]
    Io {
        /// What was done.
        what: String,
        /// Why it failed.
        cause: std::io::Error,
    },
}

/// Which part of a log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// The container; always one of the pod.
    pub container: String,
    /// Go on with what is written later, until the container ends.
    pub follow: bool,
    /// The log of the run before.
    pub previous: bool,
    /// Only so many lines at the end of what is there.
    pub tail: Option<usize>,
    /// Only so many bytes.
    pub limit: Option<usize>,
}

/// Which program is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// The container; always one of the pod.
    pub container: String,
    /// The program and its arguments; never empty.
    pub command: Vec<String>,
    /// Whether there is a standard input.
    pub stdin: bool,
    /// Whether the standard output is wanted.
    pub stdout: bool,
    /// Whether the standard error is wanted; never with a terminal, which has one output.
    pub stderr: bool,
    /// Whether the program gets a terminal.
    pub tty: bool,
}

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// A program that runs in a container. Dropping it ends the program.
pub struct Execution {
    /// Its standard input.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Its standard output.
    pub stdout: Option<Pin<Box<dyn AsyncRead + Send>>>,
    /// Its standard error.
    pub stderr: Option<Pin<Box<dyn AsyncRead + Send>>>,
    /// Sets the size of its terminal; nothing if it has none.
    pub resize: Option<Box<dyn FnMut(TerminalSize) + Send>>,
    /// The exit code that a shell would report.
    pub ended: BoxFuture<'static, std::io::Result<i32>>,
}
