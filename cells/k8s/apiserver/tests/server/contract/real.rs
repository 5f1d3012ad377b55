// SPDX-License-Identifier: Apache-2.0

//! An API server of its own processes with its etcd: a real one from the folder that `KUBEBUILDER_ASSETS` names.

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

    /// The end of the server's log.
    pub(crate) fn last_words(&self) -> String {
        let log =
            std::fs::read_to_string(self.directory.path().join("kube-apiserver.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
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

fn openssl(arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).output().unwrap();
    assert!(
        made.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&made.stderr)
    );
}

/// The programs in the folder that `KUBEBUILDER_ASSETS` names; nothing if there are none.
pub(crate) fn assets() -> Option<(PathBuf, PathBuf)> {
    let assets = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    let (etcd, server) = (assets.join("etcd"), assets.join("kube-apiserver"));
    (etcd.exists() && server.exists()).then_some((etcd, server))
}

/// Starts `etcd` and `server`.
pub(crate) fn start((etcd, server): (PathBuf, PathBuf)) -> RealServer {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    openssl(&[
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-out",
        &at("accounts.key"),
    ]);
    openssl(&[
        "pkey",
        "-in",
        &at("accounts.key"),
        "-pubout",
        "-out",
        &at("accounts.pub"),
    ]);
    // With `AlwaysAllow` the server refuses whoever shows no token, whatever `--anonymous-auth` says.
    let token = "contract";
    std::fs::write(at("tokens.csv"), format!("{token},contract,contract\n")).unwrap();
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
            format!("--token-auth-file={}", at("tokens.csv")),
            "--service-account-issuer=https://127.0.0.1".to_owned(),
            format!("--service-account-key-file={}", at("accounts.pub")),
            format!("--service-account-signing-key-file={}", at("accounts.key")),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ],
        &directory.path().join("kube-apiserver.log"),
    );
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
         users:\n- name: u\n  user: {{token: {token}}}\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:{port}\n    \
         insecure-skip-tls-verify: true\n"
    );
    std::fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
    RealServer {
        processes: vec![storage, api],
        directory,
    }
}
