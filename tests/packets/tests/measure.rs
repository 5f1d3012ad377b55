// SPDX-License-Identifier: Apache-2.0

//! Every way of a packet is measured.

use std::path::Path;

use run_packets::measure::{Cost, Load, measure};

#[test]
fn measures_every_way_of_both_families_with_other_services_and_flows() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let load = Load {
        services: 10,
        flows: 100,
    };

    let all = measure(&recorded, 40, load).unwrap();

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
