// SPDX-License-Identifier: Apache-2.0

//! Why an operation on a map failed.

use std::{io, path::PathBuf};

use super::Mismatch;

/// Failure of an operation on a map. Names the map, and the key where there is one.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The kernel did not create the map. Check memory and privileges.
    #[error("map {map}: cannot create it with {max_entries} entries, flags {flags:#x}")]
    Create {
        map: String,
        max_entries: u32,
        flags: u32,
        #[source]
        source: io::Error,
    },

    /// No object is pinned at the path, or it may not be opened.
    #[error("map {map}: cannot open {}", path.display())]
    Open {
        map: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The object pinned at the path is a program or a link.
    #[error("map {map}: the object pinned at {} is not a map", path.display())]
    NotMap { map: String, path: PathBuf },

    #[error("map {map}: cannot pin it at {}", path.display())]
    Pin {
        map: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("map {map}: cannot unpin {}", path.display())]
    Unpin {
        map: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// The kernel does not describe the map.
    #[error("map {map}: cannot read its properties")]
    Inspect {
        map: String,
        #[source]
        source: io::Error,
    },

    /// Type or sizes are not what was asked for. The map belongs to another version.
    #[error("map {map}: incompatible: {mismatch}")]
    Incompatible { map: String, mismatch: Mismatch },

    /// A value was not written. [`is_full`](Self::is_full) returns whether the map has no room left.
    #[error("map {map}: cannot update {key}")]
    Update {
        map: String,
        key: String,
        #[source]
        source: io::Error,
    },

    #[error("map {map}: cannot look up {key}")]
    Lookup {
        map: String,
        key: String,
        #[source]
        source: io::Error,
    },

    #[error("map {map}: cannot delete {key}")]
    Delete {
        map: String,
        key: String,
        #[source]
        source: io::Error,
    },

    /// The entries could not be listed.
    #[error("map {map}: cannot walk its entries")]
    Walk {
        map: String,
        #[source]
        source: io::Error,
    },

    /// The number of elements does not fit the inner maps.
    #[error("map {map}: inner map of {key} holds {expected} elements, not {found}")]
    InnerSize {
        map: String,
        key: String,
        expected: u32,
        found: usize,
    },

    /// The directory of the pins cannot be used.
    #[error("cannot create the directory {} for pinned maps", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl MapError {
    /// The map has no room for another entry.
    pub fn is_full(&self) -> bool {
        // Hash maps say E2BIG, tries ENOSPC.
        matches!(self, Self::Update { source, .. }
            if matches!(source.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)))
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// The map that failed; empty if it was their directory.
    pub fn map(&self) -> &str {
        match self {
            Self::Create { map, .. }
            | Self::Open { map, .. }
            | Self::NotMap { map, .. }
            | Self::Pin { map, .. }
            | Self::Unpin { map, .. }
            | Self::Inspect { map, .. }
            | Self::Incompatible { map, .. }
            | Self::Update { map, .. }
            | Self::Lookup { map, .. }
            | Self::Delete { map, .. }
            | Self::Walk { map, .. }
            | Self::InnerSize { map, .. } => map,
            Self::Directory { .. } => "",
        }
    }
}

/// An entry of a batch that failed.
#[derive(Debug, thiserror::Error)]
#[error("entry {index} of the batch")]
pub struct BatchFailure {
    pub index: usize,
    #[source]
    pub error: MapError,
}

/// Result of a batch of deletions.
#[derive(Debug, Default)]
pub struct Deletion {
    pub deleted: usize,
    /// Those that could not be deleted, by index.
    pub failures: Vec<BatchFailure>,
}

impl Deletion {
    /// Returns how many entries are gone, or the first failure.
    pub fn all(self) -> Result<usize, MapError> {
        self.failures
            .into_iter()
            .next()
            .map_or(Ok(self.deleted), |failure| Err(failure.error))
    }
}
