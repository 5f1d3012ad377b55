// SPDX-License-Identifier: Apache-2.0

//! What is left to do while map operations fail.

use std::sync::atomic::AtomicBool;

use skep_loadbalancer_model::types::BackendSet;

use super::*;
use crate::ids::Ids;

/// Lets no backend entry be written while it is broken.
struct NoBackends {
    below: Arc<dyn LbMaps>,
    is_broken: AtomicBool,
}

impl LbMaps for NoBackends {
    fn update(&self, entries: Entries<'_>) -> Failures {
        if matches!(entries, Entries::Backends(_)) && self.is_broken.load(Ordering::Relaxed) {
            return (0..entries.len()).map(|at| (at, MapError::Faulty)).collect();
        }
        self.below.update(entries)
    }
    fn delete(&self, keys: Keys<'_>) -> Failures {
        self.below.delete(keys)
    }
    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        self.below.dump(kind, visit)
    }
    fn usage(&self) -> Vec<MapUsage> {
        self.below.usage()
    }
}

#[test]
fn frontends_that_share_a_backend_fail_together_when_it_cannot_be_written() {
    let fake: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let broken = Arc::new(NoBackends {
        below: fake.clone(),
        is_broken: AtomicBool::new(true),
    });
    let maps: Arc<dyn LbMaps> = broken.clone();
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

    frontends.iter().for_each(|frontend| ops.upsert(frontend, &()));
    let results = ops.finish();
    let without = dump(&fake);
    broken.is_broken.store(false, Ordering::Relaxed);
    apply(&mut ops, &frontends, &());

    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert_eq!(without, "", "nothing leads to a backend that is not there");
    assert_eq!(dump(&fake).matches("SLOT=1 BEID=1").count(), 3, "{}", dump(&fake));
}

#[test]
fn more_backends_than_slots_leave_no_slot_empty() {
    const MOST: usize = 65_535;
    let sizes = LbMapSizes {
        services: 100_000,
        backends: 100_000,
        ..LbMapSizes::default()
    };
    let maps: Arc<dyn LbMaps> = Arc::new(FakeMaps::new(sizes));
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
        apply(ops, &[state], &());
        let (mut slots, mut count, mut qcount) = (BTreeSet::new(), 0, 0);
        let visit = &mut |entry| match entry {
            MapEntry::Service(key, value) if key.slot > 0 => {
                assert_eq!(value.rev_nat.get(), 1);
                assert!(slots.insert(key.slot));
            }
            MapEntry::Service(key, value) if key.address.port() > 0 => {
                (count, qcount) = (value.count, value.qcount);
            }
            _ => {}
        };
        maps.dump(MapKind::Services, visit).unwrap();
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
    let fake: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let faulty: Arc<dyn LbMaps> = Arc::new(FaultyMaps::new(fake.clone(), 0.2));
    let mut ops = annotated(&faulty);
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
            left.iter().for_each(|frontend| ops.upsert(frontend, &node()));
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
    let fake: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let faulty: Arc<dyn LbMaps> = Arc::new(FaultyMaps::new(fake.clone(), 0.3));
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
                ops.upsert(state, &());
                ops.finish().iter().all(Result::is_ok)
            });
            assert!(is_written);
        }
        assert!(!dump(&fake).contains("AFF:"), "{}", dump(&fake));
    }
}

#[test]
fn a_frontend_that_not_all_backends_have_numbers_for_takes_none() {
    let maps: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let mut ops = ops(&maps);
    ops.backend_ids = Ids::new(4);
    let with = |count: u8| {
        let rows: Vec<BackendRow> = (1..=count)
            .map(|n| backend(&format!("10.0.0.{n}:80/TCP"), BackendState::Active))
            .collect();
        frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &rows)
    };
    apply(&mut ops, &[with(1)], &());
    let before = dump(&maps);

    ops.upsert(&with(5), &());
    let refused = ops.finish().remove(0).unwrap_err();

    assert!(matches!(refused, ReconcileError::NoId), "{refused}");
    assert_eq!(dump(&maps), before);
    assert_eq!(ops.summary().backend_ids, 1);
    assert_eq!(ops.summary().backend_states, 1);
    apply(&mut ops, &[with(3)], &());
    ops.remove(&addr("10.50.0.9:80/TCP"));
    ops.finish();
    assert_eq!(dump(&maps), "");
    assert_eq!(ops.summary(), Summary::default());
}

#[test]
fn lookup_tables_lead_to_terminating_backends_only_if_none_is_active() {
    let maps: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let mut ops = annotated(&maps);
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.annotations = [("service.cilium.io/lb-algorithm", "maglev")]
        .into_iter()
        .collect();
    let mut led_to = |rows: &[BackendRow]| -> Vec<u32> {
        let kind = FrontendKind::LoadBalancer;
        let state = frontend_of(service.clone(), "172.16.0.1:80/TCP", kind, rows);
        apply(&mut ops, &[state], &());
        let mut ids = Vec::new();
        let visit = &mut |entry| {
            if let MapEntry::Maglev(_, table) = entry {
                ids.extend(table.iter().copied());
            }
        };
        maps.dump(MapKind::Maglev, visit).unwrap();
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
