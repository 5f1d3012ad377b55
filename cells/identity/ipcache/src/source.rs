// SPDX-License-Identifier: Apache-2.0

//! Where facts about addresses and nodes are from, and which count more.

use std::fmt;

/// A kind of source; the first one is the strongest.
///
/// ```
/// use skep_ipcache::Source;
///
/// assert!(Source::Local.is_stronger_than(Source::ClusterMesh));
/// assert_eq!(Source::CustomResource.to_string(), "custom-resource");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Source {
    KubeApiserver,
    /// This node: its addresses and endpoints.
    Local,
    /// The key-value store of the own cluster.
    KvStore,
    CustomResource,
    Kubernetes,
    ClusterMesh,
    Directory,
    Api,
    /// Identities of networks and DNS names.
    Generated,
    /// What was there before a restart.
    Restored,
    Unspec,
}

impl Source {
    pub const ALL: [Self; 11] = [
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

    /// Whether it counts more than another one.
    pub fn is_stronger_than(self, other: Self) -> bool {
        self < other
    }

    /// The word, as Cilium has it.
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
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_that_of_cilium() {
        let words: Vec<&str> = Source::ALL.iter().map(|source| source.as_str()).collect();

        assert_eq!(
            words.join(" > "),
            "kube-apiserver > local > kvstore > custom-resource > k8s > clustermesh > directory > api > generated > \
             restored > unspec"
        );
        assert!(
            Source::ALL
                .windows(2)
                .all(|pair| pair[0].is_stronger_than(pair[1]))
        );
        assert!(!Source::Local.is_stronger_than(Source::Local));
    }
}
