// SPDX-License-Identifier: Apache-2.0

//! One change after the other, and what an earlier run left: the maps are as if written at once.

use super::*;

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

fn new_maps() -> Arc<dyn LbMaps> {
    Arc::new(FakeMaps::default())
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
    // Nobody knows of these but a prune.
    assert!(left.iter().all(|line| line.starts_with("backend ")), "{left:?}");
}

#[test]
fn numbers_of_half_deleted_services_are_not_given_out() {
    let maps = new_maps();
    let address = addr("10.50.0.1:80/TCP");
    let reverse = maps::RevNatKey { id: 5, ipv6: false };
    let affinity = maps::AffinityKey { id: 7, backend: 1 };
    let range = maps::SourceRangeKey {
        id: 9,
        cidr: "10.0.0.0/8".parse().unwrap(),
    };
    for (entries, id) in [
        (Entries::ReverseNat(&[(reverse, address.into())]), 6),
        (Entries::AffinityMatch(&[affinity]), 8),
        (Entries::SourceRange(&[range]), 10),
    ] {
        assert!(maps.update(entries).is_empty());
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
    let slot = maps::ServiceKey { address, slot: 2 };
    let backend = maps::BackendKey { id: 50, ipv6: false };
    let value = maps::BackendValue {
        address: addr("10.0.0.1:80/TCP"),
        state: 0,
        zone: 0,
    };
    let reverse = maps::RevNatKey { id: 1, ipv6: true };
    let table = maps::MaglevKey { id: 1, ipv6: false };
    let affinity = maps::AffinityKey { id: 1, backend: 50 };
    let ranges = ["fd00::/8", "192.168.0.0/16"].map(|cidr| maps::SourceRangeKey {
        id: 1,
        cidr: cidr.parse().unwrap(),
    });
    for entries in [
        Entries::Services(&[(slot, skep_bpf_maps::lb::ServiceValue::slot(1, 1, flags))]),
        Entries::Backends(&[(backend, value)]),
        Entries::ReverseNat(&[(reverse, addr("[fd00::1]:80/TCP").into())]),
        Entries::Maglev(&[(table, Arc::from([1; 251]))]),
        Entries::AffinityMatch(&[affinity]),
        Entries::SourceRange(&ranges),
    ] {
        assert!(maps.update(entries).is_empty());
    }

    ops.prune().unwrap();

    assert_eq!(dump(&maps), before);
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
