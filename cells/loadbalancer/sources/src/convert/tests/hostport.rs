// SPDX-License-Identifier: Apache-2.0

//! Pods to host-port services.

use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_types::slim::Pod;

use super::{object, rules};
use crate::convert::{HostPortService, Rules, host_port_services};

fn pod(changes: Value) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"namespace": "shop", "name": "web-0", "uid": "u1"},
        "spec": {"containers": [{"name": "c", "ports": [{"hostPort": 4444, "containerPort": 80, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}]},
    });
    json_patch::merge(&mut value, &changes);
    object(value)
}

fn convert(changes: Value) -> Vec<HostPortService> {
    host_port_services(&pod(changes), &rules())
}

fn ports(ports: Value) -> Vec<HostPortService> {
    convert(json!({"spec": {"containers": [{"name": "c", "ports": ports}]}}))
}

fn texts(service: &HostPortService) -> (Vec<String>, Vec<String>) {
    let frontends = service
        .frontends
        .iter()
        .map(|frontend| frontend.address.to_string())
        .collect();
    (
        frontends,
        service
            .backends
            .iter()
            .map(|backend| backend.address.to_string())
            .collect(),
    )
}

#[test]
fn a_host_port_is_a_service_of_its_pod() {
    let services = convert(json!({}));

    assert_eq!(services.len(), 1);
    assert_eq!(services[0].service.name.as_str(), "shop/web-0:host-port:4444:u1");
    let (frontends, backends) = texts(&services[0]);
    assert_eq!(frontends, ["[::]:4444/TCP", "0.0.0.0:4444/TCP"]);
    assert_eq!(backends, ["10.1.0.1:80/TCP", "[fd00::1]:80/TCP"]);
}

#[test]
fn protocols_of_one_port_share_a_service() {
    let services = ports(json!([
        {"hostPort": 53, "containerPort": 5353, "protocol": "UDP"},
        {"hostPort": 53, "containerPort": 5354, "protocol": "TCP"},
        {"hostPort": 80, "containerPort": 8080},
    ]));

    let names: Vec<&str> = services
        .iter()
        .map(|service| service.service.name.name())
        .collect();
    assert_eq!(names, ["web-0:host-port:53:u1", "web-0:host-port:80:u1"]);
    assert_eq!(
        texts(&services[0]).0,
        ["[::]:53/TCP", "[::]:53/UDP", "0.0.0.0:53/TCP", "0.0.0.0:53/UDP"]
    );
    assert_eq!(
        texts(&services[0]).1,
        [
            "10.1.0.1:5353/UDP",
            "10.1.0.1:5354/TCP",
            "[fd00::1]:5353/UDP",
            "[fd00::1]:5354/TCP"
        ]
    );
}

#[test]
fn only_running_pods_with_a_network_of_their_own_count() {
    for changes in [
        json!({"status": {"phase": "Pending"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"status": {"phase": "Failed"}}),
        json!({"spec": {"hostNetwork": true}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}),
    ] {
        assert_eq!(convert(changes.clone()), [], "{changes}");
    }
    let off = Rules {
        replaces_kube_proxy: false,
        ..rules()
    };
    assert_eq!(host_port_services(&pod(json!({})), &off), []);
}

#[test]
fn init_containers_have_host_ports_too() {
    let sidecar = json!({"spec": {"containers": [], "initContainers": [{"name": "s", "ports": [{"hostPort": 1, "containerPort": 2}]}]}});
    assert_eq!(convert(sidecar).len(), 1);
}

#[test]
fn a_host_address_is_the_only_one() {
    let services = ports(json!([{"hostPort": 80, "containerPort": 80, "hostIP": "192.0.2.7"}]));
    assert_eq!(texts(&services[0]).0, ["192.0.2.7:80/TCP"]);
    assert!(!services[0].service.loopback_host_port);
}

// Cilium makes no frontend at all for these (reference, defect 3).
#[test]
fn an_unspecified_host_address_means_all_of_its_family() {
    for (text, frontend) in [("0.0.0.0", "0.0.0.0:80/TCP"), ("::", "[::]:80/TCP")] {
        let services = ports(json!([{"hostPort": 80, "containerPort": 80, "hostIP": text}]));
        assert_eq!(texts(&services[0]).0, [frontend]);
    }
}

#[test]
fn loopback_addresses_need_the_kernel() {
    let loopback = pod(json!({"spec": {"containers": [
        {"name": "c", "ports": [{"hostPort": 80, "containerPort": 80, "hostIP": "127.0.0.1"}]},
    ]}}));
    assert_eq!(host_port_services(&loopback, &rules()), []);

    let services = host_port_services(
        &loopback,
        &Rules {
            loopback_host_ports: true,
            ..rules()
        },
    );
    assert_eq!(texts(&services[0]).0, ["0.0.0.0:80/TCP"]);
    assert!(services[0].service.loopback_host_port);
}

#[test]
fn loopback_and_other_addresses_do_not_mix() {
    let mixed = pod(json!({"spec": {"containers": [{"name": "c", "ports": [
        {"hostPort": 80, "containerPort": 80, "hostIP": "127.0.0.1"},
        {"hostPort": 80, "containerPort": 81, "hostIP": "192.0.2.7"},
        {"hostPort": 81, "containerPort": 81},
    ]}]}}));
    let services = host_port_services(
        &mixed,
        &Rules {
            loopback_host_ports: true,
            ..rules()
        },
    );
    assert_eq!(
        services.iter().map(|s| s.service.name.name()).collect::<Vec<_>>(),
        ["web-0:host-port:81:u1"]
    );
}

#[test]
fn ports_that_cannot_be_host_ports_are_skipped() {
    let services = ports(json!([
        {"hostPort": 30000, "containerPort": 80},
        {"hostPort": 32767, "containerPort": 80},
        {"hostPort": 70000, "containerPort": 80},
        {"hostPort": 80, "containerPort": 0},
        {"hostPort": 81, "containerPort": 80, "protocol": "QUIC"},
        {"containerPort": 80},
        {"hostPort": 32768, "containerPort": 80},
    ]));
    assert_eq!(
        services.iter().map(|s| s.service.name.name()).collect::<Vec<_>>(),
        ["web-0:host-port:32768:u1"]
    );
}

#[test]
fn disabled_families_are_left_out() {
    let services = host_port_services(
        &pod(json!({})),
        &Rules {
            ipv6: false,
            ..rules()
        },
    );
    assert_eq!(
        texts(&services[0]),
        (vec!["0.0.0.0:4444/TCP".into()], vec!["10.1.0.1:80/TCP".into()])
    );
}
