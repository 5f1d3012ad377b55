// SPDX-License-Identifier: Apache-2.0

//! A script in a txtar file: unpacking it, running it, writing updates back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::context::clean;
use crate::{Archive, Ending, ScriptError, State};

/// A script in a txtar file.
#[derive(Debug, Clone)]
pub struct ScriptFile {
    path: PathBuf,
    archive: Archive,
}

/// Why a script cannot be read, unpacked or written back.
#[derive(Debug, thiserror::Error)]
pub enum ScriptFileError {
    /// The file cannot be read.
    #[error("cannot read script {path}")]
    Read {
        /// The script.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// The file is not a text. What is not UTF-8 cannot be compared line by line.
    #[error("script {path} is not UTF-8: byte {byte:#04x} in line {line}")]
    NotText {
        /// The script.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// The first byte that is wrong.
        byte: u8,
    },
    /// A file of the archive cannot be created in the work directory.
    #[error("cannot unpack `{name}` to {path}")]
    Unpack {
        /// The name in the archive.
        name: String,
        /// Where it should go.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// A file of the archive would lie outside of the work directory.
    #[error("file `{name}` of the archive lies outside of the work directory")]
    Outside {
        /// The name in the archive.
        name: String,
    },
    /// The updated script cannot be written.
    #[error("cannot write script {path}")]
    Write {
        /// The script.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
}

impl ScriptFile {
    /// Reads a script.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, ScriptFileError> {
        let path = path.into();
        let bytes = fs::read(&path).map_err(|cause| ScriptFileError::Read {
            path: path.clone(),
            cause,
        })?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Self {
                archive: Archive::parse(text),
                path,
            }),
            Err(error) => {
                let at = error.valid_up_to();
                Err(ScriptFileError::NotText {
                    path,
                    line: 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count(),
                    byte: bytes[at],
                })
            }
        }
    }

    /// A script that is not in a file; `path` names it in messages and is written in update mode.
    pub fn from_archive(path: impl Into<PathBuf>, archive: Archive) -> Self {
        Self {
            path: path.into(),
            archive,
        }
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the test: the file name without `.txt`.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(".txt").unwrap_or(&name).to_owned()
    }

    /// The script itself, without the files.
    pub fn text(&self) -> &str {
        &self.archive.script
    }

    /// The arguments in the first line, behind `#!`.
    pub fn args(&self) -> Vec<String> {
        self.archive.args()
    }

    /// Sets `DATADIR`, `PWD`, `WORK` and `TMPDIR` and writes the files into the work directory.
    pub fn unpack(&self, state: &mut State) -> Result<(), ScriptFileError> {
        let data_dir = self
            .path
            .parent()
            .filter(|dir| !dir.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let data_dir = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned());
        let work = state.work_dir.clone();
        let temporary = work.join("tmp");
        let failed = |name: &str, path: &Path, cause| ScriptFileError::Unpack {
            name: name.to_owned(),
            path: path.to_owned(),
            cause,
        };
        fs::create_dir_all(&temporary).map_err(|cause| failed("tmp", &temporary, cause))?;
        for (name, path) in [
            ("DATADIR", &data_dir),
            ("PWD", &work),
            ("WORK", &work),
            ("TMPDIR", &temporary),
        ] {
            state.environment.set(name, path.to_string_lossy());
        }
        for file in &self.archive.files {
            let path = self.target(state, &file.name)?;
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(|cause| failed(&file.name, &path, cause))?;
            }
            fs::write(&path, &file.content).map_err(|cause| failed(&file.name, &path, cause))?;
            state.archive_files.insert(path);
        }
        Ok(())
    }

    /// Path of a file of the archive.
    fn target(&self, state: &State, name: &str) -> Result<PathBuf, ScriptFileError> {
        let path = clean(&state.work_dir.join(state.environment.expand(name)));
        if path == state.work_dir || !path.starts_with(&state.work_dir) {
            return Err(ScriptFileError::Outside {
                name: name.to_owned(),
            });
        }
        Ok(path)
    }

    /// Runs the script. Unpack it first.
    pub async fn run(&self, state: &mut State) -> Result<Ending, ScriptError> {
        let file = self
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        state.execute(&file, &self.archive.script).await
    }

    /// Writes files which update mode has changed back into the script's file; whether there was one.
    pub fn write_back(&mut self, state: &State) -> Result<bool, ScriptFileError> {
        let mut changed = false;
        for at in 0..self.archive.files.len() {
            let path = self.target(state, &self.archive.files[at].name)?;
            if let Some(content) = state.updates().get(&path) {
                self.archive.files[at].content.clone_from(content);
                changed = true;
            }
        }
        if changed {
            fs::write(&self.path, self.archive.to_string()).map_err(|cause| ScriptFileError::Write {
                path: self.path.clone(),
                cause,
            })?;
        }
        Ok(changed)
    }
}
