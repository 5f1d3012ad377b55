// SPDX-License-Identifier: Apache-2.0

//! The etcd process. It is killed when this is dropped.

use std::{future, io, net::Ipv4Addr, process::ExitStatus, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{net::TcpListener, process::Child, process::Command, time};

use super::{EtcdInitError, Options};

/// How long etcd may take to end.
const STOP: Duration = Duration::from_secs(30);

pub(super) struct EtcdProcess {
    child: Child,
}

/// Reports a listener that would answer in place of etcd.
pub(super) async fn check_port_is_free(port: u16) -> Result<(), EtcdInitError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener
        .map(drop)
        .map_err(|cause| EtcdInitError::Port { port, cause })
}

impl EtcdProcess {
    /// Starts etcd. Peers, of which it has none, are awaited on any free port of the loopback: etcd cannot do without. These
    /// flags are the same in etcd 3.4 to 3.6.
    pub(super) fn start(options: &Options) -> Result<Self, EtcdInitError> {
        let address = format!("http://127.0.0.1:{}", options.etcd_port);
        let mut command = Command::new(&options.etcd_binary);
        command
            .arg(format!("--data-dir={}", options.etcd_data_dir.display()))
            .arg(format!("--name={}", options.etcd_cluster_name))
            .arg(format!("--listen-client-urls={address}"))
            .arg(format!("--advertise-client-urls={address}"))
            .arg(format!(
                "--initial-cluster-token={}",
                options.etcd_initial_cluster_token
            ))
            .arg("--initial-cluster-state=new")
            .arg("--listen-peer-urls=http://127.0.0.1:0")
            .args([
                "--logger=zap",
                if options.debug {
                    "--log-level=debug"
                } else {
                    "--log-level=info"
                },
            ])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        // Variables of the pod would be settings of etcd.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ETCD_") {
                command.env_remove(name);
            }
        }
        let child = command.spawn().map_err(|cause| EtcdInitError::Start {
            path: options.etcd_binary.clone(),
            cause,
        })?;
        Ok(Self { child })
    }

    /// Returns when the process has ended by itself.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            Err(_) => future::pending().await,
        }
    }

    /// Asks etcd to end, and waits for it.
    pub(super) async fn stop(&mut self) -> Result<(), EtcdInitError> {
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|error| EtcdInitError::Stop(error.into()))?;
        }
        match time::timeout(STOP, self.child.wait()).await {
            Ok(ended) => ended.map(drop).map_err(EtcdInitError::Stop),
            Err(_) => Err(EtcdInitError::Stop(io::ErrorKind::TimedOut.into())),
        }
    }
}
