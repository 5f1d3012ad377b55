// SPDX-License-Identifier: Apache-2.0

//! Whatever happens in between, target and table agree in the end.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Act {
    Put(u64, u64),
    Delete(u64),
    /// Changes an object without asking for work.
    Touch(u64),
    Fault(u64, bool),
    AllFaulty(bool),
    /// Does the act in the middle of the next update.
    Meanwhile(Box<Act>),
    Sleep(u64),
    Restart,
    Prune,
}

fn act() -> impl Strategy<Value = Act> {
    let leaf = prop_oneof![
        6 => (0u64..6, 0u64..100).prop_map(|(id, value)| Act::Put(id, value)),
        3 => (0u64..6).prop_map(Act::Delete),
        3 => (0u64..6).prop_map(Act::Touch),
    ];
    prop_oneof![
        8 => leaf.clone(),
        4 => leaf.prop_map(|act| Act::Meanwhile(Box::new(act))),
        3 => (0u64..6, any::<bool>()).prop_map(|(id, on)| Act::Fault(id, on)),
        1 => any::<bool>().prop_map(Act::AllFaulty),
        4 => (0u64..400).prop_map(Act::Sleep),
        1 => Just(Act::Restart),
        1 => Just(Act::Prune),
    ]
}

fn perform(db: &Db, table: &RwTable<Thing>, act: &Act) {
    let mut txn = db.write(&[table]);
    match act {
        Act::Put(id, value) => {
            table.insert(&mut txn, thing(*id, *value)).unwrap();
        }
        Act::Delete(id) => {
            table.delete_by(&mut txn, ID.key(id)).unwrap();
        }
        Act::Touch(id) => {
            let _ = table.update(&mut txn, ID.key(id), |old| Thing {
                note: old.note + 1,
                ..old.clone()
            });
        }
        _ => unreachable!(),
    }
    txn.commit();
}

async fn converges<O: BatchOps<Thing> + 'static>(mut world: World<O>, acts: &[Act]) {
    world.start();
    for act in acts {
        match act {
            Act::Fault(id, on) => {
                let mut target = world.target.0.lock();
                if *on {
                    target.faulty.insert(*id);
                } else {
                    target.faulty.remove(id);
                }
            }
            Act::AllFaulty(on) => world.target.0.lock().all_faulty = *on,
            Act::Meanwhile(inner) => {
                let (db, table, inner) = (world.db.clone(), world.table.clone(), inner.clone());
                world.target.0.lock().meanwhile = Some(Box::new(move || perform(&db, &table, &inner)));
            }
            Act::Sleep(millis) => tokio::time::sleep(Duration::from_millis(*millis)).await,
            Act::Restart => {
                world.stop().await;
                world.start();
            }
            Act::Prune => world.handle.prune(),
            other => perform(&world.db, &world.table, other),
        }
    }
    {
        let mut target = world.target.0.lock();
        target.all_faulty = false;
        target.faulty.clear();
        target.meanwhile = None;
    }
    // Longer than any pause between retries.
    tokio::time::sleep(Duration::from_secs(130)).await;

    let snapshot = world.db.read();
    let wanted: BTreeMap<u64, u64> = world
        .table
        .all(&snapshot)
        .map(|thing| (thing.id, thing.value))
        .collect();
    assert_eq!(world.target.0.lock().content, wanted);
    for thing in world.table.all(&snapshot) {
        assert_eq!(thing.status.kind, StatusKind::Done, "{thing:?}");
    }
    let progress = world.handle.progress();
    assert_eq!(
        progress,
        Progress {
            revision: world.table.revision(&snapshot),
            failing: None
        }
    );
    assert_eq!(world.health.last(), format!("OK, {} object(s)", wanted.len()));
    world.stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    /// However writers, faults, time and restarts interleave: in the end target and table agree, statuses are done,
    /// nothing is retried.
    #[test]
    fn target_and_statuses_converge(acts in proptest::collection::vec(act(), 1..40), size in 1usize..5, at_once: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let config = Config { round_size: size, ..config() };
        runtime.block_on(async move {
            match at_once {
                true => converges(World::at_once(config), &acts).await,
                false => converges(World::new(config), &acts).await,
            }
        });
    }
}
