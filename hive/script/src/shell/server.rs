// SPDX-License-Identifier: Apache-2.0

//! Listens on the socket.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connection::Connection;
use crate::CommandSet;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Where relative paths of commands start.
const WORK_DIR: &str = "/tmp";

/// Why the shell cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process listens on the socket; give this one another path.
    #[error("{path} is in use by another process")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// There is a file that is no socket; give the shell another path.
    #[error("{path} is there and is no socket")]
    NotSocket {
        /// The file.
        path: PathBuf,
    },
    /// The socket cannot be made; check the directory and its permissions.
    #[error("cannot listen on {path}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
}

/// The listening end of the shell. Dropping it removes the socket.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use hive_script::shell::{Client, Server};
/// use tokio_util::sync::CancellationToken;
///
/// let path = std::env::temp_dir().join(format!("shell-doc-{}.sock", std::process::id()));
/// let server = Server::bind(&path, hive_script::shell_commands()).unwrap();
/// let token = CancellationToken::new();
/// let serving = tokio::spawn({ let token = token.clone(); async move { server.serve(token).await } });
///
/// let mut text = String::new();
/// let mut client = Client::connect(&path).await.unwrap();
/// client.run("help cat", |chunk| text.push_str(chunk)).await.unwrap();
/// assert!(text.starts_with("cat files..."));
///
/// token.cancel();
/// serving.await.unwrap();
/// assert!(!path.exists());
/// # });
/// ```
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    commands: CommandSet,
}

impl std::fmt::Debug for dyn crate::Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Command").field(&self.spec().name()).finish()
    }
}

impl Server {
    /// Listens on `path` with mode 0600. A socket that nobody listens on is replaced; missing directories are made.
    pub fn bind(path: impl Into<PathBuf>, commands: CommandSet) -> Result<Self, ServerError> {
        let path = path.into();
        let failed = |cause: io::Error| ServerError::Listen {
            path: path.clone(),
            cause,
        };
        if BlockingStream::connect(&path).is_ok() {
            return Err(ServerError::InUse { path });
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(ServerError::NotSocket { path });
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = private_listener(&path).map_err(failed)?;
        Ok(Self {
            listener,
            path,
            commands,
        })
    }

    /// Serves connections until `token` is cancelled, which also cancels the commands that run.
    pub async fn serve(self, token: CancellationToken) {
        info!(path = %self.path.display(), "listening on shell socket");
        let mut connections = FuturesUnordered::new();
        let mut number = 0_u64;
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => break,
                Some(()) = connections.next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        number += 1;
                        let connection =
                            Connection::new(number, stream, self.commands.clone(), token.child_token(), WORK_DIR);
                        connections.push(connection.serve());
                    }
                    Err(error) => {
                        warn!(error = %error, "cannot accept shell connection");
                        // Out of descriptors: give others time to close some.
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                },
            }
        }
        while connections.next().await.is_some() {}
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            warn!(path = %self.path.display(), error = %error, "cannot remove shell socket");
        }
    }
}

/// A listener that never had a wider mode than 0600: Linux takes the mode of the socket's inode before `bind`.
fn private_listener(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, mode)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}
