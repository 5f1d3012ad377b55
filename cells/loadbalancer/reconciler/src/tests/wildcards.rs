// SPDX-License-Identifier: Apache-2.0

//! The wildcard entry of an address, which all its frontends share.

use std::sync::atomic::AtomicBool;

use skep_bpf_maps::lb::SERVICES4;
use skep_bpf_sys::map::Operation;

use super::faults::{broken, reconcile};
use super::*;

/// Maps of which writes of wildcard entries fail while they are broken.
fn broken_wildcards(fake: &LoadBalancerMaps) -> (Arc<LoadBalancerMaps>, Arc<AtomicBool>) {
    // Port 0, behind an address of four bytes.
    broken(fake, |name, _, key| name == SERVICES4.name && key[4..6] == [0, 0])
}

/// Flags of the wildcard entry.
fn flags(maps: &Arc<LoadBalancerMaps>) -> Option<String> {
    let dump = dump(maps);
    let line = dump.lines().find(|line| line.contains("ADDR=10.50.0.9:0/ANY"))?;
    Some(line.split_once("FLAGS=").unwrap().1.to_owned())
}

const CLUSTER_IP: &str = "ClusterIP+non-routable";
const LOAD_BALANCER: &str = "LoadBalancer+non-routable";

#[test]
fn wildcard_entries_are_written_and_deleted_at_the_retry() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let (maps, is_broken) = broken_wildcards(&fake);
    let mut ops = ops(&maps);
    let state = frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &[]);
    let has_wildcard = || flags(&fake).is_some();
    let set_broken = |broken| is_broken.store(broken, Ordering::Relaxed);

    ops.upsert(&state);
    assert!(ops.finish().remove(0).is_err() && !has_wildcard());
    set_broken(false);
    apply(&mut ops, std::slice::from_ref(&state));
    assert!(has_wildcard());

    set_broken(true);
    ops.remove(state.address());
    assert!(ops.finish().iter().any(Result::is_err) && has_wildcard());
    set_broken(false);
    ops.remove(state.address());
    assert!(ops.finish().iter().all(Result::is_ok));
    assert_eq!(dump(&fake), "");
    assert_eq!(ops.summary(), Summary::default());
}

#[test]
fn the_kind_of_a_wildcard_entry_is_that_of_its_frontend() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    let with_kind = |kind| [frontend("10.50.0.9:80/TCP", kind, &[])];

    apply(&mut ops, &with_kind(FrontendKind::ClusterIp));
    assert_eq!(flags(&maps).as_deref(), Some(CLUSTER_IP));
    apply(&mut ops, &with_kind(FrontendKind::LoadBalancer));

    assert_eq!(flags(&maps).as_deref(), Some(LOAD_BALANCER));
}

#[test]
fn a_wildcard_entry_gets_the_kind_of_the_frontend_that_is_left_at_the_retry_too() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let (maps, is_broken) = broken_wildcards(&fake);
    let mut ops = ops(&maps);
    let [first, second] = [
        ("10.50.0.9:80/TCP", FrontendKind::ClusterIp),
        ("10.50.0.9:443/TCP", FrontendKind::LoadBalancer),
    ]
    .map(|(address, kind)| frontend(address, kind, &[]));
    let set_broken = |broken| is_broken.store(broken, Ordering::Relaxed);
    set_broken(false);
    apply(&mut ops, &[first.clone(), second]);
    assert_eq!(flags(&fake).as_deref(), Some(CLUSTER_IP));

    set_broken(true);
    ops.remove(first.address());
    assert!(ops.finish().remove(0).is_err());
    assert_eq!(flags(&fake).as_deref(), Some(CLUSTER_IP));
    set_broken(false);
    ops.remove(first.address());
    ops.finish().remove(0).unwrap();

    assert_eq!(flags(&fake).as_deref(), Some(LOAD_BALANCER));
}

#[test]
fn a_wildcard_entry_that_is_there_is_not_written_again() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let (maps, is_broken) = broken_wildcards(&fake);
    let mut ops = ops(&maps);
    let with = |rows: &[BackendRow]| [frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, rows)];
    is_broken.store(false, Ordering::Relaxed);
    apply(&mut ops, &with(&[]));

    is_broken.store(true, Ordering::Relaxed);

    apply(
        &mut ops,
        &with(&[backend("10.0.0.1:80/TCP", BackendState::Active)]),
    );
}

#[test]
fn a_wildcard_entry_returns_with_the_kind_of_a_frontend_whose_change_failed_late() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    // Deletions of slots, which follow those of wildcard entries. A key is an address of four bytes, port and slot.
    let (maps, is_broken) = broken(&fake, |name, operation, key| {
        name == SERVICES4.name && operation == Operation::Delete && key[6..8] != [0, 0]
    });
    let mut ops = ops(&maps);
    let rows = ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"].map(|address| backend(address, BackendState::Active));
    let state = |kind, rows: &[BackendRow]| frontend("10.50.0.9:80/TCP", kind, rows);
    apply(&mut ops, &[state(FrontendKind::ClusterIp, &rows)]);
    assert_eq!(flags(&fake).as_deref(), Some(CLUSTER_IP));

    ops.upsert(&state(FrontendKind::ExternalIps, &rows[..1]));
    assert!(ops.finish().remove(0).is_err());
    assert_eq!(flags(&fake), None);
    is_broken.store(false, Ordering::Relaxed);
    apply(&mut ops, &[state(FrontendKind::ClusterIp, &rows[..1])]);

    assert_eq!(flags(&fake).as_deref(), Some(CLUSTER_IP));
}

#[test]
fn a_wildcard_entry_that_is_deleted_makes_room() {
    let maps = maps_of(LbMapSizes {
        services: 2,
        ..LbMapSizes::small(65_536)
    });
    let mut ops = ops(&maps);
    let rows = [backend("10.0.0.1:80/TCP", BackendState::Active)];
    let first = frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &[]);
    let second = frontend("10.50.0.8:80/TCP", FrontendKind::ExternalIps, &rows);
    assert_eq!(reconcile(&mut ops, &[first.clone(), second.clone()]), 1);
    assert!(ops.take_retriable().is_empty());

    ops.remove(first.address());
    ops.finish().remove(0).unwrap();

    assert_eq!(ops.take_retriable(), [*second.address()]);
}

#[test]
fn only_virtual_addresses_of_this_load_balancer_have_a_wildcard_entry() {
    use FrontendKind::{ClusterIp, ExternalIps, LoadBalancer};
    let is_lbipam = |default_class_is_lbipam| Settings {
        default_class_is_lbipam,
        ..Settings::default()
    };
    let uses = |address: &str, kind| is_lbipam(true).uses_wildcard(&frontend(address, kind, &[]));
    let of_class = |class: Option<&str>, settings: Settings| {
        let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
        service.load_balancer_class = class.map(Into::into);
        settings.uses_wildcard(&frontend_of(service, "172.16.0.1:80/TCP", LoadBalancer, &[]))
    };

    assert!(uses("10.50.0.9:80/TCP", ClusterIp) && uses("172.16.0.1:80/TCP", LoadBalancer));
    assert!(!uses("172.16.0.1:80/TCP", ExternalIps));
    assert!(
        !uses("172.16.0.1:80/TCP/i", LoadBalancer),
        "that of the external scope is enough"
    );
    let of_node = on_node(frontend("10.1.0.1:80/TCP", LoadBalancer, &[]), &NODE[..1]);
    assert!(
        !is_lbipam(true).uses_wildcard(&of_node),
        "the node answers other ports"
    );
    assert!(!of_class(None, is_lbipam(false)));
    assert!(of_class(Some("io.cilium/bgp-control-plane"), is_lbipam(false)));
    assert!(!of_class(Some("example.com/other"), is_lbipam(true)));
}
