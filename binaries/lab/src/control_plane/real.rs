// SPDX-License-Identifier: Apache-2.0

//! A real API server with its etcd, from a folder as `KUBEBUILDER_ASSETS` names it.
//!
//! Both run in the lab's network, at the address of the API server; connections to a port of the loopback
//! are forwarded there. They are restarted when they end.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use skep_k8s_client::{ApiError, Client, WriteOptions};
use skep_k8s_types::Kind;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{credentials::Credentials, definitions};
use crate::{
    certificates::CredentialsError,
    cgroup::{self, CgroupError},
    enter::Placement,
    paths::LabPaths,
    plan::{API_PORT, Cluster},
    process::{self, ProcessError},
    restarter::{Ended, Restarter},
};

/// How long the API server may take to become ready.
const READY: Duration = Duration::from_secs(60);
/// Time between two requests to a server that starts.
const LOOK: Duration = Duration::from_millis(200);
/// Lines of a log that are shown when its process ends too early.
const LAST_WORDS: usize = 5;
/// Ports of etcd, for clients and for peers.
const ETCD: (u16, u16) = (2379, 2380);
/// Why the real API server does not run.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// The folder is not one of `setup-envtest`. Without KUBEBUILDER_ASSETS the embedded server is used.
    #[error("there is no {program} in {}, which KUBEBUILDER_ASSETS or --assets names", folder.display())]
    Missing { program: &'static str, folder: PathBuf },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Its control group cannot be created.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its flags are invalid, or the other one does not run.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// It runs and does not answer; see its log.
    #[error("kube-apiserver of cluster {cluster} is not ready within {} s; the end of {}:\n{tail}", READY.as_secs(), log.display())]
    Late {
        cluster: String,
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
        #[source]
        cause: Box<ApiError>,
    },
    /// The kinds that agents watch cannot be defined.
    #[error("defining {kind}")]
    Define {
        kind: String,
        #[source]
        cause: Box<ApiError>,
    },
}

#[derive(Debug, Clone)]
pub struct Assets {
    etcd: PathBuf,
    server: PathBuf,
}

impl Assets {
    /// The programs in `folder`.
    pub fn find(folder: &Path) -> Result<Self, RealError> {
        let find = |program: &'static str| {
            // They are started from other folders.
            let path = std::fs::canonicalize(folder.join(program)).ok();
            path.filter(|path| path.is_file())
                .ok_or_else(|| RealError::Missing {
                    program,
                    folder: folder.to_owned(),
                })
        };
        Ok(Self {
            etcd: find("etcd")?,
            server: find("kube-apiserver")?,
        })
    }
}

/// A running API server with its etcd.
pub(super) struct Server {
    cluster: String,
    etcd: Restarter,
    server: Restarter,
}

impl Server {
    /// Creates the certificates and the token of a cluster's server.
    pub(super) fn credentials(paths: &LabPaths, cluster: &Cluster) -> Result<Credentials, RealError> {
        let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), cluster.api_address().into()];
        Ok(Credentials::make(&folder(paths, cluster), &addresses)?)
    }

    /// Starts both programs in the network of process `fabric`, without waiting until they are ready.
    pub(super) async fn start(
        assets: &Assets,
        paths: &LabPaths,
        cluster: &Cluster,
        fabric: u32,
        credentials: &Credentials,
    ) -> Result<Self, RealError> {
        let group = paths.cgroup.join("control-plane").join(&cluster.name);
        cgroup::create(&group)?;
        let place = |program: &Path, arguments: Vec<String>| {
            Placement::beside(fabric, group.clone(), program, arguments)
        };
        let log = |program: &str| paths.log(&format!("{}-{program}", cluster.name));
        let data = folder(paths, cluster).join("etcd");
        let keep = |program: &'static str, placement: Placement| {
            Restarter::start(&cluster.name, program, placement, log(program))
        };
        let etcd = keep("etcd", place(&assets.etcd, etcd_arguments(cluster, &data)));
        let etcd = etcd.await?;
        let server = keep(
            "kube-apiserver",
            place(&assets.server, server_arguments(cluster, credentials)),
        );
        Ok(Self {
            cluster: cluster.name.clone(),
            etcd,
            server: server.await?,
        })
    }

    /// Waits until the server has created namespace `default`, and then defines the kinds that agents
    /// watch.
    pub(super) async fn ready(&mut self, client: &Arc<dyn Client>) -> Result<(), RealError> {
        let namespaces = Kind::NAMESPACE;
        let deadline = Instant::now() + READY;
        loop {
            self.etcd.has_ended()?;
            self.server.has_ended()?;
            match client.get(&namespaces, "", "default").await {
                Ok(_) => break,
                Err(cause) if Instant::now() > deadline => {
                    return Err(RealError::Late {
                        cluster: self.cluster.clone(),
                        tail: process::last_lines(self.server.log(), LAST_WORDS),
                        log: self.server.log().to_owned(),
                        cause: Box::new(cause),
                    });
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
        for definition in definitions::all() {
            define(client, definition).await?;
        }
        Ok(())
    }

    /// Runs both until stopped: the server stops first, so that its last writes reach etcd.
    pub(super) async fn run(self, stop: CancellationToken) {
        let etcd_stop = CancellationToken::new();
        let server = async {
            self.server.keep(stop).await;
            etcd_stop.cancel();
        };
        tokio::join!(server, self.etcd.keep(etcd_stop.clone()));
    }
}

/// Folder of the files of a cluster's server.
fn folder(paths: &LabPaths, cluster: &Cluster) -> PathBuf {
    paths.folder.join("control-plane").join(&cluster.name)
}

fn etcd_arguments(cluster: &Cluster, data: &Path) -> Vec<String> {
    let url = |port| format!("http://{}", SocketAddr::from((cluster.api_address(), port)));
    let (clients, peers) = (url(ETCD.0), url(ETCD.1));
    vec![
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
    ]
}

fn server_arguments(cluster: &Cluster, credentials: &Credentials) -> Vec<String> {
    let address = cluster.api_address();
    let ((v4, v4_bits), (v6, v6_bits)) = (cluster.service_range_v4(), cluster.service_range_v6());
    vec![
        format!("--etcd-servers=http://{}", SocketAddr::from((address, ETCD.0))),
        format!("--bind-address={address}"),
        format!("--advertise-address={address}"),
        format!("--secure-port={API_PORT}"),
        format!("--cert-dir={}", credentials.file("generated")),
        format!("--tls-cert-file={}", credentials.file("server.crt")),
        format!("--tls-private-key-file={}", credentials.file("server.key")),
        format!("--client-ca-file={}", credentials.file("authority.crt")),
        format!("--token-auth-file={}", credentials.file("tokens.csv")),
        "--authorization-mode=RBAC".to_owned(),
        format!("--service-cluster-ip-range={v4}/{v4_bits},{v6}/{v6_bits}"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", credentials.file("accounts.pub")),
        format!(
            "--service-account-signing-key-file={}",
            credentials.file("accounts.key")
        ),
        // No controller creates service accounts for pods.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--allow-privileged=true".to_owned(),
    ]
}

async fn define(client: &Arc<dyn Client>, definition: Value) -> Result<(), RealError> {
    let kind = Kind::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
    );
    let name = definition["metadata"]["name"].to_string();
    match client
        .create(&kind, "", definition, &WriteOptions::default())
        .await
    {
        Err(cause) if !cause.is_already_exists() => Err(RealError::Define {
            kind: name,
            cause: Box::new(cause),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Lab;

    #[test]
    fn a_folder_without_the_programs_is_named_with_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let missing = |program: &str| {
            let text = Assets::find(folder.path()).unwrap_err().to_string();
            assert!(
                text.contains(program) && text.contains(&*folder.path().to_string_lossy()),
                "{text}"
            );
        };
        missing("etcd");
        std::fs::write(folder.path().join("etcd"), "").unwrap();
        missing("kube-apiserver");
        std::fs::write(folder.path().join("kube-apiserver"), "").unwrap();
        assert!(Assets::find(folder.path()).is_ok());
    }

    #[test]
    fn clusters_have_their_own_addresses_and_ranges() {
        let lab = Lab::plan("t", 2, 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::make(folder.path(), &[]).unwrap();

        let arguments = server_arguments(&lab.clusters[1], &credentials);

        for expected in [
            "--etcd-servers=http://172.30.2.250:2379",
            "--bind-address=172.30.2.250",
            "--secure-port=6443",
            "--service-cluster-ip-range=10.102.0.0/16,fd00:100:2::/112",
        ] {
            assert!(
                arguments.iter().any(|argument| argument == expected),
                "{arguments:?}"
            );
        }
    }
}
