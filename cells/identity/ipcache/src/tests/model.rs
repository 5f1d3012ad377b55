// SPDX-License-Identifier: Apache-2.0

//! Random claims against a model of the rules: the precedence of sources, and which of two prefixes with one entry wins.

use std::collections::BTreeMap;

use proptest::prelude::*;
use skep_identity::ReservedLabels;
use statedb::reconciler::{BatchOps as _, Delete, Round, Update};
use statedb::{Change, Obj};

use super::*;
use crate::ClaimedIdentity;

const PREFIXES: [&str; 5] = ["10.0.0.1", "10.0.0.1/32", "10.0.0.0/24", "fd00::1", "fd00::1/128"];
const SOURCES: [Source; 4] = [
    Source::KubeApiserver,
    Source::Local,
    Source::ClusterMesh,
    Source::Generated,
];

#[derive(Clone, Debug)]
enum Step {
    Upsert(usize, Claim),
    Delete(usize, Owner),
    Reconcile,
}

fn any_owner() -> impl Strategy<Value = Owner> {
    (0..SOURCES.len(), 0..2).prop_map(|(source, name)| owner(SOURCES[source], ["a", "b"][name as usize]))
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let identity = prop_oneof![
        (300_u32..304).prop_map(|number| ClaimedIdentity::Number(NumericIdentity::new(number))),
        (0..Reserved::ALL.len()).prop_map(|at| ClaimedIdentity::Labels(Reserved::ALL[at].into())),
    ];
    (any_owner(), identity, any::<bool>()).prop_map(|(owner, identity, is_tunnelled)| Claim {
        identity,
        ..Claim::identity(owner, NumericIdentity::UNKNOWN)
            .tunnel_peer(is_tunnelled.then(|| "192.168.5.12".parse().unwrap()))
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..PREFIXES.len(), any_claim()).prop_map(|(at, claim)| Step::Upsert(at, claim)),
        3 => (0..PREFIXES.len(), any_owner()).prop_map(|(at, owner)| Step::Delete(at, owner)),
        1 => Just(Step::Reconcile),
    ]
}

/// All claims with the time of their last change.
#[derive(Default)]
struct Model {
    claims: BTreeMap<(usize, Owner), (usize, Claim)>,
    now: usize,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        self.now += 1;
        match step {
            Step::Upsert(at, claim) => {
                let key = (*at, claim.owner.clone());
                let is_same = self.claims.get(&key).is_some_and(|(_, present)| present == claim);
                if !is_same {
                    self.claims.insert(key, (self.now, claim.clone()));
                }
            }
            Step::Delete(at, owner) => drop(self.claims.remove(&(*at, owner.clone()))),
            Step::Reconcile => {}
        }
    }

    /// Identity and tunnel endpoint of a prefix.
    fn resolve(&self, at: usize) -> Option<(u32, bool)> {
        let mut claims: Vec<&(usize, Claim)> = self
            .claims
            .iter()
            .filter(|((prefix, _), _)| *prefix == at)
            .map(|(_, claim)| claim)
            .collect();
        claims.sort_by_key(|(time, claim)| (claim.owner.source as u8, usize::MAX - time));
        let mut labels = ReservedLabels::NONE;
        let (mut of_labels, mut of_number) = (None, None);
        let mut is_tunnelled = false;
        for (_, claim) in claims {
            let source = claim.owner.source as u8;
            match &claim.identity {
                ClaimedIdentity::Labels(more) => {
                    labels = labels.union(more.reserved());
                    is_tunnelled |= claim.tunnel_peer.is_some();
                    of_labels.get_or_insert(source);
                }
                ClaimedIdentity::Number(identity) => {
                    of_number.get_or_insert((source, identity.get(), claim.tunnel_peer.is_some()));
                }
            }
        }
        let of_labels = of_labels.zip(labels.identity()).map(|(source, identity)| {
            // Labels come before numbers of their source.
            (2 * source, identity.get(), is_tunnelled)
        });
        let of_number = of_number.map(|(source, identity, peer)| (2 * source + 1, identity, peer));
        let winner = [of_labels, of_number].into_iter().flatten().min()?;
        Some((winner.1, winner.2))
    }

    fn entries(&self) -> BTreeMap<String, (u32, bool)> {
        // Networks first: addresses overwrite them.
        let order = [2, 1, 4, 0, 3];
        let entries = order.into_iter().filter_map(|at| {
            let key = prefix(PREFIXES[at]).map_key().text();
            Some((key, self.resolve(at)?))
        });
        entries.collect()
    }
}

/// Reconciles what changed since the last time, as the loop of the reconciler does.
fn reconcile(writer: &Writer, changes: &mut statedb::ChangeIterator<IpcacheEntry>, ops: &mut MapOps) {
    let snapshot = writer.db().read();
    let token = CancellationToken::new();
    let round = Round::new(&snapshot, &token);
    let (mut deletes, mut updates) = (Vec::new(), Vec::new());
    for change in changes.next(&snapshot) {
        match change {
            Change::Upsert(object) => updates.push(Update {
                revision: object.revision(),
                object: IpcacheEntry::clone(&object),
                result: Err("not tried".into()),
            }),
            Change::Delete { object, revision } => deletes.push(Delete {
                revision,
                object: Obj::clone(&object),
                result: Err("not tried".into()),
            }),
            Change::Relist => panic!("the graveyard is large enough"),
        }
    }
    ops.batch(&round, &mut deletes, &mut updates);
    assert!(updates.iter().all(|update| update.result.is_ok()));
    assert!(deletes.iter().all(|delete| delete.result.is_ok()));
}

proptest! {
    #[test]
    fn map_has_what_the_rules_say(steps in proptest::collection::vec(any_step(), 1..60)) {
        let db = Db::new();
        let table = crate::table::new(db.clone()).unwrap();
        let writer = Writer::new(db.clone(), table.clone());
        let map = IpcacheMap::in_memory(&IPCACHE.spec(&MapSizes::default())).unwrap();
        let mut ops = MapOps::new(table.reader(), map.clone());
        let mut changes = table.follow(&db);
        let mut model = Model::default();

        for step in steps.iter().chain([&Step::Reconcile]) {
            model.apply(step);
            let mut txn = writer.write();
            match step {
                Step::Upsert(at, claim) => {
                    writer.upsert(&mut txn, prefix(PREFIXES[*at]), claim.clone()).unwrap();
                }
                Step::Delete(at, owner) => {
                    writer.delete(&mut txn, prefix(PREFIXES[*at]), owner).unwrap();
                }
                Step::Reconcile => {}
            }
            txn.commit();
            if matches!(step, Step::Reconcile) {
                reconcile(&writer, &mut changes, &mut ops);
                let found: BTreeMap<String, (u32, bool)> = map
                    .entries()
                    .unwrap()
                    .iter()
                    .map(|(key, value)| (key.text(), (value.identity, value.flags != 0)))
                    .collect();
                prop_assert_eq!(found, model.entries());
            }
        }
    }
}
