// SPDX-License-Identifier: Apache-2.0

//! Network namespaces: their cookies, and running code inside one.

use std::{
    fs::File,
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
};

use rustix::{
    net::{AddressFamily, SocketType},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

/// Why a network namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The file that names the namespace cannot be opened. It may have gone with its pod.
    #[error("cannot open network namespace {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The directory cannot be written, or mounts are not allowed (CAP_SYS_ADMIN).
    #[error("cannot name a network namespace {}", path.display())]
    Pin {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The namespace cannot be entered. Needs CAP_SYS_ADMIN.
    #[error("cannot enter network namespace {} (needs CAP_SYS_ADMIN)", path.display())]
    Enter {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// No namespace can be made. Needs CAP_SYS_ADMIN.
    #[error("cannot create a network namespace (needs CAP_SYS_ADMIN)")]
    Create(#[source] io::Error),

    /// The thread that enters the namespace cannot be started.
    #[error("cannot start a thread for network namespace {}", path.display())]
    Thread {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The kernel is older than Linux 5.14.
    #[error(
        "Linux {release} is too old: it does not tell the cookie of a network namespace, as 5.14 and later do"
    )]
    TooOld { release: String },

    /// There is no socket to ask for the cookie by.
    #[error("cannot read the cookie of the network namespace")]
    Cookie(#[source] io::Error),
}

/// Cookie of the calling thread's network namespace: what programs identify it by.
///
/// # Errors
///
/// [`NetnsError::Cookie`] if no socket can be made, [`NetnsError::TooOld`] if the kernel is older than 5.14.
pub fn cookie() -> Result<u64, NetnsError> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
        .or_else(|_| rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None))
        .map_err(|error| NetnsError::Cookie(error.into()))?;
    socket_option(socket.as_fd(), libc::SO_NETNS_COOKIE).map_err(no_cookie)
}

fn no_cookie(error: io::Error) -> NetnsError {
    // What the kernel answers about an option that it does not know.
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) {
        NetnsError::TooOld {
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    } else {
        NetnsError::Cookie(error)
    }
}

/// Cookie of a socket: what programs identify it by.
pub fn socket_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    socket_option(socket, libc::SO_COOKIE)
}

fn socket_option(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u64> {
    let mut value = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_mut(&mut value).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace. It exists at least as long as this value.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: PathBuf,
}

impl Namespace {
    /// Creates a namespace.
    pub fn new() -> Result<Self, NetnsError> {
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn(|| {
                // SAFETY: this thread, which does nothing else, gets a network namespace of its own; nothing else is unshared.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                    .map_err(|error| NetnsError::Create(error.into()))?;
                Self::current()
            })
            .map_err(NetnsError::Create)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(Path::new(OWN))
    }

    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        match File::open(path) {
            Ok(file) => Ok(Self {
                file,
                path: path.to_owned(),
            }),
            Err(source) => Err(NetnsError::Open {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Gives it a name: it exists until [`unpin`](Self::unpin).
    pub fn pin(&self, path: &Path) -> Result<(), NetnsError> {
        let failed = |source: io::Error| NetnsError::Pin {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        File::create(path).map_err(failed)?;
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::mount::mount_bind(own, path).map_err(|error| failed(error.into()))
    }

    /// Removes a name; fine if there is none.
    pub fn unpin(path: &Path) -> Result<(), NetnsError> {
        // Fails if nothing is mounted there, such as after a boot.
        let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| NetnsError::Pin {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Moves the calling thread here.
    pub fn enter(&self) -> Result<(), NetnsError> {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|error| {
            NetnsError::Enter {
                path: self.path.clone(),
                source: error.into(),
            }
        })
    }

    /// Runs `work` on a thread of its own inside the namespace and waits for it. A panic of `work` is passed on.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("netns".to_owned())
                .spawn_scoped(scope, || {
                    self.enter()?;
                    Ok(work())
                })
                .map_err(|source| NetnsError::Thread {
                    path: self.path.clone(),
                    source,
                })?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `work` on a thread of its own inside the network namespace at `path` and waits for it.
///
/// # Errors
///
/// [`NetnsError`] if the namespace cannot be entered.
///
/// # Panics
///
/// If `work` does.
pub fn inside<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    Namespace::open(path)?.inside(work)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_kernel_without_cookies_is_called_too_old() {
        // As old kernels answer: no option of sockets has this number.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = no_cookie(socket_option(socket.as_fd(), 9999).unwrap_err()).to_string();
        assert!(error.starts_with("Linux ") && error.contains("5.14"), "{error}");

        let other = no_cookie(io::ErrorKind::OutOfMemory.into());
        assert!(matches!(other, NetnsError::Cookie(_)));
    }
}
