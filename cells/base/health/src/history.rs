// SPDX-License-Identifier: Apache-2.0

//! History of health: a small file that outlives components.
//!
//! One line per change: degraded, stopped and closed components, and starts and stops of the hive. At 5 MB the file
//! becomes `<path>.1`, replacing an older one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::Offset;
use parking_lot::Mutex;
use statedb::clock::Clock;
use tracing::warn;

use crate::status::{LevelName, Status};

/// Size at which the file is rotated, in bytes.
const LIMIT: u64 = 5 << 20;

/// Why the history of health cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be written; check its directory. The program works without it.
    #[error("cannot write health history {path}")]
    Write {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

pub struct History {
    path: PathBuf,
    limit: u64,
    clock: Arc<dyn Clock>,
    file: Mutex<Option<Open>>,
}

struct Open {
    file: File,
    size: u64,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl History {
    /// The history in the file at `path`. The first line creates it, with its directories. There is
    /// no history if the path is empty.
    pub fn new(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        Self {
            path: path.into(),
            limit: LIMIT,
            clock,
            file: Mutex::new(None),
        }
    }

    fn is_off(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    pub fn read(&self) -> io::Result<String> {
        if self.is_off() {
            return Ok(String::new());
        }
        // Held so that no line moves between the files in between.
        let _file = self.file.lock();
        let mut text = match fs::read_to_string(old(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            result => result?,
        };
        text.push_str(&fs::read_to_string(&self.path)?);
        Ok(text)
    }

    /// Records the start of the hive.
    pub(crate) fn started(&self, version: &str) -> Result<(), HistoryError> {
        let line = format!("{} | Started | {version}\n", time(self.clock.now()));
        self.try_write(&line).map_err(|cause| HistoryError::Write {
            path: self.path.clone(),
            cause,
        })
    }

    /// Records the stop of the hive.
    pub(crate) fn stopped(&self, version: &str) {
        self.write(&format!("{} | Stopped | {version}\n", time(self.clock.now())));
    }

    /// Records a report; only those of degraded and stopped components are written.
    pub(crate) fn reported(&self, now: Timestamp, status: &Status) {
        match status.level {
            LevelName::Degraded => self.change(now, "Degraded", status, &status.message),
            LevelName::Stopped => self.change(now, "Stopped", status, &status.final_message),
            LevelName::Ok | LevelName::Starting | LevelName::Unknown => {}
        }
    }

    /// Records that a component was closed.
    pub(crate) fn closed(&self, now: Timestamp, status: &Status) {
        self.change(now, &format!("Closed({})", status.level), status, &status.message);
    }

    fn change(&self, now: Timestamp, level: &str, status: &Status, message: &str) {
        let line = |text: &str| text.replace('\n', " ");
        let error = if status.error.is_empty() {
            String::new()
        } else {
            format!(" | {}", line(&status.error))
        };
        self.write(&format!(
            "{} | {level:<16} | {}: {}{error}\n",
            time(now),
            status.id,
            line(message)
        ));
    }

    fn write(&self, line: &str) {
        if let Err(error) = self.try_write(line) {
            warn!(path = %self.path.display(), error = %error, "Cannot write health history");
        }
    }

    fn try_write(&self, line: &str) -> io::Result<()> {
        if self.is_off() {
            return Ok(());
        }
        let mut file = self.file.lock();
        let result = self.append(&mut file, line);
        if result.is_err() {
            // Opened again with the next line.
            *file = None;
        }
        result
    }

    fn append(&self, file: &mut Option<Open>, line: &str) -> io::Result<()> {
        if file
            .as_ref()
            .is_some_and(|file| file.size + line.len() as u64 > self.limit)
        {
            *file = None;
            fs::rename(&self.path, old(&self.path))?;
        }
        let file = match file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        file.file.write_all(line.as_bytes())?;
        file.size += line.len() as u64;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<Open> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let size = file.metadata()?.len();
    Ok(Open { file, size })
}

fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

fn time(time: Timestamp) -> String {
    Offset::UTC
        .to_datetime(time)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
