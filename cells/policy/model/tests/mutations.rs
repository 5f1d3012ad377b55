// SPDX-License-Identifier: Apache-2.0

//! Objects of every kind with values that are something else: they are accepted or refused, and an error names the field.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use proptest::prelude::*;
use serde_json::{Value, json};
use skep_policy_model::{
    Content, Context, PolicyObject, PolicySettings,
    object::{Class, Service},
};

/// An object of each kind with all its fields.
fn objects() -> Vec<Value> {
    let selector = json!({"matchLabels": {"k8s:app": "web"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "x", "operator": "Exists"}]});
    let tls = json!({"secret": {"namespace": "n", "name": "s"}});
    let ports = json!([
        {"ports": [{"port": "80", "endPort": 90, "protocol": "TCP"}, {"port": "web", "protocol": "ANY"}]},
        {"ports": [{"port": "81", "protocol": "TCP"}], "rules": {"http": [{"method": "GET", "path": "/a", "headers": ["X-A"],
            "headerMatches": [{"name": "x", "value": "y", "mismatch": "LOG"}]}]}},
        {"ports": [{"port": "443", "protocol": "TCP"}], "originatingTLS": tls, "terminatingTLS": tls},
        {"ports": [{"port": "444", "protocol": "TCP"}], "serverNames": ["a.example.com"]},
    ]);
    let cidrs = json!([{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}, {"cidrGroupRef": "g"}, {"cidrGroupSelector": selector}]);
    let icmps = json!([{"fields": [{"type": "EchoRequest", "family": "IPv6"}, {"type": 8}]}]);
    let rules = json!({
        "ingress": [{"fromEndpoints": [selector]}, {"fromEntities": ["cluster"], "toPorts": ports},
            {"fromCIDR": ["2001:db8::/32"]}, {"fromCIDRSet": cidrs, "icmps": icmps, "authentication": {"mode": "required"}},
            {"fromNodes": [selector]}, {"fromGroups": [{"aws": {"labels": {"a": "b"}}}]}],
        "ingressDeny": [{"fromEndpoints": [{}], "toPorts": [{"ports": [{"port": "1"}]}]}],
        "egress": [{"toServices": [{"k8sService": {"serviceName": "s", "namespace": "n"}},
                {"k8sServiceSelector": {"selector": selector, "namespace": "n"}}]},
            {"toFQDNs": [{"matchName": "a.example.com"}, {"matchPattern": "*.example.com"}]},
            {"toEndpoints": [selector], "toPorts": [{"ports": [{"port": "53", "protocol": "ANY"}],
                "rules": {"dns": [{"matchPattern": "*"}]}}]}, {"toCIDRSet": cidrs},
            {"toPorts": [{"ports": [{"port": "82", "protocol": "TCP"}],
                "listener": {"envoyConfig": {"kind": "CiliumEnvoyConfig", "name": "e"}, "name": "l", "priority": 3}}]}],
        "egressDeny": [{"toEntities": ["world"], "icmps": icmps}],
        "enableDefaultDeny": {"ingress": true, "egress": false}, "description": "d", "log": {"value": "v"},
        "labels": [{"key": "a", "source": "k8s", "value": "b"}],
    });
    let with = |subject: &str| {
        let mut spec = rules.clone();
        spec[subject] = selector.clone();
        spec
    };
    let pods = json!({"namespaceSelector": selector, "podSelector": selector});
    vec![
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "p", "namespace": "n"},
            "spec": with("endpointSelector"), "specs": [with("endpointSelector")]}),
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "p"},
            "specs": [with("endpointSelector"), {"nodeSelector": selector, "ingress": [{"fromEntities": ["cluster"], "toPorts": [{"ports": [{"port": "22"}]}]}]}]}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "n"},
            "spec": {"podSelector": selector, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": selector, "namespaceSelector": selector},
                        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                    "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"port": "web"}]}],
                "egress": [{"to": [{"podSelector": {}}], "ports": [{"protocol": "SCTP", "port": 1}]}]}}),
        json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"},
            "spec": {"tier": "Admin", "priority": 10, "subject": {"pods": pods},
                "ingress": [{"name": "i", "action": "Deny", "from": [{"pods": pods}, {"namespaces": selector}],
                    "protocols": [{"tcp": {"destinationPort": {"number": 80}}}, {"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}]}],
                "egress": [{"name": "e", "action": "Accept", "to": [{"networks": ["10.0.0.0/8"]}, {"nodes": selector},
                    {"domainNames": ["*.example.com"]}]}]}}),
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumCIDRGroup", "metadata": {"name": "g", "labels": {"a": "b"}},
            "spec": {"externalCIDRs": ["10.0.0.0/8", "2001:db8::/32"]}}),
    ]
}

/// The places of an object, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            places(
                value,
                &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                found,
            )
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| places(value, &format!("{at}/{index}"), found)),
        _ => {}
    }
}

fn anything() -> impl Strategy<Value = Value> {
    let texts = prop_oneof![
        "[ -~]{0,30}".prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop_oneof![
            Just("::ffff:10.0.0.0/104"),
            Just("10.0.0.0/33"),
            Just("0.0.0.0/0"),
            Just("fe80::1%eth0"),
            Just("In"),
            Just("ANY"),
            Just("-1"),
            Just("65536"),
            Just("**."),
            Just("."),
            Just("xn--"),
            Just("k8s:io.kubernetes.pod.namespace"),
        ]
        .prop_map(Value::from),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-2_i64..70_000).prop_map(Value::from),
        texts,
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("[a-zA-Z:./-]{0,12}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn context(settings: &PolicySettings) -> Context<'_> {
    Context {
        settings,
        services: &[] as &[Service],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn objects_with_other_values_are_accepted_or_refused_with_the_field(
        which in 0_usize..5,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), anything()), 1..4),
        flags in any::<[bool; 4]>(),
    ) {
        let settings = PolicySettings {
            node_selector_labels: flags[0],
            fail_open: flags[1],
            extended_protocols: flags[2],
            host_firewall: flags[3],
            ..PolicySettings::default()
        };
        let mut object = objects().swap_remove(which);
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&object, "", &mut all);
            let place: &String = place.get(&all);
            *object.pointer_mut(place).unwrap() = value;
        }

        for parsed in [
            PolicyObject::parse(&object, &context(&settings)),
            PolicyObject::parse_file("dir", "file.yaml", &object, &context(&settings)),
        ] {
            if let Err(error) = parsed {
                let names = error.class == Class::Decode || !error.field.is_empty();
                prop_assert!(names, "{error}: {object}");
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

/// The objects above say something: mutations of what is refused would test little.
#[test]
fn fields_alone_are_valid() {
    let settings = PolicySettings {
        node_selector_labels: true,
        ..PolicySettings::default()
    };
    for object in objects() {
        let parsed = PolicyObject::parse(&object, &context(&settings));
        let parsed = parsed.unwrap_or_else(|error| panic!("{error}: {object}"));
        assert!(matches!(
            parsed.content,
            Content::Rules(_) | Content::CidrGroup(_)
        ));
    }
}
