// SPDX-License-Identifier: Apache-2.0

//! `cilium.io/v2 CiliumIdentity`.

use serde::{Deserialize, Serialize};

use super::codec;
use super::{Labels, Metadata};

/// A security identity of the cluster. Its name is its number.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CiliumIdentity {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    /// Labels of the identity: `<source>:<key>` to value.
    #[serde(deserialize_with = "codec::or_zero")]
    pub security_labels: Labels,
}

impl CiliumIdentity {
    /// Annotation of an identity that the operator found unused: when.
    pub const HEARTBEAT: &str = "io.cilium.heartbeat";

    /// The number; `None` for a name that is not a decimal number as Cilium writes it.
    pub fn id(&self) -> Option<u32> {
        Self::id_of(&self.metadata.name)
    }

    /// The number of the object with a name, as [`id`](Self::id).
    pub fn id_of(name: &str) -> Option<u32> {
        let id: u32 = name.parse().ok()?;
        (id.to_string() == name).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn the_name_is_the_number() {
        let id = |name: &str| {
            let identity: CiliumIdentity = from_value(json!({"metadata": {"name": name}})).unwrap();
            identity.id()
        };

        assert_eq!(id("52310"), Some(52310));
        for name in ["", "x", "052310", "+1", "-1", "4294967296"] {
            assert_eq!(id(name), None, "{name}");
        }
    }

    #[test]
    fn labels_are_kept() {
        let object = json!({
            "metadata": {"name": "52310"},
            "security-labels": {"k8s:app": "cart", "k8s:io.kubernetes.pod.namespace": "shop"},
        });

        let identity: CiliumIdentity = from_value(object.clone()).unwrap();

        assert_eq!(identity.security_labels.get("k8s:app"), Some("cart"));
        assert_eq!(to_value(&identity).unwrap(), object);
    }
}
