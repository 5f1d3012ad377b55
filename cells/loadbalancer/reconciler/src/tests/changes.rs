// SPDX-License-Identifier: Apache-2.0

//! One change after the other, and what an earlier run left: the maps are as if written at once.

use std::net::SocketAddr;

use skep_datapath_maps::transaction::{Stage, StagedMap, Updates};

use super::*;
use crate::maps::BackendValue;

/// Writes entries that no reconciler wrote.
fn write<M: StagedMap>(map: &M, entries: impl IntoIterator<Item = <Updates<M> as Stage>::Entry>) {
    let mut stage = Updates::<M>::default();
    entries.into_iter().for_each(|entry| stage.push(0, entry));
    stage.write(map, |_, error| panic!("{error}"));
}

fn web() -> Service {
    Service::new(ServiceName::new("shop", "web"), Source::Kubernetes)
}

fn of(service: Service, rows: &[BackendRow]) -> Frontend {
    frontend_of(service, "172.16.0.1:80/TCP", FrontendKind::LoadBalancer, rows)
}

fn by_maglev() -> Service {
    Service {
        annotations: [("service.cilium.io/lb-algorithm", "maglev")]
            .into_iter()
            .collect(),
        ..web()
    }
}

fn weighted(address: &str, weight: u16) -> BackendRow {
    let mut row = Backend::clone(&backend(address, BackendState::Active));
    row.params.weight = weight;
    testing::row(row)
}

fn at_once(frontend: &Frontend) -> BTreeSet<String> {
    let maps = new_maps();
    apply(&mut annotated(&maps), std::slice::from_ref(frontend));
    meaning(&maps)
}

#[test]
fn a_single_change_leads_to_what_writing_at_once_does() {
    let (one, two) = ("10.0.0.1:80/TCP", "10.0.0.2:80/TCP");
    let rows = [weighted(one, 100), weighted(two, 100)];
    let heavier = [weighted(one, 100), weighted(two, 900)];
    let (table, affine) = (
        by_maglev(),
        Service {
            session_affinity: true,
            ..web()
        },
    );
    let table_rows = Rows::new();
    let older = [table_rows.row(one, BackendState::Terminating, false)];
    let newer = [table_rows.row(one, BackendState::Active, false)];
    for (what, before, after) in [
        ("a flag", of(web(), &rows), of(affine, &rows)),
        ("a weight", of(table.clone(), &rows), of(table.clone(), &heavier)),
        ("the algorithm", of(table, &rows), of(web(), &rows)),
        (
            "an older row of a source that counts now",
            of(web(), &newer),
            of(web(), &older),
        ),
    ] {
        let maps = new_maps();
        let mut ops = annotated(&maps);
        for state in [&before, &after, &before, &after] {
            apply(&mut ops, std::slice::from_ref(state));
            assert_eq!(meaning(&maps), at_once(state), "{what}");
        }
    }
}

#[test]
fn a_frontend_may_come_several_times_in_a_round() {
    let rows = ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"].map(|address| backend(address, BackendState::Active));
    let (first, second) = (of(web(), &rows[..1]), of(web(), &rows));
    let address = *first.address();

    for is_there in [false, true] {
        let start = || {
            let maps = new_maps();
            let mut ops = annotated(&maps);
            if is_there {
                apply(&mut ops, std::slice::from_ref(&first));
            }
            (maps, ops)
        };
        let (maps, mut ops) = start();
        apply(&mut ops, &[first.clone(), second.clone()]);
        assert_eq!(meaning(&maps), at_once(&second));

        let (maps, mut ops) = start();
        ops.upsert(&second);
        ops.remove(&address);
        assert!(ops.finish().iter().all(Result::is_ok));
        assert_eq!(dump(&maps), "");
        assert_eq!(ops.summary(), Summary::default());

        let (maps, mut ops) = start();
        ops.remove(&address);
        ops.upsert(&second);
        assert!(ops.finish().iter().all(Result::is_ok));
        assert_eq!(meaning(&maps), at_once(&second));
    }
}

#[test]
fn what_an_earlier_run_wrote_more_of_goes_before_any_prune() {
    let rows = [1, 2, 3].map(|n| backend(&format!("10.0.0.{n}:80/TCP"), BackendState::Active));
    let maps = new_maps();
    apply(&mut annotated(&maps), &[of(by_maglev(), &rows)]);

    let mut again = annotated(&maps);
    again.restore().unwrap();
    let now = of(web(), &rows[..1]);
    apply(&mut again, std::slice::from_ref(&now));

    let left: Vec<String> = meaning(&maps).difference(&at_once(&now)).cloned().collect();
    // Only a prune finds these.
    assert!(left.iter().all(|line| line.starts_with("backend ")), "{left:?}");
}

#[test]
fn numbers_of_half_deleted_services_are_not_given_out() {
    let maps = new_maps();
    let address = addr("10.50.0.1:80/TCP");
    let at = SocketAddr::new(address.ip(), address.port());
    let write = |id| match id {
        6 => write(&maps.reverse_nat, [key::reverse_nat_entry(5, at)]),
        8 => write(&maps.affinity, [(key::affinity(7, 1), 0)]),
        _ => write(
            &maps.source_ranges,
            [key::source_range(9, &"10.0.0.0/8".parse().unwrap()).with(0)],
        ),
    };
    for id in [6, 8, 10] {
        write(id);
        let mut ops = ops(&maps);
        ops.restore().unwrap();
        ops.upsert(&of(web(), &[]));
        assert!(matches!(ops.finish()[..], [Ok(given)] if given == id));
        ops.remove(&addr("172.16.0.1:80/TCP"));
        ops.finish();
    }
}

#[test]
fn a_frontend_that_went_is_quarantined_no_more() {
    let sick = |updated: bool, unhealthy| {
        let mut row = Backend::clone(&backend("10.0.0.1:80/TCP", BackendState::Active));
        row.unhealthy = unhealthy;
        row.unhealthy_updated_at = updated.then(|| Box::new(std::time::UNIX_EPOCH));
        testing::row(row)
    };
    let well = backend("10.0.0.2:80/TCP", BackendState::Active);
    let maps = new_maps();
    apply(&mut ops(&maps), &[of(web(), &[sick(true, true), well.clone()])]);

    let mut again = ops(&maps);
    again.restore().unwrap();
    let unchecked = of(web(), &[sick(false, false), well]);
    apply(&mut again, std::slice::from_ref(&unchecked));
    let quarantined = dump(&maps);
    again.remove(unchecked.address());
    again.finish();
    apply(&mut again, std::slice::from_ref(&unchecked));

    assert!(quarantined.contains("COUNT=1 QCOUNT=1"), "{quarantined}");
    assert!(dump(&maps).contains("COUNT=2 QCOUNT=0"), "{}", dump(&maps));
}

#[test]
fn a_node_port_leaves_an_address_that_the_node_lost() {
    let maps = new_maps();
    let mut ops = ops(&maps);
    let rows = [backend("10.0.0.1:80/TCP", BackendState::Active)];
    let port = || frontend("0.0.0.0:30000/TCP", FrontendKind::NodePort, &rows);
    apply(&mut ops, &[on_node(port(), &NODE)]);

    apply(&mut ops, &[on_node(port(), &NODE[..1])]);

    assert!(!dump(&maps).contains("10.1.0.2"));
    assert_eq!(ops.take_retriable(), []);
}

#[test]
fn a_prune_takes_what_nobody_wants_and_nothing_else() {
    let maps = new_maps();
    let service = Service {
        session_affinity: true,
        source_ranges: Some(Arc::from(["10.1.2.3/8".parse().unwrap()])),
        ..web()
    };
    let rows = [backend("10.0.0.1:80/TCP", BackendState::Active)];
    let mut ops = ops(&maps);
    apply(&mut ops, &[of(service, &rows)]);
    let before = dump(&maps);
    let address = addr("172.16.0.1:80/TCP");
    let flags = skep_bpf_maps::lb::ServiceFlags::empty();
    let value = BackendValue {
        address: addr("10.0.0.1:80/TCP"),
        state: 0,
        zone: 0,
    };
    let slot = skep_bpf_maps::lb::ServiceValue::slot(1, 1, flags);
    write(&maps.services, [key::service(&address, 2).with(slot)]);
    write(&maps.backends, [key::backend_entry(50, &value)]);
    let reverse = key::reverse_nat_entry(1, "[fd00::1]:80".parse().unwrap());
    write(&maps.reverse_nat, [reverse]);
    write(&maps.maglev, [key::maglev(1, false).with(Arc::from([1; 251]))]);
    write(&maps.affinity, [(key::affinity(1, 50), 0)]);
    let ranges = ["fd00::/8", "192.168.0.0/16"].map(|cidr| key::source_range(1, &cidr.parse().unwrap()));
    write(&maps.source_ranges, ranges.map(|key| key.with(0)));

    ops.prune().unwrap();

    assert_eq!(dump(&maps), before);
}

// Networks that differ only in bits that do not count are one entry of the map.
#[test]
fn a_client_network_in_another_form_stays() {
    let maps = new_maps();
    let mut ops = ops(&maps);
    let rows = [backend("10.0.0.1:80/TCP", BackendState::Active)];
    let with = |cidr: &str| Service {
        source_ranges: Some(Arc::from([cidr.parse().unwrap()])),
        ..web()
    };

    for cidr in ["10.1.2.3/8", "10.0.0.0/8", "10.9.9.9/8", "192.0.2.0/24"] {
        apply(&mut ops, &[of(with(cidr), &rows)]);
        assert_eq!(meaning(&maps), at_once(&of(with(cidr), &rows)), "{cidr}");
    }
}

// What a program that embeds the tables sends traffic to is what the maps choose from.
#[test]
fn selectable_backends_are_active_ones_or_else_terminating_ones() {
    use BackendState::{Active, Maintenance, Quarantined, Terminating, TerminatingNotServing};
    let rows = [
        backend("10.0.0.1:80/TCP", Maintenance),
        backend("10.0.0.2:80/TCP", Terminating),
        backend("10.0.0.3:80/TCP", TerminatingNotServing),
        backend("10.0.0.4:80/TCP", Quarantined),
        backend("10.0.0.5:80/TCP", Active),
    ];
    let selectable = |rows: &[BackendRow]| -> Vec<String> {
        let frontend = frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, rows);
        let rows = frontend.selectable_backends();
        rows.map(|row| row.params.address.to_string()).collect()
    };

    assert_eq!(selectable(&rows), ["10.0.0.5:80/TCP"]);
    assert_eq!(selectable(&rows[..4]), ["10.0.0.2:80/TCP"]);
    assert!(selectable(&rows[2..4]).is_empty() && selectable(&rows[..1]).is_empty());
}
