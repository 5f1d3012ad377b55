// SPDX-License-Identifier: Apache-2.0

//! Control groups of the lab: every process of a lab is in one, so that taking a lab down ends exactly
//! the processes which the lab started, also after a crash.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::folder;

/// Why a control group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Mount the unified hierarchy (cgroup v2).
    #[error("no cgroup v2 hierarchy is mounted on this machine")]
    NoHierarchy,
    /// The system call failed; are you root?
    #[error("control group {}", path.display())]
    Io {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// Processes that a kill does not end: they wait in the kernel.
    #[error("control group {}: processes {processes:?} do not end", path.display())]
    Stuck { path: PathBuf, processes: Vec<i32> },
}

/// Root of the unified hierarchy, wherever it is mounted (pure v2, or beside v1).
pub fn root() -> Result<PathBuf, CgroupError> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(|_| CgroupError::NoHierarchy)?;
    mounts
        .lines()
        .find_map(|line| {
            let mut fields = line.split(' ');
            let (_, target, kind) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(target))
        })
        .ok_or(CgroupError::NoHierarchy)
}

/// Makes the group `path` (absolute) and its parents.
pub fn create(path: &Path) -> Result<(), CgroupError> {
    folder::make(path).map_err(|cause| CgroupError::Io {
        path: path.to_owned(),
        cause,
    })
}

/// Moves the calling process into the group `path`.
pub fn join(path: &Path) -> Result<(), CgroupError> {
    fs::write(path.join("cgroup.procs"), "0").map_err(|cause| CgroupError::Io {
        path: path.to_owned(),
        cause,
    })
}

/// Ids of all processes in the group and below it.
#[must_use]
pub fn processes(path: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for folder in tree(path) {
        let Ok(text) = fs::read_to_string(folder.join("cgroup.procs")) else {
            continue;
        };
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    found
}

/// Ends every process in the group and below it, and removes the groups. A group that is not there is fine.
///
/// # Errors
/// When a process survives `SIGKILL` for `patience`, or a group cannot be removed.
pub fn remove(path: &Path, patience: Duration) -> Result<(), CgroupError> {
    if !path.exists() {
        return Ok(());
    }
    let deadline = Instant::now() + patience;
    end_processes(path, patience)?;
    // Deepest first. A group whose last process has just ended can stay busy for a moment.
    for folder in tree(path).into_iter().rev() {
        loop {
            match fs::remove_dir(&folder) {
                Ok(()) => break,
                Err(err) if err.kind() == io::ErrorKind::NotFound => break,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                Err(cause) => return Err(CgroupError::Io { path: folder, cause }),
            }
        }
    }
    Ok(())
}

/// Kills every process in the group and below it, and waits until they are gone.
pub fn end_processes(path: &Path, patience: Duration) -> Result<(), CgroupError> {
    let deadline = Instant::now() + patience;
    loop {
        kill(path);
        let left = processes(path);
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(CgroupError::Stuck {
                path: path.to_owned(),
                processes: left,
            });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Kills every process in the group and below it. One write kills a whole subtree from Linux 5.14; before that, process
/// by process.
pub fn kill(path: &Path) {
    if fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for process in processes(path) {
        // It may have ended meanwhile.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(process),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

/// The group and all groups below it, parents first.
fn tree(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    let mut next = 0;
    while let Some(folder) = all.get(next).cloned() {
        next += 1;
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        all.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_group_ends_its_processes_and_leaves_no_folder() {
        let group = root()
            .unwrap()
            .join(format!("skep-lab-test-{}", std::process::id()));
        let inner = group.join("inner");
        create(&inner).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        fs::write(inner.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        assert_eq!(processes(&group), vec![sleeper.id() as i32]);

        // Reaps the child as init would; a zombie keeps no group busy.
        let reaper = std::thread::spawn(move || sleeper.wait().unwrap());
        remove(&group, Duration::from_secs(5)).unwrap();

        assert!(!group.exists());
        assert!(!reaper.join().unwrap().success());
    }

    #[test]
    fn removing_a_missing_group_is_fine() {
        remove(&root().unwrap().join("skep-lab-test-missing"), Duration::ZERO).unwrap();
    }
}
