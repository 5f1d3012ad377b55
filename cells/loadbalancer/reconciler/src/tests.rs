// SPDX-License-Identifier: Apache-2.0

//! The machine against maps that fail, stop, are full or hold an earlier run.

mod capacity;
mod changes;
mod faults;
mod ids;
mod restart;
mod rounds;
mod wildcards;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use skep_bpf_maps::lb::{DEFAULT_LB_MAP_MAX, LbMapSizes};
use skep_bpf_sys::map::{Fate, Faults, FaultyMap};
use skep_loadbalancer_maglev::{HashSeed, Maglev, TableSize};
use skep_loadbalancer_model::testing;
use skep_loadbalancer_model::types::{
    Backend, BackendParams, BackendRow, BackendState, Frontend, FrontendKind, FrontendParams, L3n4Addr,
    Service, ServiceName, Source,
};

use super::*;
use crate::ids::Ids;
use crate::maps::{LoadBalancerMaps, key, text};
use crate::testing::{decorated, with_faults};

fn addr(text: &str) -> L3n4Addr {
    text.parse().unwrap()
}

fn small_maglev() -> Maglev {
    Maglev::new(TableSize::supported().next().unwrap(), HashSeed::default())
}

fn backend(address: &str, state: BackendState) -> BackendRow {
    let mut params = BackendParams::new(addr(address), Source::Kubernetes);
    params.state = state;
    testing::row(Backend::new(ServiceName::new("shop", "web"), params))
}

fn frontend(address: &str, kind: FrontendKind, backends: &[BackendRow]) -> Frontend {
    frontend_of(
        Service::new(ServiceName::new("shop", "web"), Source::Kubernetes),
        address,
        kind,
        backends,
    )
}

fn frontend_of(service: Service, address: &str, kind: FrontendKind, backends: &[BackendRow]) -> Frontend {
    let address = addr(address);
    let params = FrontendParams {
        address,
        kind,
        port_name: "".into(),
        service_port: address.port(),
    };
    let mut frontend = Frontend::new(params, testing::service(service));
    frontend.backends = backends.iter().cloned().collect();
    frontend
}

fn ops(maps: &Arc<LoadBalancerMaps>) -> Ops {
    Ops::new(Settings::default(), maps.clone(), small_maglev())
}

/// Ids below `max`, of which no entry bears any.
fn few_ids(max: u32) -> Ids {
    Ids::new(max, Box::new(|| Some(Default::default())))
}

#[track_caller]
fn apply(ops: &mut Ops, frontends: &[Frontend]) {
    frontends.iter().for_each(|frontend| ops.upsert(frontend));
    for result in ops.finish() {
        result.unwrap();
    }
}

fn dump(maps: &Arc<LoadBalancerMaps>) -> String {
    text::dump(maps).unwrap()
}

/// Empty maps with these limits.
fn maps_of(sizes: LbMapSizes) -> Arc<LoadBalancerMaps> {
    Arc::new(LoadBalancerMaps::in_memory(sizes).unwrap())
}

/// Empty maps as large as by default, with the smallest Maglev tables.
fn new_maps() -> Arc<LoadBalancerMaps> {
    maps_of(LbMapSizes::small(DEFAULT_LB_MAP_MAX))
}

/// The same maps with faults, by a seed.
fn faulty(maps: &LoadBalancerMaps, probability: f64, seed: u64) -> (Arc<LoadBalancerMaps>, Arc<Faults>) {
    let faults = Faults::new("maps", probability, seed);
    (Arc::new(with_faults(maps, &faults)), faults)
}

/// Addresses of the node.
const NODE: [&str; 2] = ["10.1.0.1", "10.1.0.2"];

/// The frontend as the writer makes it on a node with these addresses of IPv4, which answer node ports.
fn on_node(mut frontend: Frontend, addresses: &[&str]) -> Frontend {
    let ips: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
    frontend.is_node_address = ips.contains(&frontend.address().ip());
    let is_expanded = frontend.is_expanded() && !frontend.address().is_ipv6() && !ips.is_empty();
    frontend.node_addresses = is_expanded.then(|| ips.into());
    frontend
}

#[test]
fn writes_a_cluster_ip() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    let active = |n: u8| backend(&format!("10.20.0.{n}:8080/TCP"), BackendState::Active);

    apply(
        &mut ops,
        &[frontend(
            "10.50.0.9:80/TCP",
            FrontendKind::ClusterIp,
            &[active(5), active(6)],
        )],
    );

    assert_eq!(
        dump(&maps),
        "BE: ID=1 ADDR=10.20.0.5:8080/TCP STATE=active
BE: ID=2 ADDR=10.20.0.6:8080/TCP STATE=active
REV: ID=1 ADDR=10.50.0.9:80
SVC: ID=0 ADDR=10.50.0.9:0/ANY SLOT=0 LBALG=undef AFFTimeout=0 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable
SVC: ID=1 ADDR=10.50.0.9:80/TCP SLOT=0 LBALG=undef AFFTimeout=0 COUNT=2 QCOUNT=0 FLAGS=ClusterIP+non-routable
SVC: ID=1 ADDR=10.50.0.9:80/TCP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable
SVC: ID=1 ADDR=10.50.0.9:80/TCP SLOT=2 BEID=2 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable
"
    );
}

#[test]
fn orders_slots_and_counts_by_state() {
    use BackendState::{Active, Maintenance, Terminating, TerminatingNotServing};
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    let rows = [
        backend("10.0.0.1:80/TCP", TerminatingNotServing),
        backend("10.0.0.2:80/TCP", Terminating),
        backend("10.0.0.3:80/TCP", Maintenance),
        backend("10.0.0.4:80/TCP", Active),
    ];
    let service = "10.50.0.9:80/TCP";

    apply(&mut ops, &[frontend(service, FrontendKind::ClusterIp, &rows)]);
    let with_active = dump(&maps);
    apply(
        &mut ops,
        &[frontend(service, FrontendKind::ClusterIp, &rows[..3])],
    );
    let without = dump(&maps);

    // Numbers follow the order of slots; the one in maintenance comes last and has no slot.
    assert!(with_active.contains("BE: ID=1 ADDR=10.0.0.4:80/TCP STATE=active"));
    assert!(with_active.contains("BE: ID=4 ADDR=10.0.0.3:80/TCP STATE=maintenance"));
    assert!(with_active.contains("SLOT=0 LBALG=undef AFFTimeout=0 COUNT=1 QCOUNT=2"));
    assert!(with_active.contains("SLOT=3 BEID=3") && !with_active.contains("SLOT=4"));
    assert!(
        without.contains("COUNT=1 QCOUNT=1")
            && without.contains("SLOT=1 BEID=2")
            && !without.contains("SLOT=3")
    );
    assert!(!without.contains("BE: ID=1 "));
}

#[test]
fn expands_node_ports_per_scope_and_removes_them() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.ext_traffic_policy = skep_loadbalancer_model::types::TrafficPolicy::Local;
    let rows = [backend("10.0.0.1:80/TCP", BackendState::Active)];
    let frontends = ["0.0.0.0:30000/TCP", "0.0.0.0:30000/TCP/i"]
        .map(|address| frontend_of(service.clone(), address, FrontendKind::NodePort, &rows))
        .map(|frontend| on_node(frontend, &NODE[..1]));

    apply(&mut ops, &frontends);
    let full = dump(&maps);
    frontends
        .iter()
        .for_each(|frontend| ops.remove(frontend.address()));
    ops.finish();

    assert!(full.contains("SVC: ID=4 ADDR=10.1.0.1:30000/TCP/i SLOT=1 BEID=1"));
    assert!(full.contains("ID=1 ADDR=0.0.0.0:30000/TCP SLOT=0 LBALG=undef AFFTimeout=0 COUNT=1 QCOUNT=0 FLAGS=NodePort+Local+two-scopes+non-routable"));
    assert_eq!(dump(&maps), "");
    assert_eq!(ops.summary(), Summary::default());
}

#[test]
fn load_balancer_on_a_node_address_wins_over_a_host_port() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    let host_port = on_node(
        frontend(
            "0.0.0.0:80/TCP",
            FrontendKind::HostPort,
            &[backend("10.0.0.1:80/TCP", BackendState::Active)],
        ),
        &NODE[..1],
    );
    let vip = frontend(
        "10.1.0.1:80/TCP",
        FrontendKind::LoadBalancer,
        &[backend("10.0.0.2:80/TCP", BackendState::Active)],
    );
    apply(&mut ops, std::slice::from_ref(&host_port));

    apply(&mut ops, &[vip.clone(), on_node(host_port.clone(), &[])]);
    let taken = dump(&maps);
    ops.prune().unwrap();
    let pruned = dump(&maps);
    ops.remove(vip.address());
    apply(&mut ops, std::slice::from_ref(&host_port));

    assert!(taken.contains(
        "ADDR=10.1.0.1:80/TCP SLOT=0 LBALG=undef AFFTimeout=0 COUNT=1 QCOUNT=0 FLAGS=LoadBalancer"
    ));
    assert_eq!(taken, pruned);
    assert!(dump(&maps).contains("ADDR=10.1.0.1:80/TCP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=HostPort"));
}

#[test]
fn full_map_is_an_error_of_the_frontend_until_there_is_room() {
    let sizes = LbMapSizes {
        services: 3,
        ..LbMapSizes::small(65_536)
    };
    let maps: Arc<LoadBalancerMaps> = maps_of(sizes);
    let mut ops = ops(&maps);
    let first = frontend(
        "10.50.0.1:80/TCP",
        FrontendKind::ExternalIps,
        &[backend("10.0.0.1:80/TCP", BackendState::Active)],
    );
    let second = frontend(
        "10.50.0.2:80/TCP",
        FrontendKind::ExternalIps,
        &[backend("10.0.0.2:80/TCP", BackendState::Active)],
    );

    apply(&mut ops, std::slice::from_ref(&first));
    ops.upsert(&second);
    let refused = ops.finish().remove(0).unwrap_err();
    ops.remove(first.address());
    ops.finish();
    apply(&mut ops, &[second]);

    assert_eq!(
        refused.to_string(),
        "map cilium_lb4_services_v2 is full (3 entries, see bpf-lb-service-map-max)"
    );
    assert_eq!(dump(&maps).lines().count(), 4);
    assert!(dump(&maps).contains("SVC: ID=2 ADDR=10.50.0.2:80/TCP SLOT=0"));
}

#[test]
fn restores_quarantine_until_the_backend_is_checked() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let sick = |updated: bool, unhealthy| {
        let params = BackendParams::new(addr("10.0.0.1:80/TCP"), Source::Kubernetes);
        let mut row = Backend::new(ServiceName::new("shop", "web"), params);
        row.unhealthy = unhealthy;
        row.unhealthy_updated_at = updated.then(|| Box::new(std::time::SystemTime::now()));
        testing::row(row)
    };
    let well = backend("10.0.0.2:80/TCP", BackendState::Active);
    let state = |first: BackendRow| {
        frontend(
            "10.50.0.9:80/TCP",
            FrontendKind::ClusterIp,
            &[first, well.clone()],
        )
    };
    apply(&mut ops(&maps), &[state(sick(true, true))]);
    let before = dump(&maps);

    let mut again = ops(&maps);
    assert_eq!(again.restore().unwrap(), 1);
    assert_eq!(
        (
            again.summary().restored_service_ids,
            again.summary().restored_quarantines
        ),
        (1, 1)
    );
    apply(&mut again, &[state(sick(false, false))]);
    let restored = dump(&maps);
    apply(&mut again, &[state(sick(true, false))]);

    assert!(before.contains("COUNT=1 QCOUNT=1"));
    assert_eq!(before, restored);
    assert!(dump(&maps).contains("COUNT=2 QCOUNT=0"));
    assert_eq!(again.summary().restored_quarantines, 0);
}

#[test]
fn takes_over_maps_with_protocol_any() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let state = [frontend(
        "10.50.0.9:80/UDP",
        FrontendKind::ClusterIp,
        &[backend("10.0.0.2:80/UDP", BackendState::Active)],
    )];
    let other = frontend(
        "10.50.0.8:80/UDP",
        FrontendKind::ClusterIp,
        &[backend("10.0.0.1:80/UDP", BackendState::Active)],
    );
    let mut first = ops(&maps);
    apply(&mut first, std::slice::from_ref(&other));
    apply(&mut first, &state);
    first.remove(other.address());
    first.finish();
    let mut snapshot = crate::testing::snapshot::MapSnapshot::default();
    snapshot.take(&maps).unwrap();
    let wanted = dump(&maps);

    let maps: Arc<LoadBalancerMaps> = new_maps();
    snapshot.restore(&maps, true).unwrap();
    let mut again = ops(&maps);
    again.restore().unwrap();
    apply(&mut again, &state);
    again.prune().unwrap();

    assert_eq!(dump(&maps), wanted);
    assert!(wanted.contains("BE: ID=2 ADDR=10.0.0.2:80/UDP"));
}

#[test]
fn one_change_of_a_thousand_backends_writes_a_few_entries() {
    let fake: Arc<LoadBalancerMaps> = new_maps();
    let counter = Arc::new(Counter::default());
    let maps = counter.on(&fake);
    let mut ops = ops(&maps);
    let name = |n: usize| format!("10.0.{}.{}:80/TCP", n / 250, n % 250 + 1);
    let mut rows: Vec<BackendRow> = (0..1000)
        .map(|n| backend(&name(n), BackendState::Active))
        .collect();
    let mut state = frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &rows);
    apply(&mut ops, std::slice::from_ref(&state));

    for (round, to) in [
        BackendState::Maintenance,
        BackendState::Active,
        BackendState::Terminating,
    ]
    .into_iter()
    .enumerate()
    {
        counter.writes.store(0, Ordering::Relaxed);
        rows[500] = backend(&name(500), to);
        // The row's table is a new one each time: pretend it is newer.
        state.backends = state.backends.without(&addr(&name(500))).with(rows[500].clone());
        apply(&mut ops, std::slice::from_ref(&state));
        assert!(
            counter.writes.load(Ordering::Relaxed) <= 5,
            "round {round}: {}",
            counter.writes.load(Ordering::Relaxed)
        );
    }
    ops.remove(state.address());
    ops.finish();

    assert_eq!(dump(&fake), "");
}

#[test]
fn zones_of_backends_have_the_numbers_of_the_settings() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let settings = Settings {
        zones: [("one".into(), 7)].into_iter().collect(),
        ..Settings::default()
    };
    let mut ops = Ops::new(settings, maps.clone(), small_maglev());
    let in_zone = |address: &str, zone: &str| {
        let zone = skep_loadbalancer_model::types::BackendZone {
            zone: zone.into(),
            for_zones: skep_loadbalancer_model::types::Names::ABSENT,
        };
        let mut row = Backend::clone(&backend(address, BackendState::Active));
        row.params.zone = Some(zone.into());
        testing::row(row)
    };
    let backends = [
        in_zone("10.0.0.1:80/TCP", "one"),
        in_zone("10.0.0.2:80/TCP", "two"),
        backend("10.0.0.3:80/TCP", BackendState::Active),
    ];

    apply(
        &mut ops,
        &[frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, &backends)],
    );

    let mut zones = Vec::new();
    maps.each_backend(|_, value| zones.push((value.address.to_string(), value.zone)))
        .unwrap();
    zones.sort_unstable();
    let zones: Vec<(&str, u8)> = zones.iter().map(|(address, zone)| (&**address, *zone)).collect();
    assert_eq!(
        zones,
        [
            ("10.0.0.1:80/TCP", 7),
            ("10.0.0.2:80/TCP", 0),
            ("10.0.0.3:80/TCP", 0)
        ]
    );
}

#[test]
fn rejects_features_that_exclude_each_other() {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let mut ops = ops(&maps);
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.session_affinity = true;
    service.proxy_redirects = Some(
        [skep_loadbalancer_model::types::ProxyRedirect {
            proxy_port: 1000,
            ports: [].into(),
        }]
        .into(),
    );

    ops.upsert(&frontend_of(
        service,
        "10.50.0.9:80/TCP",
        FrontendKind::ClusterIp,
        &[],
    ));

    let error = ops.finish().remove(0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid feature combination: SessionAffinity with proxy redirection is not supported"
    );
    assert_eq!(dump(&maps), "");
}

/// Counts writes, and stops the process after some: nothing is written any more.
struct Counter {
    writes: AtomicUsize,
    left: AtomicUsize,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            writes: AtomicUsize::new(0),
            left: AtomicUsize::new(usize::MAX),
        }
    }
}

impl Counter {
    fn on(self: &Arc<Self>, maps: &LoadBalancerMaps) -> Arc<LoadBalancerMaps> {
        Arc::new(decorated(maps, |below| {
            let counter = self.clone();
            Arc::new(FaultyMap::decided_by(below, move |_, _| counter.fate()))
        }))
    }

    fn fate(&self) -> Fate {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let left = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match left {
            Ok(_) => Fate::Passes,
            Err(_) => Fate::IsLost,
        }
    }
}

/// Content of the maps with numbers replaced by what they stand for.
fn meaning(maps: &LoadBalancerMaps) -> BTreeSet<String> {
    let mut services: BTreeMap<u16, String> = BTreeMap::new();
    let mut backends: BTreeMap<u32, String> = BTreeMap::new();
    let mut lines = Vec::new();
    maps.each_backend(|id, value| {
        backends.insert(id, value.address.to_string());
        lines.push(format!("backend {} {}", value.address, value.state));
    })
    .unwrap();
    maps.each_service(|address, slot, value| {
        if slot == 0 {
            services.insert(value.rev_nat.get(), address.to_string());
        }
    })
    .unwrap();
    let dangling = |id: u32| format!("dangling {id}");
    let backend = |id: u32| backends.get(&id).cloned().unwrap_or_else(|| dangling(id));
    let service = |id: u16| services.get(&id).cloned().unwrap_or_else(|| dangling(id.into()));
    maps.each_service(|address, slot, value| {
        let (flags, of) = (value.service_flags(), service(value.rev_nat.get()));
        lines.push(match slot {
            0 => format!(
                "master {address} {} {} {} {flags}",
                value.count, value.qcount, value.target
            ),
            _ => format!(
                "slot {address} {slot} {} of {of} {flags}",
                backend(value.backend_id())
            ),
        });
    })
    .unwrap();
    maps.each_reverse_nat(|id, address| lines.push(format!("reverse {} {address}", service(id))))
        .unwrap();
    maps.each_affinity(|id, by| lines.push(format!("affinity {} {}", service(id), backend(by))))
        .unwrap();
    maps.each_source_range(|id, cidr| lines.push(format!("range {} {cidr}", service(id))))
        .unwrap();
    maps.each_maglev(|id, _, table| {
        let names: Vec<String> = table.iter().map(|id| backend(*id)).collect();
        lines.push(format!("maglev {} {}", service(id), names.join(" ")));
    })
    .unwrap();
    lines.into_iter().collect()
}

/// One state of a service: which backends in which state, with which features.
#[derive(Debug, Clone)]
struct State {
    backends: Vec<(u8, BackendState, bool)>,
    has_affinity: bool,
    ranges: u8,
    is_maglev: bool,
}

fn state() -> impl Strategy<Value = State> {
    use BackendState::{Active, Maintenance, Terminating, TerminatingNotServing};
    let states = prop::sample::select(vec![
        Active,
        Active,
        Active,
        Terminating,
        TerminatingNotServing,
        Maintenance,
    ]);
    let backends = prop::collection::vec((1u8..6, states, any::<bool>()), 0..5);
    (backends, any::<bool>(), 0u8..4, any::<bool>()).prop_map(
        |(backends, has_affinity, ranges, is_maglev)| State {
            backends,
            has_affinity,
            ranges,
            is_maglev,
        },
    )
}

const ADDRESSES: [(&str, FrontendKind); 5] = [
    ("10.50.0.1:80/TCP", FrontendKind::ClusterIp),
    ("10.50.0.1:81/TCP", FrontendKind::ClusterIp),
    ("172.16.0.1:80/TCP", FrontendKind::LoadBalancer),
    ("0.0.0.0:30000/TCP", FrontendKind::NodePort),
    ("[fd00::1]:80/TCP", FrontendKind::LoadBalancer),
];

// Rows of one table, so that revisions grow.
struct Rows {
    db: statedb::Db,
    table: statedb::RwTable<Backend>,
}

impl Rows {
    fn new() -> Self {
        let db = statedb::Db::new();
        let key =
            statedb::Index::<Backend, str>::new("key", |row, keys| keys.add(&row.params.address.to_string()));
        let table = statedb::RwTable::builder("rows")
            .primary(key)
            .build_plain(&db)
            .unwrap();
        Self { db, table }
    }

    fn row(&self, address: &str, state: BackendState, unhealthy: bool) -> BackendRow {
        let mut params = BackendParams::new(addr(address), Source::Kubernetes);
        params.state = state;
        let mut row = Backend::new(ServiceName::new("shop", "web"), params);
        row.unhealthy = unhealthy;
        row.unhealthy_updated_at = Some(Box::new(std::time::UNIX_EPOCH));
        let mut txn = self.db.write(&[&self.table as &dyn statedb::WriteTarget]);
        let row = self.table.insert_get(&mut txn, row).unwrap();
        txn.commit();
        row
    }

    fn frontend(&self, at: usize, state: &State) -> Frontend {
        let (address, kind) = ADDRESSES[at];
        let mut service = Service::new(ServiceName::new("shop", &format!("s{at}")), Source::Kubernetes);
        service.session_affinity = state.has_affinity;
        service.session_affinity_timeout = std::time::Duration::from_secs(100);
        let all = ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8"];
        service.source_ranges = (state.ranges > 0).then(|| {
            all[..usize::from(state.ranges)]
                .iter()
                .map(|net| net.parse().unwrap())
                .collect()
        });
        if state.is_maglev {
            service.annotations = [("service.cilium.io/lb-algorithm", "maglev")]
                .into_iter()
                .collect();
        }
        let is_ipv6 = addr(address).is_ipv6();
        let rows: Vec<BackendRow> = state
            .backends
            .iter()
            .map(|(n, state, unhealthy)| {
                let text = if is_ipv6 {
                    format!("[fd01::{n}]:80/TCP")
                } else {
                    format!("10.0.0.{n}:80/TCP")
                };
                self.row(&text, *state, *unhealthy)
            })
            .collect();
        on_node(frontend_of(service, address, kind, &rows), &NODE)
    }
}

fn annotated(maps: &Arc<LoadBalancerMaps>) -> Ops {
    let settings = Settings {
        algorithm_annotation: true,
        ..Settings::default()
    };
    Ops::new(settings, maps.clone(), small_maglev())
}

// What the maps mean when the final state is written at once.
fn wanted(model: &BTreeMap<usize, Frontend>) -> BTreeSet<String> {
    let maps: Arc<LoadBalancerMaps> = new_maps();
    let frontends: Vec<Frontend> = model.values().cloned().collect();
    apply(&mut annotated(&maps), &frontends);
    meaning(&maps)
}

// Frontends of a later step share backend rows with earlier ones: every frontend sees the newest row of an address.
fn refresh(model: &mut BTreeMap<usize, Frontend>, newest: &Frontend) {
    for frontend in model.values_mut() {
        for row in &newest.backends {
            if frontend.backends.get(&row.params.address).is_some() {
                frontend.backends = frontend.backends.with(row.clone());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn converges_with_faults(steps in prop::collection::vec((0usize..5, prop::option::of(state())), 1..25), batch in 1usize..4, seed in any::<u64>()) {
        let fake: Arc<LoadBalancerMaps> = new_maps();
        let mut ops = annotated(&faulty(&fake, 0.05, seed).0);
        let rows = Rows::new();
        let mut model: BTreeMap<usize, Frontend> = BTreeMap::new();
        let mut dirty: BTreeSet<usize> = BTreeSet::new();

        let run = |ops: &mut Ops, model: &BTreeMap<usize, Frontend>, dirty: &mut BTreeSet<usize>| {
            let batch: Vec<usize> = dirty.iter().copied().collect();
            for at in &batch {
                match model.get(at) {
                    Some(frontend) => ops.upsert(frontend),
                    None => ops.remove(&addr(ADDRESSES[*at].0)),
                }
            }
            for (at, result) in batch.into_iter().zip(ops.finish()) {
                if result.is_ok() {
                    dirty.remove(&at);
                }
            }
        };
        for (n, (at, state)) in steps.iter().enumerate() {
            match state {
                Some(state) => {
                    let frontend = rows.frontend(*at, state);
                    refresh(&mut model, &frontend);
                    dirty.extend(model.keys());
                    model.insert(*at, frontend);
                }
                None => drop(model.remove(at)),
            }
            dirty.insert(*at);
            if n % batch == 0 {
                run(&mut ops, &model, &mut dirty);
            }
        }
        for _ in 0..500 {
            run(&mut ops, &model, &mut dirty);
        }

        prop_assert!(dirty.is_empty());
        prop_assert_eq!(meaning(&fake), wanted(&model));
        model.clear();
        dirty.extend(0..ADDRESSES.len());
        for _ in 0..500 {
            run(&mut ops, &model, &mut dirty);
        }
        prop_assert_eq!(dump(&fake), "");
        prop_assert_eq!(ops.summary(), Summary::default());
    }

    #[test]
    fn converges_after_a_crash_at_any_write_and_keeps_ids(
        before in prop::collection::vec((0usize..5, state()), 1..6),
        change in prop::collection::vec((0usize..5, prop::option::of(state())), 1..4),
        crash in 0usize..60,
    ) {
        let fake: Arc<LoadBalancerMaps> = new_maps();
        let dying = Arc::new(Counter::default());
        let maps = dying.on(&fake);
        let rows = Rows::new();
        let mut ops = annotated(&maps);
        let mut model: BTreeMap<usize, Frontend> = BTreeMap::new();
        for (at, state) in &before {
            let frontend = rows.frontend(*at, state);
            refresh(&mut model, &frontend);
            model.insert(*at, frontend);
        }
        let all: Vec<Frontend> = model.values().cloned().collect();
        apply(&mut ops, &all);
        let ids: BTreeMap<L3n4Addr, u16> = ops.entries.iter().map(|(address, entry)| (*address, entry.id)).collect();

        dying.left.store(crash, Ordering::Relaxed);
        for (at, state) in &change {
            match state {
                Some(state) => {
                    let frontend = rows.frontend(*at, state);
                    refresh(&mut model, &frontend);
                    model.insert(*at, frontend);
                }
                None => {
                    if let Some(frontend) = model.remove(at) {
                        ops.remove(frontend.address());
                    }
                }
            }
        }
        model.values().for_each(|frontend| ops.upsert(frontend));
        ops.finish();
        drop(ops);

        let mut again = annotated(&fake);
        again.restore().unwrap();
        let all: Vec<Frontend> = model.values().cloned().collect();
        apply(&mut again, &all);
        again.prune().unwrap();

        prop_assert_eq!(meaning(&fake), wanted(&model));
        let removed: Vec<usize> = change.iter().filter(|(_, state)| state.is_none()).map(|(at, _)| *at).collect();
        for (at, frontend) in &model {
            let id = again.entries[frontend.address()].id;
            if !removed.contains(at) && let Some(old) = ids.get(frontend.address()) {
                prop_assert_eq!(id, *old);
            }
        }
    }
}
