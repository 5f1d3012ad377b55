// SPDX-License-Identifier: Apache-2.0

//! Values are what Cilium writes for the same objects, byte by byte.

use serde_json::json;
use skep_clustermesh_types::{ClusterEndpointSlice, ClusterName, Kind, MaxConnectedClusters, RemoteInfo};

use crate::world::{ENDPOINTS, EXPORTS, IDENTITIES, NODES, SERVICES, SLICES, World, eventually};

const PUBLIC_KEY: &str = "q6y2mrO3mOZ1bGZcBfm9IyVhg1tbDZwuT3cVdKmWJ0w=";

fn service() -> serde_json::Value {
    json!({
        "metadata": {
            "name": "cart", "namespace": "shop", "labels": { "app": "cart" },
            "annotations": { "service.cilium.io/global": "true" },
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.94.34", "clusterIPs": ["10.96.94.34"],
            "selector": { "app": "cart" }, "sessionAffinity": "None", "ipFamilies": ["IPv4"],
            "internalTrafficPolicy": "Cluster",
            "ports": [
                { "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 },
                { "name": "dns", "protocol": "UDP", "port": 53, "targetPort": 5353 },
            ],
        },
    })
}

fn slice() -> serde_json::Value {
    json!({
        "metadata": {
            "name": "cart-aaaaa", "namespace": "shop",
            "labels": { "kubernetes.io/service-name": "cart" },
        },
        "addressType": "IPv4",
        "ports": [
            { "name": "http", "protocol": "TCP", "port": 8080 },
            { "name": "dns", "protocol": "UDP", "port": 5353 },
        ],
        "endpoints": [
            {
                "addresses": ["10.4.1.15"], "nodeName": "alder-w1", "zone": "z-a",
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "hints": { "forZones": [{ "name": "z-a" }] },
            },
            {
                "addresses": ["10.4.1.16"], "nodeName": "alder-w1", "zone": "z-a",
                "conditions": { "ready": false, "serving": false, "terminating": false },
            },
            {
                "addresses": ["10.4.2.31"], "nodeName": "alder-w2", "zone": "z-b",
                "conditions": { "ready": false, "serving": true, "terminating": true },
            },
        ],
    })
}

async fn publish_all(world: &World) {
    world.apply(&SERVICES, service()).await;
    world.apply(&SLICES, slice()).await;
    let mut headless = service();
    headless["metadata"]["name"] = "hl".into();
    headless["metadata"]["labels"] = json!({});
    headless["spec"]["clusterIP"] = "None".into();
    headless["spec"]["clusterIPs"] = json!(["None"]);
    headless["spec"]["ports"] = json!([{ "protocol": "TCP", "port": 7000 }]);
    world.apply(&SERVICES, headless).await;
    world
        .apply(
            &SLICES,
            json!({
                "metadata": {
                    "name": "hl-bbbbb", "namespace": "shop",
                    "labels": { "kubernetes.io/service-name": "hl", "service.kubernetes.io/headless": "" },
                },
                "addressType": "IPv4",
                "ports": [{ "name": "", "protocol": "TCP", "port": 7000 }],
                "endpoints": [{ "addresses": ["10.4.1.15"], "conditions": { "ready": true }, "hostname": "cart-0" }],
            }),
        )
        .await;
    world
        .apply(
            &EXPORTS,
            json!({
                "metadata": { "name": "cart", "namespace": "shop", "creationTimestamp": "2026-11-21T00:31:51Z" },
                "spec": { "exportedLabels": { "team": "cart" }, "exportedAnnotations": { "note": "v" } },
            }),
        )
        .await;
    world
        .apply(
            &NODES,
            json!({
                "metadata": {
                    "name": "alder-w1",
                    "labels": { "kubernetes.io/hostname": "alder-w1", "topology.kubernetes.io/zone": "z-a" },
                    "annotations": { "network.cilium.io/wg-pub-key": PUBLIC_KEY },
                },
                "spec": {
                    "addresses": [
                        { "type": "InternalIP", "ip": "192.168.50.21" },
                        { "type": "InternalIP", "ip": "fd50::21" },
                        { "type": "CiliumInternalIP", "ip": "10.4.1.7" },
                        { "type": "CiliumInternalIP", "ip": "fd00:4::107" },
                    ],
                    "ipam": { "podCIDRs": ["10.4.1.0/24", "fd00:4::100/120", "10.5.1.0/26"] },
                    "health": { "ipv4": "10.4.1.200", "ipv6": "fd00:4::1c8" },
                    "ingress": { "ipv4": "10.4.1.201", "ipv6": "fd00:4::1c9" },
                    "encryption": { "key": 3 },
                    "bootid": "0d6a2b0e-4e0f-4a51-9a0c-3c1d6a1c9b11",
                },
            }),
        )
        .await;
    world
        .apply(
            &NODES,
            json!({
                "metadata": { "name": "alder-w2" },
                "spec": {
                    "addresses": [
                        { "type": "InternalIP", "ip": "192.168.50.22" },
                        { "type": "CiliumInternalIP", "ip": "10.4.2.9" },
                    ],
                    "ipam": { "podCIDRs": ["10.4.2.0/24"] },
                },
            }),
        )
        .await;
    world
        .apply(
            &IDENTITIES,
            json!({
                "metadata": { "name": "459001" },
                "security-labels": {
                    "k8s:io.kubernetes.pod.namespace": "shop",
                    "k8s:app": "cart",
                    "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "shop",
                    "k8s:io.cilium.k8s.policy.cluster": "alder",
                    "k8s:io.cilium.k8s.policy.serviceaccount": "cart",
                },
            }),
        )
        .await;
    world
        .apply(
            &ENDPOINTS,
            json!({
                "metadata": { "name": "cart-0", "namespace": "shop" },
                "status": {
                    "id": 2191,
                    "identity": { "id": 459001, "labels": ["k8s:app=cart"] },
                    "networking": {
                        "addressing": [{ "ipv4": "10.4.1.15", "ipv6": "fd00:4::10f" }],
                        "node": "192.168.50.21",
                    },
                    "encryption": { "key": 3 },
                    "named-ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
                    "service-account": "cart",
                },
            }),
        )
        .await;
    world
        .apply(
            &ENDPOINTS,
            json!({
                "metadata": { "name": "cart-1", "namespace": "shop" },
                "status": {
                    "identity": { "id": 459001 },
                    "networking": { "addressing": [{ "ipv4": "10.4.2.31" }], "node": "192.168.50.22" },
                    "encryption": {},
                },
            }),
        )
        .await;
}

/// Key and value as Cilium has written them.
const WRITTEN: &[(&str, &str)] = &[
    (
        "cilium/cluster-config/alder",
        r#"{"id":7,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255,"serviceExportsEnabled":true,"endpointSlicesExportMode":"services-and-endpointslices"}}"#,
    ),
    (
        "cilium/state/services/v1/alder/shop/cart",
        r#"{"cluster":"alder","namespace":"shop","name":"cart","frontends":{"10.96.94.34":{"dns":{"Protocol":"UDP","Port":53},"http":{"Protocol":"TCP","Port":80}}},"backends":{"10.4.1.15":{"dns":{"Protocol":"UDP","Port":5353},"http":{"Protocol":"TCP","Port":8080}},"10.4.2.31":{"dns":{"Protocol":"UDP","Port":5353},"http":{"Protocol":"TCP","Port":8080}}},"zones":{"10.4.1.15":{"zone":"z-a","forZones":[{"name":"z-a"}]},"10.4.2.31":{"zone":"z-b","forZones":[]}},"labels":{"app":"cart"},"selector":{"app":"cart"},"includeExternal":true,"shared":true,"clusterID":7}"#,
    ),
    (
        "cilium/state/services/v1/alder/shop/hl",
        r#"{"cluster":"alder","namespace":"shop","name":"hl","frontends":{},"backends":{"10.4.1.15":{"":{"Protocol":"TCP","Port":7000}}},"hostnames":{"10.4.1.15":"cart-0"},"labels":{},"selector":{"app":"cart"},"includeExternal":true,"shared":true,"clusterID":7}"#,
    ),
    (
        "cilium/state/serviceexports/v1/alder/shop/cart",
        r#"{"cluster":"alder","name":"cart","namespace":"shop","annotations":{"note":"v"},"labels":{"team":"cart"},"Labels":{"team":"cart"},"Annotations":{"note":"v"},"exportCreationTimestamp":"2026-11-21T00:31:51Z","ports":[{"name":"http","protocol":"TCP","port":80},{"name":"dns","protocol":"UDP","port":53}],"type":"ClusterSetIP","sessionAffinity":"None","ipFamilies":["IPv4"],"internalTrafficPolicy":"Cluster"}"#,
    ),
    (
        "cilium/state/nodes/v1/alder/alder-w1",
        r#"{"Name":"alder-w1","Cluster":"alder","IPAddresses":[{"Type":"InternalIP","IP":"192.168.50.21"},{"Type":"InternalIP","IP":"fd50::21"},{"Type":"CiliumInternalIP","IP":"10.4.1.7"},{"Type":"CiliumInternalIP","IP":"fd00:4::107"}],"IPv4AllocCIDR":{"IP":"10.4.1.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.5.1.0","Mask":"////wA=="}],"IPv6AllocCIDR":{"IP":"fd00:4::100","Mask":"////////////////////AA=="},"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.4.1.200","IPv6HealthIP":"fd00:4::1c8","IPv4IngressIP":"10.4.1.201","IPv6IngressIP":"fd00:4::1c9","ClusterID":7,"Source":"custom-resource","EncryptionKey":3,"Labels":{"kubernetes.io/hostname":"alder-w1","topology.kubernetes.io/zone":"z-a"},"Annotations":{"network.cilium.io/wg-pub-key":"q6y2mrO3mOZ1bGZcBfm9IyVhg1tbDZwuT3cVdKmWJ0w="},"WireguardPubKey":"q6y2mrO3mOZ1bGZcBfm9IyVhg1tbDZwuT3cVdKmWJ0w=","BootID":"0d6a2b0e-4e0f-4a51-9a0c-3c1d6a1c9b11"}"#,
    ),
    (
        "cilium/state/nodes/v1/alder/alder-w2",
        r#"{"Name":"alder-w2","Cluster":"alder","IPAddresses":[{"Type":"InternalIP","IP":"192.168.50.22"},{"Type":"CiliumInternalIP","IP":"10.4.2.9"}],"IPv4AllocCIDR":{"IP":"10.4.2.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":null,"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":7,"Source":"custom-resource","EncryptionKey":0,"Labels":null,"Annotations":null,"WireguardPubKey":"","BootID":""}"#,
    ),
    (
        "cilium/state/identities/v1/id/459001",
        "k8s:app=cart;k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop;k8s:io.cilium.k8s.policy.cluster=alder;k8s:io.cilium.k8s.policy.serviceaccount=cart;k8s:io.kubernetes.pod.namespace=shop;",
    ),
    (
        "cilium/state/ip/v1/default/10.4.1.15",
        r#"{"IP":"10.4.1.15","Mask":null,"HostIP":"192.168.50.21","ID":459001,"Key":3,"Metadata":"","K8sNamespace":"shop","K8sPodName":"cart-0","K8sServiceAccount":"cart","NamedPorts":[{"Name":"http","Port":8080,"Protocol":"TCP"}]}"#,
    ),
    (
        "cilium/state/ip/v1/default/fd00:4::10f",
        r#"{"IP":"fd00:4::10f","Mask":null,"HostIP":"192.168.50.21","ID":459001,"Key":3,"Metadata":"","K8sNamespace":"shop","K8sPodName":"cart-0","K8sServiceAccount":"cart","NamedPorts":[{"Name":"http","Port":8080,"Protocol":"TCP"}]}"#,
    ),
    (
        "cilium/state/ip/v1/default/10.4.2.31",
        r#"{"IP":"10.4.2.31","Mask":null,"HostIP":"192.168.50.22","ID":459001,"Key":0,"Metadata":"","K8sNamespace":"shop","K8sPodName":"cart-1"}"#,
    ),
];

const CANARIES: [&str; 6] = [
    "endpointslices/v1",
    "identities/v1",
    "ip/v1",
    "nodes/v1",
    "serviceexports/v1",
    "services/v1",
];

#[tokio::test]
async fn values_are_those_of_cilium() {
    let world = World::new().await;
    publish_all(&world).await;

    let program = world.start(&["--clustermesh-enable-mcs-api"]).await;
    program.synced().await;

    eventually("the configuration is there", || {
        world.json("cilium/cluster-config/alder").is_some()
    })
    .await;
    let keys = world.keys("cilium/");
    for (key, value) in WRITTEN {
        assert_eq!(keys.get(*key).map(String::as_str), Some(*value), "{key}");
    }
    assert_eq!(world.names("cilium/synced/alder/cilium/state/"), CANARIES);
    assert_eq!(
        world.names("cilium/state/endpointslices/v1/"),
        ["alder/shop/cart-aaaaa", "alder/shop/hl-bbbbb"]
    );
    let slices = 2;
    assert_eq!(world.names("cilium/state/").len(), WRITTEN.len() - 1 + slices);
    let items = world.memory.items();
    assert!(items.iter().all(|item| item.lease.0 != 0), "all keys are leased");
    program.stop().await;
}

#[tokio::test]
async fn slices_are_what_other_clusters_decode() {
    let world = World::new().await;
    publish_all(&world).await;
    let program = world.start(&[]).await;
    program.synced().await;

    let name: ClusterName = "alder".parse().expect("it is valid");
    let remote = RemoteInfo {
        name,
        id: 7,
        max_connected_clusters: MaxConnectedClusters::Max255,
    };
    let decode = |slice: &str| {
        let key = Kind::EndpointSlices.key("alder", false, slice);
        let items = world.memory.items();
        let item = items
            .iter()
            .find(|item| *item.key == *key)
            .expect("it is published");
        ClusterEndpointSlice::decode_value(&remote, slice, &item.value).expect("it is valid")
    };

    let slice = decode("shop/cart-aaaaa");
    assert_eq!(slice.service(), Some("cart"));
    assert_eq!(slice.endpoints.len(), 3, "also those that serve nothing");
    let conditions = slice.endpoints[2].conditions.expect("they are written");
    assert_eq!(
        (conditions.ready, conditions.serving, conditions.terminating),
        (Some(false), Some(true), Some(true))
    );
    assert_eq!(slice.endpoints[0].node_name(), "alder-w1");
    assert_eq!(slice.endpoints[0].zone(), "z-a");
    let hints = slice.endpoints[0].hints.as_ref().expect("there are hints");
    assert_eq!(hints.for_zones[0].name(), "z-a");
    assert_eq!(slice.ports[1].name(), "dns");
    let headless = decode("shop/hl-bbbbb");
    assert_eq!(headless.endpoints[0].hostname(), "cart-0");
    assert_eq!(headless.ports[0].name.as_deref(), Some(""));
    program.stop().await;
}
