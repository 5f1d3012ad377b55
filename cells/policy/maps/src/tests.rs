// SPDX-License-Identifier: Apache-2.0

//! Desired policies in maps in memory, which may fail.

#![expect(
    clippy::disallowed_methods,
    reason = "the reconciler of a test is no job of a hive"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use skep_bpf_maps::{
    endpoint::endpoint_flags,
    policy::{POLICIES, POLICY, POLICY_MAX, PolicyKey},
};
use skep_bpf_sys::map::{Fate, FaultyMap, Operation};
use skep_datapath_maps::{InstanceMaps, MapOwner, Maps, OuterMap};
use skep_identity::NumericIdentity;
use statedb::{
    Db, Revision,
    reconciler::{NoHealth, Status, StatusKind},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{AllowAll, Desired, EndpointPolicy, MapState, MapStates, PolicyMaps};

const IDENTITY: NumericIdentity = NumericIdentity::INIT;

/// Desired policies that a test sets.
#[derive(Debug)]
struct Source {
    desired: Mutex<BTreeMap<u16, Desired>>,
    changes: watch::Sender<Revision>,
}

impl MapStates for Source {
    fn desired(&self, endpoint: u16, _: NumericIdentity) -> Option<Desired> {
        self.desired.lock().get(&endpoint).cloned()
    }

    fn changes(&self) -> watch::Receiver<Revision> {
        self.changes.subscribe()
    }
}

/// What maps have been asked, `+key`, `-key` or `read`, and which entries they refuse.
#[derive(Clone, Default)]
struct Writes {
    done: Arc<Mutex<Vec<String>>>,
    refused: Arc<Mutex<BTreeSet<String>>>,
}

struct World {
    maps: Arc<Maps>,
    writes: Writes,
    source: Arc<Source>,
    is_locking_down: bool,
}

struct Run {
    policies: PolicyMaps,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

/// A policy that lets in these identities, and everything out.
fn allows(identities: &[u32]) -> Arc<MapState> {
    let all = MapState::allow_all();
    let [(ingress, entry), egress] = all.entries() else {
        panic!("{all:?}")
    };
    let of = |identity: &u32| {
        let key = PolicyKey {
            identity: *identity,
            ..*ingress
        };
        (key, *entry)
    };
    Arc::new(identities.iter().map(of).chain([*egress]).collect())
}

impl World {
    fn new() -> Self {
        Self::with_room(POLICY_MAX.default)
    }

    fn with_room(entries: u32) -> Self {
        let writes = Writes::default();
        let log = writes.clone();
        let sizes = skep_bpf_maps::MapSizes::default().with(POLICY_MAX, entries);
        let owner = MapOwner::new(skep_bpf_maps::policy::OWNER).sizes(sizes);
        let maps = Maps::wrapped([owner], move |name, below| {
            let (log, name) = (log.clone(), name.to_owned());
            let of_instance = POLICY.instance_of(&name);
            Arc::new(FaultyMap::decided_by(below, move |operation, key| {
                let key = match of_instance {
                    Some(id) => format!("{id}: {}", POLICY.key.text(key)),
                    None => POLICIES.key.text(key),
                };
                let sign = if operation == Operation::Update { '+' } else { '-' };
                log.done.lock().push(format!("{sign}{key}"));
                match log.refused.lock().contains(&key) {
                    true => Fate::Fails,
                    false => Fate::Passes,
                }
            }))
        });
        Self {
            maps: Arc::new(maps.unwrap()),
            writes,
            source: Arc::new(Source {
                desired: Mutex::default(),
                changes: watch::Sender::new(0),
            }),
            is_locking_down: false,
        }
    }

    fn start(&self) -> Run {
        self.start_with(self.source.clone())
    }

    fn start_with(&self, source: Arc<dyn MapStates>) -> Run {
        let timing = |config| statedb::reconciler::Config {
            retry_min: Duration::from_millis(1),
            refresh_interval: None,
            ..config
        };
        let mut settings = <crate::Config as hive::Config>::defaults().unwrap();
        settings.enable_endpoint_lockdown_on_policy_overflow = self.is_locking_down;
        let (policies, reconciler) =
            PolicyMaps::new(Db::new(), &self.maps, source, &settings, timing).unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let running = tokio::spawn(async move { reconciler.run(&token, &NoHealth).await });
        Run {
            policies,
            stop,
            running,
        }
    }

    /// Changes what is desired of an endpoint.
    fn desire(&self, endpoint: u16, revision: Revision, state: &Arc<MapState>) {
        let desired = Desired {
            state: state.clone(),
            enforced: 1,
            revision,
        };
        self.source.desired.lock().insert(endpoint, desired);
    }

    /// What was written since the last call.
    fn written(&self) -> Vec<String> {
        std::mem::take(&mut *self.writes.done.lock())
    }

    fn refuse(&self, keys: &[&str]) {
        *self.writes.refused.lock() = keys.iter().map(ToString::to_string).collect();
    }

    /// Ingress identities in the map of an endpoint.
    fn allowed(&self, endpoint: u16) -> Vec<u32> {
        let map = InstanceMaps::new(self.maps.clone(), &POLICY)
            .open(endpoint)
            .unwrap();
        let keys = map.keys().unwrap().into_iter();
        let mut found: Vec<u32> = keys
            .filter(|key| key.direction == 0)
            .map(|key| key.identity)
            .collect();
        found.sort_unstable();
        found
    }

    fn found(&self) -> BTreeSet<u16> {
        OuterMap::new(&self.maps, &POLICIES).instances().unwrap()
    }

    fn maps_of(&self) -> BTreeSet<u16> {
        InstanceMaps::new(self.maps.clone(), &POLICY).instances().unwrap()
    }
}

impl Run {
    /// Requests what is desired now, and waits until that was tried.
    async fn request(&self, endpoints: &[u16]) {
        let all = endpoints.iter().map(|endpoint| (*endpoint, IDENTITY));
        self.policies.request(all).unwrap();
        let revision = self.policies.table().revision(&self.policies.db.read());
        self.policies.reconciler().wait_until_reconciled(revision).await;
    }

    fn row(&self, endpoint: u16) -> EndpointPolicy {
        let row = self.policies.get(&self.policies.db.read(), endpoint).unwrap();
        (*row).clone()
    }

    fn realized(&self, endpoint: u16) -> Option<(Revision, u8)> {
        let current = self.row(endpoint).current();
        current.map(|realized| (realized.revision, realized.open))
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

#[tokio::test]
async fn a_policy_is_realized_as_differences_that_add_before_they_delete() {
    let world = World::new();
    let run = world.start();

    world.desire(7, 1, &allows(&[1, 2]));
    run.request(&[7]).await;
    assert_eq!(run.realized(7), Some((1, endpoint_flags::OPEN_EGRESS)));
    let expected = [
        "+7: Ingress: 1 ANY",
        "+7: Ingress: 2 ANY",
        "+7: Egress: 0 ANY",
        "+7",
    ];
    let mut written = world.written();
    written[..3].sort();
    let mut sorted = expected;
    sorted[..3].sort_unstable();
    assert_eq!(written, sorted, "programs find it when it is written");

    world.desire(7, 2, &allows(&[2, 3]));
    run.request(&[7]).await;
    assert_eq!(world.written(), ["+7: Ingress: 3 ANY", "-7: Ingress: 1 ANY"]);

    world.desire(7, 3, &allows(&[2, 3]));
    run.policies.request([(7, IDENTITY)]).unwrap();
    assert_eq!(
        run.realized(7),
        Some((3, endpoint_flags::OPEN_EGRESS)),
        "without the reconciler"
    );
    assert_eq!(world.written(), [""; 0], "only the revision is new");
}

#[tokio::test]
async fn a_restart_writes_what_differs_and_nothing_else() {
    let world = World::new();
    let run = world.start();
    world.desire(7, 1, &allows(&[1, 2]));
    world.desire(8, 1, &allows(&[1]));
    run.request(&[7, 8]).await;
    run.end().await;
    world.written();

    let run = world.start();
    world.desire(8, 1, &allows(&[1, 9]));
    run.request(&[7, 8]).await;

    assert_eq!(world.written(), ["+8: Ingress: 9 ANY"]);
    assert_eq!(run.realized(7), Some((1, endpoint_flags::OPEN_EGRESS)));
}

#[tokio::test]
async fn without_an_engine_all_is_allowed_and_programs_look_nothing_up() {
    let world = World::new();
    let run = world.start_with(Arc::new(AllowAll::default()));

    run.request(&[7, 8]).await;

    let open = endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS;
    assert_eq!(run.realized(8), Some((1, open)));
    assert_eq!((world.allowed(7), world.found()), (vec![0], BTreeSet::new()));
}

#[tokio::test]
async fn a_failure_belongs_to_its_endpoint_and_is_repaired() {
    let world = World::new();
    let run = world.start();
    for endpoint in 7..=9 {
        world.desire(endpoint, 1, &allows(&[1]));
    }
    world.refuse(&["7: Ingress: 1 ANY", "8"]);

    run.request(&[7, 8, 9]).await;

    assert_eq!(run.realized(9), Some((1, endpoint_flags::OPEN_EGRESS)));
    assert_eq!((run.realized(7), run.realized(8)), (None, None));
    let text = run.row(7).status.error_text().to_owned();
    assert!(text.contains("cilium_policy_v2_00007"), "{text}");
    assert_eq!(world.found(), BTreeSet::from([9]));
    world.refuse(&[]);
    while run.realized(7).is_none() || run.realized(8).is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        (world.allowed(7), world.found()),
        (vec![1], BTreeSet::from([7, 8, 9]))
    );
}

#[tokio::test]
async fn a_full_map_is_named_with_its_setting_and_deletions_make_room() {
    let world = World::with_room(256);
    let run = world.start();
    let range = |from: u32, count: u32| allows(&(from..from + count).collect::<Vec<_>>());
    world.desire(7, 1, &range(1, 300));

    run.request(&[7]).await;

    let text = run.row(7).status.error_text().to_owned();
    let expected = "map cilium_policy_v2_00007 is full (256 entries, see bpf-policy-map-max)";
    assert_eq!(text, expected);
    world.desire(7, 2, &range(1, 200));
    run.request(&[7]).await;
    world.desire(7, 3, &range(1001, 200));
    run.request(&[7]).await;
    assert_eq!(run.realized(7).map(|(revision, _)| revision), Some(3));
    assert_eq!(world.allowed(7), (1001..1201).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_map_that_is_too_small_has_all_that_restricts() {
    let world = World::with_room(256);
    let run = world.start();
    let all: Vec<_> = allows(&(1..400).collect::<Vec<_>>()).entries().to_vec();
    let denied = all.iter().map(|(key, entry)| {
        let is_denied = key.identity > 200;
        let entry = skep_bpf_maps::policy::PolicyEntry {
            flags: is_denied.into(),
            precedence: entry.precedence + u32::from(is_denied),
            ..*entry
        };
        (*key, entry)
    });
    world.desire(7, 1, &allows(&[1, 2, 3]));
    run.request(&[7]).await;
    world.desire(7, 2, &Arc::new(denied.collect()));

    run.request(&[7]).await;

    assert_eq!(run.row(7).status.kind, StatusKind::Error);
    let map = InstanceMaps::new(world.maps.clone(), &POLICY).open(7).unwrap();
    let entries = map.entries().unwrap();
    let denies = entries.iter().filter(|(_, entry)| entry.is_deny()).count();
    assert_eq!((entries.len(), denies), (256, 199));
}

#[tokio::test]
async fn an_endpoint_is_locked_down_while_its_policy_exceeds_its_map() {
    let world = World {
        is_locking_down: true,
        ..World::with_room(256)
    };
    let run = world.start();
    world.desire(7, 1, &allows(&[1]));
    run.request(&[7]).await;
    world.desire(7, 2, &allows(&(1..300).collect::<Vec<_>>()));

    run.request(&[7]).await;

    assert_eq!(run.realized(7).map(|(revision, _)| revision), Some(2));
    let map = InstanceMaps::new(world.maps.clone(), &POLICY).open(7).unwrap();
    let entries = map.entries().unwrap();
    assert_eq!(entries.len(), 6);
    assert!(
        entries
            .iter()
            .all(|(_, entry)| entry.is_deny() && entry.precedence == u32::MAX)
    );
    world.desire(7, 3, &allows(&[1, 2]));
    run.request(&[7]).await;
    assert_eq!(world.allowed(7), [1, 2]);
}

#[tokio::test]
async fn what_others_changed_is_repaired_when_it_is_refreshed() {
    let world = World::new();
    let run = world.start();
    world.desire(7, 1, &allows(&[1]));
    run.request(&[7]).await;
    let map = InstanceMaps::new(world.maps.clone(), &POLICY).open(7).unwrap();
    map.clear().unwrap();

    let row = EndpointPolicy {
        status: Status::refreshing_at(run.row(7).status.updated_at),
        ..run.row(7)
    };
    let mut txn = run.policies.db.write(&[&run.policies.table]);
    run.policies.table.insert(&mut txn, row).unwrap();
    txn.commit();
    while run.row(7).status.kind != StatusKind::Done {
        tokio::task::yield_now().await;
    }

    assert_eq!(world.allowed(7), [1]);
}

#[tokio::test]
async fn policies_that_are_released_or_that_nobody_requests_are_removed() {
    let world = World::new();
    let run = world.start();
    for endpoint in 6..=9 {
        world.desire(endpoint, 1, &allows(&[1]));
    }
    run.request(&[6, 7, 8, 9]).await;

    run.policies.release([6]).await.unwrap();
    assert_eq!(
        (world.maps_of(), world.found()),
        ([7, 8, 9].into(), [7, 8, 9].into())
    );
    run.end().await;
    let run = world.start();
    run.request(&[7]).await;
    assert_eq!(world.maps_of(), [7, 8, 9].into(), "not before all are requested");
    run.policies.prune([8].into());
    run.policies.reconciler().prune_and_wait().await.unwrap();

    assert_eq!((world.maps_of(), world.found()), ([7, 8].into(), [7, 8].into()));
}

#[tokio::test]
async fn a_policy_that_is_computed_later_is_written_then() {
    let world = World::new();
    let run = world.start();

    run.request(&[7]).await;
    assert_eq!((run.realized(7), world.maps_of()), (None, BTreeSet::new()));
    world.desire(7, 4, &allows(&[1]));
    run.policies.update().unwrap();
    while run.realized(7).is_none() {
        tokio::task::yield_now().await;
    }

    assert_eq!(world.allowed(7), [1]);
}
