// SPDX-License-Identifier: Apache-2.0

//! Where a row came from, and which source wins when several describe one backend.

use std::fmt;
use std::str::FromStr;

/// Origin of a service or backend. Declared best first: the discriminant is the priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Source {
    /// The API server's own address.
    KubeApiserver = 0,
    /// Made by the agent itself.
    Local = 1,
    /// Key-value store.
    KvStore = 2,
    /// A custom resource.
    CustomResource = 3,
    /// A Kubernetes object.
    Kubernetes = 4,
    /// Another cluster of the mesh.
    ClusterMesh = 5,
    /// A directory of files.
    Directory = 6,
    /// The API, or a state file.
    Api = 7,
    /// Generated.
    Generated = 8,
    /// Left from a previous run.
    Restored = 9,
    /// Not stated.
    #[default]
    Unspec = 10,
}

/// Number of sources.
pub const SOURCE_COUNT: usize = 11;

impl Source {
    /// Every source, best first.
    pub const ALL: [Self; SOURCE_COUNT] = [
        Self::KubeApiserver,
        Self::Local,
        Self::KvStore,
        Self::CustomResource,
        Self::Kubernetes,
        Self::ClusterMesh,
        Self::Directory,
        Self::Api,
        Self::Generated,
        Self::Restored,
        Self::Unspec,
    ];

    /// Text in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KubeApiserver => "kube-apiserver",
            Self::Local => "local",
            Self::KvStore => "kvstore",
            Self::CustomResource => "custom-resource",
            Self::Kubernetes => "k8s",
            Self::ClusterMesh => "clustermesh",
            Self::Directory => "directory",
            Self::Api => "api",
            Self::Generated => "generated",
            Self::Restored => "restored",
            Self::Unspec => "unspec",
        }
    }

    /// Position in the default order of priorities; the smallest wins.
    pub const fn priority(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    /// Never fails: an unknown source ranks last, as [`Self::Unspec`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::ALL
            .into_iter()
            .find(|source| source.as_str() == text)
            .unwrap_or_default())
    }
}
