// SPDX-License-Identifier: Apache-2.0

//! A log of keys that were added and removed.
//!
//! A record is the length of the rest as little-endian `u64`, one byte 1 for a removal and 0 otherwise, the version, and the
//! key. A key is added before the kernel is changed and removed after it, so that nothing that was made is ever unknown.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Version of the records.
const VERSION: u8 = 1;

/// Why the log could not be used. Check the state directory: free space, permissions.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} log {}", path.display())]
pub(crate) struct WalError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A log, opened when it is first used.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    open: Option<OpenWal>,
}

#[derive(Debug)]
struct OpenWal {
    file: File,
    keys: BTreeSet<String>,
}

fn record(key: &str, is_removed: bool) -> Vec<u8> {
    let length = key.len() as u64 + 2;
    let mut record = length.to_le_bytes().to_vec();
    record.extend([u8::from(is_removed), VERSION]);
    record.extend(key.as_bytes());
    record
}

/// Reads a log. Returns the keys, and whether all of it could be read.
fn replay(mut bytes: &[u8]) -> (BTreeSet<String>, bool) {
    let mut keys = BTreeSet::new();
    while !bytes.is_empty() {
        let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
        let body = length
            .and_then(|length| usize::try_from(length).ok())
            .and_then(|length| bytes.get(8..length.checked_add(8)?));
        let Some([removed, VERSION, key @ ..]) = body else {
            return (keys, false);
        };
        let Ok(key) = str::from_utf8(key) else {
            return (keys, false);
        };
        match removed {
            0 => drop(keys.insert(key.to_owned())),
            _ => drop(keys.remove(key)),
        }
        bytes = bytes.get(10 + key.len()..).unwrap_or_default();
    }
    (keys, true)
}

impl Wal {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> WalError {
        move |source| WalError {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// Opens the log. One that cannot be read to its end is moved aside; what could be read counts.
    fn open(&mut self) -> Result<&mut OpenWal, WalError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let bytes = match fs::read(&self.path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                    read => read.map_err(Self::failed(&self.path, "read"))?,
                };
                let (keys, is_whole) = replay(&bytes);
                if !is_whole {
                    let bad = self.path.with_extension("wal.bad");
                    tracing::warn!(path = %self.path.display(), moved = %bad.display(), "Log is corrupt, moved aside");
                    fs::write(&bad, &bytes).map_err(Self::failed(&bad, "write"))?;
                }
                Self::rewrite(&self.path, keys)?
            }
        };
        Ok(self.open.insert(open))
    }

    /// Replaces the log by one that has only the keys.
    fn rewrite(path: &Path, keys: BTreeSet<String>) -> Result<OpenWal, WalError> {
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(Self::failed(folder, "create the directory of"))?;
        let new = path.with_extension("wal.new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(Self::failed(&new, "create"))?;
        let records: Vec<u8> = keys.iter().flat_map(|key| record(key, false)).collect();
        file.write_all(&records)
            .and_then(|()| fs::rename(&new, path))
            .map_err(Self::failed(path, "write"))?;
        Ok(OpenWal { file, keys })
    }

    fn append(&mut self, key: &str, is_removed: bool) -> Result<(), WalError> {
        let path = self.path.clone();
        let open = self.open()?;
        open.file
            .write_all(&record(key, is_removed))
            .map_err(Self::failed(&path, "write"))
    }

    pub(crate) fn contains(&mut self, key: &str) -> Result<bool, WalError> {
        Ok(self.open()?.keys.contains(key))
    }

    pub(crate) fn add(&mut self, key: &str) -> Result<(), WalError> {
        if !self.contains(key)? {
            self.append(key, false)?;
            self.open()?.keys.insert(key.to_owned());
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: &str) -> Result<(), WalError> {
        if self.contains(key)? {
            self.append(key, true)?;
            self.open()?.keys.remove(key);
        }
        Ok(())
    }

    pub(crate) fn keys(&mut self) -> Result<Vec<String>, WalError> {
        Ok(self.open()?.keys.iter().cloned().collect())
    }

    /// Drops records of keys that were removed.
    pub(crate) fn compact(&mut self) -> Result<(), WalError> {
        let keys = self.open()?.keys.clone();
        self.open = Some(Self::rewrite(&self.path, keys)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_and_a_torn_record_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/device-reconciler.wal");
        let mut wal = Wal::new(path.clone());
        for key in ["a/eth1", "a/eth2"] {
            wal.add(key).unwrap();
        }
        wal.remove("a/eth1").unwrap();
        let expected = b"\x08\0\0\0\0\0\0\0\x00\x01a/eth2".to_vec();
        assert!(
            fs::read(&path)
                .unwrap()
                .windows(expected.len())
                .any(|part| part == expected)
        );
        drop(wal);

        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&record("a/eth3", false)[..12]).unwrap();
        let mut wal = Wal::new(path.clone());
        assert_eq!(wal.keys().unwrap(), ["a/eth2"]);
        wal.add("a/eth4").unwrap();
        wal.remove("a/eth2").unwrap();
        wal.compact().unwrap();
        assert_eq!(fs::read(&path).unwrap(), record("a/eth4", false));
        assert!(path.with_extension("wal.bad").exists());
    }

    #[test]
    fn garbage_is_no_key() {
        for bytes in [
            &b"\xff\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\x01\0\0\0\0\0\0\0\0",
            b"\x03\0\0\0\0\0\0\0\0\x02a",
            b"\x03\0\0\0\0\0\0\0\0\x01\xff",
        ] {
            assert_eq!(replay(bytes), (BTreeSet::new(), false));
        }
    }
}
