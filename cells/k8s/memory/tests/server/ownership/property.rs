// SPDX-License-Identifier: Apache-2.0

//! Random sequences of writes by several managers, compared with the model after each.
//!
//! A failure prints its smallest sequence and saves its seed below `proptest-regressions`, from where the next run
//! replays it. `PROPTEST_CASES` sets how many sequences are tried.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;
use skep_k8s_memory::{ApiError, Patch};

use super::kinds::{Kind, all};
use super::model::{Model, seen, seen_sets};
use super::paths::{flatten, put, remove};
use super::{Space, patches};

const CSA: &str = "kubectl-client-side-apply";
const UPDATERS: [&str; 3] = [CSA, "alice", "edit"];
const APPLIERS: [&str; 3] = ["kubectl", "alice", "bob"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Put,
    /// By a client that does not know managed fields.
    PutWithoutManagers,
    Merge,
    Json,
    Strategic,
    Apply,
    ForcedApply,
    /// kubectl makes the fields of client-side apply its own.
    Migrate,
}

#[derive(Clone, Debug)]
struct Step {
    verb: Verb,
    who: usize,
    /// Maps and lists that become empty go.
    tidy: bool,
    /// What happens to each field: nothing, a value, or it goes.
    picks: Vec<u8>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verb = prop_oneof![
        1 => Just(Verb::Put),
        1 => Just(Verb::PutWithoutManagers),
        1 => Just(Verb::Merge),
        1 => Just(Verb::Json),
        1 => Just(Verb::Strategic),
        3 => Just(Verb::Apply),
        2 => Just(Verb::ForcedApply),
        1 => Just(Verb::Migrate),
    ];
    let step = (verb, 0usize..3, any::<bool>(), prop::collection::vec(0u8..8, 20)).prop_map(
        |(verb, who, tidy, picks)| Step {
            verb,
            who,
            tidy,
            picks,
        },
    );
    prop::collection::vec(step, 2..14)
}

/// What an apply sends, or the object that is created.
fn config(kind: &Kind, step: &Step) -> Value {
    let mut config = kind.base.clone();
    for (spot, pick) in kind.spots.iter().zip(&step.picks) {
        if spot.needed || *pick < 4 {
            let value = &spot.values[usize::from(*pick) % spot.values.len()];
            put(kind, &mut config, &spot.path, value);
        }
    }
    config
}

/// The object after a change by an update or a patch.
fn changed(kind: &Kind, live: &Value, step: &Step) -> Value {
    let mut object = live.clone();
    for (spot, pick) in kind.spots.iter().zip(&step.picks) {
        match pick {
            0 | 1 => {
                let value = &spot.values[usize::from(*pick) % spot.values.len()];
                put(kind, &mut object, &spot.path, value);
            }
            2 if !spot.needed => {
                remove(&mut object, &spot.path, step.tidy);
            }
            _ => {}
        }
    }
    object
}

fn patch_of(kind: &Kind, verb: Verb, live: &Value, target: &Value) -> Patch {
    let (from, to) = (live.as_object().unwrap(), target.as_object().unwrap());
    match verb {
        Verb::Json => Patch::Json(patches::json(live, target)),
        Verb::Strategic if !kind.is_custom() => Patch::Strategic(patches::strategic(kind, from, to, "")),
        _ => Patch::Merge(patches::merge(from, to)),
    }
}

fn conflicts(error: &ApiError) -> BTreeSet<String> {
    assert_eq!(error.code, 409, "{error}");
    let details = error.details.as_ref().unwrap();
    let causes = details["causes"].as_array().unwrap();
    causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap().to_owned())
        .collect()
}

fn run(kind: &Kind, steps: &[Step]) -> Result<(), TestCaseError> {
    let space = Space::new(&kind.gvr, kind.definition.as_ref());
    let mut model = Model::default();
    for (at, step) in steps.iter().enumerate() {
        let (updater, applier) = (UPDATERS[step.who], APPLIERS[step.who]);
        let what = format!("{} step {at}: {step:?}", kind.name);
        let done = match step.verb {
            Verb::Apply | Verb::ForcedApply => {
                let (config, force) = (config(kind, step), step.verb == Verb::ForcedApply);
                let mut nodes = flatten(kind, &config);
                nodes.retain(|path, _| seen(kind, &config).contains_key(path));
                match (
                    model.apply(kind, applier, &nodes, force),
                    space.apply(applier, &config, force),
                ) {
                    (Err(expected), Err(error)) => {
                        prop_assert_eq!(conflicts(&error), expected, "{}", what);
                        continue;
                    }
                    (Ok(()), done) => done,
                    (Err(expected), Ok(_)) => {
                        return Err(TestCaseError::fail(format!(
                            "{what}: no conflict, expected {expected:?}"
                        )));
                    }
                }
            }
            _ if at == 0 => {
                let object = config(kind, step);
                model.update(updater, seen(kind, &object));
                space.create(updater, &object)
            }
            Verb::Migrate => {
                model.migrate(CSA);
                space.migrate(CSA)
            }
            Verb::Put | Verb::PutWithoutManagers => {
                let mut target = changed(kind, &space.live(), step);
                model.update(updater, seen(kind, &target));
                if step.verb == Verb::PutWithoutManagers {
                    target["metadata"]
                        .as_object_mut()
                        .unwrap()
                        .shift_remove("managedFields");
                }
                space.put(updater, &target)
            }
            verb => {
                let live = space.live();
                let target = changed(kind, &live, step);
                model.update(updater, seen(kind, &target));
                space.patch(updater, &patch_of(kind, verb, &live, &target), false)
            }
        };
        let object = done.map_err(|error| TestCaseError::fail(format!("{what}: {error}")))?;
        prop_assert_eq!(seen(kind, &object), model.object.clone(), "{}", what);
        prop_assert_eq!(seen_sets(kind, &object), model.sets.clone(), "{}", what);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn owners_are_those_of_the_model(which in 0usize..4, steps in steps()) {
        run(&all()[which], &steps)?;
    }
}
