// SPDX-License-Identifier: Apache-2.0

//! Runs the scenarios of a file, each from empty maps on.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde_json::Value;
use skep_bpf_programs::testing::run::SkBuff;
use skep_bpf_sys::{RawMap as _, testing::Node};

use crate::{
    Error,
    compare::{Done, Maps, Ports, differences, times},
    difference::{self, Difference},
    vectors::{Facts, Group, Scenario, Step, Write},
    world::{FLOW_MAPS, World, content, now},
};

/// How often a step is run until what was recorded comes: some choices are random.
const ATTEMPTS: usize = 16;

/// What became of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every step did what was recorded.
    Passed,
    /// Nothing was recorded that could be compared: its packets were sent on a real interface only. Counts as passed.
    NotCompared,
    /// A step did something else: which, and what, for people.
    Failed(String),
    /// A step did something else, as it is meant to: which, and the name of the difference.
    Different {
        /// Step, from 1.
        step: usize,
        /// Name, as in `docs/datapath.md`.
        name: &'static str,
        /// What it did, for people.
        lines: Vec<String>,
    },
}

/// A scenario and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Group of the file.
    pub group: String,
    /// Name of the scenario.
    pub scenario: String,
    /// What became of it.
    pub outcome: Outcome,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, scenario, .. } = self;
        match &self.outcome {
            Outcome::Passed => write!(f, "PASS {group}/{scenario}"),
            Outcome::NotCompared => write!(f, "PASS {group}/{scenario}: nothing to compare"),
            Outcome::Failed(why) => write!(f, "FAIL {group}/{scenario}: {why}"),
            Outcome::Different { step, name, .. } => {
                write!(f, "DIFF {group}/{scenario}: step {step}: {name}")
            }
        }
    }
}

/// Runs the scenarios of a file whose names contain `only`, with the facts that it names; these ones take the places of
/// those with their names, or of the first.
///
/// # Errors
///
/// [`Error`] if a file cannot be read, or the node of the facts cannot be made. What programs do is no error.
pub fn run_file(path: &Path, facts: &[PathBuf], only: &str) -> Result<Vec<Report>, Error> {
    let group = Group::read(path)?;
    let all = Facts::read_all(group.facts_files(path, facts))?;
    Node::run("packets", |node| {
        let world = World::new(node, all, &group.facts.see)?;
        let mut reports = Vec::new();
        for scenario in group
            .scenarios
            .iter()
            .filter(|scenario| scenario.name.contains(only))
        {
            reports.push(Report {
                group: group.group.clone(),
                scenario: scenario.name.clone(),
                outcome: run(&world, scenario)?,
            });
        }
        Ok(reports)
    })
}

fn run(world: &World, scenario: &Scenario) -> Result<Outcome, Error> {
    world.forget_flows()?;
    let mut ports = Ports::default();
    let mut changed = Vec::new();
    let mut outcome = Outcome::NotCompared;
    world.know_neighbours(&scenario.name, false)?;
    for (index, step) in scenario.steps.iter().enumerate() {
        if let Some(write) = &step.user_space_write {
            change(world, write, true)?;
            changed.push(write.map.clone());
        }
        if let Some(delete) = &step.user_space_delete {
            change(world, delete, false)?;
            changed.push(delete.map.clone());
        }
        // Files of format 1 say this in words alone.
        if step.note.contains("entry deleted by user space") {
            world.forget_fragments()?;
        }
        let Some(program) = step
            .program
            .as_deref()
            .filter(|_| !step.live_only && step.ret.is_some())
        else {
            continue;
        };
        if world.program(program).is_none() {
            outcome = Outcome::Failed(format!("step {}: there is no program {program}", index + 1));
            break;
        }
        match run_step(world, program, step, &mut ports)? {
            None => outcome = Outcome::Passed,
            Some(Ended::Different(name, lines)) => {
                outcome = Outcome::Different {
                    step: index + 1,
                    name,
                    lines,
                };
                break;
            }
            Some(Ended::Failed(lines)) => {
                let note = if step.note.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", step.note)
                };
                outcome = Outcome::Failed(format!(
                    "step {} {program}{note}\n    {}",
                    index + 1,
                    lines.join("\n    ")
                ));
                break;
            }
        }
    }
    for map in changed {
        world.restore(&map)?;
    }
    world.know_neighbours(&scenario.name, true)?;
    Ok(outcome)
}

enum Ended {
    Different(&'static str, Vec<String>),
    Failed(Vec<String>),
}

fn run_step(world: &World, program: &str, step: &Step, ports: &mut Ports) -> Result<Option<Ended>, Error> {
    let input = ports.packet(&step.packet_in.0);
    let mut last = Vec::new();
    for _ in 0..ATTEMPTS {
        let done = run_once(world, program, step, &input)?;
        ports.learn(step, &done.after);
        last = differences(step, &input, &done, ports);
        if last.is_empty() {
            return Ok(None);
        }
        if let Some(Difference { name, .. }) = difference::of(step, &input, &done) {
            return Ok(Some(Ended::Different(name, last)));
        }
        put_back(world, &done)?;
    }
    Ok(Some(Ended::Failed(last)))
}

fn run_once(world: &World, program: &str, step: &Step, input: &[u8]) -> Result<Done, Error> {
    let before = snapshot(world)?;
    world.take_events()?;
    let context = SkBuff {
        mark: step.ctx_in.mark,
        ifindex: step.ifindex,
        ingress_ifindex: step.ctx_in.ingress_ifindex,
        cb: step.ctx_in.cb.unwrap_or_default(),
        priority: step.ctx_in.priority,
    };
    let now = now();
    let ran = world.run(program, input, &context)?;
    let events = world.take_events()?;
    let mut after = snapshot(world)?;
    let mut before = before;
    let metrics = moved(
        &before.remove("cilium_metrics").unwrap_or_default(),
        &after.remove("cilium_metrics").unwrap_or_default(),
    );
    Ok(Done {
        verdict: ran.verdict,
        packet: ran.packet,
        mark: ran.mark,
        metadata: ran.metadata,
        before,
        after,
        metrics,
        events,
        now,
    })
}

/// Everything that programs write.
fn snapshot(world: &World) -> Result<Maps, Error> {
    let counters = [
        "cilium_metrics",
        "cilium_policystats",
        "cilium_snat_v4_alloc_retries",
        "cilium_snat_v6_alloc_retries",
    ];
    let mut maps = Maps::new();
    for name in FLOW_MAPS.into_iter().chain(counters) {
        if let Some(map) = world.map(name) {
            maps.insert(name.to_owned(), content(map)?);
        }
    }
    Ok(maps)
}

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Counters that moved, by reason and direction.
fn moved(before: &Content, after: &Content) -> BTreeMap<(u8, u8), (u64, u64)> {
    let total = |value: Option<&Vec<u8>>| {
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let cpus = value.map(Vec::as_slice).unwrap_or_default().chunks_exact(16);
        cpus.fold((0, 0), |(count, bytes), cpu| {
            (count + word(&cpu[..8]), bytes + word(&cpu[8..]))
        })
    };
    let mut moved = BTreeMap::new();
    for (key, value) in after {
        let (now, then) = (total(Some(value)), total(before.get(key)));
        let [reason, direction, ..] = key[..] else {
            continue;
        };
        if now != then {
            let sum: &mut (u64, u64) = moved.entry((reason, direction & 3)).or_default();
            sum.0 += now.0 - then.0;
            sum.1 += now.1 - then.1;
        }
    }
    moved
}

/// Makes a step undone, but for its counters.
fn put_back(world: &World, done: &Done) -> Result<(), Error> {
    let empty = BTreeMap::new();
    for name in FLOW_MAPS {
        let (Some(map), Some(after)) = (world.map(name), done.after.get(name)) else {
            continue;
        };
        let before = done.before.get(name).unwrap_or(&empty);
        for key in after.keys().filter(|key| !before.contains_key(*key)) {
            map.delete(key);
        }
        for (key, value) in before {
            map.update(key, value);
        }
    }
    Ok(())
}

/// What the recorder did to an entry; times are as far from now as they were from then.
fn change(world: &World, write: &Write, is_write: bool) -> Result<(), Error> {
    let Some(map) = world.map(&write.map) else {
        return Ok(());
    };
    if !is_write {
        map.delete(&write.key.0);
        return Ok(());
    }
    let mut value = write.value.0.clone();
    let fields = write.value_fields.as_ref();
    let distance = |name: &str| fields.and_then(|fields| fields.get(name)).and_then(Value::as_i64);
    let distances: &[Option<i64>] = if write.map.starts_with("cilium_ct") {
        &[
            distance("lifetime_in_s"),
            distance("last_tx_report_ago_s").map(|ago| -ago),
            distance("last_rx_report_ago_s").map(|ago| -ago),
        ]
    } else if write.map.ends_with("_affinity") {
        &[distance("last_used_ago_s").map(|ago| -ago)]
    } else {
        &[]
    };
    let now = i64::try_from(now()).unwrap_or(0);
    for ((at, width), distance) in times(&write.map).iter().zip(distances) {
        let time = distance.map_or(0, |distance| now + distance);
        if let Some(bytes) = value.get_mut(*at..at + width) {
            bytes.copy_from_slice(&time.to_ne_bytes()[..*width]);
        }
    }
    match map.update(&write.key.0, &value).pop() {
        None => Ok(()),
        Some(failure) => Err(Error::Kernel {
            what: format!("write an entry of {}", write.map),
            source: failure.error,
        }),
    }
}
