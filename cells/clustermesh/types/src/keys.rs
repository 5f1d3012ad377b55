// SPDX-License-Identifier: Apache-2.0

//! Where values are in the key-value store.

use std::fmt;

/// A kind of values that clusters share; each has a prefix of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Node`](crate::Node)s.
    Nodes,
    /// [`ClusterService`](crate::ClusterService)s.
    Services,
    /// [`ClusterEndpointSlice`](crate::ClusterEndpointSlice)s.
    EndpointSlices,
    /// [`IpIdentityPair`](crate::IpIdentityPair)s.
    Ips,
    /// [`Identity`](crate::Identity)s.
    Identities,
    /// [`ServiceExport`](crate::ServiceExport)s.
    ServiceExports,
}

impl Kind {
    /// All kinds. Each has a canary, also where a cluster does not export it.
    pub const ALL: [Self; 6] = [
        Self::Nodes,
        Self::Services,
        Self::EndpointSlices,
        Self::Ips,
        Self::Identities,
        Self::ServiceExports,
    ];

    /// The kind as it is called in the state of a cluster and in texts: `nodes`, `services`, `endpointslices`, `ip`,
    /// `identities` or `serviceexports`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Ips => "ip",
            Self::Identities => "identities",
            Self::ServiceExports => "serviceexports",
        }
    }

    /// Prefix of the values that a cluster publishes about itself. It is also the name of their canary.
    pub const fn state_prefix(self) -> &'static str {
        match self {
            Self::Nodes => "cilium/state/nodes/v1",
            Self::Services => "cilium/state/services/v1",
            Self::EndpointSlices => "cilium/state/endpointslices/v1",
            Self::Ips => "cilium/state/ip/v1",
            Self::Identities => "cilium/state/identities/v1",
            Self::ServiceExports => "cilium/state/serviceexports/v1",
        }
    }

    /// Prefix of the copies of values of remote clusters. It is also the name of their canary.
    pub const fn cache_prefix(self) -> &'static str {
        match self {
            Self::Nodes => "cilium/cache/nodes/v1",
            Self::Services => "cilium/cache/services/v1",
            Self::EndpointSlices => "cilium/cache/endpointslices/v1",
            Self::Ips => "cilium/cache/ip/v1",
            Self::Identities => "cilium/cache/identities/v1",
            Self::ServiceExports => "cilium/cache/serviceexports/v1",
        }
    }

    /// The canary that says that the values are complete: [`canary_prefix`] of the cluster, and this.
    pub const fn canary(self, is_cached: bool) -> &'static str {
        if is_cached {
            self.cache_prefix()
        } else {
            self.state_prefix()
        }
    }

    /// The prefix, without a `/` at its end, below which the values of a cluster are, by their names.
    ///
    /// ```
    /// use skep_clustermesh_types::Kind;
    ///
    /// assert_eq!(Kind::Nodes.prefix("alder", false), "cilium/state/nodes/v1/alder");
    /// assert_eq!(Kind::Ips.prefix("alder", false), "cilium/state/ip/v1/default");
    /// assert_eq!(Kind::Identities.prefix("alder", true), "cilium/cache/identities/v1/alder/id");
    /// ```
    pub fn prefix(self, cluster: &str, is_cached: bool) -> String {
        let base = self.canary(is_cached);
        match (self, is_cached) {
            (Self::Ips, false) => format!("{base}/{DEFAULT_ADDRESS_SPACE}"),
            (Self::Identities, false) => format!("{base}/id"),
            (Self::Identities, true) => format!("{base}/{cluster}/id"),
            _ => format!("{base}/{cluster}"),
        }
    }

    /// The key of a value of a cluster.
    pub fn key(self, cluster: &str, is_cached: bool, name: &str) -> String {
        let mut key = self.prefix(cluster, is_cached);
        key.push('/');
        key.push_str(name);
        key
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Takes the place of the cluster in keys of addresses.
pub const DEFAULT_ADDRESS_SPACE: &str = "default";

/// The key of the configuration of a cluster.
pub fn cluster_config(cluster: &str) -> String {
    format!("cilium/cluster-config/{cluster}")
}

/// The prefix, without a `/` at its end, of the canaries of a cluster.
pub fn canary_prefix(cluster: &str) -> String {
    format!("cilium/synced/{cluster}")
}

pub fn canary(cluster: &str, kind: Kind, is_cached: bool) -> String {
    format!("{}/{}", canary_prefix(cluster), kind.canary(is_cached))
}
