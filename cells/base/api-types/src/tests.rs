// SPDX-License-Identifier: Apache-2.0

use serde_json::{from_value, json, to_value};

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

#[test]
fn names_of_features_are_ciliums() {
    let features = to_value(KubeProxyReplacementFeatures::default()).unwrap();

    let names: Vec<&String> = features.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "nodePort",
            "hostPort",
            "externalIPs",
            "socketLB",
            "socketLBTracing",
            "sessionAffinity",
            "nat46X64",
            "bpfSocketLBHostnsOnly",
            "annotations"
        ]
    );
}

#[test]
fn maps_have_the_form_of_ciliums() {
    let document = json!({"maps": [
        {"path": "/sys/fs/bpf/tc/globals/cilium_ipcache_v2", "cache": [
            {"key": "10.0.0.1/32", "value": "identity=1", "desired-action": "sync"},
            {"key": "10.0.0.2/32", "value": "", "desired-action": "to-be-inserted", "last-error": "full"},
        ]},
        {"path": "/sys/fs/bpf/tc/globals/cilium_events"},
    ]});

    let list: BpfMapList = from_value(document.clone()).unwrap();

    assert_eq!(list.maps[1].cache, None);
    assert_eq!(to_value(&list).unwrap(), document);
}
