// SPDX-License-Identifier: Apache-2.0

//! The etcd of a benchmark: without TLS and without waiting for the disk, or as in production.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::Context;
use clap::Args;
use skep_kvstore_client::Backend;
use skep_kvstore_etcd::testing::{Authority, EtcdServer, SERVER_NAME, ServerOptions, ServerTls};
use skep_kvstore_etcd::{ConfigSource, EtcdConfig, TransportOptions};
use tempfile::TempDir;

/// Longest wait for the first answer.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// How etcd runs. The text is that of the help.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EtcdOptions {
    /// etcd speaks TLS, and its clients have certificates.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Folder on a disk for the data of etcd; each write waits then until it is on the disk. By default data are in the
    /// folder for temporary files, and no write waits for a disk.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) disk: Option<PathBuf>,
}

/// As names of measurements end: ` (TLS, disk)`.
impl fmt::Display for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.tls, self.disk.is_some()) {
            (false, false) => "",
            (true, false) => " (TLS)",
            (false, true) => " (disk)",
            (true, true) => " (TLS, disk)",
        })
    }
}

/// A running etcd with its certificates. All of it goes when this is dropped.
pub(crate) struct Etcd {
    // Ends before its folders are removed.
    server: EtcdServer,
    /// The configuration of its clients, as a file.
    file: PathBuf,
    config: EtcdConfig,
    backend: Arc<dyn Backend>,
    _folder: TempDir,
    _disk: Option<TempDir>,
}

impl Etcd {
    /// Starts etcd, and waits until it answers.
    pub(crate) async fn start(options: &EtcdOptions) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("skep-bench-etcd-")?;
        let disk = match &options.disk {
            Some(disk) => {
                let folder = TempDir::with_prefix_in("skep-bench-etcd-", disk);
                Some(folder.with_context(|| disk.display().to_string())?)
            }
            None => None,
        };
        let certificates = options.tls.then(|| Certificates::new(folder.path()));
        let server = EtcdServer::start_as(ServerOptions {
            data: disk.as_ref().map(|disk| disk.path().join("data")),
            tls: certificates
                .as_ref()
                .map(|certificates| certificates.server.clone()),
            waits_for_disk: disk.is_some(),
            ..ServerOptions::default()
        })
        .await;
        let text = match &certificates {
            Some(certificates) => certificates.client_config(server.port()),
            None => format!("endpoints:\n- http://127.0.0.1:{}\n", server.port()),
        };
        let file = folder.path().join("client.yaml");
        fs::write(&file, text)?;
        let config = EtcdConfig::load(&file)?;
        let etcd = Self {
            server,
            backend: connect(&config),
            config,
            file,
            _folder: folder,
            _disk: disk,
        };
        etcd.wait().await?;
        Ok(etcd)
    }

    async fn wait(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            match self.backend.endpoints().await.into_iter().next() {
                Some(status) => match status.answer {
                    Ok(_) => return Ok(()),
                    Err(error) => anyhow::ensure!(begun.elapsed() < PATIENCE, "{}: {error}", status.endpoint),
                },
                None => anyhow::bail!("the configuration names no endpoint"),
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    /// The store over a connection of its own.
    pub(crate) fn connect(&self) -> Arc<dyn Backend> {
        connect(&self.config)
    }

    pub(crate) fn id(&self) -> anyhow::Result<u32> {
        self.server.id().context("etcd does not run")
    }

    /// The file that programs read to connect.
    pub(crate) fn client_config(&self) -> &Path {
        &self.file
    }
}

fn connect(config: &EtcdConfig) -> Arc<dyn Backend> {
    let source = ConfigSource::Config(config.clone());
    Arc::new(skep_kvstore_etcd::Etcd::new(source, TransportOptions::default()))
}

/// The files of a server and of its clients.
struct Certificates {
    server: ServerTls,
    client: (PathBuf, PathBuf),
}

impl Certificates {
    fn new(folder: &Path) -> Self {
        let authority = Authority::new("benchmark");
        let client_ca = authority.write(folder);
        let (cert, key) = authority.sign(folder, "server");
        Self {
            server: ServerTls { cert, key, client_ca },
            client: authority.sign(folder, "client"),
        }
    }

    fn client_config(&self, port: u16) -> String {
        let (cert, key) = &self.client;
        format!(
            "endpoints: [\"https://{SERVER_NAME}:{port}\"]\n\
             trusted-ca-file: {}\n\
             cert-file: {}\n\
             key-file: {}\n\
             cilium-host-aliases: [{{hostname: {SERVER_NAME}, ips: [127.0.0.1]}}]\n",
            self.server.client_ca.display(),
            cert.display(),
            key.display(),
        )
    }
}

#[cfg(test)]
mod tests {
    use skep_kvstore_client::{KeyRange, RangeRequest};

    use super::*;

    #[tokio::test]
    async fn etcd_with_tls_on_a_disk_is_reached_with_a_certificate_alone() {
        let disk = tempfile::tempdir().expect("there is a folder");
        let options = EtcdOptions {
            tls: true,
            disk: Some(disk.path().to_owned()),
        };
        let etcd = Etcd::start(&options).await.expect("it starts");

        let read = async |store: Arc<dyn Backend>| store.range(RangeRequest::new(KeyRange::key("a"))).await;
        assert!(read(etcd.connect()).await.is_ok());
        let mut config = etcd.config.clone();
        config.tls.client = None;
        assert!(read(connect(&config)).await.is_err());

        let data = fs::read_dir(disk.path()).expect("it can be read").count();
        assert_eq!(data, 1);
        drop(etcd);
        assert_eq!(fs::read_dir(disk.path()).expect("it can be read").count(), 0);
        assert_eq!(options.to_string(), " (TLS, disk)");
    }

    #[tokio::test]
    async fn a_folder_that_does_not_exist_is_named() {
        let options = EtcdOptions {
            tls: false,
            disk: Some("/nonexistent".into()),
        };

        let error = Etcd::start(&options)
            .await
            .err()
            .expect("there is no such folder");

        assert_eq!(error.to_string(), "/nonexistent");
    }
}
