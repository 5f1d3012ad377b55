// SPDX-License-Identifier: Apache-2.0

//! Group, version and names of object types.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::slim::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, CiliumLocalRedirectPolicy, CiliumNode,
    EndpointSlice, Labels, Metadata, Namespace, Node, Pod, Service, Str,
};

/// A type of objects: group, version and names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: Str,
    /// Version in the group, such as `v1`.
    pub version: Str,
    /// Name in objects, such as `EndpointSlice`.
    pub kind: Str,
    /// Name in paths, such as `endpointslices`.
    pub plural: Str,
    pub namespaced: bool,
}

impl Kind {
    /// Decides on the node of a pod.
    pub const BINDING: Self = Self::new("", "v1", "Binding", "bindings", true);
    pub const CONFIG_MAP: Self = Self::new("", "v1", "ConfigMap", "configmaps", true);
    pub const EVENT: Self = Self::new("", "v1", "Event", "events", true);
    pub const NAMESPACE: Self = Self::new("", "v1", "Namespace", "namespaces", false);
    pub const NODE: Self = Self::new("", "v1", "Node", "nodes", false);
    pub const POD: Self = Self::new("", "v1", "Pod", "pods", true);
    pub const SECRET: Self = Self::new("", "v1", "Secret", "secrets", true);
    /// Addresses and ports that lead to pods.
    pub const SERVICE: Self = Self::new("", "v1", "Service", "services", true);
    /// Who pods are to the API server.
    pub const SERVICE_ACCOUNT: Self = Self::new("", "v1", "ServiceAccount", "serviceaccounts", true);
}

impl Kind {
    /// A kind known at compile time; takes no memory of its own.
    pub const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        namespaced: bool,
    ) -> Self {
        Self {
            group: Str::const_new(group),
            version: Str::const_new(version),
            kind: Str::const_new(kind),
            plural: Str::const_new(plural),
            namespaced,
        }
    }

    /// Value of an object's `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// URL path of the collection, or of one object if `name` is not empty.
    ///
    /// ```
    /// use skep_k8s_types::{Resource, slim::EndpointSlice};
    ///
    /// let kind = EndpointSlice::kind();
    /// assert_eq!(kind.path("shop", ""), "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
    /// assert_eq!(kind.path("", ""), "/apis/discovery.k8s.io/v1/endpointslices");
    /// ```
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        if !name.is_empty() {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

/// `v1.services`, `discovery.k8s.io.v1.endpointslices`.
impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(formatter, "{}.", self.group)?;
        }
        write!(formatter, "{}.{}", self.version, self.plural)
    }
}

/// A Rust type for objects of one [`Kind`].
pub trait Resource: Serialize + DeserializeOwned + Default + Send + Sync + 'static {
    /// Group, version and names of the type.
    fn kind() -> Kind;

    fn metadata(&self) -> &Metadata;

    fn metadata_mut(&mut self) -> &mut Metadata;

    /// Drops fields that no reader of this process needs. Runs after decoding from a list or watch.
    fn compact(&mut self) {
        let metadata = self.metadata_mut();
        metadata
            .annotations
            .remove("kubectl.kubernetes.io/last-applied-configuration");
        metadata.owner_references = Box::default();
    }
}

/// Implements [`Resource`](crate::Resource) for a type with a field `metadata`. Functions that follow replace those of the
/// trait, such as `compact`.
///
/// ```
/// use skep_k8s_types::{Resource, slim::Metadata};
///
/// #[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
/// struct Gizmo {
///     metadata: Metadata,
/// }
///
/// skep_k8s_types::resource!(Gizmo, "example.com", "v1", "Gizmo", "gizmos", true);
/// assert_eq!(Gizmo::kind().api_version(), "example.com/v1");
/// ```
#[macro_export]
macro_rules! resource {
    ($type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal, $namespaced:literal $(, $extra:item)* $(,)?) => {
        impl $crate::Resource for $type {
            fn kind() -> $crate::Kind {
                const { $crate::Kind::new($group, $version, $kind, $plural, $namespaced) }
            }

            fn metadata(&self) -> &$crate::slim::Metadata {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut $crate::slim::Metadata {
                &mut self.metadata
            }

            $($extra)*
        }
    };
}

resource!(Service, "", "v1", "Service", "services", true);
resource!(
    EndpointSlice,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices",
    true
);
resource!(
    Pod,
    "",
    "v1",
    "Pod",
    "pods",
    true,
    // Owners are read: the workload of a pod is named after them.
    fn compact(&mut self) {
        self.metadata
            .annotations
            .remove("kubectl.kubernetes.io/last-applied-configuration");
    }
);
resource!(Node, "", "v1", "Node", "nodes", false);
resource!(Namespace, "", "v1", "Namespace", "namespaces", false);
resource!(CiliumNode, "cilium.io", "v2", "CiliumNode", "ciliumnodes", false);
resource!(
    CiliumEndpoint,
    "cilium.io",
    "v2",
    "CiliumEndpoint",
    "ciliumendpoints",
    true,
    // The owner of an endpoint is its pod.
    fn compact(&mut self) {
        self.metadata.labels = Labels::default();
        self.metadata.annotations = Labels::default();
    }
);
resource!(
    CiliumEndpointSlice,
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
    fn compact(&mut self) {
        self.metadata.labels = Labels::default();
        self.metadata.annotations = Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
resource!(
    CiliumIdentity,
    "cilium.io",
    "v2",
    "CiliumIdentity",
    "ciliumidentities",
    false,
    // Annotations are kept: one marks an unused identity.
    fn compact(&mut self) {
        self.metadata.labels = Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
resource!(
    CiliumLocalRedirectPolicy,
    "cilium.io",
    "v2",
    "CiliumLocalRedirectPolicy",
    "ciliumlocalredirectpolicies",
    true
);
