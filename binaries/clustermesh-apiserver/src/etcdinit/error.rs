// SPDX-License-Identifier: Apache-2.0

//! Why an initialization fails.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Why a data directory was not initialized.
#[derive(Debug, thiserror::Error)]
pub enum EtcdInitError {
    /// Users and keys are named after the cluster: give it a valid name.
    #[error("cluster name `{0}` is invalid: up to 32 lower case letters, digits and `-` inside")]
    ClusterName(String),
    /// The program cannot run tasks: a limit of the container is too low.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// Another program listens where etcd is to listen; set `--etcd-port`.
    #[error("port {port} on 127.0.0.1 is not free (--etcd-port)")]
    Port {
        port: u16,
        #[source]
        cause: io::Error,
    },
    /// The directory is not one of etcd; check `--etcd-data-dir`. Nothing was deleted.
    #[error("data directory holds `{}`, which is not etcd's (--etcd-data-dir)", path.display())]
    ForeignData { path: PathBuf },
    /// The directory cannot be read or emptied; check its owner.
    #[error("cannot empty data directory `{}`", path.display())]
    DataDirectory {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The etcd program is missing or not executable; set `--etcd-binary`.
    #[error("cannot start etcd `{}` (--etcd-binary)", path.display())]
    Start {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// Etcd ended before the initialization was complete; its log says why.
    #[error("etcd ended early, {0}")]
    Ended(ExitStatus),
    /// Etcd was not ready in time; its log says why.
    #[error("initialization is not complete after {0:?} (--timeout)")]
    Timeout(Duration),
    #[error("cannot {step}")]
    Access {
        step: String,
        #[source]
        cause: Box<etcd_client::Error>,
    },
    /// Etcd could not be stopped in an orderly way: the data may be incomplete. Start again.
    #[error("cannot stop etcd")]
    Stop(#[source] io::Error),
}
