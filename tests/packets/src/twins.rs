// SPDX-License-Identifier: Apache-2.0

//! Twins: a packet of a known flow, once through all maps and once by the flow table, must have the same effects.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use skep_bpf_maps::flow::{FLOW_COUNTERS, FLOW_EPOCH, FlowEpoch};
use skep_bpf_programs::testing::run::SkBuff;
use skep_bpf_sys::{KernelMap, RawMap as _};
use zerocopy::IntoBytes as _;

use crate::{
    Error,
    compare::{Done, Maps},
    run::{Content, observe, put_back},
    world::{Called, FLOW_MAPS, World, content, write},
};

/// Flow table of the programs while scenarios run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FlowTable {
    Off,
    /// Each packet finds an old epoch.
    Cold,
    /// Packets that change nothing are repeated, so that later ones of their flows are found.
    Warm,
    /// Packets that change nothing are repeated twice, in an old epoch and in its own; the effects are compared.
    Twins,
}

/// How often clocks may tick between two runs.
const ATTEMPTS: usize = 4;

static COMPARED: AtomicUsize = AtomicUsize::new(0);
static HITS: AtomicUsize = AtomicUsize::new(0);

/// Pairs of packets in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twins {
    pub compared: usize,
    /// Of those, flows that were recorded.
    pub hits: usize,
}

/// Pairs since the last call.
pub fn take_twins() -> Twins {
    Twins {
        compared: COMPARED.swap(0, Ordering::Relaxed),
        hits: HITS.swap(0, Ordering::Relaxed),
    }
}

/// Repeats a packet as the flow table of the world requires. Returns the differences of twins.
pub(crate) fn check(
    world: &World,
    frame: &[u8],
    done: &Done,
    run: impl Fn() -> Result<Done, Error>,
) -> Result<Vec<String>, Error> {
    if !matches!(world.flow_table, FlowTable::Warm | FlowTable::Twins) || !is_repeatable(frame) {
        return Ok(Vec::new());
    }
    if world.flow_table == FlowTable::Warm {
        // A second packet of a new flow is tracked as another one.
        let keys = |maps: &Maps| {
            let maps = FLOW_MAPS.map(|name| maps.get(name).into_iter().flat_map(Content::keys).cloned());
            maps.into_iter().flatten().collect::<Vec<_>>()
        };
        if keys(&done.before) == keys(&done.after) {
            run()?;
        }
        return Ok(Vec::new());
    }
    let mut differences = Vec::new();
    for _ in 0..ATTEMPTS {
        // The first acknowledgement changes the flow.
        world.store.raise_epoch();
        let first = run()?;
        world.store.raise_epoch();
        let cold = run()?;
        let hits = counter(world, "hit")?;
        let warm = run()?;
        let is_hit = counter(world, "hit")? > hits;
        put_back(world, &first)?;
        if cold.now != warm.now {
            continue;
        }
        COMPARED.fetch_add(1, Ordering::Relaxed);
        HITS.fetch_add(usize::from(is_hit), Ordering::Relaxed);
        differences = if is_hit {
            differing(&cold, &warm)
        } else {
            Vec::new()
        };
        if differences.is_empty() {
            break;
        }
    }
    Ok(differences)
}

/// Whether a second packet like this one changes nothing: neither the begin nor the end of a TCP connection.
fn is_repeatable(frame: &[u8]) -> bool {
    let (protocol, l4) = match frame.get(12..14) {
        Some([8, 0]) => (
            frame.get(23),
            14 + usize::from(frame.get(14).unwrap_or(&0) & 0xf) * 4,
        ),
        Some([0x86, 0xdd]) => (frame.get(20), 54),
        _ => return false,
    };
    match protocol {
        Some(6) => frame.get(l4 + 13).is_some_and(|flags| flags & 7 == 0),
        Some(17) => true,
        _ => false,
    }
}

/// Runs a packet with the flow table as it is, and before that without, undone. Returns what it did, and the differences if
/// the flow was found.
pub(crate) fn run(
    world: &World,
    program: &str,
    frame: &[u8],
    context: &SkBuff,
) -> Result<(Called, Vec<String>), Error> {
    let Some((epoch, writers)) = world.store.epoch().zip(world.store.writers()) else {
        return Ok((world.run(program, frame, context)?, Vec::new()));
    };
    let unseen = world.take_events()?;
    let none = std::iter::empty();
    // As while a map is written: flows are neither looked up nor recorded.
    set_epoch(world, epoch, 1)?;
    let long = observe(world, program, frame, context, none.clone())?;
    undo(world, &long)?;
    set_epoch(world, epoch, writers)?;
    let hits = counter(world, "hit")?;
    let done = observe(world, program, frame, context, none)?;
    let is_hit = counter(world, "hit")? > hits;
    COMPARED.fetch_add(1, Ordering::Relaxed);
    HITS.fetch_add(usize::from(is_hit), Ordering::Relaxed);
    let differences = if is_hit {
        differing(&long, &done)
    } else {
        Vec::new()
    };
    world.return_events(unseen.into_iter().chain(done.events));
    let called = Called {
        verdict: done.verdict,
        packet: done.packet,
        metadata: done.metadata,
        mark: done.mark,
        duration: done.duration,
    };
    Ok((called, differences))
}

/// A map whose writes do not raise the epoch.
pub(crate) fn quiet(world: &World, name: &str) -> Result<KernelMap, Error> {
    KernelMap::open(name, &world.store.path(name)).map_err(|error| Error::Facts {
        what: error.to_string(),
    })
}

pub(crate) fn set_epoch(world: &World, epoch: u32, writers: u32) -> Result<(), Error> {
    let state = FlowEpoch { epoch, writers };
    write(
        &quiet(world, FLOW_EPOCH.name)?,
        &0_u32.to_ne_bytes(),
        state.as_bytes(),
    )
}

/// Makes a packet undone, but for counters, and raises no epoch.
fn undo(world: &World, done: &Done) -> Result<(), Error> {
    for name in FLOW_MAPS {
        let (Some(before), Some(after)) = (done.before.get(name), done.after.get(name)) else {
            continue;
        };
        if before == after {
            continue;
        }
        let map = quiet(world, name)?;
        for key in after.keys().filter(|key| !before.contains_key(*key)) {
            map.delete(key);
        }
        for (key, value) in changes(Some(after), Some(before)) {
            write(&map, &key, &value)?;
        }
    }
    Ok(())
}

fn differing(cold: &Done, warm: &Done) -> Vec<String> {
    let mut lines = Vec::new();
    let mut compare = |what: &str, cold: String, warm: String| {
        if cold != warm {
            lines.push(format!(
                "{what} without a hit: {cold}\n    {what} by a hit: {warm}"
            ));
        }
    };
    compare("verdict", cold.verdict.to_string(), warm.verdict.to_string());
    compare("packet", hex::encode(&cold.packet), hex::encode(&warm.packet));
    compare("mark", cold.mark.to_string(), warm.mark.to_string());
    compare(
        "metadata",
        hex::encode(&cold.metadata),
        hex::encode(&warm.metadata),
    );
    compare(
        "counters",
        format!("{:?}", cold.metrics),
        format!("{:?}", warm.metrics),
    );
    compare(
        "events",
        format!("{:?}", cold.events),
        format!("{:?}", warm.events),
    );
    let names: BTreeSet<&String> = cold.after.keys().chain(warm.after.keys()).collect();
    for name in names {
        let changed = |done: &Done| {
            let (before, after) = (done.before.get(name), done.after.get(name));
            if name == "cilium_policystats" {
                format!("{:?}", grown(before, after))
            } else {
                format!("{:?}", changes(before, after))
            }
        };
        compare(name, changed(cold), changed(warm));
    }
    lines
}

/// Counters that grew, and by what.
fn grown(before: Option<&Content>, after: Option<&Content>) -> Vec<(Vec<u8>, u64)> {
    let words = |value: &[u8]| {
        let words = value.chunks_exact(8);
        words
            .map(|word| {
                word.iter()
                    .rev()
                    .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
            })
            .fold(0_u64, u64::wrapping_add)
    };
    let mut grown = Vec::new();
    for (key, value) in after.into_iter().flatten() {
        let then = before
            .and_then(|before| before.get(key))
            .map_or(0, |value| words(value));
        let by = words(value).wrapping_sub(then);
        if by != 0 {
            grown.push((key.clone(), by));
        }
    }
    grown
}

/// Entries that are not what they were.
fn changes(before: Option<&Content>, after: Option<&Content>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let after = after.into_iter().flatten();
    after
        .filter(|(key, value)| before.and_then(|before| before.get(*key)) != Some(*value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn counter(world: &World, name: &str) -> Result<u64, Error> {
    let Some(map) = world.map("skep_flow_stats") else {
        return Ok(0);
    };
    let index = FLOW_COUNTERS.iter().position(|known| *known == name).unwrap_or(0) as u32;
    let counts = content(map)?;
    let value = counts.get(index.to_ne_bytes().as_slice());
    let cpus = value.map(Vec::as_slice).unwrap_or_default().chunks_exact(8);
    Ok(cpus
        .map(|cpu| {
            cpu.iter()
                .rev()
                .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        })
        .sum())
}
