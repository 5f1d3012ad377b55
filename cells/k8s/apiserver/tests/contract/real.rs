// SPDX-License-Identifier: Apache-2.0

//! A real API server with its etcd, from the folder that `KUBEBUILDER_ASSETS` names.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Both processes; they end when this is dropped.
pub(crate) struct RealServer {
    processes: Vec<Child>,
    directory: TempDir,
}

impl RealServer {
    /// How to reach it.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn run(program: &Path, arguments: &[String], log: &Path) -> Child {
    let log = std::fs::File::create(log).unwrap();
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Starts a server; nothing if there is none on this machine.
pub(crate) async fn start() -> Option<RealServer> {
    let assets = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    let (etcd, server) = (assets.join("etcd"), assets.join("kube-apiserver"));
    if !etcd.exists() || !server.exists() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let key = Command::new("openssl")
        .args(["genrsa", "-out", &at("accounts.key"), "2048"])
        .output()
        .unwrap();
    assert!(
        key.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&key.stderr)
    );
    let (store, peer, port) = (free_port(), free_port(), free_port());
    let storage = run(
        &etcd,
        &[
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls=http://127.0.0.1:{store}"),
            format!("--advertise-client-urls=http://127.0.0.1:{store}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
            format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
            "--unsafe-no-fsync".to_owned(),
        ],
        &directory.path().join("etcd.log"),
    );
    let api = run(
        &server,
        &[
            format!("--etcd-servers=http://127.0.0.1:{store}"),
            format!("--cert-dir={}", at("certificates")),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=AlwaysAllow".to_owned(),
            "--anonymous-auth=true".to_owned(),
            "--service-account-issuer=https://127.0.0.1".to_owned(),
            format!("--service-account-key-file={}", at("accounts.key")),
            format!("--service-account-signing-key-file={}", at("accounts.key")),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ],
        &directory.path().join("kube-apiserver.log"),
    );
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
         users:\n- name: u\n  user: {{}}\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:{port}\n    \
         insecure-skip-tls-verify: true\n"
    );
    std::fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
    Some(RealServer {
        processes: vec![storage, api],
        directory,
    })
}
