// SPDX-License-Identifier: Apache-2.0

//! Finding and mounting the BPF file system and the root of the cgroup v2 tree.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::statfs,
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
};

/// Default of `bpf-root`.
pub const BPF_ROOT: &str = "/sys/fs/bpf";
/// Where the BPF file system goes if something else is mounted at [`BPF_ROOT`].
pub const BPF_ROOT_FALLBACK: &str = "/run/cilium/bpffs";
/// Where cgroup v2 is mounted if it is mounted nowhere.
pub const CGROUP_ROOT_FALLBACK: &str = "/run/cilium/cgroupv2";
/// Where systemd and the distributions mount cgroup v2: alone, or beside version 1.
const CGROUP_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
const CGROUP2_MAGIC: u32 = 0x6367_7270;

/// Why a file system could not be found or mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The list of mounts cannot be read.
    #[error("cannot read /proc/thread-self/mountinfo")]
    Mounts(#[source] io::Error),

    /// The directory cannot be made or read.
    #[error("{what}: cannot use the directory {}", path.display())]
    Directory {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// Another file system is mounted at the path. Name another one.
    #[error("{what}: {} is a {found} file system, not {wanted}", path.display())]
    WrongType {
        what: &'static str,
        path: PathBuf,
        found: String,
        wanted: &'static str,
    },

    /// The path holds files, so that nothing is mounted over it. Name another one.
    #[error("{what}: {} is not a {wanted} file system, and not empty", path.display())]
    NotEmpty {
        what: &'static str,
        path: PathBuf,
        wanted: &'static str,
    },

    /// Several file systems are mounted on top of each other: which one other processes see is unknown.
    /// Unmount all but one.
    #[error("{what}: {count} file systems are mounted at {}", path.display())]
    Stacked {
        what: &'static str,
        path: PathBuf,
        count: usize,
    },

    /// The mount was refused. Needs CAP_SYS_ADMIN.
    #[error("{what}: cannot mount {wanted} at {} (mounting needs CAP_SYS_ADMIN)", path.display())]
    Mount {
        what: &'static str,
        path: PathBuf,
        wanted: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Finds or mounts the BPF file system for `root` (`bpf-root`); returns its root.
///
/// Mounted if nothing is there. If something else is mounted at the default root, the file system goes to
/// [`BPF_ROOT_FALLBACK`]; at a root that was chosen, that is an error.
///
/// # Errors
///
/// [`MountError`], naming the path.
pub fn bpffs(root: &Path) -> Result<PathBuf, MountError> {
    match BPF.provide(root) {
        Err(MountError::WrongType { found, .. }) if root == Path::new(BPF_ROOT) => {
            tracing::warn!(
                root = BPF_ROOT,
                found,
                fallback = BPF_ROOT_FALLBACK,
                "No BPF file system at the root, using the fallback"
            );
            BPF.provide(Path::new(BPF_ROOT_FALLBACK))
        }
        other => other,
    }
}

/// Whether the path is in a BPF file system.
pub fn is_bpffs(path: &Path) -> bool {
    BPF.is(path)
}

/// Finds or mounts the root of the cgroup v2 tree.
///
/// With `root` = `None`: `/sys/fs/cgroup` if that is version 2, else `/sys/fs/cgroup/unified` (both
/// versions side by side), else [`CGROUP_ROOT_FALLBACK`], mounted if need be. A root that was chosen
/// (`cgroup-root`) is used if it is in a cgroup v2 file system, and mounted if nothing is there.
///
/// # Errors
///
/// [`MountError`], naming the path.
pub fn cgroup2(root: Option<&Path>) -> Result<PathBuf, MountError> {
    match (root, find_cgroup2()) {
        (Some(root), _) => CGROUP.provide(root),
        (None, Some(root)) => Ok(root),
        (None, None) => CGROUP.provide(Path::new(CGROUP_ROOT_FALLBACK)),
    }
}

/// Where the system mounted cgroup v2.
pub fn find_cgroup2() -> Option<PathBuf> {
    CGROUP_ROOTS
        .into_iter()
        .map(PathBuf::from)
        .find(|path| is_cgroup2(path))
}

/// Whether the path is in a cgroup v2 file system.
pub fn is_cgroup2(path: &Path) -> bool {
    CGROUP.is(path)
}

const BPF: Kind = Kind {
    what: "bpf-root",
    name: "bpf",
    magic: BPF_FS_MAGIC,
};
const CGROUP: Kind = Kind {
    what: "cgroup-root",
    name: "cgroup2",
    magic: CGROUP2_MAGIC,
};

/// A file system to look for.
struct Kind {
    what: &'static str,
    /// Type, for `mount(2)` and messages.
    name: &'static str,
    magic: u32,
}

impl Kind {
    fn is(&self, path: &Path) -> bool {
        statfs(path).is_ok_and(|found| found.f_type as u32 == self.magic)
    }

    fn provide(&self, path: &Path) -> Result<PathBuf, MountError> {
        let unusable = |source| MountError::Directory {
            what: self.what,
            path: path.to_owned(),
            source,
        };
        let text = fs::read_to_string("/proc/thread-self/mountinfo").map_err(MountError::Mounts)?;
        fs::create_dir_all(path).map_err(unusable)?;
        let real = path.canonicalize().map_err(unusable)?;
        let mounted = mounted_at(&text, &real);
        if mounted.len() > 1 {
            return Err(MountError::Stacked {
                what: self.what,
                path: path.to_owned(),
                count: mounted.len(),
            });
        }
        // A directory inside such a file system will do: a container's part of the tree.
        if self.is(&real) {
            return Ok(path.to_owned());
        }
        if let Some(found) = mounted.into_iter().next() {
            return Err(MountError::WrongType {
                what: self.what,
                path: path.to_owned(),
                found,
                wanted: self.name,
            });
        }
        if fs::read_dir(&real).map_err(unusable)?.next().is_some() {
            return Err(MountError::NotEmpty {
                what: self.what,
                path: path.to_owned(),
                wanted: self.name,
            });
        }
        mount(self.name, &real, self.name, MountFlags::empty(), None).map_err(|error| MountError::Mount {
            what: self.what,
            path: path.to_owned(),
            wanted: self.name,
            source: error.into(),
        })?;
        tracing::info!(path = %path.display(), kind = self.name, "Mounted file system");
        Ok(path.to_owned())
    }
}

/// Types of the file systems mounted exactly at `path`, from the text of `mountinfo`.
fn mounted_at(mountinfo: &str, path: &Path) -> Vec<String> {
    let types = mountinfo.lines().filter_map(|line| {
        // id parent major:minor root mount-point options [fields…] - type source options
        let (before, after) = line.split_once(" - ")?;
        let mount_point = unescape(before.split(' ').nth(4)?);
        (Path::new(&mount_point) == path).then(|| after.split(' ').next().unwrap_or_default().to_owned())
    });
    types.collect()
}

/// Spaces and the like are written as octal numbers: `\040`.
fn unescape(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        match after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            Some(byte) => {
                text.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

/// Mounts a BPF file system at `path` that only this mount namespace sees.
///
/// The calling thread must have a mount namespace of its own; its mounts stop spreading to others.
///
/// # Errors
///
/// [`MountError::Directory`] or [`MountError::Mount`].
pub fn private_bpffs(path: &Path) -> Result<(), MountError> {
    let failed = |error: rustix::io::Errno| MountError::Mount {
        what: "bpf-root",
        path: path.to_owned(),
        wanted: "bpf",
        source: error.into(),
    };
    fs::create_dir_all(path).map_err(|source| MountError::Directory {
        what: "bpf-root",
        path: path.to_owned(),
        source,
    })?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(failed)?;
    mount("bpf", path, "bpf", MountFlags::empty(), None).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 22 0:25 / /sys/fs/bpf rw,nosuid shared:11 - bpf bpf rw,mode=700
29 22 0:26 / /run/a\\040b rw - tmpfs tmpfs rw
30 29 0:27 / /run/a\\040b rw master:1 - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_what_is_mounted_at_a_path() {
        assert_eq!(mounted_at(MOUNTS, Path::new("/sys/fs/bpf")), ["bpf"]);
        assert_eq!(mounted_at(MOUNTS, Path::new("/run/a b")), ["tmpfs", "cgroup2"]);
        assert!(mounted_at(MOUNTS, Path::new("/sys/fs")).is_empty());
    }

    #[test]
    fn wrong_cgroup_root_is_an_error_that_names_it() {
        let error = cgroup2(Some(Path::new("/proc"))).unwrap_err().to_string();
        assert_eq!(error, "cgroup-root: /proc is a proc file system, not cgroup2");

        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let path = directory.path().display();
        let error = cgroup2(Some(directory.path())).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("cgroup-root: {path} is not a cgroup2 file system, and not empty")
        );

        let error = cgroup2(Some(&directory.path().join("file")))
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!("cgroup-root: cannot use the directory {path}/file")
        );
    }

    #[test]
    fn finds_the_cgroup_root_of_this_machine() {
        let root = cgroup2(None).unwrap();

        assert!(root.join("cgroup.procs").exists(), "{}", root.display());
    }
}
