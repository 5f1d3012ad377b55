// SPDX-License-Identifier: Apache-2.0

//! A directory as kubelet makes it of a ConfigMap: the files are in another directory, which is replaced as a whole by a
//! link, `..data`. A reader sees the old ones or the new ones.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

const DATA: &str = "..data";

/// A file or directory cannot be changed: check the volume.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct DirectoryError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |source| DirectoryError { action, path, source }
}

/// Makes the entries the contents of the directory.
pub(super) fn write(directory: &Path, entries: &BTreeMap<String, String>) -> Result<(), DirectoryError> {
    fs::create_dir_all(directory).map_err(failed("make", directory))?;
    let data = new_directory(directory)?;
    for (key, value) in entries {
        let path = data.join(key);
        fs::write(&path, value)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
            .map_err(failed("write", &path))?;
    }
    let target = Path::new(data.file_name().unwrap_or_default());
    link(target, &directory.join(DATA))?;
    for key in entries.keys() {
        let path = directory.join(key);
        let target = Path::new(DATA).join(key);
        if fs::read_link(&path).ok().as_ref() != Some(&target) {
            link(&target, &path)?;
        }
    }
    remove_stale(directory, target, entries)
}

/// Named by the time, as kubelet's are; another start within the same second has the next one.
fn new_directory(directory: &Path) -> Result<PathBuf, DirectoryError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut number = now.as_secs();
    loop {
        let path = directory.join(format!("{DATA}_{number}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| path.clone()).map_err(failed("make", &path)),
        }
    }
}

fn link(target: &Path, path: &Path) -> Result<(), DirectoryError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &temporary)(error));
        }
        _ => {}
    }
    symlink(target, &temporary).map_err(failed("make", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("replace", path))
}

/// Removes what an earlier start wrote: its directories, and links to keys that are gone.
fn remove_stale(
    directory: &Path,
    current: &Path,
    entries: &BTreeMap<String, String>,
) -> Result<(), DirectoryError> {
    for entry in fs::read_dir(directory).map_err(failed("list", directory))? {
        let path = entry.map_err(failed("list", directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("..data_") && Path::new(&*name) != current {
            fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        } else if !entries.contains_key(&*name)
            && fs::read_link(&path).is_ok_and(|target| target == Path::new(DATA).join(&*name))
        {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}
