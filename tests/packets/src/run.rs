// SPDX-License-Identifier: Apache-2.0

//! Runs the scenarios of a file, each from empty maps on.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use skep_bpf_programs::testing::run::SkBuff;
use skep_bpf_sys::{RawMap as _, testing::Node};

use crate::{
    Error,
    compare::{Done, Maps, differences, times},
    difference::{self, Difference},
    options::missing,
    ports::Ports,
    twins::{self, FlowTable},
    vectors::{Facts, Group, Scenario, Step, Write},
    world::{FLOW_MAPS, World, content, now},
};

/// How often a step is run until what was recorded comes: some choices are random.
const ATTEMPTS: usize = 16;

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
        lines: Vec<String>,
    },
}

/// A scenario and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub group: String,
    pub scenario: String,
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
    run_file_with(path, facts, only, FlowTable::Off)
}

/// As [`run_file`], with a flow table.
///
/// # Errors
///
/// As [`run_file`].
pub fn run_file_with(
    path: &Path,
    facts: &[PathBuf],
    only: &str,
    table: FlowTable,
) -> Result<Vec<Report>, Error> {
    let group = Group::read(path)?;
    let all = Facts::read_all(group.facts_files(path, facts))?;
    Node::run("packets", |node| {
        let world = World::new(node, all, &group.facts.see, table)?;
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

/// Runs a scenario, and makes undone what it changed. What cannot be done in a step fails the scenario alone.
fn run(world: &World, scenario: &Scenario) -> Result<Outcome, Error> {
    world.forget_flows()?;
    world.know_neighbours(&scenario.name, false)?;
    let mut changed = BTreeMap::new();
    let mut outcome = Outcome::NotCompared;
    let mut ports = Ports::default();
    for (index, step) in scenario.steps.iter().enumerate() {
        let ended = run_step(world, scenario, index, &mut ports, &mut changed);
        let program = step.program.as_deref().unwrap_or("user space");
        let note = match &*step.note {
            "" => String::new(),
            note => format!(" ({note})"),
        };
        let failed =
            |lines: String| Outcome::Failed(format!("step {} {program}{note}\n    {lines}", index + 1));
        outcome = match ended {
            Ok(Ended::Nothing) => continue,
            Ok(Ended::Same) => {
                outcome = Outcome::Passed;
                continue;
            }
            Ok(Ended::Different(name, lines)) => Outcome::Different {
                step: index + 1,
                name,
                lines,
            },
            Ok(Ended::Failed(lines)) => failed(lines.join("\n    ")),
            Err(error) => failed(error.with_causes()),
        };
        break;
    }
    if let Some(error) = &scenario.broken
        && matches!(outcome, Outcome::Passed | Outcome::NotCompared)
    {
        let step = scenario.steps.len() + 1;
        outcome = Outcome::Failed(format!("step {step} is no step of this format: {error}"));
    }
    for (map, entries) in changed {
        world.reset(&map, &entries)?;
    }
    world.know_neighbours(&scenario.name, true)?;
    Ok(outcome)
}

enum Ended {
    /// No packet that could be compared.
    Nothing,
    Same,
    Different(&'static str, Vec<String>),
    Failed(Vec<String>),
}

fn run_step(
    world: &World,
    scenario: &Scenario,
    index: usize,
    ports: &mut Ports,
    changed: &mut BTreeMap<String, Content>,
) -> Result<Ended, Error> {
    let Some(step) = scenario.steps.get(index) else {
        return Ok(Ended::Nothing);
    };
    let writes = [(&step.user_space_write, true), (&step.user_space_delete, false)];
    for (write, is_write) in writes {
        let Some(write) = write else { continue };
        if !changed.contains_key(&write.map)
            && let Some(map) = world.map(&write.map)
        {
            changed.insert(write.map.clone(), content(map)?);
        }
        let key = ports.key(&write.map, &write.key.0);
        let value = is_write.then(|| ports.value(&write.map, &moved_to_now(write, scenario.time_at(index))));
        world.change(&write.map, &key, value.as_deref())?;
    }
    // Files of format 1 say this in words alone.
    if step.note.contains("entry deleted by user space") {
        world.forget_fragments()?;
    }
    match step.program.as_deref() {
        Some(program) if !step.live_only && step.ret.is_some() => run_packet(world, program, step, ports),
        _ => Ok(Ended::Nothing),
    }
}

fn run_packet(world: &World, program: &str, step: &Step, ports: &mut Ports) -> Result<Ended, Error> {
    let input = ports.packet(&step.packet_in.0);
    let mut last = Vec::new();
    for _ in 0..ATTEMPTS {
        if world.flow_table == FlowTable::Cold {
            world.store.raise_epoch();
        }
        let done = run_once(world, program, step, &input)?;
        ports.learn(step, &done.after);
        last = differences(step, &input, &done, ports);
        if last.is_empty() {
            let last = twins::check(world, &input, &done, || run_once(world, program, step, &input))?;
            return Ok(if last.is_empty() {
                Ended::Same
            } else {
                Ended::Failed(last)
            });
        }
        if let Some(Difference { name, .. }) = difference::of(step, &input, &done, ports) {
            return Ok(Ended::Different(name, last));
        }
        put_back(world, &done)?;
    }
    Ok(Ended::Failed(last))
}

fn run_once(world: &World, program: &str, step: &Step, input: &[u8]) -> Result<Done, Error> {
    let ifindex = match step.ifindex {
        Some(index) => index,
        None => world
            .index(&step.dev)
            .ok_or_else(|| missing(format!("device {}", step.dev)))?,
    };
    let recorded = step.map_changes.iter().map(|change| change.map.as_str());
    observe(world, program, input, &step.context(ifindex), recorded)
}

/// Runs a packet. Returns what it does, also to these maps.
pub(crate) fn observe<'a>(
    world: &World,
    program: &str,
    input: &[u8],
    context: &SkBuff,
    maps: impl Iterator<Item = &'a str> + Clone,
) -> Result<Done, Error> {
    let mut before = snapshot(world, maps.clone())?;
    world.take_events()?;
    let now = now();
    let ran = world.run(program, input, context)?;
    let events = world.take_events()?;
    let mut after = snapshot(world, maps)?;
    let metrics = moved(
        &before.remove("cilium_metrics").unwrap_or_default(),
        &after.remove("cilium_metrics").unwrap_or_default(),
    );
    Ok(Done {
        verdict: ran.verdict,
        packet: ran.packet,
        mark: ran.mark,
        metadata: ran.metadata,
        duration: ran.duration,
        before,
        after,
        metrics,
        events,
        now,
    })
}

/// Everything that programs write, and these maps.
fn snapshot<'a>(world: &World, others: impl Iterator<Item = &'a str>) -> Result<Maps, Error> {
    let counters = [
        "cilium_metrics",
        "cilium_policystats",
        "cilium_snat_v4_alloc_retries",
        "cilium_snat_v6_alloc_retries",
    ];
    let mut maps = Maps::new();
    for name in FLOW_MAPS.into_iter().chain(counters).chain(others) {
        if !maps.contains_key(name)
            && let Some(map) = world.map(name)
        {
            maps.insert(name.to_owned(), content(map)?);
        }
    }
    Ok(maps)
}

pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

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
pub(crate) fn put_back(world: &World, done: &Done) -> Result<(), Error> {
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

/// What the recorder wrote, with times as far from now as they were from then: as the decoded fields say, else from the
/// clock of the packets around it.
fn moved_to_now(write: &Write, then: Option<u64>) -> Vec<u8> {
    let mut value = write.value.0.clone();
    let fields = write.value_fields.as_ref().filter(|fields| fields.is_object());
    let names: &[(&str, i64)] = if write.map.starts_with("cilium_ct") {
        &[
            ("lifetime_in_s", 1),
            ("last_tx_report_ago_s", -1),
            ("last_rx_report_ago_s", -1),
        ]
    } else if write.map.ends_with("_affinity") {
        &[("last_used_ago_s", -1)]
    } else {
        &[("created_ago_s", -1)]
    };
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(0);
    for ((at, width), (name, sign)) in times(&write.map).iter().zip(names) {
        let Some(bytes) = value.get_mut(*at..at + width) else {
            continue;
        };
        let decoded = fields.and_then(|fields| fields.get(*name));
        let recorded = bytes
            .iter()
            .rev()
            .fold(0, |time, byte| time << 8 | u64::from(*byte));
        let distance = match (decoded, then) {
            (Some(decoded), _) => decoded.as_i64().map(|seconds| sign * seconds),
            (None, Some(then)) if recorded != 0 => Some(signed(recorded) - signed(then)),
            (None, _) => continue,
        };
        let time = distance.map_or(0, |distance| (signed(now()) + distance).max(1));
        bytes.copy_from_slice(&time.to_ne_bytes()[..*width]);
    }
    value
}
