// SPDX-License-Identifier: Apache-2.0

//! Recorded network policies through the policy model: refusals, identities, selections, map entries, redirects and verdicts
//! must be those that were recorded, but for recorded faults, which have a name.

mod compare;
mod format;
mod networks;
mod rows;
mod run;
mod world;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use run::{Outcome, Report, run_file};

/// Why a file could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// A file is not of the format.
    #[error("{} is no file of this format", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },

    /// A later version of the format.
    #[error("{} has format {format}, known is 1", path.display())]
    Format { path: PathBuf, format: u32 },
}

impl Error {
    /// What went wrong, with its causes, on one line.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }
}

/// The files beside this crate.
///
/// # Errors
///
/// [`Error::Read`] if the folder cannot be read.
pub fn recorded_files() -> Result<Vec<PathBuf>, Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let read = |source| Error::Read {
        path: folder.clone(),
        source,
    };
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}
