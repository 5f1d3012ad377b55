// SPDX-License-Identifier: Apache-2.0

//! Cells: the fake client of scripts, and the API server of the lab.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hive::{Cell, Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, Members};
use hive_script::CommandHandle;
use parking_lot::Mutex;
use skep_k8s_client::Client;
use skep_listen::{BindError, Tcp};
use statedb::{Db, Table};

use crate::accounts::{SigningKey, SigningKeyError};
use crate::client::InProcessClient;
use crate::command;
use crate::config::{ADDRESS, ApiServerConfig, ConfigError};
use crate::fake::FakeClient;
use crate::http::{HttpOptions, HttpServer};
use crate::kinds::Registry;
use crate::server::{ApiServer, Manner};
use crate::table::{Rows, TrackedObject};
use crate::tracker::Tracker;

/// A client over objects that scripts add.
/// Requires: [`Db`]. Provides: `Arc<dyn Client>`, [`FakeClient`], the table `k8s-object-tracker`, the `k8s/` commands.
pub fn fake_client_cell() -> Cell {
    Cell::module("k8s-fake-client", "Fake Kubernetes client")
        .provide(FakeClient::new)
        .provide(fake_client)
        .provide(fake_table)
        .provide(fake_commands)
}

fn fake_client(fake: Arc<FakeClient>) -> Arc<dyn Client> {
    Arc::new(fake.client())
}

fn fake_table(fake: Arc<FakeClient>) -> Table<TrackedObject> {
    fake.table()
}

fn fake_commands(fake: Arc<FakeClient>) -> Members<CommandHandle> {
    Members(command::commands(&fake))
}

/// An API server that listens while the hive runs.
/// Requires: [`Db`]. Provides: [`ApiServer`] and [`Listening`].
pub fn server_cell() -> Cell {
    Cell::module("k8s-apiserver", "Embedded Kubernetes API server")
        .config::<ApiServerConfig>()
        .provide(api_server)
        .provide(Listening::new)
        .run(keep)
}

/// Serves even if no cell requires it.
fn keep(_: Arc<Listening>) {}

/// Why the API server cannot be made or cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting cannot be used.
    #[error("API server configuration")]
    Config(#[from] ConfigError),
    /// The file has no key for the tokens of service accounts.
    #[error("signing key of service accounts")]
    SigningKey(#[from] SigningKeyError),
    /// The file with the certificates for namespaces cannot be read.
    #[error("certificates for pods: {}", path.display())]
    RootCa {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The table of objects exists already: there can be one server or fake client in a database.
    #[error("API server table")]
    Table(#[from] statedb::Error),
    /// The port is in use, or the address is not one of this machine.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The job that serves cannot be started.
    #[error("API server job")]
    Job(#[from] hive::SpawnError),
}

fn api_server(db: Db, config: Cfg<ApiServerConfig>) -> Result<Arc<ApiServer>, ServerError> {
    let rows = Rows::new(&db)?;
    let history = usize::try_from(config.history).unwrap_or(usize::MAX);
    let tracker = Tracker::new(rows, history, false);
    let mut settings = config.settings()?;
    if !config.signing_key_file.is_empty() {
        settings.signing_key = Some(SigningKey::from_file(Path::new(&config.signing_key_file))?);
    }
    if !config.root_ca_file.is_empty() {
        let path = PathBuf::from(&config.root_ca_file);
        let text = std::fs::read_to_string(&path);
        settings.root_ca = Some(text.map_err(|cause| ServerError::RootCa { path, cause })?);
    }
    Ok(Arc::new(ApiServer::new(
        tracker,
        Registry::builtin(),
        Manner::Real(settings),
    )))
}

/// The address that the API server listens on, once it does.
#[derive(Debug, Default)]
pub struct Listening {
    address: Mutex<Option<SocketAddr>>,
}

impl Listening {
    fn new(
        api: Arc<ApiServer>,
        config: Cfg<ApiServerConfig>,
        lifecycle: Lifecycle,
        jobs: Jobs,
    ) -> Result<Arc<Self>, ServerError> {
        let address = config.address()?;
        let listening = Arc::new(Listening::default());
        let started = listening.clone();
        let options = HttpOptions {
            token: config.token.clone(),
            ..HttpOptions::default()
        };
        lifecycle.on_start("listen", move |_cx: HookCtx| {
            let (started, jobs, api, options) = (started.clone(), jobs.clone(), api.clone(), options.clone());
            async move {
                let listener = Tcp::new(address).setting(ADDRESS).bind()?;
                let server = HttpServer::with_listener(listener, (*api).clone(), options);
                *started.address.lock() = Some(server.address());
                // The job runs once for each start: the listener is handed over to it.
                let server = Arc::new(Mutex::new(Some(server)));
                jobs.spawn(Job::once("serve", move |cx: JobCtx| {
                    let server = server.lock().take();
                    async move {
                        if let Some(server) = server {
                            server.serve(cx.token.clone()).await;
                        }
                    }
                }))?;
                Ok::<_, ServerError>(())
            }
        });
        Ok(listening)
    }

    /// The address, while it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.lock()
    }
}

/// A client of the API server in the same hive, for controllers.
pub fn in_process_client(api: &ApiServer) -> InProcessClient {
    InProcessClient::new(
        api.clone(),
        skep_k8s_client::ServerVersion {
            major: 1,
            minor: 33,
            git_version: crate::http::VERSION.to_owned(),
            platform: crate::http::platform(),
        },
    )
}

#[cfg(test)]
mod tests;
