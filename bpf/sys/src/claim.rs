// SPDX-License-Identifier: Apache-2.0

//! One writer a node: the claim on the directory of pinned maps.
//!
//! Two agents that write the same maps undo each other's work. A [`Claim`] is an advisory lock (`flock(2)`) on the
//! directory itself: it leaves nothing behind, readers need none, and the kernel gives it back when its process
//! ends, however that happens.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock, major, minor};

/// Why a directory was not claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process writes the maps. Stop it, or choose another `bpf-root`.
    #[error("{} belongs to {owner}: does another agent run on this node?", path.display())]
    Taken {
        path: PathBuf,
        /// `process 17`, or `another process` if the kernel does not tell.
        owner: String,
    },
    /// The directory cannot be made, opened or locked.
    #[error("cannot claim {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The right to write what is pinned in a directory, given back when this is dropped or the process ends.
#[derive(Debug)]
pub struct Claim(File);

impl Claim {
    /// Claims `directory`, which is made if it is missing. Does not wait.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Taken`] if another process, or another claim of this one, has it.
    pub fn take(directory: &Path) -> Result<Self, ClaimError> {
        let failed = |source| ClaimError::Directory {
            path: directory.to_owned(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(failed)?;
        let file = File::open(directory).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ClaimError::Taken {
                path: directory.to_owned(),
                owner: owner(&file)
                    .map_or_else(|| "another process".to_owned(), |id| format!("process {id}")),
            }),
            Err(error) => Err(failed(error.into())),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Explicitly: a child that is between fork and exec still has the descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The process that has the lock, as far as this one may see it.
fn owner(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let inode = format!(
        "{:02x}:{:02x}:{}",
        major(meta.dev()),
        minor(meta.dev()),
        meta.ino()
    );
    owner_in(&fs::read_to_string("/proc/locks").ok()?, &inode)
}

/// Finds a lock in lines such as `1: FLOCK  ADVISORY  WRITE 708 00:13:1022 0 EOF`.
fn owner_in(locks: &str, inode: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // Waiting ones have an arrow after the number, and do not match.
            [_, "FLOCK", _, _, process, at, ..] if *at == inode => process.parse().ok().filter(|id| *id != 0),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let parent = std::env::temp_dir().join(format!("skep-claim-{}", std::process::id()));
        let path = parent.join("tc/globals");

        let first = Claim::take(&path).unwrap();
        let refused = Claim::take(&path).unwrap_err().to_string();
        drop(first);
        let second = Claim::take(&path);
        fs::remove_dir_all(&parent).unwrap();

        let owner = format!(
            "belongs to process {}: does another agent run",
            std::process::id()
        );
        assert!(refused.starts_with(&path.display().to_string()), "{refused}");
        assert!(refused.contains(&owner), "{refused}");
        assert!(second.is_ok());
    }

    #[test]
    fn the_owner_is_found_among_all_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:13:7 0 EOF\n1: -> FLOCK ADVISORY WRITE 6 00:13:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 708 00:13:7 0 EOF\n";
        assert_eq!(owner_in(locks, "00:13:7"), Some(708));
        assert_eq!(owner_in(locks, "00:13:8"), None);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = Claim::take(Path::new("/proc/nowhere")).unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere"));
    }
}
