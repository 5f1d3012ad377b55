// SPDX-License-Identifier: Apache-2.0

//! Errors of all commands.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use skep_base_net::NetError;
use skep_bpf_sys::{link::LinkError, mount::MountError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("cannot {action} {}", path.display())]
    Path {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Mount the host's `/proc`, with CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE.
    #[error("cannot enter the namespace {}", path.display())]
    Namespace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("cannot list interfaces and their filters")]
    Interfaces(#[source] io::Error),
    #[error("{} is still missing or empty after {} s", path.display(), timeout.as_secs())]
    Timeout { path: PathBuf, timeout: Duration },
}

impl InitError {
    /// For `map_err`.
    pub(crate) fn path(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Path { action, path, source }
    }
}
