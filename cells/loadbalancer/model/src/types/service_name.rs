// SPDX-License-Identifier: Apache-2.0

//! Names of services: `namespace/name`, or `cluster/namespace/name`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use smallvec::SmallVec;

/// Name of a service, shared by its service, frontends and backends: a clone costs a counter.
///
/// Pseudo-services append parts with `:` to the name (`ns/pod:host-port:8080:<uid>`, `ns/web:healthserver`,
/// `ns/lrp:local-redirect`), which no Kubernetes name can contain.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServiceName(Arc<str>);

/// A text that is no service name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad service name {0:?}, expected \"<namespace>/<name>\" or \"<cluster>/<namespace>/<name>\"")]
pub struct ServiceNameError(pub String);

impl ServiceName {
    /// A service of the local cluster.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(join(&[namespace, "/", name]))
    }

    /// A service of the named cluster; an empty cluster name is the local one.
    pub fn in_cluster(cluster: &str, namespace: &str, name: &str) -> Self {
        if cluster.is_empty() {
            return Self::new(namespace, name);
        }
        Self(join(&[cluster, "/", namespace, "/", name]))
    }

    /// The name with `suffix` appended, which names a pseudo-service.
    pub fn with_suffix(&self, suffix: &str) -> Self {
        Self(join(&[&self.0, suffix]))
    }

    /// The text form, which is also the key in the tables.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Cluster, or empty for the local one.
    pub fn cluster(&self) -> &str {
        self.parts().0
    }

    /// Namespace.
    pub fn namespace(&self) -> &str {
        self.parts().1
    }

    /// Name inside the namespace, with suffixes.
    pub fn name(&self) -> &str {
        self.parts().2
    }

    fn parts(&self) -> (&str, &str, &str) {
        match self.0.split_once('/') {
            None => ("", "", &self.0),
            Some((first, rest)) => match rest.split_once('/') {
                None => ("", first, rest),
                Some((namespace, name)) => (first, namespace, name),
            },
        }
    }
}

fn join(parts: &[&str]) -> Arc<str> {
    // Copied once more into the shared text: on the stack unless it is very long.
    let mut text: SmallVec<[u8; 160]> = SmallVec::new();
    parts
        .iter()
        .for_each(|part| text.extend_from_slice(part.as_bytes()));
    let text = std::str::from_utf8(&text).expect("texts in a row are text");
    Arc::from(text)
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ServiceName {
    type Err = ServiceNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split('/').count();
        let is_name = (2..=3).contains(&parts) && text.split('/').all(|part| !part.is_empty());
        is_name
            .then(|| Self(Arc::from(text)))
            .ok_or_else(|| ServiceNameError(text.to_owned()))
    }
}

impl Ord for ServiceName {
    /// By namespace, then name, then cluster. (Tables are sorted by the text.)
    fn cmp(&self, other: &Self) -> Ordering {
        let ((ca, nsa, na), (cb, nsb, nb)) = (self.parts(), other.parts());
        (nsa, na, ca).cmp(&(nsb, nb, cb))
    }
}

impl PartialOrd for ServiceName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl serde::Serialize for ServiceName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for ServiceName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = compact_str::CompactString::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_local_and_remote_names() {
        let local: ServiceName = "shop/web:host-port:80:4711".parse().unwrap();
        let remote: ServiceName = "west/shop/web".parse().unwrap();

        assert_eq!(
            (local.cluster(), local.namespace(), local.name()),
            ("", "shop", "web:host-port:80:4711")
        );
        assert_eq!(
            (remote.cluster(), remote.namespace(), remote.name()),
            ("west", "shop", "web")
        );
        assert_eq!(ServiceName::in_cluster("west", "shop", "web"), remote);
        assert!("web".parse::<ServiceName>().is_err());
        assert!("a/b/c/d".parse::<ServiceName>().is_err());
        assert!("a/".parse::<ServiceName>().is_err());
    }

    #[test]
    fn orders_by_namespace_name_cluster() {
        let mut names: Vec<ServiceName> = ["z/a/b", "a/b", "a/a", "b/a"]
            .iter()
            .map(|n| n.parse().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names.iter().map(ServiceName::as_str).collect::<Vec<_>>(),
            ["a/a", "a/b", "z/a/b", "b/a"]
        );
    }
}
