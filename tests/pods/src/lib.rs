// SPDX-License-Identifier: Apache-2.0

//! Recordings of pods: runs of the CNI plugin, requests to the agent, directories, objects and commands must have the
//! recorded results, but for intended differences, which have a name.
//!
//! The kind of a file is in its name: `cni-add.json` is of kind `cni`. Names of variable values (`${POD1_IPV4}`) are bound where
//! they come first, and stand for the same value from then on.

mod bindings;
mod cli;
mod cluster;
mod cniconf;
mod crd;
mod differences;
mod metrics;
mod plugin;
mod report;
mod rest;
mod restore;
mod scene;
mod text;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;

pub use report::{Outcome, Report};

/// Errors of helpers, with the object named in their texts.
type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// How recordings are run.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// Only scenarios whose names contain this.
    pub only: String,
    /// Leaves out what waits: invocations for an agent that does not answer, restores for an agent that starts.
    pub skips_waits: bool,
}

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
    Format { path: PathBuf, format: u64 },

    /// A file that other recordings refer to.
    #[error("{} has no scenario", path.display())]
    NoScenario { path: PathBuf },

    /// `cargo build` makes it, beside this program.
    #[error("no program {name} beside this one or in the search path")]
    Program { name: String },

    #[error("scenario cannot be run")]
    Run(#[source] Boxed),
}

impl Error {
    /// The error with its causes, on one line.
    #[must_use]
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

/// Runs a recording.
pub fn run_file(path: &Path, options: &Options) -> Result<Vec<Report>, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let recording: Value = serde_json::from_str(&text).map_err(|source| Error::Parse {
        path: path.to_owned(),
        source,
    })?;
    match recording["format"].as_u64() {
        Some(1) => {}
        format => {
            return Err(Error::Format {
                path: path.to_owned(),
                format: format.unwrap_or_default(),
            });
        }
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let kind = name.split('-').next().unwrap_or_default();
    match kind {
        "state" | "replay" => restore::run(&recording, options),
        "crd" => crd::run(&recording, options),
        "cli" | "health" => cli::run(&recording, options),
        "cni" if recording["steps"].is_array() => {
            let mut reports = plugin::run(path, &recording, options)?;
            if !options.skips_waits {
                reports.extend(restore::directories(&recording, options)?);
            }
            Ok(reports)
        }
        "cniconf" => cniconf::run(&recording, options),
        "rest" => rest::requests(&recording, options),
        "config" => rest::configuration(&recording, options),
        _ => Err(Error::NoScenario {
            path: path.to_owned(),
        }),
    }
}

/// The recordings of the repository.
#[must_use]
pub fn recordings() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let files = fs::read_dir(own).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = files
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    found.sort();
    found
}

/// A program of the repository, beside this one.
fn program(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().unwrap_or_default();
    // Programs of tests are in a folder below.
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let searched = std::env::split_paths(&searched).map(|folder| folder.join(name));
    let mut all = beside.chain(searched);
    all.find(|path| path.is_file()).ok_or_else(|| Error::Program {
        name: name.to_owned(),
    })
}
