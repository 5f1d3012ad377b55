// SPDX-License-Identifier: Apache-2.0

//! `cilium.io` CiliumEndpoint and CiliumEndpointSlice.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::codec;
use super::{CreatedMetadata, FamilyAddresses, Metadata, Str};
use crate::ObjectKey;

/// `cilium.io/v2 CiliumEndpoint`: an endpoint as the agent of its node describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "EndpointWire")]
pub struct CiliumEndpoint {
    pub metadata: Metadata,
    /// When the object was created; not encoded.
    #[serde(skip)]
    pub created: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<CiliumEndpointStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EndpointWire {
    #[serde(deserialize_with = "codec::object")]
    metadata: CreatedMetadata,
    #[serde(deserialize_with = "codec::maybe_object")]
    status: Option<CiliumEndpointStatus>,
}

impl From<EndpointWire> for CiliumEndpoint {
    fn from(wire: EndpointWire) -> Self {
        Self {
            metadata: wire.metadata.common,
            created: wire.metadata.creation_timestamp,
            status: wire.status,
        }
    }
}

/// State of a [`CiliumEndpoint`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CiliumEndpointStatus {
    /// Security identity; `None` until the agent has one.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub identity: Option<EndpointIdentity>,
    #[serde(deserialize_with = "codec::object")]
    pub encryption: EndpointEncryption,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub named_ports: Box<[EndpointNamedPort]>,
    /// Addresses and node; `None` until the agent knows them.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub networking: Option<EndpointNetworking>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub service_account: Str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointIdentity {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointEncryption {
    /// Index of the key of its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointNamedPort {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub port: i64,
    /// `TCP`, `UDP`, `SCTP` or `ANY`.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub protocol: Str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointNetworking {
    #[serde(deserialize_with = "codec::objects")]
    pub addressing: Box<[FamilyAddresses]>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub node: Str,
}

impl EndpointNetworking {
    /// Addresses that are not empty, IPv4 before IPv6 in each pair.
    pub fn addresses(&self) -> impl Iterator<Item = &Str> {
        let texts = self.addressing.iter().flat_map(|pair| [&pair.ipv4, &pair.ipv6]);
        texts.filter(|text| !text.is_empty())
    }
}

/// `cilium.io/v2alpha1 CiliumEndpointSlice`: endpoints of one namespace, which is not in the metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumEndpointSlice {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub namespace: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub endpoints: Box<[CiliumEndpointSliceEntry]>,
}

/// An endpoint in a [`CiliumEndpointSlice`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CiliumEndpointSliceEntry {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub pod_uid: Str,
    #[serde(deserialize_with = "codec::object")]
    pub encryption: EndpointEncryption,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub named_ports: Box<[EndpointNamedPort]>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub networking: Option<EndpointNetworking>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub service_account: Str,
}

/// An endpoint as an object describes it, whether that is a [`CiliumEndpoint`] or an entry of a [`CiliumEndpointSlice`].
#[derive(Debug, Clone)]
pub struct DescribedEndpoint<'a> {
    /// Namespace and name of the endpoint.
    pub key: ObjectKey,
    pub identity: Option<i64>,
    /// Index of the encryption key; 0 for none.
    pub encryption_key: i64,
    pub named_ports: &'a [EndpointNamedPort],
    pub networking: Option<&'a EndpointNetworking>,
    /// Service account of the pod; empty for none.
    pub service_account: &'a Str,
}

impl CiliumEndpoint {
    /// The endpoint; `None` until an agent has written its state.
    pub fn described(&self) -> Option<DescribedEndpoint<'_>> {
        let status = self.status.as_ref()?;
        Some(DescribedEndpoint {
            key: ObjectKey::of(self),
            identity: status.identity.and_then(|identity| identity.id),
            encryption_key: status.encryption.key.unwrap_or_default(),
            named_ports: &status.named_ports,
            networking: status.networking.as_ref(),
            service_account: &status.service_account,
        })
    }
}

impl CiliumEndpointSlice {
    pub fn described(&self) -> impl Iterator<Item = DescribedEndpoint<'_>> {
        self.endpoints.iter().map(|entry| DescribedEndpoint {
            key: ObjectKey {
                namespace: self.namespace.clone(),
                name: entry.name.clone(),
            },
            identity: entry.id,
            encryption_key: entry.encryption.key.unwrap_or_default(),
            named_ports: &entry.named_ports,
            networking: entry.networking.as_ref(),
            service_account: &entry.service_account,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn an_endpoint_and_an_entry_of_a_slice_describe_the_same() {
        let networking =
            json!({"addressing": [{"ipv4": "10.0.2.8", "ipv6": "fd00::8"}, null], "node": "172.30.1.2"});
        let ports = json!([{"name": "http", "port": 8080, "protocol": "TCP"}]);
        let endpoint: CiliumEndpoint = from_value(json!({
            "metadata": {"name": "cart-0", "namespace": "shop", "creationTimestamp": "2026-07-01T10:00:00Z"},
            "status": {"id": 7, "state": "ready", "identity": {"id": 52310, "labels": ["k8s:app=cart"]},
                "encryption": {"key": 3}, "networking": networking, "named-ports": ports, "service-account": "cart"},
        }))
        .unwrap();
        let slice: CiliumEndpointSlice = from_value(json!({
            "metadata": {"name": "ces-1"}, "namespace": "shop",
            "endpoints": [{"name": "cart-0", "id": 52310, "pod-uid": "u", "encryption": {"key": 3},
                "networking": networking, "named-ports": ports, "service-account": "cart"}],
        }))
        .unwrap();

        let one = endpoint.described().unwrap();
        assert_eq!(
            (one.key.to_string(), one.identity, one.encryption_key),
            ("shop/cart-0".to_owned(), Some(52310), 3)
        );
        let addresses: Vec<&Str> = one.networking.unwrap().addresses().collect();
        assert_eq!(addresses, ["10.0.2.8", "fd00::8"]);
        assert_eq!(endpoint.created, Some("2026-07-01T10:00:00Z".parse().unwrap()));
        let entries: Vec<String> = slice.described().map(|entry| format!("{entry:?}")).collect();
        assert_eq!(entries, [format!("{one:?}")]);
    }

    #[test]
    fn an_invalid_field_of_the_metadata_is_named() {
        let decode = |metadata| {
            let object = crate::RawObject::from_value(std::sync::Arc::new(json!({ "metadata": metadata })));
            object.decode::<CiliumEndpoint>().unwrap_err().path
        };

        assert_eq!(decode(json!({"labels": {"app": 1}})), "metadata.labels.app");
        assert_eq!(
            decode(json!({"creationTimestamp": 1})),
            "metadata.creationTimestamp"
        );
        assert_eq!(decode(json!([])), "metadata");
    }

    #[test]
    fn an_endpoint_without_state_describes_nothing() {
        let endpoint: CiliumEndpoint = from_value(json!({"metadata": null, "status": null})).unwrap();

        assert!(endpoint.described().is_none());
        assert_eq!(to_value(&endpoint).unwrap(), json!({"metadata": {}}));
        let waiting: CiliumEndpoint =
            from_value(json!({"status": {"identity": null, "named-ports": null}})).unwrap();
        let described = waiting.described().unwrap();
        assert_eq!((described.identity, described.networking), (None, None));
    }
}
