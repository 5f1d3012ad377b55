// SPDX-License-Identifier: Apache-2.0

use std::{io, path::PathBuf};

/// Why the network could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),

    /// The kernel refused a request; `reason` is what it says beyond the code.
    #[error("cannot {what}{}", reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default())]
    Refused {
        what: String,
        reason: Option<String>,
        #[source]
        source: io::Error,
    },

    #[error("no interface {0}")]
    Missing(String),

    /// A setting below `/proc/sys` cannot be read or written.
    #[error("cannot access setting {}", path.display())]
    Sysctl {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl NetError {
    /// A refusal of the kernel; `what` completes "cannot …".
    pub fn refused(what: impl Into<String>, source: io::Error) -> Self {
        Self::Refused {
            what: what.into(),
            reason: None,
            source,
        }
    }

    /// The code of a refusal, such as `EEXIST`.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open(source) | Self::Refused { source, .. } | Self::Sysctl { source, .. } => {
                source.raw_os_error()
            }
            Self::Missing(_) => None,
        }
    }

    /// The interface, the route, the table or the address family is missing.
    pub fn is_gone(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENODEV | libc::ESRCH | libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
        ) || matches!(self, Self::Missing(_))
    }
}

/// The code, for callers with errors of their own.
impl From<NetError> for io::Error {
    fn from(error: NetError) -> Self {
        match error.errno() {
            Some(code) => Self::from_raw_os_error(code),
            None => Self::other(error),
        }
    }
}
