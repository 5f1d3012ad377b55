// SPDX-License-Identifier: Apache-2.0

//! Why an address cannot be listened on.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens on the unix socket. Stop it, or change the setting.
    #[error("another process listens on {}{setting}", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// Where the path comes from.
        setting: Setting,
    },
    /// The path of the unix socket is another kind of file, which is left alone. Remove it, or change the setting.
    #[error("{} exists and is not a socket{setting}", path.display())]
    NotSocket {
        /// The file.
        path: PathBuf,
        /// Where the path comes from.
        setting: Setting,
    },
    /// The port is in use, the address is not one of this machine, or the directory of the socket cannot be written.
    #[error("cannot listen on {address}{setting}")]
    Listen {
        /// Path of the socket, or address and port.
        address: String,
        /// Where the address comes from.
        setting: Setting,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
}

/// The key of the setting that an address comes from, if it comes from one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Setting(pub(crate) Option<&'static str>);

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(key) => write!(f, " (setting `{key}`)"),
            None => Ok(()),
        }
    }
}
