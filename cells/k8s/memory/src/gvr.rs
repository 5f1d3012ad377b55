// SPDX-License-Identifier: Apache-2.0

//! Names of resources: group, version and plural.

use std::fmt;

use compact_str::CompactString;

/// A resource of the API: group (empty for the core group), version and plural name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// API group; empty for the core group.
    pub group: CompactString,
    /// Version within the group, such as `v1`.
    pub version: CompactString,
    /// Plural, lower case name, such as `services`.
    pub resource: CompactString,
}

impl Gvr {
    /// Names the resource `resource` of `group`/`version`.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Gvr {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }

    /// The `apiVersion` of its objects: `v1` or `discovery.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// The name that scripts use: `v1.services`, `discovery.k8s.io.v1.endpointslices`.
    pub fn dotted(&self) -> String {
        if self.group.is_empty() {
            format!("{}.{}", self.version, self.resource)
        } else {
            format!("{}.{}.{}", self.group, self.version, self.resource)
        }
    }

    /// The name that messages of the API use: `services`, `deployments.apps`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_string()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

/// The text inside of row ids and of client errors: `discovery.k8s.io/v1, Resource=endpointslices`.
impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

/// Joins group and version as `apiVersion` shows them.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// Splits an `apiVersion` into group and version.
pub fn split_api_version(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or(("", text))
}

/// The plural that Kubernetes guesses for a kind: lower case, `endpoints` as it is, `…y` → `…ies`, `…s` → `…es`.
pub fn guess_plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    if lower == "endpoints" {
        lower
    } else if lower.ends_with('s') {
        format!("{lower}es")
    } else if let Some(stem) = lower.strip_suffix('y') {
        format!("{stem}ies")
    } else {
        format!("{lower}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_plurals_as_kubernetes_does() {
        let cases = [
            ("Service", "services"),
            ("Endpoints", "endpoints"),
            ("NetworkPolicy", "networkpolicies"),
            ("Ingress", "ingresses"),
            ("CiliumIdentity", "ciliumidentities"),
            ("GatewayClass", "gatewayclasses"),
        ];
        for (kind, plural) in cases {
            assert_eq!(guess_plural(kind), plural);
        }
    }

    #[test]
    fn writes_names_in_their_three_forms() {
        let slices = Gvr::new("discovery.k8s.io", "v1", "endpointslices");
        let services = Gvr::new("", "v1", "services");

        assert_eq!(slices.dotted(), "discovery.k8s.io.v1.endpointslices");
        assert_eq!(services.dotted(), "v1.services");
        assert_eq!(slices.to_string(), "discovery.k8s.io/v1, Resource=endpointslices");
        assert_eq!(services.to_string(), "/v1, Resource=services");
        assert_eq!(slices.qualified(), "endpointslices.discovery.k8s.io");
        assert_eq!(slices.api_version(), "discovery.k8s.io/v1");
    }
}
