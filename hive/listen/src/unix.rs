// SPDX-License-Identifier: Apache-2.0

//! Unix sockets.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use nix::unistd::Group;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::net::Listener;

use crate::error::{BindError, Setting};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A unix socket to listen on.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use skep_listen::Unix;
///
/// let path = std::env::temp_dir().join(format!("listen-doc-{}.sock", std::process::id()));
/// let socket = Unix::new(&path).mode(0o660).setting("socket-path").bind().unwrap();
///
/// let error = Unix::new(&path).setting("socket-path").bind().unwrap_err();
/// assert_eq!(error.to_string(), format!("another process listens on {} (setting `socket-path`)", path.display()));
///
/// drop(socket);
/// assert!(!path.exists());
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Unix {
    path: PathBuf,
    mode: Mode,
    group: Option<String>,
    setting: Setting,
}

impl Unix {
    /// A socket with mode 0600 at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mode: Mode::RUSR | Mode::WUSR,
            group: None,
            setting: Setting::default(),
        }
    }

    /// Permission bits of the socket: who may write to it may connect. The socket never has wider ones.
    #[must_use]
    pub fn mode(mut self, bits: u32) -> Self {
        self.mode = Mode::from_raw_mode(bits);
        self
    }

    /// The group that the socket belongs to. Without effect if the system has no group of that name; a warning is logged
    /// if this process may not set it.
    #[must_use]
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// The setting that errors name.
    #[must_use]
    pub fn setting(mut self, key: &'static str) -> Self {
        self.setting = Setting(Some(key));
        self
    }

    /// Listens; missing directories are created. A socket that no process listens on is replaced, any other file is left
    /// alone. Must be called within a runtime.
    ///
    /// # Errors
    /// If another process listens, if the path is not that of a socket, or if the socket cannot be created.
    pub fn bind(&self) -> Result<BoundUnix, BindError> {
        self.remove_stale()?;
        self.listen().map_err(|cause| self.error(cause))
    }

    fn error(&self, cause: io::Error) -> BindError {
        match cause.kind() {
            // Bound by another process since the path was found free.
            io::ErrorKind::AddrInUse => BindError::InUse {
                path: self.path.clone(),
                setting: self.setting,
            },
            _ => BindError::Listen {
                address: self.path.display().to_string(),
                setting: self.setting,
                cause,
            },
        }
    }

    /// Removes the socket of a process that ended without doing so.
    fn remove_stale(&self) -> Result<(), BindError> {
        let failed = |cause| self.error(cause);
        let (path, setting) = (&self.path, self.setting);
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.file_type().is_socket() => {
                let path = path.clone();
                return Err(BindError::NotSocket { path, setting });
            }
            Ok(_) => {}
        }
        if is_answered(path).map_err(failed)? {
            let path = path.clone();
            return Err(BindError::InUse { path, setting });
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    fn listen(&self) -> io::Result<BoundUnix> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let socket = stream_socket()?;
        // Linux takes the mode of the socket's inode, less the umask: there is no moment with a wider one.
        rustix::fs::fchmod(&socket, self.mode)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&self.path)?)?;
        let file = SocketFile::new(&self.path)?;
        self.set_group();
        rustix::fs::chmod(&self.path, self.mode)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = UnixListener::from_std(socket.into())?;
        Ok(BoundUnix { listener, file })
    }

    fn set_group(&self) {
        let Some(name) = &self.group else { return };
        let set = Group::from_name(name)
            .map_err(io::Error::from)
            .and_then(|found| match found {
                Some(group) => chown(&self.path, None, Some(group.gid.as_raw())),
                None => Ok(()),
            });
        if let Err(error) = set {
            tracing::warn!(path = %self.path.display(), group = %name, error = %error, "Cannot set group of socket");
        }
    }
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// Whether a process listens on the socket. One that is too busy to accept does, too.
fn is_answered(path: &Path) -> io::Result<bool> {
    match rustix::net::connect(stream_socket()?, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The file of a socket, which is removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode: what another process puts at the path later is not removed.
    inode: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            inode: inode(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = match inode(&self.path) {
            Ok(found) if found == self.inode => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), error = %error, "Cannot remove socket");
            }
            _ => {}
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// A unix socket that is listened on. Dropping it removes the file.
#[derive(Debug)]
pub struct BoundUnix {
    // The file goes while the socket still answers: a process that starts meanwhile finds one or the other.
    file: SocketFile,
    listener: UnixListener,
}

impl BoundUnix {
    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

impl Listener for BoundUnix {
    type Io = UnixStream;
    type Addr = SocketAddr;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(UnixStream, SocketAddr)>> {
        self.listener.poll_accept(cx)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
