// SPDX-License-Identifier: Apache-2.0

//! Identities.

use compact_str::CompactString;
use skep_identity::NumericIdentity;

use crate::error::ValueError;
use crate::remote::RemoteInfo;

/// Key of the label that names the cluster of an identity, of source `k8s`.
pub const CLUSTER_LABEL: &str = "io.cilium.k8s.policy.cluster";
const K8S: &str = "k8s";
/// What a label without a source has for it.
const UNSPECIFIED: &str = "unspec";

/// An identity with its labels, `cilium/state/identities/v1/id/<id>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub id: u32,
    /// Labels as they are written: `k8s:app=cart;k8s:tier=;`. See [`labels`](Self::labels).
    pub text: CompactString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    /// Where it comes from: `k8s`, `reserved`, `unspec` and others.
    pub source: &'a str,
    pub key: &'a str,
    /// Its value, which may be empty.
    pub value: &'a str,
}

impl<'a> Label<'a> {
    fn parse(text: &'a str) -> Self {
        // A colon after the `=` belongs to the value.
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let (source, key) = match name.split_once(':') {
            Some(("", key)) => (UNSPECIFIED, key),
            Some((source, key)) => (source, key),
            None => (UNSPECIFIED, name),
        };
        Self { source, key, value }
    }
}

impl Identity {
    /// Reads the value of a remote cluster. `name` is the key below the cluster's prefix: the identity.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is invalid or not the cluster's.
    pub fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
        let number: NumericIdentity = name.parse().map_err(|_| ValueError::IdentityName {
            name: name.to_owned(),
        })?;
        let id = number.get();
        let range = remote.identities();
        if !range.contains(number) {
            return Err(ValueError::Identity { id, range });
        }
        let text = String::from_utf8_lossy(value);
        if text.is_empty() {
            return Err(ValueError::Empty { field: "labels" });
        }
        let identity = Self {
            id,
            text: text.as_ref().into(),
        };
        remote.check_cluster(identity.cluster().unwrap_or_default())?;
        Ok(identity)
    }

    pub fn encode(&self) -> Vec<u8> {
        self.text.as_bytes().to_vec()
    }

    /// The labels, in the order of the text.
    pub fn labels(&self) -> impl Iterator<Item = Label<'_>> {
        self.text
            .split(';')
            .filter(|label| !label.is_empty())
            .map(Label::parse)
    }

    /// The cluster of the identity, by its labels.
    pub fn cluster(&self) -> Option<&str> {
        self.labels()
            .find(|label| label.source == K8S && label.key == CLUSTER_LABEL)
            .map(|label| label.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_sources_keys_and_values() {
        let identity = Identity {
            id: 459_001,
            text: "k8s:a/b=c:d=e;plain=1;:none=2;reserved:host;k8s:empty=;".into(),
        };

        let labels: Vec<_> = identity
            .labels()
            .map(|label| (label.source, label.key, label.value))
            .collect();

        assert_eq!(
            labels,
            [
                ("k8s", "a/b", "c:d=e"),
                ("unspec", "plain", "1"),
                ("unspec", "none", "2"),
                ("reserved", "host", ""),
                ("k8s", "empty", ""),
            ]
        );
        assert_eq!(identity.cluster(), None);
    }

    #[test]
    fn the_cluster_is_that_of_kubernetes() {
        let of = |text: &str| Identity {
            id: 459_001,
            text: text.into(),
        };

        let label = "io.cilium.k8s.policy.cluster=alder";
        assert_eq!(of(&format!("a=b;k8s:{label};")).cluster(), Some("alder"));
        assert_eq!(of(&format!("cni:{label};")).cluster(), None);
        assert_eq!(of(&format!("{label};")).cluster(), None);
    }
}
