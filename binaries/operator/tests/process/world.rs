// SPDX-License-Identifier: Apache-2.0

//! An API server, and operators that are processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use skep_k8s_apiserver::testing::ServedCluster;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long something may take that happens at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "kube-system";

static LEASES: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);

pub(crate) struct World {
    folder: TempDir,
    pub(crate) cluster: TestCluster,
    /// Where operators reach the API server.
    pub(crate) address: SocketAddr,
    served: ServedCluster,
}

impl World {
    pub(crate) async fn start() -> Self {
        let served = ServedCluster::start().await;
        let cluster = served.cluster().clone();
        cluster.namespace(NAMESPACE).await;
        Self {
            folder: TempDir::with_prefix("skep-operator-").expect("there is a folder for temporary files"),
            cluster,
            address: served.address(),
            served,
        }
    }

    pub(crate) async fn stop(self) {
        drop(self.served);
    }

    /// Starts an operator with short leases: two seconds.
    pub(crate) fn operator(&self, name: &str, flags: &[&str]) -> Operator {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .expect("it works")
            .port();
        let file = |suffix: &str| self.folder.path().join(format!("{name}{suffix}"));
        let log = std::fs::File::create(file(".log")).expect("it works");
        let child = Command::new(env!("CARGO_BIN_EXE_skep-operator"))
            .arg(format!("--k8s-api-server-urls=http://{}", self.address))
            .arg(format!(
                "--k8s-api-server-state-file={}",
                file("-server").display()
            ))
            .arg(format!("--k8s-namespace={NAMESPACE}"))
            .arg(format!("--operator-api-serve-addr=127.0.0.1:{port}"))
            .arg(format!("--shell-sock-path={}", file(".sock").display()))
            .arg(format!("--health-history-file={}", file("-history").display()))
            .args([
                "--leader-election-lease-duration=2s",
                "--leader-election-renew-deadline=1500ms",
                "--leader-election-retry-period=300ms",
                "--ipam=kubernetes",
            ])
            .args(flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("it works"))
            .stderr(log)
            .spawn()
            .expect("it works");
        Operator {
            child,
            port,
            log: file(".log"),
        }
    }

    /// Who holds the lease; empty if it is released or was never taken.
    pub(crate) async fn leader(&self) -> String {
        let lease = self
            .cluster
            .get(&LEASES, NAMESPACE, "cilium-operator-resource-lock")
            .await;
        let holder = lease["spec"]["holderIdentity"].as_str();
        holder.unwrap_or_default().to_owned()
    }

    /// Waits for another leader than `old`. Returns who it is, and how long it took.
    #[track_caller]
    pub(crate) fn next_leader(&self, old: &str) -> impl Future<Output = (String, Duration)> {
        let caller = std::panic::Location::caller();
        async move {
            let began = Instant::now();
            while began.elapsed() < PATIENCE {
                let leader = self.leader().await;
                if !leader.is_empty() && leader != old {
                    return (leader, began.elapsed());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("{caller}: there is no other leader than `{old}`");
        }
    }
}

/// A process, killed with this value.
pub(crate) struct Operator {
    child: Child,
    port: u16,
    log: std::path::PathBuf,
}

impl Operator {
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it works");
        self.child.wait().expect("it works");
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it works");
    }

    /// Waits until it has ended; returns the exit code.
    pub(crate) async fn wait_exit(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it works") {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "it does not end:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a command of the shell prints a text that has this.
    pub(crate) async fn wait_shell(&self, command: &str, expected: &str) {
        self.wait_shell_until(command, expected, |text| text.contains(expected))
            .await;
    }

    /// Waits until a command of the shell prints a text of which something is true.
    pub(crate) async fn wait_shell_until(&self, command: &str, what: &str, is_so: impl Fn(&str) -> bool) {
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < PATIENCE {
            let output = Command::new(env!("CARGO_BIN_EXE_skep-operator"))
                .args(["shell", "--shell-sock-path"])
                .arg(self.log.with_extension("sock"))
                .arg(command)
                .output()
                .expect("it works");
            last = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if is_so(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("`{last}` does not get `{what}`:\n{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `skep-operator status clustermesh` prints a text that has this.
    pub(crate) async fn wait_clusters(&self, expected: &str) {
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < PATIENCE {
            let output = Command::new(env!("CARGO_BIN_EXE_skep-operator"))
                .args(["status", "clustermesh", "--verbose"])
                .arg(format!("--server=127.0.0.1:{}", self.port))
                .output()
                .expect("it works");
            last = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if last.contains(expected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("`{last}` does not get `{expected}`:\n{}", self.log());
    }

    /// Waits until `GET /healthz` answers with a text that begins so.
    pub(crate) async fn wait_healthz(&self, expected: &str) {
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < PATIENCE {
            last = self.healthz().await.unwrap_or_else(|error| error.to_string());
            if last.starts_with(expected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("`{last}` does not become `{expected}`:\n{}", self.log());
    }

    async fn healthz(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        Ok(format!("{status} {body}"))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
