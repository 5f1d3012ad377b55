// SPDX-License-Identifier: Apache-2.0

//! What the first prune after a restart forgets.

use super::faults::reconcile;
use super::*;

/// Maps with this many entries of services.
fn maps_with(services: u32) -> Arc<LoadBalancerMaps> {
    maps_of(LbMapSizes {
        services,
        ..LbMapSizes::small(65_536)
    })
}

/// An external IP with as many backends, each with an entry besides its own.
fn external_ip(n: u8, backends: u8) -> Frontend {
    let rows: Vec<BackendRow> = (1..=backends)
        .map(|b| backend(&format!("10.0.{n}.{b}:80/TCP"), BackendState::Active))
        .collect();
    frontend(&format!("10.50.0.{n}:80/TCP"), FrontendKind::ExternalIps, &rows)
}

/// The machine after a restart.
fn restarted(maps: &Arc<LoadBalancerMaps>) -> Ops {
    let mut ops = ops(maps);
    ops.restore().unwrap();
    ops
}

#[test]
fn ids_of_an_earlier_run_are_free_after_the_first_prune() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let rows = [backend("10.0.0.1:80/TCP", BackendState::Active)];
    let state = frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &rows);
    apply(&mut ops(&maps), std::slice::from_ref(&state));
    let mut again = ops(&maps);
    again.restore().unwrap();
    let restored = again.summary();

    again.prune().unwrap();

    assert_eq!(
        (restored.restored_service_ids, restored.restored_backend_ids),
        (1, 1)
    );
    assert_eq!(again.summary(), Summary::default());
    assert_eq!(dump(&maps), "");
    // Whatever else had them in the meantime keeps them.
    again.service_ids = few_ids(3);
    again.backend_ids = few_ids(3);
    let other = frontend("10.50.0.8:80/TCP", FrontendKind::ClusterIp, &rows);
    apply(&mut again, &[other, state]);
    assert!(
        dump(&maps).contains("SVC: ID=2 ADDR=10.50.0.9:80/TCP SLOT=0"),
        "{}",
        dump(&maps)
    );
}

#[test]
fn a_frontend_that_was_pruned_and_is_refused_leaves_nothing() {
    let maps = maps_with(3);
    apply(&mut ops(&maps), &[external_ip(1, 1)]);
    let mut again = restarted(&maps);
    again.prune().unwrap();
    assert_eq!(dump(&maps), "");
    apply(&mut again, &[external_ip(2, 1)]);
    let (before, summary) = (dump(&maps), again.summary());

    assert_eq!(reconcile(&mut again, &[external_ip(1, 1)]), 0);

    assert_eq!(dump(&maps), before);
    assert_eq!(again.summary().backend_references, summary.backend_references);
    assert_eq!(again.summary().backend_states, summary.backend_states);
}

#[test]
fn backends_of_an_earlier_run_go_with_their_frontend_after_the_prune() {
    let maps = maps_with(6);
    apply(&mut ops(&maps), &[external_ip(1, 3), external_ip(2, 1)]);
    let mut again = restarted(&maps);
    // The first outgrows the map and stays as it was.
    let both = [external_ip(2, 1), external_ip(1, 6)];
    assert_eq!(reconcile(&mut again, &both), 1);
    again.prune().unwrap();
    assert!(dump(&maps).contains("ADDR=10.0.2.1:80/TCP"));

    again.remove(both[0].address());
    again.finish().remove(0).unwrap();

    assert!(!dump(&maps).contains("ADDR=10.0.2.1:80/TCP"), "{}", dump(&maps));
    assert!(dump(&maps).contains("ADDR=10.0.1.3:80/TCP"), "{}", dump(&maps));
}

#[test]
fn refused_frontends_are_retried_when_a_prune_made_room() {
    let maps = maps_with(4);
    apply(&mut ops(&maps), &[external_ip(1, 1)]);
    let mut again = restarted(&maps);
    let refused = external_ip(2, 2);
    assert_eq!(reconcile(&mut again, std::slice::from_ref(&refused)), 0);
    assert!(again.take_retriable().is_empty());

    again.prune().unwrap();

    assert_eq!(again.take_retriable(), [*refused.address()]);
    assert_eq!(reconcile(&mut again, &[refused]), 1);
}
