// SPDX-License-Identifier: Apache-2.0

//! The data directory: only what etcd made is deleted.

use std::{fs, io, path::Path};

use super::EtcdInitError;

/// Names that etcd has in its data directory.
const OF_ETCD: [&str; 2] = ["member", "proxy"];

/// Deletes the data of an etcd, and creates the directory if it is missing. The directory itself stays: it may be a
/// mount.
pub(super) fn empty(path: &Path) -> Result<(), EtcdInitError> {
    let failed = |cause: io::Error| EtcdInitError::DataDirectory {
        path: path.to_owned(),
        cause,
    };
    fs::create_dir_all(path).map_err(failed)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !OF_ETCD.iter().any(|name| entry.file_name() == *name) {
            return Err(EtcdInitError::ForeignData { path: entry.path() });
        }
        found.push(entry);
    }
    for entry in found {
        let kind = entry.file_type().map_err(failed)?;
        let removed = if kind.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        removed.map_err(failed)?;
    }
    Ok(())
}
