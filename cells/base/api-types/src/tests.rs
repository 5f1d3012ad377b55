// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, from_value, json, to_value};

use super::*;

#[test]
fn a_service_has_the_form_of_ciliums() {
    let document = json!({
        "id": 4,
        "frontend-address": {"ip": "10.96.0.10", "port": 53, "protocol": "UDP", "scope": "external"},
        "backend-addresses": [{"ip": "10.244.1.7", "port": 53, "protocol": "UDP", "state": "active",
            "preferred": true, "weight": 100, "nodeName": "n1", "zone": "a"}],
        "flags": {"type": "ClusterIP", "trafficPolicy": "Cluster", "extTrafficPolicy": "Cluster",
            "intTrafficPolicy": "Local", "name": "dns", "namespace": "kube-system", "healthCheckNodePort": 30001,
            "cluster": "west"},
    });

    let spec: ServiceSpec = from_value(document.clone()).unwrap();

    assert_eq!(spec.flags.kind, "ClusterIP");
    assert_eq!(to_value(&spec).unwrap(), document);
}

#[test]
fn what_another_agent_adds_or_leaves_out_does_no_harm() {
    let service: Service = from_value(json!({"spec": {"id": 3, "colour": "red"}, "status": {}})).unwrap();
    assert_eq!(service.spec.id, 3);

    let status: StatusResponse =
        from_value(json!({"cilium": {"state": "Warning", "msg": "starting"}, "hubble": {"state": "Ok"}}))
            .unwrap();
    assert_eq!((status.cilium.state, status.kubernetes), (State::Warning, None));
}

/// Puts `null` in the place of every list, map and struct, one after the other.
fn each_nulled(document: &Value, path: &str, seen: &mut Vec<(String, Value)>) {
    let Value::Object(fields) = document else { return };
    for (name, value) in fields {
        if !value.is_object() && !value.is_array() {
            continue;
        }
        let mut nulled = document.clone();
        nulled[name] = Value::Null;
        seen.push((format!("{path}/{name}"), nulled));
        let mut below = Vec::new();
        each_nulled(value, &format!("{path}/{name}"), &mut below);
        for (path, inner) in below {
            let mut around = document.clone();
            around[name] = inner;
            seen.push((path, around));
        }
    }
}

#[track_caller]
fn reads_null_as_empty<T: Default + Serialize + serde::de::DeserializeOwned>(full: &T) {
    let mut nulled = Vec::new();
    each_nulled(&to_value(full).unwrap(), "", &mut nulled);
    assert!(!nulled.is_empty());
    for (path, document) in nulled {
        let read: Result<T, _> = from_value(document);
        assert!(read.is_ok(), "{path}: {:?}", read.err());
    }
}

#[test]
fn lists_maps_and_structs_that_are_null_are_empty() {
    reads_null_as_empty(&StatusResponse {
        kubernetes: Some(Default::default()),
        kube_proxy_replacement: Some(Default::default()),
        routing: Some(Default::default()),
        masquerading: Some(Default::default()),
        bpf_maps: Some(Default::default()),
        cluster_mesh: Some(ClusterMeshStatus {
            clusters: vec![RemoteClusterStatus::default()],
        }),
        stale: [("x".to_owned(), String::new())].into(),
        ..StatusResponse::default()
    });
    reads_null_as_empty(&KubeProxyReplacement {
        devices: vec![String::new()],
        device_list: vec![DeviceAddresses::default()],
        ..KubeProxyReplacement::default()
    });
    reads_null_as_empty(&DeviceAddresses::default());
    reads_null_as_empty(&RemoteClusterStatus::default());
    reads_null_as_empty(&Service::default());
    reads_null_as_empty(&LrpSpec::default());
    reads_null_as_empty(&FrontendMapping::default());
    reads_null_as_empty(&LrpBackend::default());
    reads_null_as_empty(&Endpoint::default());
    reads_null_as_empty(&EndpointChangeRequest {
        labels: vec![String::new()],
        ..EndpointChangeRequest::default()
    });
    reads_null_as_empty(&LabelConfiguration::default());
    reads_null_as_empty(&IdentityEndpoints::default());
    reads_null_as_empty(&NodeId::default());
    reads_null_as_empty(&BpfMapList::default());
    reads_null_as_empty(&DaemonConfiguration::default());
    reads_null_as_empty(&ClusterNode::default());
}

#[test]
fn nodes_of_the_cluster_have_the_form_of_ciliums() {
    let document = json!({
        "nodes-added": [{
            "name": "n1",
            "primary-address": {
                "ipv4": {"alloc-range": "10.1.0.0/24", "enabled": true, "ip": "172.30.40.1"},
                "ipv6": {"alloc-range": "fd00:10:1::/64", "enabled": true, "ip": "fd00:30:40::1"},
            },
            "secondary-addresses": [{"ip": "10.1.0.103"}],
            "health-endpoint-address": {"ipv4": {"enabled": true, "ip": "10.1.0.92"}, "ipv6": {}},
            "source": "local",
        }],
        "nodes-removed": null,
        "self": "n1",
    });

    let status: ClusterNodeStatus = from_value(document.clone()).unwrap();

    assert_eq!(to_value(&status).unwrap(), document);
}

#[test]
fn names_of_features_are_ciliums() {
    let features = json!({
        "nodePort": {"enabled": true, "mode": "SNAT", "algorithm": "Random", "dsrMode": "IP Option/Extension",
            "acceleration": "Disabled", "portMin": 30000, "portMax": 32767},
        "hostPort": {"enabled": true}, "externalIPs": {}, "socketLB": {"enabled": true}, "socketLBTracing": {},
        "sessionAffinity": {"enabled": true}, "nat46X64": {}, "bpfSocketLBHostnsOnly": true,
        "annotations": ["service.cilium.io/node"],
    });

    let read: KubeProxyReplacementFeatures = from_value(features.clone()).unwrap();

    assert_eq!(to_value(&read).unwrap(), features);
}

#[test]
fn parts_of_the_status_have_the_form_of_ciliums() {
    let document = json!({
        "cilium": {"state": "Ok", "msg": " (v-)"},
        "auth-certificate-provider": {"state": "Disabled"},
        "bandwidth-manager": {"devices": null},
        "bpf-maps": {"maps": [{"name": "Auth", "size": 524288}]},
        "cluster": {"ciliumHealth": {"state": "Ok"}, "nodes": null, "self": "n1"},
        "configured-datapath-mode": "veth",
        "controllers": [{
            "configuration": {"error-retry": true, "error-retry-base": "2s", "interval": "1s"},
            "name": "cilium-health-ep",
            "status": {"last-failure-timestamp": "0001-01-01T00:00:00.000Z",
                "last-success-timestamp": "2026-11-28T11:13:59.907Z", "success-count": 2},
            "uuid": "95693983-bcf5-426a-9957-fca7badaacd2"}],
        "encryption": {"mode": "Disabled"},
        "host-firewall": {"devices": ["eth0"], "mode": "Disabled"},
        "hubble": {"observer": {"current-flows": 1540, "max-flows": 4095, "seen-flows": 1481, "uptime": "2m0.04s"},
            "state": "Ok"},
        "hubble-metrics": {"state": "Disabled"},
        "identity-range": {"max-identity": 65535, "min-identity": 256},
        "ipv4-big-tcp": {"maxGRO": 65536, "maxGSO": 65536},
        "ipv6-big-tcp": {"enabled": true, "maxGRO": 65536, "maxGSO": 65536},
        "masquerading": {"enabled": true, "enabledProtocols": {"ipv4": true}, "mode": "BPF",
            "snat-exclusion-cidr": "10.0.0.0/8", "snat-exclusion-cidr-v4": "10.0.0.0/8"},
        "nodeMonitor": {"cpus": 2, "npages": 64, "pagesize": 4096},
        "proxy": {"envoy-deployment-mode": "external", "ip": "10.1.0.103", "port-range": "10000-20000",
            "redirects": [{"name": "2228:egress:UDP:53:", "proxy": "cilium-dns-egress", "proxy-port": 44923}],
            "total-ports": 1, "total-redirects": 3},
        "srv6": {"srv6EncapMode": "reduced"},
    });

    let status: StatusResponse = from_value(document.clone()).unwrap();

    assert_eq!(to_value(&status).unwrap(), document);
}

#[test]
fn maps_have_the_form_of_ciliums() {
    let document = json!({"maps": [
        {"path": "/sys/fs/bpf/tc/globals/cilium_ipcache_v2", "cache": [
            {"key": "10.0.0.1/32", "value": "identity=1", "desired-action": "sync"},
            {"key": "10.0.0.2/32", "desired-action": "to-be-inserted", "last-error": "full"},
        ]},
        {"path": "/sys/fs/bpf/tc/globals/cilium_events"},
    ]});

    let list: BpfMapList = from_value(document.clone()).unwrap();

    assert_eq!(list.maps[1].cache, None);
    assert_eq!(to_value(&list).unwrap(), document);
}
