// SPDX-License-Identifier: Apache-2.0

//! Attaching programs to a cgroup by pinned links.
//!
//! A pinned link keeps its program attached when the process that made it ends. The next process replaces
//! the program inside the link, in one step: no call goes by untranslated in between.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use crate::syscall as sys;

/// Where on a cgroup a program is attached; numbers as in `enum bpf_attach_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "named like the kernel's hooks")]
pub enum CgroupHook {
    Connect4 = 10,
    Connect6 = 11,
    PostBind4 = 12,
    PostBind6 = 13,
    Sendmsg4 = 14,
    Sendmsg6 = 15,
    Recvmsg4 = 19,
    Recvmsg6 = 20,
    GetPeerName4 = 29,
    GetPeerName6 = 30,
    SockRelease = 34,
}

/// Why a program could not be attached or detached.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields say what the message says")]
pub enum LinkError {
    /// The directory of the pins cannot be made.
    #[error("cannot create the directory {} for pinned links", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The cgroup cannot be opened.
    #[error("cannot open cgroup {}", path.display())]
    Cgroup {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The pinned link cannot be opened.
    #[error("program {program}: cannot open link {}", path.display())]
    Open {
        program: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// Something that is no link is pinned in its place. Remove it.
    #[error("program {program}: the object pinned at {} is not a link", path.display())]
    NotLink { program: String, path: PathBuf },

    /// The kernel refused the attachment. EPERM: another program is attached exclusively, or privileges miss.
    #[error("program {program}: cannot attach to cgroup {} at {hook:?}", cgroup.display())]
    Attach {
        program: String,
        cgroup: PathBuf,
        hook: CgroupHook,
        #[source]
        source: io::Error,
    },

    /// The program in a link was not replaced.
    #[error("program {program}: cannot replace the program of link {}", path.display())]
    Update {
        program: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The link was not pinned.
    #[error("program {program}: cannot pin its link at {}", path.display())]
    Pin {
        program: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The pin was not removed.
    #[error("program {program}: cannot remove link {}", path.display())]
    Unpin {
        program: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What [`attach`](CgroupLinks::attach) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// There was no link.
    Created,
    /// The program of the existing link was replaced.
    Updated,
    /// The existing link was of another or a removed cgroup: a new one took its place.
    Moved,
}

/// The pinned links of one set of programs on one cgroup.
#[derive(Debug)]
pub struct CgroupLinks {
    directory: PathBuf,
    cgroup: PathBuf,
    cgroup_fd: OwnedFd,
    cgroup_id: u64,
}

impl CgroupLinks {
    /// Links on the cgroup at `cgroup`, pinned in `directory` (on a BPF file system; made if missing).
    ///
    /// # Errors
    ///
    /// [`LinkError::Directory`] or [`LinkError::Cgroup`].
    pub fn new(directory: &Path, cgroup: &Path) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Cgroup {
            path: cgroup.to_owned(),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|source| LinkError::Directory {
                path: directory.to_owned(),
                source,
            })?;
        let file = fs::File::open(cgroup).map_err(failed)?;
        let cgroup_id = file.metadata().map_err(failed)?.ino();
        Ok(Self {
            directory: directory.to_owned(),
            cgroup: cgroup.to_owned(),
            cgroup_fd: file.into(),
            cgroup_id,
        })
    }

    /// Where the link of a program is pinned.
    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// Attaches `program_fd` at `hook` by the link pinned under the name `program`, or replaces the program
    /// that is attached by it.
    ///
    /// # Errors
    ///
    /// [`LinkError`]; what was attached before stays so.
    pub fn attach(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: CgroupHook,
    ) -> Result<Attached, LinkError> {
        let path = self.path(program);
        let Some(link) = open(program, &path)? else {
            self.create(program, program_fd, hook, &path)?;
            return Ok(Attached::Created);
        };
        let here = sys::link_info(link.as_fd())
            .is_ok_and(|info| info.cgroup_id == self.cgroup_id && info.attach_type == hook as u32);
        if here {
            match sys::link_update(link.as_fd(), program_fd) {
                Ok(()) => return Ok(Attached::Updated),
                // The cgroup is gone, and a new one got its number.
                Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
                Err(source) => {
                    return Err(LinkError::Update {
                        program: program.to_owned(),
                        path,
                        source,
                    });
                }
            }
        }
        // The old link goes after the new one works.
        let temporary = self.path(&format!("{program}:new"));
        unpin(program, &temporary)?;
        self.create(program, program_fd, hook, &temporary)?;
        fs::rename(&temporary, &path).map_err(|source| LinkError::Pin {
            program: program.to_owned(),
            path: path.clone(),
            source,
        })?;
        detach_link(program, &path, &link)?;
        Ok(Attached::Moved)
    }

    fn create(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: CgroupHook,
        path: &Path,
    ) -> Result<(), LinkError> {
        let link =
            sys::link_create(program_fd, Some(self.cgroup_fd.as_fd()), hook as u32).map_err(|source| {
                LinkError::Attach {
                    program: program.to_owned(),
                    cgroup: self.cgroup.clone(),
                    hook,
                    source,
                }
            })?;
        sys::obj_pin(link.as_fd(), path).map_err(|source| LinkError::Pin {
            program: program.to_owned(),
            path: path.to_owned(),
            source,
        })
    }

    /// Ids of all programs attached directly to the cgroup at `hook`, ours and others'.
    ///
    /// # Errors
    ///
    /// [`LinkError::Cgroup`] if the kernel refuses to tell.
    pub fn attached(&self, hook: CgroupHook) -> Result<Vec<u32>, LinkError> {
        sys::prog_query(self.cgroup_fd.as_fd(), hook as u32).map_err(|source| LinkError::Cgroup {
            path: self.cgroup.clone(),
            source,
        })
    }
}

/// Detaches a program and removes the pin of its link; false if there was none.
///
/// # Errors
///
/// [`LinkError`] if what is pinned is no link, or cannot be detached or removed.
pub fn detach(directory: &Path, program: &str) -> Result<bool, LinkError> {
    let path = directory.join(program);
    if let Some(link) = open(program, &path)? {
        detach_link(program, &path, &link)?;
    }
    unpin(program, &path)
}

/// `BPF_TRACE_ITER` of `enum bpf_attach_type`.
const TRACE_ITER: u32 = 28;

/// Makes a link of an iterator program, for [`iterate`].
///
/// # Errors
///
/// What the kernel says.
pub fn iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::link_create(program, None, TRACE_ITER)
}

/// Makes a link of an iterator program over the entries of a map, for [`iterate`].
///
/// # Errors
///
/// What the kernel says; `EINVAL` on kernels before 5.9, and for kinds of maps that it does not iterate over.
pub fn map_iterator(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::map_iter_link(program, map, TRACE_ITER)
}

/// Opens one run of an iterator: reading the descriptor runs the program on every element of the calling thread's
/// network namespace.
///
/// # Errors
///
/// What the kernel says.
pub fn iterate(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::iter_create(link)
}

fn detach_link(program: &str, path: &Path, link: &OwnedFd) -> Result<(), LinkError> {
    match sys::link_detach(link.as_fd()) {
        // Its cgroup is gone already.
        Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(()),
        result => result.map_err(|source| LinkError::Unpin {
            program: program.to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}

/// Id of the program that the pinned link runs, if there is one and its cgroup still exists.
///
/// # Errors
///
/// [`LinkError`] if the object at the path cannot be read.
pub fn running(directory: &Path, program: &str) -> Result<Option<u32>, LinkError> {
    let path = directory.join(program);
    let Some(link) = open(program, &path)? else {
        return Ok(None);
    };
    let info = sys::link_info(link.as_fd()).map_err(|source| LinkError::Open {
        program: program.to_owned(),
        path,
        source,
    })?;
    Ok((info.cgroup_id != 0).then_some(info.prog_id))
}

/// The name that the kernel has for a program, at most 15 characters of it; nothing if the program is gone or has none.
///
/// # Errors
///
/// If this process may not ask.
pub fn program_name(id: u32) -> io::Result<Option<String>> {
    let program = match sys::prog_by_id(id) {
        Ok(program) => program,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let info = sys::prog_info(program.as_fd())?;
    let name = String::from_utf8_lossy(&info.name);
    let name = name.trim_end_matches('\0');
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

fn open(program: &str, path: &Path) -> Result<Option<OwnedFd>, LinkError> {
    match sys::obj_get(path) {
        Ok(link) if sys::is_link(link.as_fd()) => Ok(Some(link)),
        Ok(_) => Err(LinkError::NotLink {
            program: program.to_owned(),
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LinkError::Open {
            program: program.to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}

fn unpin(program: &str, path: &Path) -> Result<bool, LinkError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(LinkError::Unpin {
            program: program.to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}
