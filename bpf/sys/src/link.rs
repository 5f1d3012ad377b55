// SPDX-License-Identifier: Apache-2.0

//! Attaching programs to cgroups and interfaces by pinned links.
//!
//! A pinned link keeps its program attached when the process that made it ends. The next process replaces
//! the program inside the link, in one step: no call and no packet goes by untranslated in between.

mod cgroup;
mod interface;
mod iterator;
mod xdp;

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

pub use self::{
    cgroup::{CgroupHook, CgroupLinks},
    interface::{InterfaceHook, InterfaceLinks, has_interface_links, interface_index},
    iterator::{iterate, iterator, map_iterator},
    xdp::{Interface, XdpMode, interfaces},
};
use crate::syscall::{self as sys, LinkInfo};

/// Why a program could not be attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The directory of the pins cannot be made.
    #[error("cannot create the directory {} for pinned links", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

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

    /// The kernel refused the attachment to a cgroup. EPERM: another program is attached exclusively, or privileges miss.
    #[error("program {program}: cannot attach to cgroup {} at {hook:?}", cgroup.display())]
    Attach {
        program: String,
        cgroup: PathBuf,
        hook: CgroupHook,
        #[source]
        source: io::Error,
    },

    /// There is no interface of this name, or no longer.
    #[error("no interface {interface}")]
    NoInterface { interface: String },

    /// The kernel refused the attachment to an interface.
    #[error("program {program}: cannot attach to interface {interface} at {hook}")]
    AttachInterface {
        program: String,
        interface: String,
        hook: &'static str,
        #[source]
        source: io::Error,
    },

    /// An interface has one XDP program, and it is another one. Detach that, or choose other interfaces.
    #[error("program {program}: interface {interface} has an XDP program already: {}", other.as_deref().unwrap_or("without a name"))]
    Occupied {
        program: String,
        interface: String,
        other: Option<String>,
    },

    /// What is attached to an interface cannot be listed.
    #[error("interface {interface}: cannot list its programs")]
    List {
        interface: String,
        #[source]
        source: io::Error,
    },

    /// The qdisc that has programs was not made. EINVAL, EEXIST: there is a qdisc of another kind in its place.
    #[error("interface {interface}: cannot add qdisc clsact")]
    Qdisc {
        interface: String,
        #[source]
        source: io::Error,
    },

    #[error("interface {interface}: cannot remove filter {filter}")]
    RemoveFilter {
        interface: String,
        filter: String,
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

    #[error("program {program}: cannot pin its link at {}", path.display())]
    Pin {
        program: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("program {program}: cannot remove link {}", path.display())]
    Unpin {
        program: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    Created,
    /// The program of the existing link was replaced.
    Updated,
    /// The existing link was of another or a removed cgroup or interface: a new one took its place.
    Moved,
}

/// A program on its way to a hook, and the place of its link.
struct Pinned<'a> {
    program: &'a str,
    program_fd: BorrowedFd<'a>,
    directory: &'a Path,
}

impl Pinned<'_> {
    /// Replaces the program of the pinned link if that is on the hook, or pins a new one. `is_here` says whether a link is
    /// on the hook; `create` makes one.
    fn attach(
        &self,
        is_here: impl Fn(&LinkInfo) -> bool,
        create: impl Fn() -> Result<OwnedFd, LinkError>,
    ) -> Result<Attached, LinkError> {
        let program = self.program;
        let path = self.directory.join(program);
        let temporary = temporary(self.directory, program);
        // Left by a process that ended while it moved the link: it would run beside the one that is attached now.
        remove(program, &temporary)?;
        let Some(link) = open(program, &path)? else {
            self.pin(&create()?, &path)?;
            return Ok(Attached::Created);
        };
        if sys::link_info(link.as_fd()).is_ok_and(|info| is_here(&info)) {
            match sys::link_update(link.as_fd(), self.program_fd) {
                Ok(()) => return Ok(Attached::Updated),
                // What it was on is gone, and a new one got its number.
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
        self.pin(&create()?, &temporary)?;
        fs::rename(&temporary, &path).map_err(|source| LinkError::Pin {
            program: program.to_owned(),
            path: path.clone(),
            source,
        })?;
        detach_link(program, &path, &link)?;
        Ok(Attached::Moved)
    }

    fn pin(&self, link: &OwnedFd, path: &Path) -> Result<(), LinkError> {
        sys::obj_pin(link.as_fd(), path).map_err(|source| LinkError::Pin {
            program: self.program.to_owned(),
            path: path.to_owned(),
            source,
        })
    }
}

/// Where a link is pinned that is about to take the place of another one.
fn temporary(directory: &Path, program: &str) -> PathBuf {
    directory.join(format!("{program}:new"))
}

fn make_directory(directory: &Path) -> Result<(), LinkError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|source| LinkError::Directory {
            path: directory.to_owned(),
            source,
        })
}

/// Detaches a program and removes the pin of its link; false if there was none.
///
/// # Errors
///
/// [`LinkError`] if what is pinned is no link, or cannot be detached or removed.
pub fn detach(directory: &Path, program: &str) -> Result<bool, LinkError> {
    remove(program, &temporary(directory, program))?;
    remove(program, &directory.join(program))
}

/// Detaches the program of a pinned link and removes the pin; false if there was none. With the pin alone the kernel would
/// let the program run on for a moment.
fn remove(program: &str, path: &Path) -> Result<bool, LinkError> {
    let Some(link) = open(program, path)? else {
        return Ok(false);
    };
    detach_link(program, path, &link)?;
    unpin(program, path)
}

fn detach_link(program: &str, path: &Path, link: &OwnedFd) -> Result<(), LinkError> {
    match sys::link_detach(link.as_fd()) {
        // What it was on is gone already.
        Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(()),
        result => result.map_err(|source| LinkError::Unpin {
            program: program.to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}

/// Id of the program that the pinned link runs, if there is one and what it is on still exists.
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
    Ok(info.is_alive().then_some(info.prog_id))
}

/// Replaces the program of a pinned link, whatever it is on; false if there is no link, or what it was on is gone.
///
/// # Errors
///
/// [`LinkError`]; the link goes on with the program that it has.
pub fn replace(directory: &Path, program: &str, program_fd: BorrowedFd<'_>) -> Result<bool, LinkError> {
    let path = directory.join(program);
    let Some(link) = open(program, &path)? else {
        return Ok(false);
    };
    match sys::link_update(link.as_fd(), program_fd) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(false),
        Err(source) => Err(LinkError::Update {
            program: program.to_owned(),
            path,
            source,
        }),
    }
}

/// The id of a loaded program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(sys::prog_info(program)?.id)
}

/// The name that the kernel has for a program, at most 15 characters of it; nothing if the program is gone or has none.
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
