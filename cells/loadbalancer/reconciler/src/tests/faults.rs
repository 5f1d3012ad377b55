// SPDX-License-Identifier: Apache-2.0

//! What is left to do while map operations fail.

use std::sync::atomic::AtomicBool;

use skep_bpf_maps::lb::{BACKENDS4, BACKENDS6, SERVICES4, ServiceValue};
use skep_bpf_sys::map::Operation;
use skep_bpf_sys::testing::Node as KernelNode;
use skep_loadbalancer_model::types::BackendSet;

use super::*;

/// The same maps, of which some writes fail while they are broken: by name of the map, operation and key.
pub(super) fn broken(
    maps: &LoadBalancerMaps,
    fails: impl Fn(&str, Operation, &[u8]) -> bool + Send + Sync + 'static,
) -> (Arc<LoadBalancerMaps>, Arc<AtomicBool>) {
    let (fails, is_broken) = (Arc::new(fails), Arc::new(AtomicBool::new(true)));
    let broken = decorated(maps, |below| {
        let (fails, is_broken, name) = (fails.clone(), is_broken.clone(), below.name().to_owned());
        let decide = move |operation, key: &[u8]| match is_broken.load(Ordering::Relaxed)
            && fails(&name, operation, key)
        {
            true => Fate::Fails,
            false => Fate::Passes,
        };
        Arc::new(FaultyMap::decided_by(below, decide))
    });
    (Arc::new(broken), is_broken)
}

#[test]
fn frontends_that_share_a_backend_fail_together_when_it_cannot_be_written() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let (maps, is_broken) = broken(&fake, |name, operation, _| {
        operation == Operation::Update && [BACKENDS4.name, BACKENDS6.name].contains(&name)
    });
    let mut ops = ops(&maps);
    let rows = Rows::new();
    let address = "10.0.0.1:80/TCP";
    // The second has the row of the first, the third a newer one that says the same, as of another service.
    let row = rows.row(address, BackendState::Active, false);
    let newer = rows.row(address, BackendState::Active, false);
    let frontends = [(1, &row), (2, &row), (3, &newer)].map(|(n, row)| {
        frontend(
            &format!("10.50.0.{n}:80/TCP"),
            FrontendKind::ClusterIp,
            std::slice::from_ref(row),
        )
    });

    frontends.iter().for_each(|frontend| ops.upsert(frontend));
    let results = ops.finish();
    let without = dump(&fake);
    is_broken.store(false, Ordering::Relaxed);
    apply(&mut ops, &frontends);

    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert_eq!(without, "", "nothing leads to a backend that is not there");
    assert_eq!(dump(&fake).matches("SLOT=1 BEID=1").count(), 3, "{}", dump(&fake));
}

#[test]
fn backends_stay_while_slots_of_a_failed_change_name_them() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    // A key is an address of four bytes, port and slot.
    let (maps, is_broken) = broken(&fake, |name, operation, key| {
        name == SERVICES4.name && operation == Operation::Update && key[6..8] != [0, 0]
    });
    let mut ops = ops(&maps);
    let with = |address: &str| {
        let rows = [backend(address, BackendState::Active)];
        frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &rows)
    };
    let has_first = || dump(&fake).contains("ADDR=10.0.0.1:80/TCP");
    is_broken.store(false, Ordering::Relaxed);
    apply(&mut ops, &[with("10.0.0.1:80/TCP")]);

    is_broken.store(true, Ordering::Relaxed);
    ops.upsert(&with("10.0.0.2:80/TCP"));
    assert!(ops.finish().remove(0).is_err());
    assert!(has_first(), "{}", dump(&fake));
    is_broken.store(false, Ordering::Relaxed);
    apply(&mut ops, &[with("10.0.0.2:80/TCP")]);

    assert!(!has_first(), "{}", dump(&fake));
}

#[test]
fn more_backends_than_slots_leave_no_slot_empty() {
    const MOST: usize = 65_535;
    let sizes = LbMapSizes {
        services: 100_000,
        backends: 100_000,
        ..LbMapSizes::small(65_536)
    };
    let maps: Arc<LoadBalancerMaps> = maps_of(sizes);
    let mut ops = ops(&maps);
    let rows = Rows::new();
    let row = |n: usize, state| {
        let address = format!("10.{}.{}.{}:80/TCP", n >> 16, (n >> 8) & 255, n & 255);
        rows.row(&address, state, false)
    };
    let mut all: BackendSet = (0..MOST).map(|n| row(n, BackendState::Active)).collect();
    let extra = [MOST, MOST + 1].map(|n| row(n, BackendState::Active));
    let check = |ops: &mut Ops, set: &BackendSet| {
        let mut state = frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &[]);
        state.backends = set.clone();
        apply(ops, &[state]);
        let (mut slots, mut count, mut qcount) = (BTreeSet::new(), 0, 0);
        let visit = |address: L3n4Addr, slot, value: ServiceValue| {
            if slot > 0 {
                assert_eq!(value.rev_nat.get(), 1);
                assert!(slots.insert(slot));
            } else if address.port() > 0 {
                (count, qcount) = (value.count, value.qcount);
            }
        };
        maps.each_service(visit).unwrap();
        let wanted = set.len().min(MOST);
        assert_eq!(usize::from(count) + usize::from(qcount), wanted);
        assert!(slots.into_iter().eq(1..=wanted as u16), "of {}", set.len());
        (count, qcount)
    };

    assert_eq!(check(&mut ops, &all), (65_535, 0));
    all = all.with(extra[0].clone());
    assert_eq!(check(&mut ops, &all), (65_535, 0));
    all = all.with(extra[1].clone());
    assert_eq!(check(&mut ops, &all), (65_535, 0));
    for n in 0..3 {
        all = all.without(&row(n, BackendState::Active).params.address);
        check(&mut ops, &all);
    }
    all = all.with(row(9, BackendState::Terminating));
    assert_eq!(check(&mut ops, &all), (65_533, 1));
    check(&mut ops, &BackendSet::default());
    ops.remove(&addr("10.50.0.9:80/TCP"));
    ops.finish();
    assert_eq!(dump(&maps), "");
}

#[test]
fn empty_maps_mean_that_nothing_is_left_to_do() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = annotated(&faulty(&fake, 0.2, rand::random()).0);
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.session_affinity = true;
    service.source_ranges = Some(Arc::from([
        "10.0.0.0/8".parse().unwrap(),
        "192.0.2.0/24".parse().unwrap(),
    ]));
    let active = |n: u8| backend(&format!("10.20.0.{n}:8080/TCP"), BackendState::Active);
    let frontends = [
        ("0.0.0.0:30080/TCP", FrontendKind::NodePort),
        ("10.50.0.9:80/TCP", FrontendKind::ClusterIp),
        ("172.30.0.9:80/TCP", FrontendKind::LoadBalancer),
    ]
    .map(|(address, kind)| frontend_of(service.clone(), address, kind, &[active(5), active(6)]));

    for _ in 0..200 {
        let mut left: Vec<&Frontend> = frontends.iter().collect();
        while !left.is_empty() {
            left.iter().for_each(|frontend| ops.upsert(frontend));
            let mut results = ops.finish().into_iter();
            left.retain(|_| results.next().unwrap().is_err());
        }
        let mut left: Vec<&Frontend> = frontends.iter().collect();
        while !left.is_empty() {
            left.iter().for_each(|frontend| ops.remove(frontend.address()));
            let mut results = ops.finish().into_iter();
            left.retain(|_| results.next().unwrap().is_err());
            if dump(&fake).is_empty() {
                assert_eq!(ops.summary(), Summary::default());
            }
        }
        assert_eq!(dump(&fake), "");
    }
}

#[test]
fn deletions_that_fail_do_not_pile_up() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let (faulty, _) = faulty(&fake, 0.3, rand::random());
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.session_affinity = true;
    let in_state = |state| {
        let rows = [5, 6, 7].map(|n| backend(&format!("10.20.0.{n}:8080/TCP"), state));
        frontend_of(
            service.clone(),
            "10.50.0.9:80/TCP",
            FrontendKind::ClusterIp,
            &rows,
        )
    };
    let states = [BackendState::Active, BackendState::Terminating].map(in_state);

    for _ in 0..20 {
        let mut ops = ops(&faulty);
        for state in &states {
            let is_written = (0..5000).any(|_| {
                ops.upsert(state);
                ops.finish().iter().all(Result::is_ok)
            });
            assert!(is_written);
        }
        assert!(!dump(&fake).contains("AFF:"), "{}", dump(&fake));
    }
}

#[test]
fn a_frontend_that_not_all_backends_have_numbers_for_takes_none() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    ops.backend_ids = few_ids(4);
    let with = |count: u8| {
        let rows: Vec<BackendRow> = (1..=count)
            .map(|n| backend(&format!("10.0.0.{n}:80/TCP"), BackendState::Active))
            .collect();
        frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &rows)
    };
    apply(&mut ops, &[with(1)]);
    let before = dump(&maps);

    ops.upsert(&with(5));
    let refused = ops.finish().remove(0).unwrap_err();

    assert!(matches!(refused, ReconcileError::NoId), "{refused}");
    assert_eq!(dump(&maps), before);
    assert_eq!(ops.summary().backend_ids, 1);
    assert_eq!(ops.summary().backend_states, 1);
    apply(&mut ops, &[with(3)]);
    ops.remove(&addr("10.50.0.9:80/TCP"));
    ops.finish();
    assert_eq!(dump(&maps), "");
    assert_eq!(ops.summary(), Summary::default());
}

#[test]
fn lookup_tables_lead_to_terminating_backends_only_if_none_is_active() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = annotated(&maps);
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.annotations = [("service.cilium.io/lb-algorithm", "maglev")]
        .into_iter()
        .collect();
    let mut led_to = |rows: &[BackendRow]| -> Vec<u32> {
        let kind = FrontendKind::LoadBalancer;
        let state = frontend_of(service.clone(), "172.16.0.1:80/TCP", kind, rows);
        apply(&mut ops, &[state]);
        let mut ids = Vec::new();
        maps.each_maglev(|_, _, table| ids.extend(table)).unwrap();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let terminating = backend("10.0.0.5:80/TCP", BackendState::Terminating);
    let gone = backend("10.0.0.6:80/TCP", BackendState::TerminatingNotServing);
    let active = backend("10.0.0.7:80/TCP", BackendState::Active);

    assert_eq!(led_to(&[terminating.clone(), gone.clone()]), [1]);
    assert_eq!(led_to(&[terminating, gone.clone(), active]), [3]);
    assert!(led_to(&[gone]).is_empty());
}

fn three_each(count: u8) -> Vec<Frontend> {
    let service = |n: u8| {
        let rows: Vec<BackendRow> = (1..=3)
            .map(|b| backend(&format!("10.0.{n}.{b}:80/TCP"), BackendState::Active))
            .collect();
        frontend(&format!("10.50.0.{n}:80/TCP"), FrontendKind::ExternalIps, &rows)
    };
    (1..=count).map(service).collect()
}

// Reconciles all at once, as the driver does. Returns how many worked.
pub(super) fn reconcile(ops: &mut Ops, frontends: &[Frontend]) -> usize {
    frontends.iter().for_each(|frontend| ops.upsert(frontend));
    let results = ops.finish();
    let worked = results.iter().filter(|result| result.is_ok()).count();
    let refused: Vec<(&Frontend, ReconcileError)> = frontends
        .iter()
        .zip(results)
        .filter_map(|(frontend, result)| Some((frontend, result.err()?)))
        .collect();
    assert!(refused.iter().all(|(_, error)| error.is_full()));
    let again = ops.retry_refused(&refused);
    worked + again.iter().filter(|result| result.is_ok()).count()
}

fn serves_what_fits(maps: &Arc<LoadBalancerMaps>, services: u32, count: u8, fit: usize) {
    let mut first = ops(maps);
    let frontends = three_each(count);

    assert_eq!(reconcile(&mut first, &frontends), fit, "{services} {count}");
    let before = dump(maps);
    assert_eq!(before.matches("SLOT=0").count(), fit, "{before}");
    assert_eq!(
        before.lines().count(),
        fit * 8,
        "nothing is left of the others: {before}"
    );

    // After a restart the same ones work.
    let mut again = ops(maps);
    again.restore().unwrap();
    assert_eq!(reconcile(&mut again, &frontends), fit);
    again.prune().unwrap();
    assert_eq!(dump(maps), before);
}

#[test]
fn as_many_services_work_as_a_full_map_holds() {
    // Size of the map, services with three backends, those that fit.
    for (services, count, fit) in [(20, 20, 5), (41, 9, 9), (35, 9, 8), (3, 4, 0), (4, 1, 1)] {
        let sizes = LbMapSizes {
            services,
            maglev_table: 7,
            reverse_sk: 16,
            ..LbMapSizes::uniform(100)
        };
        serves_what_fits(&maps_of(sizes), services, count, fit);
        let in_kernel = KernelNode::run(&format!("full-{services}"), |node| {
            let maps: Arc<LoadBalancerMaps> =
                Arc::new(LoadBalancerMaps::open(&node.store(), sizes, true, true)?);
            serves_what_fits(&maps, services, count, fit);
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        });
        in_kernel.unwrap();
    }
}

#[test]
fn refused_frontends_are_not_tried_again_for_nothing() {
    let counter = Arc::new(Counter::default());
    let maps = counter.on(&maps_of(LbMapSizes {
        services: 20,
        ..LbMapSizes::small(65_536)
    }));
    let mut ops = ops(&maps);
    let frontends = three_each(100);
    assert_eq!(reconcile(&mut ops, &frontends), 5);

    counter.writes.store(0, Ordering::Relaxed);
    let refused: Vec<(&Frontend, ReconcileError)> = frontends[5..]
        .iter()
        .map(|frontend| (frontend, ReconcileError::NoId))
        .collect();
    let results = ops.retry_refused(&refused);
    let writes = counter.writes.load(Ordering::Relaxed);
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Err(error) if error.is_full()))
    );
    assert!(writes < 40, "one is tried, the others need as much: {writes}");

    assert!(ops.take_retriable().is_empty());
    ops.remove(frontends[0].address());
    ops.finish();
    assert_eq!(ops.take_retriable().len(), 1, "as many as fit");
}

#[test]
fn a_frontend_that_outgrows_the_map_keeps_what_it_has() {
    let sizes = LbMapSizes {
        services: 6,
        ..LbMapSizes::small(65_536)
    };
    let maps: Arc<LoadBalancerMaps> = maps_of(sizes);
    let rows: Vec<BackendRow> = (1..=9)
        .map(|n| backend(&format!("10.0.0.{n}:80/TCP"), BackendState::Active))
        .collect();
    let with = |rows: &[BackendRow]| frontend("10.50.0.1:80/TCP", FrontendKind::ExternalIps, rows);
    let mut first = ops(&maps);
    apply(&mut first, &[with(&rows[..3])]);
    let before = dump(&maps);

    // Other backends, and more of them.
    assert_eq!(reconcile(&mut first, &[with(&rows[2..])]), 0);
    assert_eq!(dump(&maps), before);
    assert_eq!(reconcile(&mut first, &[with(&rows[2..])]), 0);
    first.prune().unwrap();
    assert_eq!(dump(&maps), before);

    // The state that an earlier run wrote stays as well.
    let mut again = ops(&maps);
    again.restore().unwrap();
    assert_eq!(reconcile(&mut again, &[with(&rows[2..])]), 0);
    again.prune().unwrap();
    assert_eq!(dump(&maps), before);

    assert_eq!(reconcile(&mut again, &[with(&rows[4..])]), 1);
    again.prune().unwrap();
    let after = dump(&maps);
    assert!(
        after.contains("COUNT=5") && !after.contains("ADDR=10.0.0.1:80/TCP"),
        "{after}"
    );
    again.remove(with(&[]).address());
    again.finish();
    assert_eq!(dump(&maps), "");
}
