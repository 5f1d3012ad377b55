// SPDX-License-Identifier: Apache-2.0

//! Objects: the field of an error, and the corners that Cilium leaves open and that are closed here.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::{Value, json};
use skep_policy_model::{
    Content, Context, PolicyObject, PolicySettings, RuleSet,
    object::{Class, Service},
    ports::Ports,
    validate,
};

fn cnp(rule: Value) -> Value {
    let mut spec = json!({ "endpointSelector": {} });
    spec.as_object_mut()
        .unwrap()
        .extend(rule.as_object().unwrap().clone());
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": { "name": "p", "namespace": "shop" }, "spec": spec,
    })
}

fn rules(rule: Value, settings: &PolicySettings) -> RuleSet {
    let services = [Service {
        namespace: "shop".to_owned(),
        name: "legacy".to_owned(),
        backends: vec!["192.0.2.1".parse().unwrap()],
        ..Service::default()
    }];
    let context = Context {
        settings,
        services: &services,
    };
    match PolicyObject::parse(&cnp(rule), &context).unwrap().content {
        Content::Rules(rules) => rules,
        Content::CidrGroup(_) => panic!("not a policy"),
    }
}

#[test]
fn errors_name_the_field() {
    let port = |port: Value| json!({ "ingress": [{}, { "toPorts": [{ "ports": [port] }] }] });
    let cases = [
        (
            json!({ "ingress": [{ "fromEndpoints": [{ "matchLabels": { "a b": "x" } }] }] }),
            "spec.ingress[0].fromEndpoints[0]",
        ),
        (
            json!({ "egress": [{ "toCIDRSet": [{ "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/8"] }] }] }),
            "spec.egress[0].toCIDRSet[0].except[1]",
        ),
        (
            json!({ "egressDeny": [{ "toEntities": ["world", "mars"] }] }),
            "spec.egressDeny[0].toEntities[1]",
        ),
        (
            port(json!({ "port": "99999", "protocol": "TCP" })),
            "spec.ingress[1].toPorts[0].ports[0].port",
        ),
        (
            port(json!({ "port": "80", "protocol": "QUIC" })),
            "spec.ingress[1].toPorts[0].ports[0].protocol",
        ),
        (
            json!({ "egress": [{ "toFQDNs": [{ "matchName": "a b" }] }] }),
            "spec.egress[0].toFQDNs[0]",
        ),
        (
            json!({ "ingress": [{ "authentication": { "mode": "tls" } }] }),
            "spec.ingress[0].authentication.mode",
        ),
        (
            json!({ "ingress": [{ "icmps": [{ "fields": [{ "type": 256 }] }] }] }),
            "spec.ingress[0].icmps[0].fields[0].type",
        ),
        (json!({}), "spec"),
    ];
    for (rule, field) in cases {
        let error = validate([&cnp(rule)], &PolicySettings::default())
            .remove(0)
            .unwrap_err();
        assert_eq!(
            (error.field.as_str(), error.class),
            (field, Class::Invalid),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .starts_with(&format!("CiliumNetworkPolicy shop/p: {field}: ")),
            "{error}"
        );
    }
    let error = validate(
        [&cnp(json!({ "ingress": { "from": 1 } }))],
        &PolicySettings::default(),
    )
    .remove(0);
    assert_eq!(error.unwrap_err().class, Class::Decode);
}

#[test]
fn rules_of_files_have_the_names_of_files() {
    let context = Context {
        settings: &PolicySettings::default(),
        services: &[],
    };
    let object =
        PolicyObject::parse_file("policies", "web.yaml", &cnp(json!({ "ingress": [{}] })), &context).unwrap();
    let Content::Rules(rules) = object.content else {
        panic!("not a policy")
    };

    assert_eq!(object.resource.as_str(), "file/policies/web.yaml");
    let labels = rules.rules[0].origin.labels.join(",");
    let expected = "directory:filename=web.yaml,directory:io.cilium.k8s.policy.namespace=shop,\
                    directory:policy-derived-from=CiliumNetworkPolicy";
    assert_eq!(labels, expected);
}

#[test]
fn peers_that_resolve_to_nothing_select_nothing() {
    let ports = json!([{ "ports": [{ "port": "80", "protocol": "TCP" }] }]);
    for peer in [
        json!({ "toServices": [{ "k8sService": { "serviceName": "gone" } }], "toPorts": ports }),
        json!({ "toFQDNs": [], "toPorts": ports }),
        json!({ "toGroups": [], "toPorts": ports }),
    ] {
        let rule = json!({ "egress": [peer] });
        let closed = rules(rule.clone(), &PolicySettings::default());
        let open = rules(rule, &PolicySettings::default().cilium_corners());

        assert!(closed.rules[0].peers.is_empty() && closed.rules[0].default_deny);
        assert!(open.rules[0].peers[0].is_wildcard());
    }
    let denied = json!({ "egressDeny": [{ "toServices": [{ "k8sService": { "serviceName": "legacy" } }] }] });
    assert_eq!(
        rules(denied, &PolicySettings::default()).rules[0].peers[0].as_str(),
        "cidr:192.0.2.1/32"
    );
}

#[test]
fn zero_is_a_number_of_its_own() {
    let ports =
        |rule: Value, settings: &PolicySettings| rules(rule, settings).rules[0].traffic[0].ports.prefixes(0);
    let echo = json!({ "ingress": [{ "icmps": [{ "fields": [{ "type": "EchoReply" }] }] }] });
    let range = json!({ "ingress": [{ "toPorts": [{ "ports": [{ "port": "0", "endPort": 1023, "protocol": "TCP" }] }] }] });
    let (closed, open) = (
        PolicySettings::default(),
        PolicySettings::default().cilium_corners(),
    );

    assert_eq!(ports(echo.clone(), &closed), [(0, 16)]);
    assert_eq!(ports(range.clone(), &closed), [(0, 6)]);
    assert_eq!(ports(echo, &open), [(0, 0)]);
    assert_eq!(ports(range, &open), [(0, 0)]);
    assert_eq!(Ports::ALL.prefixes(0), [(0, 0)]);
}

#[test]
fn selectors_of_groups_select_groups_alone() {
    let rule = json!({ "egress": [{ "toCIDRSet": [{ "cidrGroupSelector": {
        "matchExpressions": [{ "key": "trust", "operator": "NotIn", "values": ["low"] }],
    } }] }] });
    let labels = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse::<skep_identity::Label>().unwrap())
            .collect()
    };
    let closed = rules(rule.clone(), &PolicySettings::default());
    let open = rules(rule, &PolicySettings::default().cilium_corners());
    let selects = |rules: &RuleSet, texts: &[&str]| rules.rules[0].peers[0].matches(&labels(texts));

    assert!(!selects(&closed, &["k8s:app=web"]) && selects(&open, &["k8s:app=web"]));
    assert!(selects(&closed, &["cidrgroup:trust", "cidrgroup:trust+high"]));
    assert!(!selects(&closed, &["cidrgroup:trust", "cidrgroup:trust+low"]));
}

#[test]
fn allowed_namespaces_are_those_of_the_own_cluster() {
    let object = |action: &str| {
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"},
            "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                "ingress": [{"action": action, "from": [{"namespaces": {"matchLabels": {"team": "a"}}}]}]},
        })
    };
    let selects_other = |action: &str, settings: &PolicySettings| {
        let context = Context {
            settings,
            services: &[],
        };
        let parsed = PolicyObject::parse(&object(action), &context).unwrap();
        let Content::Rules(set) = parsed.content else {
            panic!("no rules")
        };
        let labels = [
            "k8s:io.cilium.k8s.namespace.labels.team=a",
            "k8s:io.cilium.k8s.policy.cluster=other",
        ];
        let labels = labels.map(|text| text.parse::<skep_identity::Label>().unwrap());
        set.rules[0].peers[0].matches(&labels.into_iter().collect())
    };
    let closed = PolicySettings::default();

    assert!(!selects_other("Accept", &closed) && selects_other("Deny", &closed));
    assert!(selects_other("Accept", &closed.cilium_corners()));
}
