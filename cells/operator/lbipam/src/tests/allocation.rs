// SPDX-License-Identifier: Apache-2.0

//! The allocator by examples.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};
use skep_k8s_types::ObjectKey;

use crate::allocator::{Allocations, Claim, allocate};
use crate::config::Families;
use crate::object::ServiceObject;
use crate::pool::{Pool, Pools};
use crate::request::Request;

pub(super) fn pool(spec: Value) -> Pool {
    Pool::new(&serde_json::from_value(spec).unwrap(), None).unwrap()
}

pub(super) fn pools(specs: &[(&str, Value)]) -> Pools {
    let pools: BTreeMap<_, _> = specs
        .iter()
        .map(|(name, spec)| ((*name).into(), pool(spec.clone())))
        .collect();
    Pools::new(pools, false)
}

/// A service from `annotations`, `labels`, `spec`, `held`, `namespace`.
pub(super) fn claim(name: &str, fields: Value) -> Claim {
    let mut spec = json!({ "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": name } });
    for (field, value) in fields["spec"].as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let object: ServiceObject = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "namespace": fields["namespace"].as_str().unwrap_or("default"),
            "annotations": fields["annotations"],
            "labels": fields["labels"],
        },
        "spec": spec,
    }))
    .unwrap();
    let created = object.metadata.creation_timestamp;
    let (request, _) = Request::new(
        &object.metadata.common,
        created,
        &object.spec,
        Families::default(),
    );
    let held = fields["held"].as_array().into_iter().flatten();
    Claim {
        request,
        held: held.map(|text| text.as_str().unwrap().parse().unwrap()).collect(),
        is_settled: fields["settled"] == true,
    }
}

fn shown(allocations: &Allocations, name: &str) -> String {
    let found = allocations.iter().find(|(key, _)| key.name == name).unwrap().1;
    let addresses: Vec<String> = found.addresses.iter().map(IpAddr::to_string).collect();
    let refusal = found.refusal.as_ref();
    let refusal = refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.message));
    format!("{}|{}", addresses.join(" "), refusal.unwrap_or_default())
}

fn block(cidr: &str) -> Value {
    json!({ "blocks": [{ "cidr": cidr }] })
}

const IPS: &str = "lbipam.cilium.io/ips";

#[test]
fn families_follow_the_policy() {
    let pools = pools(&[("a", block("192.0.2.0/29")), ("b", block("2001:db8::/125"))]);
    let got = |policy: &str, families: &[&str]| {
        let spec = json!({ "ipFamilyPolicy": policy, "ipFamilies": families });
        let claim = claim("web", json!({ "spec": spec }));
        shown(&allocate(&pools, &[claim], &BTreeSet::new()), "web")
    };

    assert_eq!(got("SingleStack", &["IPv6"]), "2001:db8::|");
    assert_eq!(got("SingleStack", &[]), "192.0.2.0|");
    assert_eq!(got("PreferDualStack", &["IPv6", "IPv4"]), "2001:db8:: 192.0.2.0|");
    assert_eq!(got("PreferDualStack", &["IPv4"]), "192.0.2.0|");
    assert_eq!(got("RequireDualStack", &["IPv4"]), "192.0.2.0 2001:db8::|");
}

#[test]
fn refusals_name_reason_and_address() {
    let red = json!({ "blocks": [{ "cidr": "192.0.2.8/29" }], "serviceSelector": { "matchLabels": { "io.kubernetes.service.namespace": "red" } } });
    let off = json!({ "blocks": [{ "start": "192.0.2.16" }], "disabled": true });
    let ends = json!({ "blocks": [{ "cidr": "192.0.2.24/29" }], "allowFirstLastIPs": "No" });
    let pools = pools(&[
        ("blue", block("192.0.2.0/32")),
        ("ends", ends),
        ("off", off),
        ("red", red),
    ]);
    let holder = claim(
        "holder",
        json!({ "annotations": { IPS: "192.0.2.0" }, "held": ["192.0.2.0"] }),
    );
    let got = |address: &str| {
        let web = claim("web", json!({ "annotations": { IPS: address } }));
        shown(&allocate(&pools, &[web, holder.clone()], &BTreeSet::new()), "web")
    };

    assert_eq!(
        got("203.0.113.9"),
        "|no_pool: No pool exists with a CIDR containing '203.0.113.9'"
    );
    assert!(got("192.0.2.8").starts_with("|pool_selector_mismatch: The pool 'red'"));
    assert!(got("192.0.2.16").starts_with("|no_pool: The pool 'off'"));
    assert!(got("192.0.2.24").starts_with("|already_allocated: The IP '192.0.2.24' is an end"));
    assert_eq!(
        got("192.0.2.0"),
        "|already_allocated: The IP '192.0.2.0' is already allocated to another service. Reason: different sharing key"
    );
    assert_eq!(
        got("192.0.2.9, x ,192.0.2.25").split('|').next(),
        Some("192.0.2.25")
    );
}

#[test]
fn pools_without_free_addresses_are_out_of_ips() {
    let pools = pools(&[("blue", block("192.0.2.0/31"))]);
    let claims: Vec<Claim> = ["a", "b", "c"].map(|name| claim(name, json!({}))).into();

    let got = allocate(&pools, &claims, &reserved(&["192.0.2.0"]));

    assert_eq!(shown(&got, "a"), "192.0.2.1|");
    assert!(shown(&got, "b").starts_with("|out_of_ips: "));
}

fn reserved(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_reserved_address_stays_with_those_who_share_it_and_is_not_shared_with_more() {
    let pools = pools(&[("blue", block("192.0.2.0/29"))]);
    let fields = |port: u16, held: &[&str]| {
        json!({
            "annotations": { "lbipam.cilium.io/sharing-key": "k" },
            "held": held,
            "spec": { "ports": [{ "port": port }] },
        })
    };
    let claims = [
        claim("a", fields(80, &["192.0.2.0"])),
        claim("b", fields(81, &[])),
    ];

    let got = allocate(&pools, &claims, &reserved(&["192.0.2.0"]));

    assert_eq!(shown(&got, "a"), "192.0.2.0|");
    assert_eq!(shown(&got, "b"), "192.0.2.1|");
}

#[test]
fn services_share_by_key_ports_policy_and_permission() {
    let pools = pools(&[("blue", block("192.0.2.0/29"))]);
    let wish = |changes: Value| {
        let mut fields = json!({
            "annotations": { IPS: "192.0.2.0", "lbipam.cilium.io/sharing-key": "k" },
            "spec": { "ports": [{ "port": 443, "protocol": "TCP" }] },
        });
        for (part, values) in changes.as_object().unwrap() {
            match values.as_object() {
                Some(values) => values
                    .iter()
                    .for_each(|(name, value)| fields[part][name] = value.clone()),
                None => fields[part] = values.clone(),
            }
        }
        fields
    };
    let got = |holder: Value, web: Value| {
        let mut holder = claim("holder", wish(holder));
        holder.held = vec!["192.0.2.0".parse().unwrap()];
        holder.request.selector = claim("web", json!({})).request.selector;
        shown(
            &allocate(&pools, &[holder, claim("web", wish(web))], &BTreeSet::new()),
            "web",
        )
    };
    let other_port = json!({ "spec": { "ports": [{ "port": 80 }] } });
    let local = json!({ "spec": { "ports": [{ "port": 80 }], "externalTrafficPolicy": "Local" } });
    let local_holder = json!({ "spec": { "externalTrafficPolicy": "Local" } });
    let permits = |namespaces: &str| json!({ "annotations": { "lbipam.cilium.io/sharing-cross-namespace": namespaces } });
    let mut elsewhere = other_port.clone();
    elsewhere["namespace"] = "red".into();
    let mut elsewhere_permitting = elsewhere.clone();
    elsewhere_permitting["annotations"] = permits("*")["annotations"].clone();

    assert_eq!(got(json!({}), other_port.clone()), "192.0.2.0|");
    assert!(got(json!({}), json!({})).ends_with("incompatible service. Reason: same port and protocol"));
    assert!(got(json!({}), json!({})).starts_with("|already_allocated_incompatible_service"));
    assert!(got(json!({}), local.clone()).ends_with("different ExternalTrafficPolicy"));
    assert_eq!(got(local_holder.clone(), local.clone()), "192.0.2.0|");
    let mut others = local;
    others["spec"]["selector"] = json!({ "app": "other" });
    assert!(got(local_holder, others).ends_with("selecting different set of pods"));
    assert!(got(permits("red"), elsewhere).ends_with("different and not permitted namespace"));
    assert_eq!(got(permits("x, red"), elsewhere_permitting.clone()), "192.0.2.0|");
    assert!(got(json!({}), elsewhere_permitting).ends_with("different and not permitted namespace"));
    let other_key = json!({ "annotations": { "lbipam.cilium.io/sharing-key": "z" }, "spec": { "ports": [{ "port": 80 }] } });
    assert!(got(json!({}), other_key).ends_with("different sharing key"));
}

#[test]
fn a_service_that_changed_loses_what_it_cannot_share_any_more() {
    let pools = pools(&[("blue", block("192.0.2.0/29"))]);
    let annotations = json!({ "lbipam.cilium.io/sharing-key": "k" });
    let fields =
        |settled: bool| json!({ "annotations": annotations, "held": ["192.0.2.3"], "settled": settled });

    let got = allocate(
        &pools,
        &[claim("a", fields(false)), claim("b", fields(true))],
        &BTreeSet::new(),
    );

    assert_eq!(shown(&got, "b"), "192.0.2.3|");
    assert_eq!(shown(&got, "a"), "192.0.2.0|");
}

#[test]
fn those_who_ask_for_an_address_are_served_first() {
    let pools = pools(&[("blue", block("192.0.2.0/29"))]);
    let claims = [
        claim("a", json!({})),
        claim("b", json!({ "annotations": { IPS: "192.0.2.0" } })),
    ];

    let got = allocate(&pools, &claims, &BTreeSet::new());

    assert_eq!(
        (shown(&got, "a"), shown(&got, "b")),
        ("192.0.2.1|".into(), "192.0.2.0|".into())
    );
}

#[test]
fn closed_pools_leave_what_is_in_use_and_allocate_nothing() {
    let mut off = block("192.0.2.0/29");
    off["disabled"] = true.into();
    let held = |name: &str| claim(name, json!({ "held": ["192.0.2.3"] }));

    let got = allocate(
        &pools(&[("off", off)]),
        &[held("a"), claim("b", json!({}))],
        &BTreeSet::new(),
    );

    assert_eq!(shown(&got, "a"), "192.0.2.3|");
    assert!(shown(&got, "b").starts_with("|no_pool: There are no enabled pools"));
    let gone = allocate(
        &pools(&[("red", block("198.51.100.0/29"))]),
        &[held("a")],
        &BTreeSet::new(),
    );
    assert_eq!(shown(&gone, "a"), "198.51.100.0|");
    let unknown = allocate(&Pools::new(BTreeMap::new(), true), &[held("a")], &BTreeSet::new());
    assert_eq!(shown(&unknown, "a"), "192.0.2.3|");
}

#[test]
fn the_newer_of_two_overlapping_pools_is_in_conflict() {
    let old = pool(block("192.0.2.0/24"));
    let created = |seconds| Some(jiff::Timestamp::from_second(seconds).unwrap());
    let newer = Pool {
        created: created(2),
        ..pool(block("192.0.2.128/25"))
    };
    // Overlaps only the pool that is not used.
    let newest = Pool {
        created: created(3),
        ..pool(json!({ "blocks": [{ "start": "198.51.100.1" }] }))
    };
    let within = pool(json!({ "blocks": [{ "cidr": "10.0.0.0/24" }, { "start": "10.0.0.9" }] }));
    let all = [
        (
            "z",
            Pool {
                created: created(1),
                ..old
            },
        ),
        ("a", newer),
        ("b", newest),
        ("own", within),
    ];

    let pools = Pools::new(all.map(|(name, pool)| (name.into(), pool)).into(), false);

    assert!(pools.is_open("z") && pools.is_open("b"));
    assert!(!pools.is_open("a") && !pools.is_open("own"));
    let conflict = pools.conflict("a").unwrap();
    assert_eq!(conflict.owner, "z");
    assert_eq!(conflict.range.to_string(), "192.0.2.128 - 192.0.2.255");
    assert_eq!(conflict.overlapped.to_string(), "192.0.2.0 - 192.0.2.255");
    assert_eq!(pools.conflict("own").unwrap().owner, "own");
    assert_eq!(pools.conflicts(), 2);
}

#[test]
fn usage_counts_addresses_once_and_for_the_pool_that_they_are_of() {
    let twice = json!({ "blocks": [{ "cidr": "192.0.4.0/28" }, { "cidr": "192.0.4.8/29" }] });
    let all = [
        ("a", block("192.0.2.0/29")),
        ("all", block("0.0.0.0/0")),
        ("twice", twice),
    ];
    let pools = pools(&all);
    let held = |name: &str, address: &str| claim(name, json!({ "held": [address] }));
    let claims = [held("web", "192.0.2.3"), held("old", "203.0.113.1")];

    let got = allocate(&pools, &claims, &BTreeSet::new());

    let usage = |name: &str| {
        let usage = pools.usage(name, got.used());
        (usage.total, usage.used)
    };
    assert_eq!(usage("a"), (8, 1));
    assert_eq!(usage("all"), (1 << 32, 1));
    assert_eq!(usage("twice"), (16, 0));
}

#[test]
fn held_back_ends_count_as_used() {
    let pools = pools(&[(
        "blue",
        json!({ "blocks": [{ "cidr": "192.0.2.0/29" }], "allowFirstLastIPs": "No" }),
    )]);

    let got = allocate(
        &pools,
        &[
            claim("a", json!({ "held": ["192.0.2.0"] })),
            claim("b", json!({})),
        ],
        &BTreeSet::new(),
    );

    assert_eq!(shown(&got, "b"), "192.0.2.1|");
    let usage = pools.usage("blue", got.used());
    assert_eq!((usage.total, usage.used, usage.available()), (8, 3, 5));
    assert!(got.get(&ObjectKey::default()).is_none());
}
