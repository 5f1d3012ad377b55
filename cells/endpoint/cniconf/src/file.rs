// SPDX-License-Identifier: Apache-2.0

//! The file and its directory: one pass that makes them as configured.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use hive::config::open_regular;

use crate::{
    chain,
    config::Chaining,
    render::{self, Logs},
};

/// Suffix of configurations that are set aside.
const BACKUP: &str = "cilium_bak";
/// Written by Cilium before it wrote lists.
const LEGACY: &str = "05-cilium.conf";
/// What container runtimes read.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

pub(crate) fn is_one_of(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .is_some_and(|found| extensions.iter().any(|extension| found == *extension))
}

/// Why there is no configuration to write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenderError {
    /// Set a mode that can be rendered, or a target.
    #[error("invalid CNI chaining mode: {0}")]
    Mode(String),
    /// Install the other plugin, or name its network.
    #[error(
        "could not find existing CNI config for chaining: no matching CNI configurations found (will retry)"
    )]
    NoNetwork,
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot chain to {}", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// Why the configuration was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("failed to render CNI configuration file")]
    Render(#[from] RenderError),
    #[error("cannot use the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot rename {}", path.display())]
    Rename {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The configuration to write.
#[derive(Debug)]
pub(crate) struct CniConf {
    pub(crate) path: PathBuf,
    /// Copied instead of a rendered text.
    pub(crate) source: Option<PathBuf>,
    pub(crate) chaining: Chaining,
    pub(crate) is_exclusive: bool,
    pub(crate) logs: Logs,
}

impl CniConf {
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Writes the file unless it is as it should be, then renames others.
    pub(crate) fn write(&self) -> Result<(), WriteError> {
        let contents = self.contents()?;
        let directory = self.directory();
        fs::create_dir_all(directory).map_err(|source| WriteError::Directory {
            path: directory.to_owned(),
            source,
        })?;
        if read(&self.path).ok().as_ref() != Some(&contents) {
            replace(&self.path, &contents).map_err(|source| WriteError::Write {
                path: self.path.clone(),
                source,
            })?;
            tracing::info!(destination = %self.path.display(), "Wrote CNI configuration file");
        }
        self.rename_others()
    }

    fn contents(&self) -> Result<Vec<u8>, RenderError> {
        if let Some(path) = &self.source {
            return read(path).map_err(|source| RenderError::Read {
                path: path.clone(),
                source,
            });
        }
        let Chaining { mode, target } = &self.chaining;
        let Some(target) = target else {
            let text = render::network(mode, &self.logs);
            return text
                .map(String::into_bytes)
                .ok_or_else(|| RenderError::Mode(mode.clone()));
        };
        let found = chain::find(&self.path, target).map_err(|source| RenderError::Read {
            path: self.directory().to_owned(),
            source,
        })?;
        let (path, text) = found.ok_or(RenderError::NoNetwork)?;
        tracing::debug!(name = target, path = %path.display(), "Found CNI network for chaining");
        let text = chain::with_entry(&text, &render::chained_entry(mode, &self.logs))
            .map_err(|source| RenderError::Json { path, source })?;
        Ok(text.into_bytes())
    }

    fn rename_others(&self) -> Result<(), WriteError> {
        let directory = self.directory();
        let failed = |source| WriteError::Directory {
            path: directory.to_owned(),
            source,
        };
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let is_other = match self.is_exclusive {
                true => is_one_of(&path, &EXTENSIONS),
                false => path.ends_with(LEGACY),
            };
            if path == self.path || !is_other || path.is_dir() {
                continue;
            }
            let mut backup = path.clone().into_os_string();
            backup.push(format!(".{BACKUP}"));
            tracing::info!(source = %path.display(), destination = %backup.display(), "Renaming non-Cilium CNI configuration file");
            match fs::rename(&path, &backup) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result.map_err(|source| WriteError::Rename { path, source })?,
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open_regular(path)?.read_to_end(&mut contents)?;
    Ok(contents)
}

/// Replaces a file; readers see the old one or the new one. No runtime reads the temporary one, by its extension.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    // One of an earlier process may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    let result = file
        .write_all(contents)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}
