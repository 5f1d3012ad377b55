// SPDX-License-Identifier: Apache-2.0

//! Tests that flags written for Cilium's clustermesh-apiserver are accepted.

use hive::{Cell, Hive, Settings};
use skep_base_settings::cilium::{APISERVER, differences};

use crate::{clustermesh, coredns, kvstoremesh};

/// What a server cannot do without, and what the environment sets.
const REQUIRED: &[&str] = &[
    "--cluster-id=9",
    "--cluster-name=birch",
    "--kvstore=etcd",
    "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml",
];

/// Plans cells with `required` and all flags of Cilium at their defaults; these must be ours, too.
#[track_caller]
fn accepts(cells: fn() -> Vec<Cell>, required: &[&str], flags: &str) {
    let plan = |args: Vec<String>| {
        let plan = Hive::new(cells()).plan(Settings::new().program("cilium").args(args));
        plan.unwrap_or_else(|report| panic!("{report}"))
    };
    let required: Vec<String> = required.iter().map(|flag| (*flag).to_owned()).collect();
    let name = |flag: &str| flag.split_once('=').map(|(name, _)| format!("--{name}="));
    let is_required = |flag: &str| {
        let name = name(flag).expect("it has a value");
        required.iter().any(|flag| flag.starts_with(&name))
    };
    let others: Vec<&str> = flags.lines().filter(|flag| !is_required(flag)).collect();
    assert!(others.len() > 10, "{others:?}");

    let all = others.iter().map(|flag| format!("--{flag}"));
    let with_all = plan(required.iter().cloned().chain(all).collect());

    let findings: Vec<_> = with_all
        .report()
        .findings()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(findings, [""; 0]);
    let defaults = plan(required.clone()).settings();
    for flag in others {
        let (name, value) = flag.split_once('=').expect("it has a value");
        let ours = defaults.iter().find(|setting| setting.name == name);
        let ours = ours.expect("it was accepted");
        if ours.module.to_string().ends_with("unsupported-config") {
            assert!(ours.hidden, "{name}");
        } else {
            assert_eq!(ours.value, value, "{name}");
        }
    }
}

#[test]
fn flags_of_clustermesh_are_those_of_cilium() {
    let flags = include_str!("testdata/cilium-clustermesh-flags.txt");
    accepts(clustermesh::cells, REQUIRED, flags);
}

#[test]
fn flags_of_kvstoremesh_are_those_of_cilium() {
    let flags = include_str!("testdata/cilium-kvstoremesh-flags.txt");
    accepts(kvstoremesh::cells, REQUIRED, flags);
}

#[test]
fn flags_of_the_configuration_of_coredns_are_those_of_cilium() {
    let flags = include_str!("testdata/cilium-mcsapi-coredns-cfg-flags.txt");
    accepts(coredns::cells, &[], flags);
}

#[test]
fn the_list_of_keys_is_that_of_the_declared_settings() {
    let lists = [
        (clustermesh::cells(), REQUIRED),
        (kvstoremesh::cells(), REQUIRED),
        (coredns::cells(), &[]),
    ];
    let settings = lists.into_iter().flat_map(|(cells, required)| {
        let plan = Hive::new(cells).plan(Settings::new().args(required.iter().copied()));
        plan.unwrap_or_else(|report| panic!("{report}")).settings()
    });
    let declared: Vec<_> = settings
        .filter(|setting| !setting.module.to_string().ends_with("unsupported-config"))
        .flat_map(|setting| std::iter::once(setting.name).chain(setting.aliases))
        .collect();
    assert_eq!(differences(APISERVER, &declared), [""; 0]);
}

/// `etcdinit` and the `-dbg` commands read no settings of hives.
#[test]
fn flags_of_commands_that_run_once_are_those_of_cilium() {
    let run = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned());
        crate::run(words.collect(), Vec::new())
    };
    // Flags are read before `--help`.
    assert_eq!(
        run(&[
            "etcdinit",
            "--etcd-cluster-name=clustermesh-apiserver",
            "--etcd-initial-cluster-token=clustermesh-apiserver",
            "--etcd-data-dir=/var/run/etcd",
            "--cluster-name=birch",
            "--timeout=2m",
            "--debug",
            "--help",
        ]),
        0
    );
    let etcd = "--etcd-config=/var/lib/cilium/etcd-config.yaml";
    assert_eq!(
        run(&["clustermesh-dbg", "troubleshoot", etcd, "--timeout=5s", "--help"]),
        0
    );
    assert_eq!(
        run(&[
            "kvstoremesh-dbg",
            "status",
            "--verbose",
            "-o",
            "json",
            "-H",
            "localhost:9889",
            "--help"
        ]),
        0
    );
    assert_eq!(
        run(&[
            "kvstoremesh-dbg",
            "troubleshoot",
            "alder",
            "--include-local",
            "--timeout=5s",
            "--help"
        ]),
        0
    );
    assert_eq!(
        run(&["kvstoremesh-dbg", "status", "--nope", "--help"]),
        hive::exit::USAGE
    );
}
