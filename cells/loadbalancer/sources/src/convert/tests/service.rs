// SPDX-License-Identifier: Apache-2.0

//! Services to rows and frontends.

use std::time::Duration;

use serde_json::{Value, json};
use skep_k8s_types::slim::{self, Labels};
use skep_loadbalancer_model::types::{ForwardingMode, Service, TrafficDistribution, TrafficPolicy};

use super::{object, rules};
use crate::convert::{Rules, ServiceFrontends, is_exposed_on, names_a_node, service};

/// A dual-stack load balancer with everything, and `changes` merged into it.
fn load_balancer(changes: Value) -> slim::Service {
    let mut value = json!({
        "metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web"}},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["fd00::10", "10.96.0.10"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}]}},
    });
    json_patch::merge(&mut value, &changes);
    (*object::<slim::Service>(value)).clone()
}

fn convert(changes: Value) -> ServiceFrontends {
    service(&load_balancer(changes), &rules()).unwrap()
}

fn row(changes: Value) -> Service {
    convert(changes).service
}

fn texts(converted: &ServiceFrontends) -> Vec<String> {
    converted
        .frontends
        .iter()
        .map(|f| format!("{} {}", f.kind, f.address))
        .collect()
}

#[test]
fn load_balancer_has_frontends_of_every_kind_sorted_by_address() {
    let converted = convert(json!({}));

    assert_eq!(
        texts(&converted),
        [
            "NodePort [::]:30080/TCP",
            "NodePort 0.0.0.0:30080/TCP",
            "ClusterIP 10.96.0.10:80/TCP",
            "LoadBalancer 192.0.2.1:80/TCP",
            "LoadBalancer [2001:db8::1]:80/TCP",
            "ClusterIP [fd00::10]:80/TCP",
        ]
    );
    assert!(
        converted
            .frontends
            .iter()
            .all(|f| f.service_port == 80 && f.port_name == "http")
    );
}

#[test]
fn mixed_policies_double_what_is_reached_from_outside() {
    let converted =
        convert(json!({"spec": {"externalTrafficPolicy": "Local", "externalIPs": ["198.51.100.1"]}}));

    assert_eq!(
        texts(&converted),
        [
            "NodePort [::]:30080/TCP",
            "NodePort [::]:30080/TCP/i",
            "NodePort 0.0.0.0:30080/TCP",
            "NodePort 0.0.0.0:30080/TCP/i",
            "ClusterIP 10.96.0.10:80/TCP",
            "LoadBalancer 192.0.2.1:80/TCP",
            "LoadBalancer 192.0.2.1:80/TCP/i",
            "ExternalIPs 198.51.100.1:80/TCP",
            "ExternalIPs 198.51.100.1:80/TCP/i",
            "LoadBalancer [2001:db8::1]:80/TCP",
            "LoadBalancer [2001:db8::1]:80/TCP/i",
            "ClusterIP [fd00::10]:80/TCP",
        ]
    );
    let both = json!({"spec": {"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}});
    assert_eq!(convert(both).frontends.len(), 6);
}

#[test]
fn type_annotation_leaves_one_kind_and_external_ips() {
    let with = |value: &str| {
        texts(&convert(json!({
            "metadata": {"annotations": {"service.cilium.io/type": value}},
            "spec": {"externalIPs": ["198.51.100.1"], "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
        })))
    };
    assert_eq!(
        with("ClusterIP"),
        ["ClusterIP 10.96.0.10:80/TCP", "ExternalIPs 198.51.100.1:80/TCP"]
    );
    assert_eq!(
        with("NodePort"),
        ["NodePort 0.0.0.0:30080/TCP", "ExternalIPs 198.51.100.1:80/TCP"]
    );
    assert_eq!(
        with("LoadBalancer"),
        ["LoadBalancer 192.0.2.1:80/TCP", "ExternalIPs 198.51.100.1:80/TCP"]
    );
    assert_eq!(with("nodeport").len(), 4, "an unknown value restricts nothing");
}

#[test]
fn headless_services_have_no_frontends() {
    let by_label = json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}});
    let by_address = json!({"spec": {"clusterIP": "NONE"}});
    for changes in [by_label, by_address] {
        let converted = convert(changes);
        assert_eq!(converted.frontends, []);
        assert_eq!(converted.service.name.as_str(), "shop/web");
    }
}

#[test]
fn external_names_are_rows_without_frontends() {
    let name = json!({"spec": {"type": "ExternalName", "clusterIP": null, "clusterIPs": null}});
    assert_eq!(convert(name).frontends, []);
}

#[test]
fn only_virtual_addresses_of_load_balancers_count() {
    let ingress = json!([
        {"ip": "192.0.2.1", "ipMode": "VIP"},
        {"ip": "192.0.2.2", "ipMode": "Proxy"},
        {"hostname": "lb.example.org"},
        {"ip": "not an address"},
    ]);
    let converted = convert(json!({
        "metadata": {"annotations": {"service.cilium.io/type": "LoadBalancer"}},
        "status": {"loadBalancer": {"ingress": ingress}},
    }));
    assert_eq!(texts(&converted), ["LoadBalancer 192.0.2.1:80/TCP"]);
}

#[test]
fn disabled_families_have_no_frontends() {
    let object = load_balancer(json!({"spec": {"externalIPs": ["198.51.100.1", "2001:db8::9"]}}));
    let v4 = service(
        &object,
        &Rules {
            ipv6: false,
            ..rules()
        },
    )
    .unwrap();
    let v6 = service(
        &object,
        &Rules {
            ipv4: false,
            ..rules()
        },
    )
    .unwrap();

    assert_eq!(v4.frontends.len(), 4);
    assert!(v4.frontends.iter().all(|f| f.address.is_ipv4()));
    assert_eq!(v6.frontends.len(), 4);
    assert!(v6.frontends.iter().all(|f| f.address.is_ipv6()));
}

#[test]
fn node_ports_need_the_replacement_of_kube_proxy() {
    let object = load_balancer(json!({}));
    let converted = service(
        &object,
        &Rules {
            replaces_kube_proxy: false,
            ..rules()
        },
    )
    .unwrap();
    assert!(texts(&converted).iter().all(|text| !text.starts_with("NodePort")));
}

#[test]
fn node_ports_follow_cluster_ips_when_no_family_is_named() {
    let single =
        json!({"spec": {"ipFamilies": null, "clusterIPs": null, "clusterIP": "fd00::10"}, "status": null});
    assert_eq!(
        texts(&convert(single)),
        ["NodePort [::]:30080/TCP", "ClusterIP [fd00::10]:80/TCP"]
    );
}

#[test]
fn policies_and_affinity_are_taken_over() {
    let plain = row(json!({"spec": {"externalTrafficPolicy": "local"}}));
    assert_eq!(plain.ext_traffic_policy, TrafficPolicy::Cluster);
    assert!(!plain.session_affinity);

    let local = row(json!({"spec": {"internalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}}));
    assert_eq!(local.int_traffic_policy, TrafficPolicy::Local);
    assert_eq!(
        (local.session_affinity, local.session_affinity_timeout),
        (true, Duration::from_secs(10800))
    );

    let timeout = |seconds: i32| {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        row(json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}}))
            .session_affinity_timeout
            .as_secs()
    };
    assert_eq!([timeout(60), timeout(0), timeout(-1)], [60, 10800, 10800]);
}

#[test]
fn traffic_distribution_comes_from_spec_then_annotations() {
    use TrafficDistribution::{Default, PreferClose, PreferSameNode, PreferSameZone};

    let spec = |value: &str| row(json!({"spec": {"trafficDistribution": value}})).traffic_distribution;
    assert_eq!(
        ["PreferSameZone", "PreferClose", "PreferSameNode", "Other"].map(spec),
        [PreferSameZone, PreferClose, PreferSameNode, Default]
    );

    let with =
        |annotations: Value| row(json!({"metadata": {"annotations": annotations}})).traffic_distribution;
    assert_eq!(
        with(json!({"service.kubernetes.io/topology-mode": "Auto"})),
        PreferSameZone
    );
    assert_eq!(
        with(json!({"service.kubernetes.io/topology-mode": "Disabled"})),
        Default
    );
    assert_eq!(
        with(json!({"service.kubernetes.io/topology-aware-hints": ""})),
        Default
    );
    let both = json!({
        "service.kubernetes.io/topology-aware-hints": "disabled",
        "service.kubernetes.io/topology-mode": "Auto",
    });
    assert_eq!(with(both), Default, "topology-aware-hints wins");

    let local = json!({"spec": {"trafficDistribution": "PreferClose", "internalTrafficPolicy": "Local"}});
    assert_eq!(row(local).traffic_distribution, Default);
}

#[test]
fn forwarding_mode_is_read_only_if_asked_for() {
    let object = |mode: &str| {
        load_balancer(json!({"metadata": {"annotations": {"service.cilium.io/forwarding-mode": mode}}}))
    };
    let mode = |text, rules: &Rules| service(&object(text), rules).unwrap().service.forwarding_mode;
    let off = Rules {
        forwarding_mode_annotation: false,
        ..rules()
    };

    assert_eq!(mode("DSR", &rules()), ForwardingMode::Dsr);
    assert_eq!(mode("snat", &rules()), ForwardingMode::Snat);
    assert_eq!(mode("hybrid", &rules()), ForwardingMode::Snat);
    assert_eq!(mode("other", &rules()), ForwardingMode::Unset);
    assert_eq!(mode("dsr", &off), ForwardingMode::Unset);
}

#[test]
fn source_ranges_that_are_none_are_skipped() {
    let ranges = row(json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.1/8", "x", " fd00::/64 ", ""]}}))
        .source_ranges;
    let texts: Vec<String> = ranges.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.0.0.0/8", "fd00::/64"]);
    assert_eq!(
        row(json!({"spec": {"loadBalancerSourceRanges": ["x"]}})).source_ranges,
        None
    );
}

#[test]
fn port_names_are_all_there_the_unnamed_one_too() {
    let ports = json!([
        {"name": "https", "port": 443, "protocol": "TCP"},
        {"port": 80, "protocol": "TCP"},
    ]);
    let names = row(json!({"spec": {"ports": ports}})).port_names.unwrap();
    assert_eq!(&*names, [("".into(), 80), ("https".into(), 443)]);
}

#[test]
fn class_and_health_port_are_taken_over() {
    let row = row(
        json!({"spec": {"loadBalancerClass": "io.cilium/bgp-control-plane", "healthCheckNodePort": 31000}}),
    );
    assert_eq!(
        row.load_balancer_class.as_deref(),
        Some("io.cilium/bgp-control-plane")
    );
    assert_eq!(row.health_check_node_port, 31000);
}

#[test]
fn faults_name_the_object() {
    let fault = |changes| {
        service(&load_balancer(changes), &rules())
            .unwrap_err()
            .to_string()
    };
    let port = |port: Value| fault(json!({"spec": {"ports": [port]}}));

    assert_eq!(
        port(json!({"port": 80})),
        "service shop/web: invalid L4 protocol \"\": unknown protocol ''"
    );
    assert_eq!(
        port(json!({"port": 80, "protocol": "QUIC"})),
        "service shop/web: invalid L4 protocol \"QUIC\": unknown protocol 'QUIC'"
    );
    assert_eq!(
        port(json!({"port": 0, "protocol": "TCP"})),
        "service shop/web: port: 0 is not a port number"
    );
    assert_eq!(
        port(json!({"port": 80, "protocol": "TCP", "nodePort": 70000})),
        "service shop/web: nodePort: 70000 is not a port number"
    );
    assert_eq!(
        fault(json!({"spec": {"healthCheckNodePort": -1}})),
        "service shop/web: healthCheckNodePort: -1 is not a port number"
    );
    assert_eq!(
        fault(json!({"metadata": {"name": null}})),
        "service shop/: name is missing"
    );
}

#[test]
fn one_address_makes_one_frontend() {
    let twice = json!({"spec": {"externalIPs": ["192.0.2.1", "192.0.2.1"]}});
    let texts = texts(&convert(twice));
    assert_eq!(
        texts
            .iter()
            .filter(|text| text.contains(" 192.0.2.1:80"))
            .collect::<Vec<_>>(),
        ["ExternalIPs 192.0.2.1:80/TCP"]
    );
}

#[test]
fn node_annotations_restrict_a_service_to_matching_nodes() {
    let with = |annotations: Value| load_balancer(json!({"metadata": {"annotations": annotations}}));
    let edge = Labels::from_iter([("service.cilium.io/node", "edge"), ("zone", "a")]);
    let other = Labels::from_iter([("zone", "b")]);
    let exposed = |object: &slim::Service| [is_exposed_on(object, &edge), is_exposed_on(object, &other)];

    let plain = with(json!({}));
    assert_eq!((exposed(&plain), names_a_node(&plain)), ([true, true], false));
    let node = with(json!({"service.cilium.io/node": "edge"}));
    assert_eq!((exposed(&node), names_a_node(&node)), ([true, false], true));
    let selector =
        with(json!({"service.cilium.io/node-selector": "zone in (b, c)", "service.cilium.io/node": "edge"}));
    assert_eq!(
        (exposed(&selector), names_a_node(&selector)),
        ([false, true], true)
    );
    let malformed =
        with(json!({"service.cilium.io/node-selector": "zone in (", "service.cilium.io/node": "edge"}));
    assert_eq!(
        exposed(&malformed),
        [true, true],
        "a selector that can't be read hides nothing"
    );
}
