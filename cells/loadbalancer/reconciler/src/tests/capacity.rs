// SPDX-License-Identifier: Apache-2.0

//! Full maps: what does not fit leaves nothing behind, what fits is served, whatever comes when and whatever fails.

use super::*;

/// Two frontends a service, of all kinds that are written differently.
const FRONTENDS: [[(&str, FrontendKind); 2]; 5] = [
    [
        ("10.50.0.1:80/TCP", FrontendKind::ClusterIp),
        ("10.50.0.2:80/TCP", FrontendKind::ClusterIp),
    ],
    [
        ("10.50.0.2:81/TCP", FrontendKind::ClusterIp),
        ("172.16.0.1:80/TCP", FrontendKind::LoadBalancer),
    ],
    [
        ("10.50.0.3:80/TCP", FrontendKind::ClusterIp),
        ("0.0.0.0:30000/TCP", FrontendKind::NodePort),
    ],
    [
        ("172.16.0.1:81/TCP", FrontendKind::LoadBalancer),
        ("172.16.0.2:81/TCP", FrontendKind::ExternalIps),
    ],
    [
        ("[fd00::1]:80/TCP", FrontendKind::LoadBalancer),
        ("[fd00::2]:80/TCP", FrontendKind::ClusterIp),
    ],
];

#[derive(Clone, Debug)]
enum Step {
    /// A backend of a service comes, changes or goes.
    Backend(usize, u8, Option<BackendState>),
    /// Which frontends a service has.
    Frontends(usize, [bool; 2]),
    /// Affinity, number of source ranges, lookup table.
    Features(usize, bool, u8, bool),
    Reconcile,
    Prune,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    use BackendState::{Active, Maintenance, Terminating, TerminatingNotServing};
    let states = prop::sample::select(vec![
        Some(Active),
        Some(Active),
        Some(Active),
        Some(Terminating),
        Some(TerminatingNotServing),
        Some(Maintenance),
        None,
        None,
    ]);
    let service = 0..FRONTENDS.len();
    prop_oneof![
        8 => (service.clone(), 1u8..7, states).prop_map(|(s, n, state)| Step::Backend(s, n, state)),
        5 => (service.clone(), prop::sample::select(vec![[true, true], [true, true], [true, false], [false, true], [false, false]]))
            .prop_map(|(s, has)| Step::Frontends(s, has)),
        3 => (service, any::<bool>(), 0u8..4, any::<bool>()).prop_map(|(s, a, r, m)| Step::Features(s, a, r, m)),
        5 => Just(Step::Reconcile),
        1 => Just(Step::Prune),
        1 => Just(Step::Restart),
    ]
}

fn sizes() -> impl Strategy<Value = LbMapSizes> {
    (4u32..50, 3u32..20, 2u32..14, 2u32..30, 2u32..20, 1u32..10).prop_map(
        |(services, backends, reverse_nat, affinity, source_range, maglev)| LbMapSizes {
            services,
            backends,
            reverse_nat,
            affinity,
            source_range,
            maglev,
            ..LbMapSizes::small(65_536)
        },
    )
}

#[derive(Clone, Debug, Default)]
struct ServiceState {
    backends: BTreeMap<u8, BackendRow>,
    has: [bool; 2],
    has_affinity: bool,
    ranges: u8,
    is_maglev: bool,
}

/// What the tables say, and a reconciler that follows.
struct World {
    db: statedb::Db,
    table: statedb::RwTable<Backend>,
    services: Vec<ServiceState>,
    fake: Arc<LoadBalancerMaps>,
    faulty: Arc<LoadBalancerMaps>,
    faults: Arc<Faults>,
    ops: Ops,
    dirty: BTreeSet<L3n4Addr>,
    results: BTreeMap<L3n4Addr, Result<(), ReconcileError>>,
    // The last state of each frontend that was written without error, and is in the maps.
    good: BTreeMap<L3n4Addr, Frontend>,
    had_faults: bool,
}

impl World {
    // Every fourth one has no faults.
    fn new(sizes: LbMapSizes, seed: u64) -> Self {
        let had_faults = !seed.is_multiple_of(4);
        let db = statedb::Db::new();
        let key = statedb::Index::<Backend, str>::new("key", |row, keys| {
            keys.add(&format!("{} {}", row.service, row.params.address))
        });
        let table = statedb::RwTable::builder("rows")
            .primary(key)
            .build_plain(&db)
            .unwrap();
        let fake: Arc<LoadBalancerMaps> = maps_of(sizes);
        let (faulty, faults) = faulty(&fake, 0.03, seed);
        if !had_faults {
            faults.stop();
        }
        Self {
            db,
            table,
            services: vec![ServiceState::default(); FRONTENDS.len()],
            fake,
            ops: annotated(&faulty),
            faulty,
            faults,
            dirty: BTreeSet::new(),
            results: BTreeMap::new(),
            good: BTreeMap::new(),
            had_faults,
        }
    }

    fn row(&self, service: usize, n: u8, state: BackendState) -> BackendRow {
        let is_ipv6 = FRONTENDS[service][0].0.starts_with('[');
        let address = match is_ipv6 {
            true => format!("[fd01::{n}]:80/TCP"),
            false => format!("10.0.0.{n}:80/TCP"),
        };
        let mut params = BackendParams::new(addr(&address), Source::Kubernetes);
        params.state = state;
        let mut row = Backend::new(ServiceName::new("shop", &format!("s{service}")), params);
        // Checked: what was behind the chosen slots is not taken for quarantined after a restart.
        row.unhealthy_updated_at = Some(Box::new(std::time::UNIX_EPOCH));
        let mut txn = self.db.write(&[&self.table as &dyn statedb::WriteTarget]);
        let row = self.table.insert_get(&mut txn, row).unwrap();
        txn.commit();
        row
    }

    fn frontends(&self) -> BTreeMap<L3n4Addr, Frontend> {
        let mut all = BTreeMap::new();
        for (at, state) in self.services.iter().enumerate() {
            let mut service = Service::new(ServiceName::new("shop", &format!("s{at}")), Source::Kubernetes);
            service.session_affinity = state.has_affinity;
            service.session_affinity_timeout = std::time::Duration::from_secs(100);
            let nets = ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8"];
            let nets = nets[..usize::from(state.ranges)]
                .iter()
                .map(|net| net.parse().unwrap());
            service.source_ranges = (state.ranges > 0).then(|| nets.collect());
            if state.is_maglev {
                service.annotations = [("service.cilium.io/lb-algorithm", "maglev")]
                    .into_iter()
                    .collect();
            }
            let rows: Vec<BackendRow> = state.backends.values().cloned().collect();
            for ((address, kind), has) in FRONTENDS[at].iter().zip(state.has) {
                if has {
                    let frontend = on_node(frontend_of(service.clone(), address, *kind, &rows), &NODE);
                    all.insert(addr(address), frontend);
                }
            }
        }
        all
    }

    fn change(&mut self, step: &Step) {
        match *step {
            Step::Backend(service, n, state) => {
                let row = state.map(|state| self.row(service, n, state));
                let backends = &mut self.services[service].backends;
                match row {
                    Some(row) => drop(backends.insert(n, row)),
                    None => drop(backends.remove(&n)),
                }
                self.mark(service);
            }
            Step::Frontends(service, has) => {
                self.services[service].has = has;
                self.mark(service);
            }
            Step::Features(service, has_affinity, ranges, is_maglev) => {
                let state = &mut self.services[service];
                (state.has_affinity, state.ranges, state.is_maglev) = (has_affinity, ranges, is_maglev);
                self.mark(service);
            }
            Step::Reconcile => self.reconcile(),
            Step::Prune => {
                // As the driver does: after all frontends were tried, errors wait for the next time.
                self.dirty.extend(self.frontends().into_keys());
                self.reconcile();
                drop(self.ops.prune());
                self.dirty.extend(self.ops.take_retriable());
            }
            Step::Restart => {
                self.ops = annotated(&self.faulty);
                self.ops.restore().unwrap();
                self.dirty.extend(self.frontends().into_keys());
            }
        }
    }

    fn mark(&mut self, service: usize) {
        self.dirty
            .extend(FRONTENDS[service].map(|(address, _)| addr(address)));
    }

    // One round, as the driver does it.
    fn reconcile(&mut self) {
        let frontends = self.frontends();
        let batch: Vec<L3n4Addr> = std::mem::take(&mut self.dirty).into_iter().collect();
        for address in &batch {
            match frontends.get(address) {
                Some(frontend) => self.ops.upsert(frontend),
                None => self.ops.remove(address),
            }
        }
        let results = self.ops.finish();
        let mut refused = Vec::new();
        for (address, result) in batch.iter().zip(results) {
            match (&result, frontends.get(address)) {
                (Err(error), Some(frontend)) if error.is_full() => refused.push((frontend, error.clone())),
                _ => self.note(*address, frontends.get(address), result.map(drop)),
            }
        }
        let again = self.ops.retry_refused(&refused);
        for ((frontend, _), result) in refused.iter().zip(again) {
            self.note(*frontend.address(), Some(frontend), result.map(drop));
        }
        self.dirty.extend(self.ops.take_retriable());
        self.check_references();
    }

    // References to backends are those that the frontends have.
    fn check_references(&self) {
        let mut rows: BTreeMap<L3n4Addr, u32> = BTreeMap::new();
        let mut holds: BTreeMap<L3n4Addr, u32> = BTreeMap::new();
        for entry in self.ops.entries.values() {
            for row in &entry.set {
                *rows.entry(row.params.address).or_default() += 1;
            }
            for address in entry
                .pending_deletes
                .iter()
                .flat_map(|pending_deletes| pending_deletes.held.iter().chain(&pending_deletes.shared))
            {
                *holds.entry(*address).or_default() += 1;
            }
        }
        for (address, known) in &self.ops.backends {
            let refs: u32 = known.rows.iter().map(|row| row.refs).sum();
            assert_eq!(refs, rows.remove(address).unwrap_or(0), "{address}: {known:?}");
            assert_eq!(
                known.holds,
                holds.remove(address).unwrap_or(0),
                "{address}: {known:?}"
            );
            assert!(!known.is_unused(), "{address}");
        }
        assert!(rows.is_empty() && holds.is_empty(), "{rows:?} {holds:?}");
    }

    fn note(&mut self, address: L3n4Addr, frontend: Option<&Frontend>, result: Result<(), ReconcileError>) {
        match (&result, frontend) {
            (Ok(()), Some(frontend)) => drop(self.good.insert(address, frontend.clone())),
            // What an earlier run wrote, and this one has not seen yet, stays in the maps until they are pruned.
            (Ok(()), None) if lines_of(&meaning(&self.fake), &address).is_empty() => {
                drop(self.good.remove(&address));
            }
            (Ok(()), None) => {}
            (Err(error), Some(_)) if error.is_full() => {}
            (Err(_), _) => drop(self.dirty.insert(address)),
        }
        self.results.insert(address, result);
    }

    /// Reconciles without faults until only full maps keep frontends from being written; retries those as the driver
    /// does.
    fn settle(&mut self) {
        self.faults.stop();
        for _ in 0..6 {
            self.dirty.extend(self.frontends().into_keys());
            self.reconcile();
            self.ops.prune().unwrap();
            self.dirty.extend(self.ops.take_retriable());
        }
        self.reconcile();
    }

    fn is_full(&self, address: &L3n4Addr) -> bool {
        let result = self.results.get(address);
        matches!(result, Some(Err(error)) if error.is_full())
    }

    /// Whether a frontend that is not in the maps could be added to them: on a copy with a fresh reconciler.
    fn would_fit(&self, sizes: LbMapSizes, frontend: &Frontend) -> bool {
        let mut snapshot = crate::testing::snapshot::MapSnapshot::default();
        snapshot.take(&self.fake).unwrap();
        let copy: Arc<LoadBalancerMaps> = maps_of(sizes);
        snapshot.restore(&copy, false).unwrap();
        let tables = |id: u16, ipv6: bool, table: Vec<u32>| {
            let key = key::maglev(id, ipv6).into_inner();
            copy.maglev.of(ipv6).update(&key, &table).unwrap();
        };
        self.fake.each_maglev(tables).unwrap();
        let mut ops = annotated(&copy);
        ops.restore().unwrap();
        ops.upsert(frontend);
        ops.finish().pop().unwrap().is_ok()
    }
}

// Lines of `meaning` by the frontend that they belong to, and those of backends.
fn lines_of(lines: &BTreeSet<String>, address: &L3n4Addr) -> BTreeSet<String> {
    let is_own = |line: &&String| {
        let mut words = line.split(' ');
        let (kind, of) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        kind != "backend" && of.parse::<L3n4Addr>().is_ok_and(|of| is_of(&of, address))
    };
    lines.iter().filter(is_own).cloned().collect()
}

// An address of a frontend, or of its expansion.
fn is_of(address: &L3n4Addr, frontend: &L3n4Addr) -> bool {
    address == frontend || (frontend.is_unspecified() && address.port() == frontend.port())
}

// Whether a slot is one of those that its master counts, and for a lookup table whether there are any.
fn is_counted(line: &str, lines: &BTreeSet<String>) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let least = match words[0] {
        "slot" => words[2].parse().unwrap(),
        "maglev" => 1,
        _ => return true,
    };
    let master = format!("master {} ", words[1]);
    let counts = lines.iter().filter_map(|line| line.strip_prefix(&master));
    let counts = counts.map(|rest| -> usize { rest.split(' ').take(2).flat_map(str::parse::<usize>).sum() });
    counts.max().is_some_and(|count| count >= least)
}

fn written(frontends: &[Frontend]) -> BTreeSet<String> {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    apply(&mut annotated(&maps), frontends);
    meaning(&maps)
}

fn check(world: &mut World, sizes: LbMapSizes) -> Result<(), TestCaseError> {
    let frontends = world.frontends();
    let lines = meaning(&world.fake);
    let text = dump(&world.fake);
    // An affinity match of a backend that is gone matches nothing. Nor is used what the master does not count: it stays
    // where its deletion failed and the frontend is refused since.
    let leads_nowhere = |line: &&String| {
        let is_used = !line.starts_with("affinity ") && (!world.had_faults || is_counted(line, &lines));
        line.contains("dangling") && is_used
    };
    prop_assert!(
        !lines.iter().any(|line| leads_nowhere(&line)),
        "{text}\n{lines:#?}"
    );
    for (address, frontend) in &frontends {
        let result = &world.results[address];
        let own = lines_of(&lines, address);
        if result.is_ok() {
            let wanted = lines_of(&written(std::slice::from_ref(frontend)), address);
            prop_assert_eq!(own, wanted, "{} as the tables say", address);
            continue;
        }
        let error = result.as_ref().unwrap_err().to_string();
        prop_assert!(
            error.starts_with("map cilium_lb") && error.contains(" is full ("),
            "{error}"
        );
        if own.is_empty() {
            prop_assert!(
                !world.would_fit(sizes, frontend),
                "{address} fits: {error}\n{text}"
            );
            continue;
        }
        let masters = |lines: &BTreeSet<String>| -> Vec<String> {
            let masters = lines.iter().filter(|line| line.starts_with("master "));
            masters.cloned().collect()
        };
        for master in masters(&own) {
            // Faults may leave one address of it in a later state than another, but each is in one that works.
            let mut words = master.split(' ').skip(1);
            let slots = format!("slot {} ", words.next().unwrap());
            let count: usize = words.next().unwrap().parse().unwrap();
            let slots = own.iter().filter(|line| line.starts_with(&slots));
            prop_assert!(slots.count() >= count, "{master}\n{text}");
        }
        if !world.had_faults {
            let before = lines_of(&written(std::slice::from_ref(&world.good[address])), address);
            prop_assert_eq!(masters(&own), masters(&before), "{} as it was", address);
        }
    }
    let is_known = |address: &L3n4Addr| frontends.keys().any(|frontend| is_of(address, frontend));
    for line in &lines {
        let of = line.split(' ').nth(1).unwrap().parse::<L3n4Addr>();
        let is_backend = line.starts_with("backend ");
        prop_assert!(
            is_backend || of.is_ok_and(|of| of.port() == 0 || is_known(&of)),
            "{line}"
        );
    }
    if frontends.keys().all(|address| !world.is_full(address)) {
        let all: Vec<Frontend> = frontends.values().cloned().collect();
        prop_assert_eq!(&lines, &written(&all), "all as a fresh reconciler writes it");
    }
    Ok(())
}

// Everything settles after the steps, and again after each service that goes then.
fn fill_and_drain(sizes: LbMapSizes, seed: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(sizes, seed);
    for step in steps {
        world.change(step);
    }
    world.settle();
    check(&mut world, sizes)?;

    // Capacity for the next with each service that goes, without a change to those that wait.
    for service in 0..FRONTENDS.len() {
        world.change(&Step::Frontends(service, [false, false]));
        for _ in 0..4 {
            world.reconcile();
        }
        world.settle();
        check(&mut world, sizes)?;
    }
    prop_assert_eq!(dump(&world.fake), "");
    prop_assert_eq!(world.ops.summary(), Summary::default());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    // A failure prints its input, the seed of the faults with it, and is stored to be replayed.
    #[test]
    fn what_fits_is_served_and_the_rest_leaves_nothing(
        sizes in sizes(),
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        fill_and_drain(sizes, seed, &steps)?;
    }

    #[test]
    fn maps_are_what_the_tables_say_after_any_churn(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let sizes = LbMapSizes::small(65_536);
        let mut world = World::new(sizes, seed);
        for step in &steps {
            world.change(step);
        }
        world.faults.stop();
        // Only what changed is reconciled again.
        for _ in 0..4 {
            world.reconcile();
        }
        let all: Vec<Frontend> = world.frontends().into_values().collect();
        world.ops.prune().unwrap();

        prop_assert_eq!(meaning(&world.fake), written(&all));
    }
}

// A refused frontend that stays as it was was the one to write it.
#[test]
fn a_wildcard_entry_is_there_for_all_frontends_of_its_address() {
    use BackendState::Active;
    let sizes = LbMapSizes {
        services: 5,
        backends: 3,
        reverse_nat: 3,
        affinity: 2,
        source_range: 4,
        maglev: 2,
        ..LbMapSizes::small(65_536)
    };
    let steps = [
        Step::Frontends(0, [true, true]),
        Step::Reconcile,
        Step::Restart,
        Step::Frontends(1, [true, true]),
        Step::Backend(0, 1, Some(Active)),
        Step::Backend(3, 1, Some(Active)),
        Step::Frontends(3, [true, false]),
    ];
    fill_and_drain(sizes, 2_590_708_180_350_419_639, &steps).unwrap();
}

// A frontend that does not fit releases a backend that slots of an earlier run name.
#[test]
fn backends_of_an_earlier_run_stay_until_it_is_pruned() {
    use BackendState::Active;
    let sizes = LbMapSizes {
        services: 4,
        backends: 3,
        reverse_nat: 2,
        ..LbMapSizes::small(65_536)
    };
    let steps = [
        Step::Backend(0, 1, Some(Active)),
        Step::Frontends(0, [true, true]),
        Step::Reconcile,
        Step::Frontends(0, [false, true]),
        Step::Frontends(3, [true, true]),
        Step::Restart,
        Step::Reconcile,
        Step::Frontends(0, [true, true]),
        Step::Backend(0, 2, Some(Active)),
        Step::Restart,
    ];
    // Without faults.
    fill_and_drain(sizes, 4, &steps).unwrap();
}

#[test]
fn a_refused_frontend_gets_the_ids_that_it_had_when_there_is_room() {
    let sizes = LbMapSizes {
        services: 6,
        ..LbMapSizes::default()
    };
    let maps: Arc<LoadBalancerMaps> = maps_of(sizes);
    let mut ops = ops(&maps);
    let service = |n: u8| {
        let rows = [1, 2].map(|at| backend(&format!("10.0.{n}.{at}:80/TCP"), BackendState::Active));
        frontend(&format!("10.50.0.{n}:80/TCP"), FrontendKind::ClusterIp, &rows)
    };
    apply(&mut ops, &[service(1)]);
    for _ in 0..3 {
        ops.upsert(&service(2));
        let refused = ops.finish().remove(0).unwrap_err();
        ops.retry_refused(&[(&service(2), refused)]);
    }

    ops.remove(service(1).address());
    ops.finish();
    apply(&mut ops, &[service(2)]);

    let after = dump(&maps);
    assert!(
        after.contains("SVC: ID=2 ADDR=10.50.0.2:80/TCP SLOT=2 BEID=4"),
        "{after}"
    );
    assert_eq!(ops.summary().restored_backend_ids, 0, "nothing is kept any more");

    // Nor for one that goes while it waits.
    ops.upsert(&service(3));
    let refused = ops.finish().remove(0).unwrap_err();
    ops.retry_refused(&[(&service(3), refused)]);
    assert_eq!(ops.summary().restored_backend_ids, 2);
    ops.remove(service(3).address());
    ops.finish();
    assert_eq!(ops.summary().restored_backend_ids, 0);
    assert_eq!(ops.summary().restored_service_ids, 0);
}

#[test]
fn a_refused_change_keeps_the_ids_of_the_backends_that_it_adds() {
    let sizes = LbMapSizes {
        backends: 1,
        ..LbMapSizes::default()
    };
    let maps: Arc<LoadBalancerMaps> = maps_of(sizes);
    let mut ops = ops(&maps);
    let with = |count: u8| {
        let rows: Vec<BackendRow> = (1..=count)
            .map(|n| backend(&format!("10.0.0.{n}:80/TCP"), BackendState::Active))
            .collect();
        frontend("10.50.0.1:80/TCP", FrontendKind::ClusterIp, &rows)
    };
    apply(&mut ops, &[with(0)]);
    for _ in 0..3 {
        ops.upsert(&with(2));
        let refused = ops.finish().remove(0).unwrap_err();
        ops.retry_refused(&[(&with(2), refused)]);
    }

    apply(&mut ops, &[with(1)]);

    let after = dump(&maps);
    assert!(after.contains("BE: ID=1 ADDR=10.0.0.1:80/TCP"), "{after}");
}

#[test]
fn a_frontend_whose_tables_do_not_fit_stays_as_it_was_at_all_addresses() {
    use BackendState::Active;
    let sizes = LbMapSizes {
        services: 13,
        backends: 3,
        reverse_nat: 3,
        maglev: 1,
        ..LbMapSizes::small(65_536)
    };
    let steps = [
        Step::Frontends(2, [true, true]),
        Step::Reconcile,
        Step::Restart,
        Step::Features(2, false, 0, true),
        Step::Backend(2, 1, Some(Active)),
    ];
    fill_and_drain(sizes, 4, &steps).unwrap();
}

// A write that failed left its lookup table older than its slots, when the agent was restarted.
#[test]
fn backends_of_a_lookup_table_of_an_earlier_run_stay_with_a_frontend_that_is_refused() {
    use BackendState::{Active, Terminating};
    let sizes = LbMapSizes {
        services: 4,
        backends: 3,
        affinity: 2,
        maglev: 2,
        ..LbMapSizes::small(65_536)
    };
    let steps = [
        Step::Backend(4, 6, Some(Active)),
        Step::Backend(1, 1, Some(Active)),
        Step::Frontends(1, [true, false]),
        Step::Backend(4, 5, Some(Active)),
        Step::Backend(0, 1, Some(Terminating)),
        Step::Prune,
        Step::Features(4, true, 0, true),
        Step::Prune,
        Step::Frontends(4, [true, true]),
        Step::Backend(0, 1, Some(Terminating)),
        Step::Backend(1, 1, Some(Active)),
        Step::Backend(0, 2, Some(Active)),
        Step::Frontends(0, [true, true]),
        Step::Reconcile,
        Step::Backend(1, 1, Some(Active)),
        Step::Backend(4, 1, Some(Active)),
        Step::Backend(4, 5, Some(Terminating)),
        Step::Reconcile,
        Step::Backend(1, 1, Some(Active)),
        Step::Backend(0, 1, Some(Active)),
        Step::Reconcile,
        Step::Prune,
        Step::Reconcile,
        Step::Restart,
    ];
    fill_and_drain(sizes, 13_808_452_429_899_736_998, &steps).unwrap();
}
