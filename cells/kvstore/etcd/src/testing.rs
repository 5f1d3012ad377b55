// SPDX-License-Identifier: Apache-2.0

//! For tests: a real etcd on a free loopback port, certificates for it, and a network in front of it that fails.

mod authority;
mod gate;

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use skep_kvstore_client::Backend;
use tempfile::TempDir;

use crate::backend::{ConfigSource, Etcd, TransportOptions};
use crate::file::EtcdConfig;

pub use authority::{Authority, SERVER_NAME};
pub use gate::{Gate, Passes};

/// How long a start may take.
const START: Duration = Duration::from_secs(60);

/// Certificates of a server that speaks TLS, and of those that may be its clients.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The authority of its clients, which must have certificates.
    pub client_ca: PathBuf,
}

/// How an [`EtcdServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The data directory; `None` for one that is removed with the server.
    pub data: Option<PathBuf>,
    /// `None` for a server without TLS.
    pub tls: Option<ServerTls>,
    /// Quota of the data in bytes; `None` for the default of etcd.
    pub quota: Option<u64>,
    /// Whether each write waits until it is on the disk, as in production.
    pub waits_for_disk: bool,
}

/// An etcd that ends, with its data, when this is dropped.
#[derive(Debug)]
pub struct EtcdServer {
    folder: TempDir,
    data: PathBuf,
    port: u16,
    peer_port: u16,
    options: ServerOptions,
    /// The id of the cluster is made of it when there are no data.
    token: u64,
    child: Option<Child>,
    backend: Arc<Etcd>,
}

impl EtcdServer {
    /// Starts etcd, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If the program `etcd` is missing or does not start: package `etcd-server` on Debian.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Starts etcd with TLS. Whether it answers is seen by a client with a certificate.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_with(tls: Option<ServerTls>) -> Self {
        Self::start_as(ServerOptions {
            tls,
            ..ServerOptions::default()
        })
        .await
    }

    /// Starts etcd with a quota for its data. Once they exceed it, etcd rejects writes until keys are deleted and
    /// [`disarm`](Self::disarm) is called.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_with_quota(bytes: u64) -> Self {
        Self::start_as(ServerOptions {
            quota: Some(bytes),
            ..ServerOptions::default()
        })
        .await
    }

    /// Starts etcd on a data directory that exists.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_on(data: &Path, tls: Option<ServerTls>) -> Self {
        Self::start_as(ServerOptions {
            data: Some(data.to_owned()),
            tls,
            ..ServerOptions::default()
        })
        .await
    }

    /// Starts etcd with options. Whether it answers with TLS is seen by a client with a certificate.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn start_as(options: ServerOptions) -> Self {
        let folder = TempDir::with_prefix("skep-etcd-").expect("there is a folder for temporary files");
        let [port, peer_port] = free_ports();
        let config =
            EtcdConfig::of_address(&format!("http://127.0.0.1:{port}")).expect("the address is valid");
        let mut server = Self {
            data: options.data.clone().unwrap_or_else(|| folder.path().join("data")),
            folder,
            port,
            peer_port,
            options,
            token: fastrand::u64(..),
            child: None,
            backend: Arc::new(Etcd::new(
                ConfigSource::Config(config),
                TransportOptions::default(),
            )),
        };
        server.restart().await;
        server
    }

    /// The client port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of the process; `None` if it was [killed](Self::kill).
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The store, for a server without TLS.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }

    /// Compacts all revisions but the newest, defragments, and disarms the alarm.
    ///
    /// # Panics
    ///
    /// If etcd does not do it.
    pub async fn disarm(&self) {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let mut client = etcd_client::Client::connect([endpoint], None)
            .await
            .expect("etcd can be reached");
        let status = client.status().await.expect("etcd answers");
        let header = status.header().expect("it has a header");
        // Until the space is free indeed: otherwise the next write raises the alarm again.
        let options = CompactionOptions::new().with_physical();
        client
            .compact(header.revision(), Some(options))
            .await
            .expect("the revisions are compacted");
        client.defragment().await.expect("the data are defragmented");
        // The alarm is that of a member: etcd ignores a request that names none.
        let mut options = AlarmOptions::new();
        options.with_member(header.member_id());
        client
            .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options))
            .await
            .expect("the alarm ends");
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Forgets all data, as if the pod of a clustermesh-apiserver was replaced. Ends the process.
    pub fn wipe(&mut self) {
        self.token = fastrand::u64(..);
        self.wipe_under_its_id();
    }

    /// Forgets all data; the next etcd has the same cluster id, as with a token that is a constant. Ends the process.
    pub fn wipe_under_its_id(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.data);
    }

    /// Ends the process, and copies its data.
    ///
    /// # Panics
    ///
    /// If there is no space.
    pub fn snapshot(&mut self) -> TempDir {
        self.kill();
        let copy = TempDir::with_prefix("skep-etcd-").expect("there is a folder for temporary files");
        copy_folder(&self.data, copy.path());
        copy
    }

    /// Goes back to data that were copied. Ends the process.
    ///
    /// # Panics
    ///
    /// If there is no space.
    pub fn restore(&mut self, copy: &TempDir) {
        self.wipe_under_its_id();
        copy_folder(copy.path(), &self.data);
    }

    /// Starts the process with the data that are there, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = Some(self.spawn());
        let answers = async {
            while tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
                .await
                .is_err()
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            while self.options.tls.is_none() && self.backend.endpoints().await[0].answer.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(START, answers).await.is_err() {
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            panic!("etcd does not answer on port {}:\n{log}", self.port);
        }
    }

    /// Stops the process where it stands: connections stay, nothing answers. None of its threads runs any more when
    /// this returns.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        if let Some(child) = &self.child {
            waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::STOPPED).expect("it is our child");
        }
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            kill_process(Pid::from_child(child), signal).expect("the process can be signalled");
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn spawn(&self) -> Child {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("the log can be written");
        let scheme = if self.options.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let client = format!("{scheme}://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new("etcd");
        command
            .env_clear()
            .args(["--name=test", "--log-level=warn", "--logger=zap"])
            .arg(format!("--data-dir={}", self.data.display()))
            .args([
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=test={peer}"),
                format!("--initial-cluster-token={:x}", self.token),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log can be shared"))
            .stderr(log);
        let ServerOptions {
            quota,
            tls,
            waits_for_disk,
            ..
        } = &self.options;
        command.args(quota.map(|bytes| format!("--quota-backend-bytes={bytes}")));
        if !waits_for_disk {
            command.arg("--unsafe-no-fsync");
        }
        if let Some(tls) = tls {
            let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
            command.args([
                file("cert-file", &tls.cert),
                file("key-file", &tls.key),
                file("trusted-ca-file", &tls.client_ca),
                "--client-cert-auth".to_owned(),
            ]);
        }
        // A signal of the terminal is the test's alone.
        command.process_group(0);
        command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start `etcd` (package etcd-server on Debian): {error}"))
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("the file can be copied");
        }
    }
}

/// Ports that were free just now; all are held until all are known, so that they differ.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = std::array::from_fn::<_, N, _>(|_| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port")
    });
    listeners.map(|listener| listener.local_addr().expect("it has a port").port())
}
