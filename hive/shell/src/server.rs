// SPDX-License-Identifier: Apache-2.0

//! Listens on the socket.

use std::path::PathBuf;
use std::sync::Arc;

use hive_script::CommandSet;
use skep_listen::{BindError, BoundUnix, Unix};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::connection::Connection;

/// Connections at once. Each has a state of its own, and people open a handful.
const CONNECTIONS: usize = 64;
/// Where relative paths of commands start.
const WORK_DIR: &str = "/tmp";

/// The listening end of the shell. Dropping it removes the socket.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use skep_shell::{Client, Server};
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
    socket: BoundUnix,
    commands: CommandSet,
}

impl Server {
    /// Listens on `path` with mode 0600. A socket that no process listens on is replaced; missing directories are created.
    ///
    /// # Errors
    /// If another process listens, the path is that of another file, or the socket cannot be created.
    pub fn bind(path: impl Into<PathBuf>, commands: CommandSet) -> Result<Self, BindError> {
        Ok(Self::new(Unix::new(path).bind()?, commands))
    }

    /// Serves `commands` on a socket that is listened on.
    pub fn new(socket: BoundUnix, commands: CommandSet) -> Self {
        Self { socket, commands }
    }

    /// Serves connections until `token` is cancelled, which also cancels the commands that run.
    pub async fn serve(self, token: CancellationToken) {
        info!(path = %self.socket.path().display(), "Listening on shell socket");
        let commands = Arc::new(self.commands);
        let serve = move |accepted: skep_listen::Connection<_, _>| {
            let commands = commands.as_ref().clone();
            let token = accepted.stop.child_token();
            Connection::new(accepted.number, accepted.stream, commands, token, WORK_DIR).serve()
        };
        skep_listen::Server::new("shell", self.socket)
            .connections(CONNECTIONS)
            .serve(token, serve)
            .await;
    }
}
