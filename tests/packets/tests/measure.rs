// SPDX-License-Identifier: Apache-2.0

//! Every way of a packet is measured.

use std::path::{Path, PathBuf};

use run_packets::measure::{Cost, Load, WayCalls, count, count_between_pods, measure, sizes};
use skep_bpf_programs::Calls;

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

#[test]
fn measures_every_way_of_both_families_with_other_services_and_flows() {
    let load = Load {
        services: 10,
        flows: 100,
        flow_table: 100,
    };

    let all = measure(&recorded(), 40, load).unwrap();

    let ways: Vec<_> = all.iter().filter(|costs| !costs.is_ipv6).collect();
    assert_eq!((ways.len(), all.len()), (12, 24));
    for costs in &all {
        let cost = |Cost { p10, p50 }| assert!(0 < p50 && p10 <= p50, "{costs:?}");
        cost(costs.first);
        cost(costs.established.expect("all ways have it"));
        costs.reply.into_iter().for_each(cost);
    }
    assert_eq!(ways.iter().filter(|costs| costs.reply.is_some()).count(), 6);
}

#[test]
fn counts_what_packets_call() {
    let all = count(&recorded(), 0).unwrap();

    assert_eq!(all.len(), 24);
    let of = |name: &str| {
        all.iter()
            .find(|calls| calls.name == name && !calls.is_ipv6)
            .unwrap()
    };
    let pods = of("pod to pod of the node");
    // The flow's entries are new; later there is no entry to make, and no route is looked up.
    let (first, established) = (pods.first, pods.established.unwrap());
    assert_eq!((first.updates, established.updates), (2, 0));
    // The receiver's side finds the flow's entry at once; the first packet asks for the other direction, too, and on both
    // sides for the entry of ICMP errors.
    assert_eq!(first.hash_lookups(), established.hash_lookups() + 3);
    assert_eq!((first.routes, first.sockets), (0, 0));
    let port = of("NodePort at tc, backend elsewhere");
    assert_eq!((port.first.routes, port.first.sockets), (1, 1));
    assert!(all.iter().any(|way| way.first.prefix_lookups() > 0), "{all:?}");
    let none = all.iter().filter(|calls| calls.first == Calls::default());
    assert_eq!(none.count(), 0);
}

#[test]
fn policies_are_looked_up_for_packets_of_who_opened_the_flow() {
    let without = count_between_pods(&recorded(), None).unwrap();
    let with = count_between_pods(&recorded(), Some(10)).unwrap();

    assert_eq!(without.len(), 2);
    for (without, with) in without.iter().zip(&with) {
        assert!(
            with.first.prefix_lookups() > without.first.prefix_lookups(),
            "{with:?}"
        );
        let lookups = |way: &WayCalls| way.established.unwrap().prefix_lookups();
        assert!(lookups(with) > lookups(without), "{with:?}");
        assert_eq!(with.reply, without.reply);
    }
}

#[test]
fn sizes_are_those_of_all_programs() {
    let all = sizes(&recorded()).unwrap();

    assert_eq!(all.len(), 7 + 7 + 9);
    for program in &all {
        let size = program.size;
        assert!(size.verified > 100 && size.verified < 1_000_000, "{program:?}");
        // An instruction has 8 bytes.
        assert!(size.translated > 800 && size.translated % 8 == 0, "{program:?}");
        assert!(size.native > 0, "{program:?}");
    }
    let with = |options: &str| all.iter().filter(|program| program.options == options).count();
    assert_eq!((with(""), with("with DSR"), with("with tunnel")), (7, 7, 9));
}
