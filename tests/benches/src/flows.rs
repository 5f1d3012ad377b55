// SPDX-License-Identifier: Apache-2.0

//! Garbage collection of connection tracking, and listing it.

mod delay;

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use clap::Args;
use skep_bpf_maps::{
    MapSizes,
    collect::{BatchCollector, FlowCollector, FlowMap, Removal},
    conntrack::{CT_ANY_MAX, CT_TCP_MAX, CT_TCP4, CtEntry, CtKey4},
    nat::{NAT_MAX, NAT4},
};
use skep_bpf_programs::FlowIterators;
use skep_bpf_sys::{MapStore, clock::kernel_seconds, testing::Node};
use zerocopy::{FromZeros as _, network_endian::U16};

use crate::{
    report::{Report, Row, median, milliseconds},
    usage,
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Entries to collect.
    #[arg(long, default_value_t = 1_000_000)]
    entries: u32,
    /// Entries to list.
    #[arg(long, default_value_t = 500_000)]
    listed: u32,
    /// Passes of each kind; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The program that lists entries; without it they are not listed.
    #[arg(long)]
    skep: Option<PathBuf>,
}

/// What a pass took.
struct Pass {
    time: Duration,
    processor: Duration,
    longest: Duration,
    grown_mib: f64,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for percent in [0, 50, 100] {
        let mut passes = Vec::new();
        let mut batches = Vec::new();
        let mut delays = Vec::new();
        for _ in 0..options.rounds.max(1) {
            passes.push(pass(options.entries, percent, true)?);
            batches.push(pass(options.entries, percent, false)?);
            delays.push(milliseconds(delay_of_pass(options.entries, percent)?));
        }
        let all = |value: fn(&Pass) -> f64, passes: &[Pass]| passes.iter().map(value).collect::<Vec<_>>();
        let name = format!("{} conntrack entries, {percent} % ended", options.entries);
        let target = (percent == 50).then_some(500.0);
        report.add(
            Row::cost(
                format!("{name}: time"),
                median(all(|pass| milliseconds(pass.time), &passes)),
                "ms",
            )
            .target(target),
        );
        report.add(Row::cost(
            format!("{name}: processor time"),
            median(all(|pass| milliseconds(pass.processor), &passes)),
            "ms",
        ));
        let longest = passes.iter().map(|pass| pass.longest).max();
        report.add(
            Row::cost(
                format!("{name}: longest hold of the kernel"),
                milliseconds(longest.unwrap_or_default()),
                "ms",
            )
            .target(1.0),
        );
        report.add(Row::cost(format!("{name}: longest delay of a packet"), median(delays), "ms").target(1.0));
        report.add(Row::cost(
            format!("{name}: memory grows by"),
            median(all(|pass| pass.grown_mib, &passes)),
            "MiB",
        ));
        report.add(Row::cost(
            format!("{name}: time by batch operations"),
            median(all(|pass| milliseconds(pass.time), &batches)),
            "ms",
        ));
    }
    let idle: Vec<f64> = (0..options.rounds.max(1))
        .map(|_| Ok(milliseconds(idle_delay()?)))
        .collect::<anyhow::Result<_>>()?;
    report.add(Row::cost(
        "longest delay of a packet without collection",
        median(idle),
        "ms",
    ));
    report.add(Row::cost(
        format!(
            "1 entry in a map of {}: longest hold of the kernel",
            options.entries
        ),
        milliseconds(sparse(options.entries)?),
        "ms",
    ));
    if let Some(skep) = &options.skep {
        let times = (0..options.rounds.max(1)).map(|_| list(skep, options.listed));
        let times: Vec<f64> = times.collect::<anyhow::Result<_>>()?;
        report.add(
            Row::cost(
                format!("skep bpf ct list, {} entries", options.listed),
                median(times),
                "s",
            )
            .target(1.0),
        );
    }
    Ok(())
}

/// Makes the maps with as many entries, of which a part has ended.
fn fill(store: &MapStore, entries: u32, percent: u32) -> anyhow::Result<()> {
    // LRU maps forget entries before they are full; a map has as many buckets as the next power of two.
    fill_sized(store, entries.next_power_of_two(), entries, percent)
}

fn fill_sized(store: &MapStore, size: u32, entries: u32, percent: u32) -> anyhow::Result<()> {
    let sizes = MapSizes::default()
        .with(CT_TCP_MAX, size)
        .with(CT_ANY_MAX, 1024)
        .with(NAT_MAX, size);
    store.open_or_create(&NAT4.spec(&sizes))?;
    let map = store.open_or_create(&CT_TCP4.spec(&sizes))?;
    let now = kernel_seconds()? as u32;
    let key = |n: u32| CtKey4 {
        daddr: [10, (n >> 24) as u8, (n >> 16) as u8, 1],
        saddr: [203, 0, 113, 5],
        dport: U16::new(443),
        sport: U16::new(n as u16),
        proto: 6,
        flags: 0,
    };
    let entry = |n: u32| CtEntry {
        // Spread evenly.
        lifetime: if n.wrapping_mul(37) % 100 < percent {
            now - 1
        } else {
            now + 8000
        },
        ..CtEntry::new_zeroed()
    };
    let all: Vec<u32> = (0..entries).collect();
    for chunk in all.chunks(4096) {
        let keys: Vec<CtKey4> = chunk.iter().map(|n| key(*n)).collect();
        let values: Vec<CtEntry> = chunk.iter().map(|n| entry(*n)).collect();
        ensure!(
            map.update_batch(&keys, &values).is_empty(),
            "entries were not written"
        );
    }
    Ok(())
}

fn pass(entries: u32, percent: u32, by_iterators: bool) -> anyhow::Result<Pass> {
    Node::run("flows", |node| {
        let store = node.store();
        fill(&store, entries, percent)?;
        let iterators = FlowIterators::load(&store, false)?;
        let batch = BatchCollector::open(&store, Box::new(|| kernel_seconds().map_err(io::Error::other)))?;
        let collector: &dyn FlowCollector = if by_iterators { &iterators } else { &batch };
        usage::reset_peak()?;
        let before = usage::peak_mib()?;
        let (start, processor) = (Instant::now(), usage::thread_time());
        collect(collector, entries, percent)?;
        Ok(Pass {
            time: start.elapsed(),
            processor: usage::thread_time() - processor,
            longest: iterators.last_pass().longest_slice,
            grown_mib: usage::peak_mib()? - before,
        })
    })
}

/// Longest wait of a packet while entries are collected. Receiving packets is work of the processor that collects, so
/// this pass is not measured otherwise.
fn delay_of_pass(entries: u32, percent: u32) -> anyhow::Result<Duration> {
    Node::run("delay", |node| {
        let store = node.store();
        fill(&store, entries, percent)?;
        let iterators = FlowIterators::load(&store, false)?;
        delay::steer(node.directory())?;
        Ok(delay::during(|| collect(&iterators, entries, percent))?.1.longest)
    })
}

/// Collects, and checks that what has ended was deleted.
fn collect(collector: &dyn FlowCollector, entries: u32, percent: u32) -> anyhow::Result<()> {
    let done = collector.collect(FlowMap::Tcp4, &Removal::Ended)?;
    let found = done.alive + done.deleted;
    ensure!(
        found == u64::from(entries),
        "{found} of {entries} entries were seen: {done:?}"
    );
    let wanted = u64::from(entries) * u64::from(percent) / 100;
    ensure!(done.deleted == wanted, "{wanted} entries have ended: {done:?}");
    Ok(())
}

/// Longest wait of a packet while the processor works for itself.
fn idle_delay() -> anyhow::Result<Duration> {
    Node::run("idle", |node| {
        delay::steer(node.directory())?;
        let work = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
            anyhow::Ok(())
        };
        Ok(delay::during(work)?.1.longest)
    })
}

/// How long the kernel is held by a map with one entry.
fn sparse(size: u32) -> anyhow::Result<Duration> {
    Node::run("sparse", |node| {
        let store = node.store();
        fill_sized(&store, size.next_power_of_two(), 1, 0)?;
        let iterators = FlowIterators::load(&store, false)?;
        iterators.collect(FlowMap::Tcp4, &Removal::Ended)?;
        Ok(iterators.last_pass().longest_slice)
    })
}

/// Seconds that the command takes.
fn list(skep: &Path, entries: u32) -> anyhow::Result<f64> {
    Node::run("list", |node| {
        fill(&node.store(), entries, 0)?;
        let start = Instant::now();
        let output = Command::new(skep)
            .arg(format!("--bpf-root={}", node.bpf_root().display()))
            .args(["bpf", "ct", "list"])
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| skep.display().to_string())?;
        let time = start.elapsed().as_secs_f64();
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        ensure!(lines == entries as usize, "{lines} lines for {entries} entries");
        Ok(time)
    })
}
