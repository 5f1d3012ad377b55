// SPDX-License-Identifier: Apache-2.0

//! Recorded packets through the programs: verdict, packet, entries, counters and events must be those that were
//! recorded, but for differences that are meant and have a name.

mod compare;
mod difference;
pub mod measure;
pub mod node;
mod options;
mod ports;
mod run;
mod twins;
mod vectors;
mod world;

use std::{io, path::PathBuf};

pub use run::{Outcome, Report, run_file, run_file_with};
pub use twins::{FlowTable, Twins, take_twins};

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

    /// A file of facts where one of scenarios is meant.
    #[error("{} has facts and no scenarios", path.display())]
    FactsAlone { path: PathBuf },

    /// A later version of the format.
    #[error("{} has format {format}, known is 1", path.display())]
    Format { path: PathBuf, format: u32 },

    #[error("the facts have no {what}")]
    Facts { what: String },

    #[error("{map} has no entries with a key of {key} and a value of {value} bytes")]
    Entry { map: String, key: usize, value: usize },

    /// The interfaces could not be made.
    #[error("cannot make {what}")]
    Network {
        what: String,
        #[source]
        source: rtnetlink::Error,
    },

    /// A packet of a recorded flow does something else than without the flow table.
    #[error("a hit in the flow table differs: {what}")]
    Twins { what: String },

    #[error("cannot {what}")]
    Kernel {
        what: String,
        #[source]
        source: io::Error,
    },

    /// A map cannot be made or written.
    #[error(transparent)]
    Map(#[from] skep_bpf_sys::MapError),

    #[error(transparent)]
    Load(#[from] skep_bpf_programs::LoadError),

    /// The event ring cannot be read.
    #[error("cannot read events")]
    Events(#[from] libbpf_rs::Error),

    /// What holds the node of one file.
    #[error(transparent)]
    Io(#[from] io::Error),
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
