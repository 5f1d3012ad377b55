// SPDX-License-Identifier: Apache-2.0

//! Endpoint slices as JSON, for people and scripts: what is not set is left out, maps are objects.

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Serialize};

use super::decompress;
use super::message::{ClusterEndpointSlice, Conditions, Endpoint, EndpointPort, Hints, NamedHint, TextEntry};
use crate::error::ValueError;
use crate::go_json;

impl ClusterEndpointSlice {
    /// The JSON of a value, which is not checked otherwise.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is not the frame of such a message.
    pub fn value_to_json(value: &[u8]) -> Result<Vec<u8>, ValueError> {
        let slice = Self::decode(decompress(value)?.as_slice()).map_err(ValueError::Message)?;
        go_json::to_vec(&SliceJson::from(slice)).map_err(ValueError::Encode)
    }

    /// The value of a JSON.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if it is not the JSON of such a message.
    pub fn value_from_json(json: &[u8]) -> Result<Vec<u8>, ValueError> {
        let slice: SliceJson = go_json::from_slice(json).map_err(ValueError::Json)?;
        Ok(Self::from(slice).encode_value())
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct SliceJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address_type: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    endpoints: Vec<EndpointJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PortJson>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct EndpointJson {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<ConditionsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<HintsJson>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct ConditionsJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    terminating: Option<bool>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct HintsJson {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    for_zones: Vec<NamedJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    for_nodes: Vec<NamedJson>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct NamedJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct PortJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_protocol: Option<String>,
}

fn object(entries: Vec<TextEntry>) -> BTreeMap<String, String> {
    entries
        .into_iter()
        .map(|entry| {
            let (key, value) = (entry.key.unwrap_or_default(), entry.value.unwrap_or_default());
            (key, value)
        })
        .collect()
}

fn entries(object: BTreeMap<String, String>) -> Vec<TextEntry> {
    object
        .into_iter()
        .map(|(key, value)| TextEntry {
            key: Some(key),
            value: Some(value),
        })
        .collect()
}

fn all<A, B: From<A>>(items: Vec<A>) -> Vec<B> {
    items.into_iter().map(B::from).collect()
}

impl From<ClusterEndpointSlice> for SliceJson {
    fn from(slice: ClusterEndpointSlice) -> Self {
        Self {
            cluster: slice.cluster,
            cluster_id: slice.cluster_id,
            namespace: slice.namespace,
            name: slice.name,
            labels: object(slice.labels),
            annotations: object(slice.annotations),
            address_type: slice.address_type,
            endpoints: all(slice.endpoints),
            ports: all(slice.ports),
        }
    }
}

impl From<SliceJson> for ClusterEndpointSlice {
    fn from(json: SliceJson) -> Self {
        Self {
            cluster: json.cluster,
            cluster_id: json.cluster_id,
            namespace: json.namespace,
            name: json.name,
            labels: entries(json.labels),
            annotations: entries(json.annotations),
            address_type: json.address_type,
            endpoints: all(json.endpoints),
            ports: all(json.ports),
        }
    }
}

macro_rules! twins {
    ($($message:ident, $json:ident { $($field:ident: $convert:expr),* })*) => {$(
        impl From<$message> for $json {
            fn from(from: $message) -> Self {
                Self { $($field: $convert(from.$field)),* }
            }
        }

        impl From<$json> for $message {
            fn from(from: $json) -> Self {
                Self { $($field: $convert(from.$field)),* }
            }
        }
    )*};
}

fn same<T>(value: T) -> T {
    value
}

fn one<A, B: From<A>>(value: Option<A>) -> Option<B> {
    value.map(B::from)
}

twins! {
    Endpoint, EndpointJson {
        addresses: same, conditions: one, hostname: same, node_name: same, zone: same, hints: one
    }
    Conditions, ConditionsJson { ready: same, serving: same, terminating: same }
    Hints, HintsJson { for_zones: all, for_nodes: all }
    NamedHint, NamedJson { name: same }
    EndpointPort, PortJson { name: same, protocol: same, port: same, app_protocol: same }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_value_are_the_same_slice() {
        let json = concat!(
            r#"{"cluster":"alder","clusterID":7,"namespace":"shop","name":"cart-1","labels":{"a":"1","b":""},"#,
            r#""annotations":{"c":"2"},"addressType":"IPv4","endpoints":[{"addresses":["10.4.1.2"],"#,
            r#""conditions":{"ready":true,"serving":true,"terminating":false},"hostname":"h","nodeName":"n1","#,
            r#""zone":"z1","hints":{"forZones":[{"name":"z1"}],"forNodes":[{"name":"n1"}]}},{"addresses":["10.4.1.3"]}],"#,
            r#""ports":[{"name":"","protocol":"TCP","port":80,"appProtocol":"http"}]}"#
        );

        let value = ClusterEndpointSlice::value_from_json(json.as_bytes()).expect("it is a slice");

        let again = ClusterEndpointSlice::value_to_json(&value).expect("it is a slice");
        assert_eq!(String::from_utf8_lossy(&again), json);
    }

    #[test]
    fn what_is_no_slice_is_an_error() {
        let error = ClusterEndpointSlice::value_from_json(br#"{"ports":80}"#).expect_err("it is a number");
        assert_eq!(error.to_string(), "unable to unmarshal JSON");
        let error = ClusterEndpointSlice::value_to_json(b"{}").expect_err("it is no frame");
        assert_eq!(error.to_string(), "unable to decompress");
    }
}
