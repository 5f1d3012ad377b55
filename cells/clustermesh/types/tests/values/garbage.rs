// SPDX-License-Identifier: Apache-2.0

//! Nothing that a remote cluster writes ends the program, and what is written can be read.

use proptest::prelude::*;
use skep_clustermesh_types::{
    CiliumClusterConfig, ClusterEndpointSlice, ClusterService, Identity, IpIdentityPair,
    MaxConnectedClusters, Node, RemoteInfo, ServiceExport, ServicePort,
};

fn alder() -> RemoteInfo {
    RemoteInfo {
        name: "alder".parse().expect("it is valid"),
        id: 7,
        max_connected_clusters: MaxConnectedClusters::Max255,
    }
}

fn read_all(name: &str, value: &[u8]) {
    let remote = alder();
    let _ = ClusterService::decode(&remote, name, value);
    let _ = Node::decode(&remote, name, value);
    let _ = IpIdentityPair::decode(&remote, name, value);
    let _ = Identity::decode(&remote, name, value);
    let _ = ServiceExport::decode(&remote, name, value);
    let _ = ClusterEndpointSlice::decode_value(&remote, name, value);
    let _ = CiliumClusterConfig::decode(value);
}

/// A real value with some of its bytes replaced, cut off or repeated.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../../testdata/golden.json")).expect("the file is JSON");
    let mut values = Vec::new();
    for part in [
        "service",
        "node",
        "ip",
        "identity",
        "serviceexport",
        "cluster-config",
        "endpointslice",
    ] {
        for case in cases[part].as_array().expect("it is a list") {
            if let Some(value) = case["value"].as_str() {
                values.push(value.as_bytes().to_vec());
            } else if let Some(hex) = case["value_hex"].as_str() {
                let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("it is hexadecimal");
                values.push((0..hex.len()).step_by(2).map(byte).collect());
            }
        }
    }
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    (
        prop::sample::select(values),
        damage,
        any::<Option<prop::sample::Index>>(),
    )
        .prop_map(|(mut value, damage, cut)| {
            for (at, byte) in damage {
                let at = at.index(value.len());
                value[at] = byte;
            }
            if let Some(cut) = cut {
                value.truncate(cut.index(value.len()));
            }
            value
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_values_are_read_or_rejected(value in damaged(), name in "[a-z0-9./:]{0,12}") {
        read_all(&name, &value);
    }

    #[test]
    fn any_bytes_are_read_or_rejected(value in prop::collection::vec(any::<u8>(), 0..64)) {
        read_all("shop/cart", &value);
    }

    #[test]
    fn services_are_read_as_they_were_written(
        backends in prop::collection::btree_map(
            any::<std::net::IpAddr>().prop_map(|ip| ip.to_canonical()),
            prop::collection::btree_map("[a-z]{0,5}", (prop::sample::select(vec!["TCP", "UDP", "SCTP"]), any::<u16>()), 0..4),
            0..6,
        ),
        labels in prop::collection::btree_map(any::<String>(), any::<String>(), 0..4),
        is_shared in any::<bool>(),
    ) {
        let service = ClusterService {
            cluster: "alder".into(),
            namespace: "shop".into(),
            name: "cart".into(),
            backends: backends
                .into_iter()
                .map(|(ip, ports)| {
                    let ports = ports.into_iter().map(|(name, (protocol, port))| {
                        (name.into(), ServicePort { protocol: protocol.into(), port })
                    });
                    (ip, ports.collect())
                })
                .collect(),
            labels,
            shared: is_shared,
            cluster_id: 7,
            ..ClusterService::default()
        };

        let value = service.encode().expect("it is JSON");

        prop_assert_eq!(ClusterService::decode(&alder(), "shop/cart", &value).expect("it is valid"), service);
    }
}
