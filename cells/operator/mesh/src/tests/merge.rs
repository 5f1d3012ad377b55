// SPDX-License-Identifier: Apache-2.0

//! Merging of exports, by examples and against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use skep_clustermesh_types::{ExportPort, ServiceExport};

use crate::mcsapi::merge::{Property, merge};

fn port(name: &str, protocol: &str, port: i32) -> ExportPort {
    ExportPort {
        name: name.to_owned(),
        protocol: protocol.to_owned(),
        app_protocol: None,
        port,
    }
}

fn export(cluster: &str, second: i64, ports: &[ExportPort]) -> ServiceExport {
    let mut export = ServiceExport::default();
    export.cluster = cluster.to_owned();
    export.namespace = "shop".to_owned();
    export.name = "cart".to_owned();
    export.export_creation_timestamp = Some(Timestamp::from_second(second).unwrap());
    export.ports = Some(ports.to_vec());
    export.kind = "ClusterSetIP".to_owned();
    export.session_affinity = "None".to_owned();
    export.ip_families = vec!["IPv4".to_owned()];
    export
}

fn conflicts(exports: &[&ServiceExport]) -> Vec<(&'static str, usize)> {
    let merged = merge(exports, None).unwrap();
    let conflicts = merged.conflicts.iter();
    conflicts
        .map(|conflict| (conflict.property.reason(), conflict.disagree))
        .collect()
}

#[test]
fn the_oldest_wins_and_ports_are_united() {
    let http = port("http", "TCP", 80);
    let old = export("birch", 1, std::slice::from_ref(&http));
    let mut young = export(
        "alder",
        2,
        &[port("web", "TCP", 80), port("dns", "UDP", 53), http.clone()],
    );
    young.kind = "Headless".to_owned();

    let merged = merge(&[&young, &old], None).unwrap();

    assert_eq!(merged.export.kind, "ClusterSetIP");
    assert_eq!(merged.export.ports, Some(vec![http, port("dns", "UDP", 53)]));
    assert_eq!(merged.clusters, ["alder", "birch"]);
    assert_eq!(
        conflicts(&[&young, &old]),
        [("PortConflict", 1), ("TypeConflict", 1)]
    );
    assert_eq!(merge(&[], None), None);
}

#[test]
fn of_exports_as_old_the_first_cluster_wins() {
    let mut a = export("alder", 1, &[]);
    a.labels = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
    let b = export("birch", 1, &[]);

    assert_eq!(merge(&[&b, &a], None).unwrap().export.labels, a.labels);
    assert_eq!(conflicts(&[&b, &a]), [("LabelsConflict", 1)]);
}

#[test]
fn a_port_without_a_name_stays_alone() {
    let old = export("alder", 1, &[port("", "TCP", 80)]);
    let young = export("birch", 2, &[port("dns", "UDP", 53)]);

    let merged = merge(&[&old, &young], None).unwrap();

    assert_eq!(merged.export.ports, Some(vec![port("", "TCP", 80)]));
    assert_eq!(conflicts(&[&old, &young]), [("PortConflict", 1)]);
}

#[test]
fn families_are_those_of_all() {
    let families = |second, families: &[&str]| {
        let mut export = export(&format!("c{second}"), second, &[]);
        export.ip_families = families.iter().map(|family| (*family).to_owned()).collect();
        export
    };
    let merged = |exports: &[&ServiceExport]| merge(exports, None).unwrap().export.ip_families;
    let (both, six, four, unknown) = (
        families(1, &["IPv6", "IPv4"]),
        families(2, &["IPv6"]),
        families(3, &["IPv4"]),
        families(4, &[]),
    );

    assert_eq!(merged(&[&both, &six]), ["IPv6"]);
    assert_eq!(merged(&[&both, &four, &unknown]), ["IPv4"]);
    assert_eq!(merged(&[&unknown]), [""; 0]);
    assert_eq!(conflicts(&[&both, &four, &unknown]), []);
    assert_eq!(merged(&[&six, &four]), ["IPv6"]);
    assert_eq!(conflicts(&[&six, &four]), [("IPFamilyConflict", 1)]);
    assert_eq!(conflicts(&[&both, &six, &four]), [("IPFamilyConflict", 1)]);
}

#[test]
fn each_property_has_its_conflict() {
    let base = export("alder", 1, &[]);
    let change = |change: fn(&mut ServiceExport)| {
        let mut other = export("birch", 2, &[]);
        change(&mut other);
        conflicts(&[&base, &other])
    };

    assert_eq!(change(|_| ()), []);
    assert_eq!(
        change(|e| e.internal_traffic_policy = Some("Cluster".to_owned())),
        []
    );
    for (expected, conflict) in [
        (
            "SessionAffinityConflict",
            change(|e| e.session_affinity = "ClientIP".to_owned()),
        ),
        (
            "SessionAffinityConfigConflict",
            change(|e| e.session_affinity_config = Some(Default::default())),
        ),
        (
            "AnnotationsConflict",
            change(|e| e.annotations.extend([("a".to_owned(), String::new())])),
        ),
        (
            "InternalTrafficPolicyConflict",
            change(|e| e.internal_traffic_policy = Some("Local".to_owned())),
        ),
        (
            "TrafficDistributionConflict",
            change(|e| e.traffic_distribution = Some("PreferClose".to_owned())),
        ),
    ] {
        assert_eq!(conflict, [(expected, 1)]);
    }
}

#[test]
fn what_was_merged_counts_as_the_oldest_and_is_no_cluster() {
    let mut kept = export("", 0, &[port("http", "TCP", 80)]);
    kept.export_creation_timestamp = None;
    let known = export("birch", 1, &[port("dns", "UDP", 53)]);

    let merged = merge(&[&known], Some(&kept)).unwrap();

    assert_eq!(
        merged.export.ports,
        Some(vec![port("http", "TCP", 80), port("dns", "UDP", 53)])
    );
    assert_eq!(merged.clusters, ["birch"]);
}

/// The rules once more, in other words: a port is used unless one that was used before excludes it.
fn model(exports: &[ServiceExport]) -> (String, Vec<ExportPort>, BTreeSet<String>, usize) {
    let oldest = exports
        .iter()
        .min_by_key(|export| (export.export_creation_timestamp, export.cluster.clone()))
        .unwrap();
    let mut by_age: BTreeMap<_, &ServiceExport> = BTreeMap::new();
    for export in exports {
        by_age.insert((export.export_creation_timestamp, &export.cluster), export);
    }
    let mut used: BTreeMap<String, ExportPort> = BTreeMap::new();
    let mut numbers = BTreeSet::new();
    let mut ports = Vec::new();
    let mut conflicting = 0;
    for export in by_age.values() {
        let mut has_conflict = false;
        for port in export.ports.iter().flatten() {
            let number = (port.protocol.clone(), port.port);
            if used.get(&port.name) == Some(port) {
                continue;
            }
            let is_alone = used.contains_key("") || (port.name.is_empty() && !used.is_empty());
            if used.contains_key(&port.name) || numbers.contains(&number) || is_alone {
                has_conflict = true;
                continue;
            }
            used.insert(port.name.clone(), port.clone());
            numbers.insert(number);
            ports.push(port.clone());
        }
        conflicting += usize::from(has_conflict);
    }
    let all: BTreeSet<String> = ["IPv4", "IPv6"].map(str::to_owned).into();
    let families = exports
        .iter()
        .filter(|export| !export.ip_families.is_empty())
        .fold(all, |all, export| {
            all.intersection(&export.ip_families.iter().cloned().collect())
                .cloned()
                .collect()
        });
    (oldest.cluster.clone(), ports, families, conflicting)
}

#[test]
fn merging_agrees_with_the_model() {
    let seed = 20_261_123;
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..20_000 {
        let clusters = ["alder", "birch", "cedar", "elm"];
        let count = random.usize(1..=clusters.len());
        let mut exports: Vec<ServiceExport> = Vec::new();
        for cluster in &clusters[..count] {
            let mut ports: Vec<ExportPort> = Vec::new();
            for _ in 0..random.usize(0..3) {
                let new = port(
                    ["", "http", "dns"][random.usize(0..3)],
                    ["TCP", "UDP"][random.usize(0..2)],
                    [53, 80][random.usize(0..2)],
                );
                // As API servers allow.
                let is_other = |p: &ExportPort| {
                    p.name != new.name
                        && !p.name.is_empty()
                        && !new.name.is_empty()
                        && (&p.protocol, p.port) != (&new.protocol, new.port)
                };
                if ports.iter().all(is_other) {
                    ports.push(new);
                }
            }
            let mut export = export(cluster, random.i64(0..3), &ports);
            export.ip_families = match random.u8(0..4) {
                0 => vec![],
                1 => vec!["IPv4".to_owned()],
                2 => vec!["IPv6".to_owned()],
                _ => vec!["IPv4".to_owned(), "IPv6".to_owned()],
            };
            exports.push(export);
        }
        random.shuffle(&mut exports);
        let merged = merge(&exports.iter().collect::<Vec<_>>(), None).unwrap();

        let (oldest, ports, families, conflicting) = model(&exports);
        let context = format!("seed {seed}, round {round}: {exports:?}");
        assert_eq!(merged.export.cluster, oldest, "{context}");
        assert_eq!(merged.export.ports, Some(ports), "{context}");
        let disagree = |property| {
            let conflict = merged
                .conflicts
                .iter()
                .find(|conflict| conflict.property == property);
            conflict.map_or(0, |conflict| conflict.disagree)
        };
        assert_eq!(disagree(Property::Port), conflicting, "{context}");
        let has_families = exports.iter().any(|export| !export.ip_families.is_empty());
        assert_eq!(
            disagree(Property::IpFamily) > 0,
            has_families && families.is_empty(),
            "{context}"
        );
        if has_families && !families.is_empty() {
            let merged: BTreeSet<String> = merged.export.ip_families.iter().cloned().collect();
            assert_eq!(merged, families, "{context}");
        }
    }
}
