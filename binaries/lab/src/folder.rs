// SPDX-License-Identifier: Apache-2.0

//! Folders that labs share.

use std::time::{Duration, Instant};
use std::{fs, io, path::Path, thread};

/// How long creating a folder is retried that other labs remove at the same time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Creates a folder and those above it. A lab that goes takes the common folder with it if that is empty, which may be
/// between the making of that one and of the one below.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match fs::create_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && start.elapsed() < PATIENCE => {
                thread::yield_now();
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_folder_is_made_while_others_remove_the_common_one() {
        let root = tempfile::tempdir().unwrap();
        let common = root.path().join("common");
        let done = AtomicBool::new(false);

        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = fs::remove_dir(&common);
                }
            });
            let made: io::Result<()> = (0..200).try_for_each(|_| {
                let own = common.join("lab");
                make(&own.join("logs"))?;
                fs::remove_dir_all(own)
            });
            done.store(true, Ordering::Relaxed);
            made.unwrap();
        });
    }

    #[test]
    fn what_cannot_be_made_is_an_error() {
        assert!(make(Path::new("/proc/nowhere/x")).is_err());
    }
}
