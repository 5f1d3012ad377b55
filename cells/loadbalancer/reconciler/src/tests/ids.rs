// SPDX-License-Identifier: Apache-2.0

//! What ids mean to flows that programs remember, over histories of services, endpoints, restarts and other sizes.

use std::net::Ipv4Addr;

use skep_bpf_maps::conntrack::{self, CT_TCP4, CtEntry, CtKey4, key_flags};
use skep_bpf_maps::lb::{OWNER, Service4Key, U16};
use skep_bpf_sys::{Map, MapStore, RawMap, testing::Node};
use skep_datapath_maps::{MapOwner, Maps};
use skep_loadbalancer_model::hash::HashMap;

use super::*;

/// Ids of services, and of backends: few enough that the counters wrap around.
const SERVICE_IDS: u32 = 12;
const BACKEND_IDS: u32 = 14;
const SERVICES: u8 = 3;
const FRONTENDS: u8 = 4;
const ADDRESSES: u8 = 5;
const CLIENTS: u8 = 3;

#[derive(Clone, Debug)]
enum Change {
    /// An endpoint of a service at an address; a pod that is there already serves it, too.
    Add(u8, u8),
    /// The pod at an address serves a service no more.
    Remove(u8, u8),
    /// The pod at an address ends, another one of a service gets it; one that serves it already serves only it.
    Replace(u8, u8),
    /// A frontend belongs to this service, or to none.
    Frontend(u8, Option<u8>),
}

#[derive(Clone, Debug)]
enum Step {
    /// Changes that are reconciled in one round.
    Round(Vec<Change>),
    /// A packet of a client to a frontend.
    Packet(u8, u8),
    /// Conntrack forgets a flow.
    End(u8, u8),
    /// The agent is killed and started again, with these changes meanwhile, and this size of its maps.
    Restart(Vec<Change>, u32),
}

const NO_FLOW: CtEntry = CtEntry {
    nat_address: [0; 16],
    packets: 0,
    bytes: 0,
    lifetime: 0,
    flags: 0,
    flags2: 0,
    rev_nat: U16::ZERO,
    nat_port: U16::ZERO,
    tx_flags_seen: 0,
    rx_flags_seen: 0,
    source_identity: 0,
    last_tx_report: 0,
    last_rx_report: 0,
};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = prop_oneof![
        3 => (0..SERVICES, 0..ADDRESSES).prop_map(|(s, a)| Change::Add(s, a)),
        2 => (0..SERVICES, 0..ADDRESSES).prop_map(|(s, a)| Change::Remove(s, a)),
        1 => (0..SERVICES, 0..ADDRESSES).prop_map(|(s, a)| Change::Replace(s, a)),
        2 => (0..FRONTENDS, prop::option::weighted(0.8, 0..SERVICES)).prop_map(|(f, s)| Change::Frontend(f, s)),
    ];
    let changes = move |most| prop::collection::vec(change.clone(), 0..most);
    let step = prop_oneof![
        4 => changes(4).prop_map(Step::Round),
        8 => (0..CLIENTS, 0..FRONTENDS).prop_map(|(c, f)| Step::Packet(c, f)),
        1 => (0..CLIENTS, 0..FRONTENDS).prop_map(|(c, f)| Step::End(c, f)),
        1 => (changes(3), 60u32..100).prop_map(|(changes, size)| Step::Restart(changes, size)),
    ];
    prop::collection::vec(step, 1..60)
}

/// A flow that is to go on: the service that was called, and the pod that answered.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Flow {
    service: u8,
    pod: u32,
}

struct World {
    maps: Arc<LoadBalancerMaps>,
    conntrack: Map<CtKey4, CtEntry>,
    ops: Ops,
    /// Pods by address, and what they serve.
    pods: BTreeMap<u8, (u32, BTreeSet<u8>)>,
    /// Those of the last round.
    reconciled: BTreeMap<u8, (u32, BTreeSet<u8>)>,
    frontends: BTreeMap<u8, u8>,
    rows: HashMap<(u8, u8), BackendRow>,
    flows: BTreeMap<(u8, u8), Flow>,
    /// The last answer to each client.
    answers: BTreeMap<(u8, u8), Flow>,
    /// Frontends that the reconciler knows.
    known: BTreeSet<u8>,
    next_pod: u32,
}

fn open(size: u32) -> (Arc<LoadBalancerMaps>, Map<CtKey4, CtEntry>) {
    let owners = [
        MapOwner::new(OWNER).sizes(LbMapSizes::small(size)),
        MapOwner::new(conntrack::OWNER),
    ];
    let maps = Maps::in_memory(owners).unwrap();
    (Arc::new(LoadBalancerMaps::new(&maps)), maps.handle(&CT_TCP4))
}

fn machine(maps: &Arc<LoadBalancerMaps>) -> Ops {
    let mut ops = ops(maps);
    ops.service_ids.limit(SERVICE_IDS);
    ops.backend_ids.limit(BACKEND_IDS);
    ops
}

/// What the store does when a map gets another size.
fn carry(from: &dyn RawMap, to: &dyn RawMap) {
    from.walk(&mut |key, value| assert!(to.update(key, value).is_empty()))
        .unwrap();
}

fn pod_address(address: u8) -> L3n4Addr {
    addr(&format!("10.0.0.{address}:80/TCP"))
}

impl World {
    fn new() -> Self {
        let (maps, conntrack) = open(64);
        Self {
            ops: machine(&maps),
            maps,
            conntrack,
            pods: BTreeMap::new(),
            reconciled: BTreeMap::new(),
            frontends: BTreeMap::new(),
            rows: HashMap::default(),
            flows: BTreeMap::new(),
            answers: BTreeMap::new(),
            known: BTreeSet::new(),
            next_pod: 0,
        }
    }

    /// A service that has an address before and after a round has the same pod there, as far as anyone can tell.
    fn new_pod(&mut self, address: u8, service: u8) {
        let known = self.reconciled.get(&address);
        let known = known.filter(|(_, serves)| serves.contains(&service));
        let pod = known.map_or(self.next_pod, |(pod, _)| *pod);
        self.next_pod += 1;
        self.pods.insert(address, (pod, [service].into()));
    }

    fn change(&mut self, change: &Change) {
        match *change {
            Change::Add(service, address) => match self.pods.get_mut(&address) {
                Some((_, serves)) => {
                    serves.insert(service);
                }
                None => self.new_pod(address, service),
            },
            Change::Remove(service, address) => {
                if let Some((_, serves)) = self.pods.get_mut(&address) {
                    serves.remove(&service);
                    if serves.is_empty() {
                        self.pods.remove(&address);
                    }
                }
            }
            Change::Replace(service, address) => match self.pods.get_mut(&address) {
                Some((_, serves)) if serves.contains(&service) => *serves = [service].into(),
                _ => self.new_pod(address, service),
            },
            Change::Frontend(at, Some(service)) => {
                self.frontends.insert(at, service);
            }
            Change::Frontend(at, None) => {
                self.frontends.remove(&at);
            }
        }
        // Flows whose service lost the frontend or the pod need not go on.
        let (pods, frontends) = (&self.pods, &self.frontends);
        self.flows.retain(|(_, at), flow| {
            let mut pods = pods.values();
            frontends.get(at) == Some(&flow.service)
                && pods.any(|(pod, serves)| *pod == flow.pod && serves.contains(&flow.service))
        });
    }

    /// Addresses of the endpoints of each frontend.
    fn endpoints(&self) -> BTreeMap<u8, BTreeSet<u8>> {
        let of = |service: &u8| {
            let pods = self
                .pods
                .iter()
                .filter(|(_, (_, serves))| serves.contains(service));
            pods.map(|(address, _)| *address).collect()
        };
        self.frontends
            .iter()
            .map(|(at, service)| (*at, of(service)))
            .collect()
    }

    /// Maps do not name services: after a restart, a frontend with one of its endpoints counts as that of the same service,
    /// and keeps its flows.
    fn expect_shared(&mut self, before: &BTreeMap<u8, BTreeSet<u8>>) {
        let now = self.endpoints();
        for ((_, at), flow) in &mut self.answers {
            if let (Some(before), Some(now)) = (before.get(at), now.get(at))
                && !before.is_disjoint(now)
            {
                flow.service = self.frontends[at];
            }
        }
    }

    fn wanted(&mut self) -> Vec<Frontend> {
        let mut all = Vec::new();
        for (at, service) in &self.frontends {
            let name = ServiceName::new("shop", &format!("s{service}"));
            let pods = self
                .pods
                .iter()
                .filter(|(_, (_, serves))| serves.contains(service));
            let rows: Vec<BackendRow> = pods
                .map(|(address, _)| {
                    let row = || {
                        let params = BackendParams::new(pod_address(*address), Source::Kubernetes);
                        testing::row(Backend::new(name.clone(), params))
                    };
                    self.rows.entry((*service, *address)).or_insert_with(row).clone()
                })
                .collect();
            let service = Service::new(name.clone(), Source::Kubernetes);
            let address = format!("10.50.0.{at}:80/TCP");
            all.push(frontend_of(service, &address, FrontendKind::ClusterIp, &rows));
        }
        all
    }

    /// One round, and more of them while there is no id: then conntrack forgets flows that are over.
    fn reconcile(&mut self) {
        self.reconciled = self.pods.clone();
        let wanted = self.wanted();
        let gone: Vec<L3n4Addr> = self
            .known
            .iter()
            .filter(|at| !self.frontends.contains_key(at))
            .map(|at| addr(&format!("10.50.0.{at}:80/TCP")))
            .collect();
        self.known = self.frontends.keys().copied().collect();
        self.ops.part_moved(&gone, &wanted.iter().collect::<Vec<_>>());
        for _ in 0..4 {
            gone.iter().for_each(|address| self.ops.remove(address));
            wanted.iter().for_each(|frontend| self.ops.upsert(frontend));
            let failed: Vec<ReconcileError> = self
                .ops
                .finish()
                .into_iter()
                .filter_map(FrontendResult::err)
                .collect();
            if failed.is_empty() {
                return;
            }
            assert!(
                failed.iter().all(|error| matches!(error, ReconcileError::NoId)),
                "{failed:?}"
            );
            self.collect();
        }
        panic!("no id, and nothing bears them");
    }

    /// Conntrack forgets the entries that no flow uses.
    fn collect(&mut self) {
        let mut dead = Vec::new();
        self.conntrack
            .for_each(|key, _| {
                if !self.flows.contains_key(&(key.daddr[3], key.saddr[3])) {
                    dead.push(key);
                }
            })
            .unwrap();
        for key in dead {
            self.conntrack.delete(&key).unwrap();
        }
    }

    fn restart(&mut self, size: u32) {
        let (maps, conntrack) = open(size);
        let (old, new) = (&self.maps, &maps);
        carry(&**old.services.v4.raw(), &**new.services.v4.raw());
        carry(&**old.backends.v4.raw(), &**new.backends.v4.raw());
        carry(&**old.reverse_nat.v4.raw(), &**new.reverse_nat.v4.raw());
        carry(&**old.id_marks.raw(), &**new.id_marks.raw());
        carry(&**self.conntrack.raw(), &**conntrack.raw());
        (self.maps, self.conntrack) = (maps, conntrack);
        self.ops = machine(&self.maps);
        self.ops.restore().unwrap();
        let wanted = self.wanted();
        self.ops.forget_moved(wanted.iter());
        self.known.clear();
        self.reconcile();
        self.ops.prune().unwrap();
    }

    /// Where programs send a packet, as `translate` does in `bpf/include/packet/service.inc.h`.
    fn translate(&self, client: u8, at: u8) -> Option<u8> {
        let key = Service4Key::new(Ipv4Addr::new(10, 50, 0, at), 80, 6, Default::default());
        let master = self.maps.services.v4.lookup(&key).unwrap()?;
        let flow = CtKey4 {
            daddr: [192, 168, 0, client],
            saddr: [10, 50, 0, at],
            dport: U16::new(40_000),
            sport: U16::new(80),
            proto: 6,
            flags: key_flags::SERVICE,
        };
        let address = |id: u32| {
            let backend = self
                .maps
                .backends
                .v4
                .lookup(&skep_bpf_maps::lb::BackendKey::new(id));
            backend.unwrap().map(|backend| backend.address[3])
        };
        let known = self.conntrack.lookup(&flow).unwrap();
        let known = known.filter(|entry| entry.rev_nat == master.rev_nat);
        if let Some(found) = known.and_then(|entry| address(entry.backend_id() as u32)) {
            return Some(found);
        }
        let slot = u16::from(client).checked_rem(master.count)? + 1;
        let id = self.maps.services.v4.lookup(&key.at(slot)).unwrap()?.backend_id();
        let mut entry = known.unwrap_or(NO_FLOW);
        entry.rev_nat = master.rev_nat;
        entry.nat_address[8..].copy_from_slice(&u64::from(id).to_ne_bytes());
        self.conntrack.update(&flow, &entry).unwrap();
        address(id)
    }

    fn packet(&mut self, client: u8, at: u8) {
        let found = self.translate(client, at);
        let before = self.flows.remove(&(client, at));
        let Some(service) = self.frontends.get(&at).copied() else {
            assert_eq!(found, None, "a frontend that is gone");
            return;
        };
        let Some(address) = found else {
            assert_eq!(before, None, "a flow that could go on");
            return;
        };
        let (pod, serves) = &self.pods[&address];
        let flow = Flow { service, pod: *pod };
        // A pod that left one of several services keeps the flows that it has.
        let is_same = self.answers.insert((client, at), flow) == Some(flow);
        assert!(
            serves.contains(&service) || is_same,
            "client {client} called service {service} at frontend {at}, pod {pod} of {serves:?} answers"
        );
        assert_eq!(before.unwrap_or(flow), flow, "the flow goes on");
        if serves.contains(&service) {
            self.flows.insert((client, at), flow);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_flow_is_led_to_another_service_and_none_breaks(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            match step {
                Step::Round(changes) => {
                    changes.iter().for_each(|change| world.change(change));
                    world.reconcile();
                }
                Step::Packet(client, at) => world.packet(*client, *at),
                Step::End(client, at) => {
                    world.flows.remove(&(*client, *at));
                    world.collect();
                }
                Step::Restart(changes, size) => {
                    let before: BTreeMap<u8, BTreeSet<u8>> = world.endpoints();
                    changes.iter().for_each(|change| world.change(change));
                    world.expect_shared(&before);
                    world.restart(*size);
                }
            }
        }
    }
}

/// What it takes for the wrong answer: the id of a backend, and that of a frontend, goes to another object.
#[test]
fn ids_of_what_went_before_a_restart_mean_nothing_else() {
    let mut world = World::new();
    for change in [
        Change::Frontend(0, Some(0)),
        Change::Frontend(1, Some(0)),
        Change::Add(0, 0),
        Change::Add(0, 1),
    ] {
        world.change(&change);
    }
    world.reconcile();
    (0..CLIENTS).for_each(|client| world.packet(client, 0));
    let mark = world.maps.id_marks().unwrap();

    // The last ids are given back, then the agent is killed.
    world.change(&Change::Remove(0, 1));
    world.change(&Change::Frontend(1, None));
    world.reconcile();
    world.change(&Change::Frontend(2, Some(1)));
    world.change(&Change::Add(1, 3));
    world.restart(80);

    let used = world.maps.borne_ids().unwrap();
    assert_eq!(
        mark.map(|mark| (mark.next, mark.has_wrapped)),
        [(3, 0), (3, 0)],
        "next ids before"
    );
    assert!(used.services.contains(3) && used.backends.contains(3), "{used:?}");
    (0..CLIENTS).for_each(|client| world.packet(client, 0));
}

/// Terminating endpoints are behind the others as quarantined ones are; they are used when no other is left.
#[test]
fn what_ends_is_not_taken_for_quarantined_after_a_restart() {
    use BackendState::{Active, Terminating};
    let maps = new_maps();
    let ends = backend("10.0.0.1:80/TCP", Terminating);
    let state = |rows: &[BackendRow]| frontend("10.50.0.9:80/TCP", FrontendKind::ClusterIp, rows);
    apply(
        &mut ops(&maps),
        &[state(&[ends.clone(), backend("10.0.0.2:80/TCP", Active)])],
    );
    let mut again = ops(&maps);
    again.restore().unwrap();
    assert_eq!(again.summary().restored_quarantines, 0);

    apply(&mut again, &[state(&[ends])]);

    assert!(dump(&maps).contains("COUNT=1 QCOUNT=0"), "{}", dump(&maps));
}

/// The next start has other settings: maps that are pinned are replaced.
#[test]
fn ids_are_those_of_pinned_maps_of_another_size() {
    let in_kernel = Node::run("lb-resize", |node| {
        let open = |max| {
            let store = MapStore::new(node.store().root());
            LoadBalancerMaps::open(&store, LbMapSizes::small(max), true, true).map(Arc::new)
        };
        let state = |n: u8| {
            let row = backend(&format!("10.0.0.{n}:80/TCP"), BackendState::Active);
            frontend(&format!("10.50.0.{n}:80/TCP"), FrontendKind::ExternalIps, &[row])
        };
        let maps = open(64)?;
        apply(&mut ops(&maps), &[1, 2, 3].map(state));
        let before = dump(&maps);

        let maps = open(32)?;
        assert_eq!(dump(&maps), before, "before anything is reconciled");
        let mut again = ops(&maps);
        assert_eq!(again.restore()?, 3);
        apply(&mut again, &[3, 1, 2].map(state));
        again.prune()?;

        assert_eq!(dump(&maps), before);
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    in_kernel.unwrap();
}
