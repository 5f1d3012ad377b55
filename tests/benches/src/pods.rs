// SPDX-License-Identifier: Apache-2.0

//! Pods: the CNI plugin and the agent as processes in namespaces of their own, the API server in another process.

mod labels;
mod names;
mod relay;
mod world;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use skep_bpf_maps::{
    conntrack::{CtEntry, CtKey4},
    node::{IpcacheKey, IpcacheValue},
};
use skep_bpf_sys::{clock::kernel_seconds, testing::Node};
use zerocopy::{FromZeros as _, network_endian::U16};

use self::{
    relay::Relay,
    world::{Done, World},
};
use crate::{
    agent::ServerOptions,
    endpoints, mesh, objects,
    report::{Report, Row, milliseconds, quantiles},
    usage,
};

/// Pods whose median is "the last".
const SAMPLE: usize = 50;
/// Pods that are added at the same time.
const WORKERS: usize = 10;
/// After this an agent has released the pages that only its start needed.
const REST: Duration = Duration::from_secs(8);
/// How long an agent with nothing to do is watched.
const IDLE: Duration = Duration::from_secs(10);
/// Longest wait for the objects of a fleet.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// ADD and DEL, one after another and in parallel; restart of the agent; memory of endpoints.
    Plugin,
    /// Pods whose labels change.
    Labels,
    /// DNS of a pod, through the DNS proxy.
    Names,
    /// An agent that sees the objects of a large cluster.
    Fleet,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What is measured; by default all.
    cases: Vec<Case>,
    /// Folder of skep-agent and skep-cni; by default that of this program.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Pods of the node.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pods: u32,
    /// Entries of conntrack during ADD and DEL.
    #[arg(long, default_value_t = 28_000)]
    flows: u32,
    /// Label sets that pods have in turn.
    #[arg(long, default_value_t = 5_000)]
    label_sets: u32,
    /// Time of DNS traffic, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Names that the cache has in the end.
    #[arg(long, default_value_t = 100_000)]
    names: u32,
    /// Nodes of the fleet: each has 40 pods, and there are four times as many identities.
    #[arg(long, default_value_t = 5_000)]
    fleet: u32,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let cases = match options.cases.as_slice() {
        [] => &[Case::Plugin, Case::Labels, Case::Names, Case::Fleet],
        cases => cases,
    };
    let programs = match &options.programs {
        Some(folder) => std::fs::canonicalize(folder).with_context(|| folder.display().to_string())?,
        None => std::env::current_exe()?.with_file_name(""),
    };
    for case in cases {
        let rows = Node::run("pods-benchmark", |node| {
            let measured = match case {
                Case::Plugin => plugin(options, node, &programs),
                Case::Labels => labels::measure(options.label_sets, node, &programs),
                Case::Names => names::measure(options.seconds, options.names, node, &programs),
                Case::Fleet => fleet(options.fleet, node, &programs),
            };
            Ok::<_, std::io::Error>(measured)
        })??;
        rows.into_iter().for_each(|row| report.add(row));
    }
    Ok(())
}

/// As many label sets as a node of this size may have.
fn deployments(pods: u32) -> u32 {
    pods.div_ceil(10)
}

fn plugin(options: &Options, node: &Node, programs: &std::path::Path) -> anyhow::Result<Vec<Row>> {
    let count = options.pods;
    let server = ServerOptions {
        local_pods: count,
        label_sets: deployments(count),
        ..ServerOptions::default()
    };
    let mut world = World::new(node, programs, &server, count)?;
    let mut rows = Vec::new();
    let begun = Instant::now();
    world.start(&[])?;
    let first = world.add(0)?;
    rows.push(Row::cost(
        "first ADD after a start",
        milliseconds(first.took),
        "ms",
    ));
    let started = begun.elapsed();
    rows.push(Row::cost(
        "from the start of the agent to the first pod",
        started.as_secs_f64(),
        "s",
    ));
    world.delete(0)?;

    // What runs for the first time is not the memory of endpoints.
    world.restart(&[])?;
    (0..count.min(10)).try_for_each(|pod| world.add(pod).map(drop))?;
    (0..count.min(10)).try_for_each(|pod| world.delete(pod).map(drop))?;
    sleep(REST);
    let memory = Memory::of(&world)?;
    one_by_one(&world, "", &mut rows)?;
    sleep(REST);
    memory.grown(&world, &mut rows)?;
    restart(&mut world, &mut rows)?;
    let deleted = all(&world, |pod| world.delete(pod))?;
    add_delays(&mut rows, "DEL, whole plugin", &deleted, Some(10.0));

    let relay = Relay::start(&world.socket(), &node.directory().join("relay.sock"))?;
    for (flows, text) in [
        (0, String::new()),
        (options.flows, format!(", {} conntrack entries", options.flows)),
    ] {
        if flows > 0 {
            fill_conntrack(node, flows)?;
            one_by_one(&world, &text, &mut rows)?;
            let deleted = all(&world, |pod| world.delete(pod))?;
            add_delays(
                &mut rows,
                &format!("DEL, whole plugin{text}"),
                &deleted,
                Some(10.0),
            );
        }
        world.through(Some(&relay));
        for (verb, target) in [("ADD", Some(5.0)), ("DEL", None)] {
            let answers = all(&world, |pod| {
                relay.take();
                let done = world.invoke(verb, pod)?;
                Ok(Done {
                    took: relay.take(),
                    ..done
                })
            })?;
            add_delays(
                &mut rows,
                &format!("{verb}, in the agent{text}"),
                &answers,
                target,
            );
        }
        world.through(None);
    }

    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let work = || {
            while let Some(pod) = (next.fetch_add(1, Ordering::Relaxed) as u32..count).next() {
                world.add(pod)?;
            }
            anyhow::Ok(())
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let joined = worker.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    rows.push(Row::rate(format!("{count} pods added by {WORKERS} workers"), rate, "pods/s").target(200.0));
    Ok(rows)
}

/// Invokes the plugin for all pods; their times.
fn all(world: &World<'_>, invoke: impl Fn(u32) -> anyhow::Result<Done>) -> anyhow::Result<Vec<Duration>> {
    (0..world.count()).map(|pod| Ok(invoke(pod)?.took)).collect()
}

/// Adds all pods, with the processor time of the agent and of the plugin.
fn one_by_one(world: &World<'_>, text: &str, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let used = usage::processor_time_of(world.agent()?)?;
    let of_plugins = usage::processor_time_of_children();
    let added = all(world, |pod| world.add(pod))?;
    let pods = added.len() as f64;
    let used = usage::processor_time_of(world.agent()?)? - used;
    let of_plugins = usage::processor_time_of_children() - of_plugins;
    add_delays(rows, &format!("ADD, whole plugin{text}"), &added, Some(15.0));
    let last = quantiles(added[added.len().saturating_sub(SAMPLE)..].to_vec());
    rows.push(
        Row::cost(
            format!("ADD, whole plugin, last {SAMPLE} of {pods} pods{text}: p50"),
            last(0.5),
            "ms",
        )
        .target(15.0),
    );
    for (what, time) in [("the agent", used), ("the plugin", of_plugins)] {
        rows.push(Row::cost(
            format!("ADD: processor time of {what} a pod{text}"),
            milliseconds(time) / pods,
            "ms",
        ));
    }
    Ok(())
}

fn add_delays(rows: &mut Vec<Row>, what: &str, times: &[Duration], target: Option<f64>) {
    let delays = quantiles(times.to_vec());
    rows.push(Row::cost(format!("{what}: p50"), delays(0.5), "ms").target(target));
    rows.push(Row::cost(format!("{what}: p99"), delays(0.99), "ms"));
}

/// Memory of an agent, and of its maps.
struct Memory {
    resident: f64,
    own: f64,
    maps: u64,
}

impl Memory {
    fn of(world: &World<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            resident: usage::resident_mib(world.agent()?)?,
            own: usage::own_mib(world.agent()?)?,
            maps: endpoints::map_bytes(&world.store())?,
        })
    }

    /// What endpoints have added.
    fn grown(&self, world: &World<'_>, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let now = Self::of(world)?;
        let kib = |mib: f64| mib * 1024.0 / f64::from(world.count());
        let maps = now.maps.saturating_sub(self.maps) as f64 / 1024.0 / f64::from(world.count());
        rows.extend([
            Row::cost(
                "resident memory of the agent an endpoint",
                kib(now.resident - self.resident),
                "KiB",
            )
            .target(20.0),
            Row::cost("of that heap and stacks", kib(now.own - self.own), "KiB"),
            Row::cost("memory of maps an endpoint", maps, "KiB"),
        ]);
        Ok(())
    }
}

/// Restarts the agent with all pods.
fn restart(world: &mut World<'_>, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let count = world.count();
    let begun = world.restart(&[])?;
    let answers = begun.elapsed();
    world.wait_ready(count)?;
    let realized = begun.elapsed();
    let used = usage::processor_time_of(world.agent()?)?;
    let case = format!("restart with {count} endpoints");
    rows.extend([
        Row::cost(
            format!("{case}: until the API answers"),
            answers.as_secs_f64(),
            "s",
        )
        .target(1.0),
        Row::cost(
            format!("{case}: until all are realized"),
            realized.as_secs_f64(),
            "s",
        )
        .target(1.0),
        Row::cost(
            format!("{case}: processor time until then"),
            used.as_secs_f64(),
            "s",
        ),
    ]);
    Ok(())
}

/// Connections that have not ended.
fn fill_conntrack(node: &Node, count: u32) -> anyhow::Result<()> {
    let map = node.store().open::<CtKey4, CtEntry>("cilium_ct4_global")?;
    let now = kernel_seconds()? as u32;
    let entry = CtEntry {
        lifetime: now + 8000,
        ..CtEntry::new_zeroed()
    };
    let numbers: Vec<u32> = (0..count).collect();
    for chunk in numbers.chunks(4096) {
        let keys = chunk.iter().map(|number| CtKey4 {
            daddr: [203, 0, 113, (number >> 14) as u8],
            saddr: [10, 200, (number >> 8) as u8, *number as u8],
            dport: U16::new(443),
            sport: U16::new(*number as u16),
            proto: 6,
            flags: 0,
        });
        let keys: Vec<CtKey4> = keys.collect();
        let failures = map.update_batch(&keys, &vec![entry; keys.len()]);
        anyhow::ensure!(failures.is_empty(), "entries of conntrack were not written");
    }
    Ok(())
}

fn fleet(nodes: u32, node: &Node, programs: &std::path::Path) -> anyhow::Result<Vec<Row>> {
    let (pods, identities) = (nodes * 40, nodes * 4);
    let server = ServerOptions {
        pods,
        identities,
        nodes,
        ..ServerOptions::default()
    };
    let mut world = World::new(node, programs, &server, 0)?;
    // The cluster that the identities are of.
    let settings = ["--cluster-name=remote", "--cluster-id=2"];
    let begun = Instant::now();
    world.start(&settings)?;
    let map = world
        .store()
        .open::<IpcacheKey, IpcacheValue>(mesh::IPCACHE_MAP)?;
    let mut done = 0;
    while done < pods {
        let key = IpcacheKey::host(objects::pod_address(done).into());
        match map
            .lookup(&key)?
            .is_some_and(|value| value.identity >= objects::FIRST_IDENTITY)
        {
            true => done += 1,
            false => {
                anyhow::ensure!(
                    begun.elapsed() < PATIENCE,
                    "{done} of {pods} pods are in the ipcache\n{}",
                    world.log()
                );
                sleep(Duration::from_millis(20));
            }
        }
    }
    let settled = begun.elapsed();
    let pid = world.agent()?;
    let starting = usage::processor_time_of(pid)?;
    sleep(REST);
    let (used, watched) = (usage::processor_time_of(pid)?, Instant::now());
    sleep(IDLE);
    let used = usage::processor_time_of(pid)? - used;
    let idle = used.as_secs_f64() / watched.elapsed().as_secs_f64() * 100.0;
    let case = format!("fleet of {nodes} nodes, {pods} pods, {identities} identities");
    Ok(vec![
        Row::cost(
            format!("{case}: from start to all in the maps"),
            settled.as_secs_f64(),
            "s",
        ),
        Row::cost(
            format!("{case}: processor time until then"),
            starting.as_secs_f64(),
            "s",
        ),
        Row::cost(
            format!("{case}: resident memory"),
            usage::resident_mib(pid)?,
            "MiB",
        )
        .target(250.0),
        Row::cost(
            format!("{case}: of that heap and stacks"),
            usage::own_mib(pid)?,
            "MiB",
        ),
        Row::cost(
            format!("{case}: highest resident memory"),
            usage::highest_mib(pid)?,
            "MiB",
        ),
        Row::cost(format!("{case}: processor when idle"), idle, "%").target(1.0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the programs of this build, which `make nightly` makes before.
    #[test]
    fn a_small_run_has_all_rows() {
        let own = std::env::current_exe().unwrap();
        let options = Options {
            cases: Vec::new(),
            programs: own.parent().and_then(std::path::Path::parent).map(Into::into),
            pods: 12,
            flows: 100,
            label_sets: 60,
            seconds: 1,
            names: 500,
            fleet: 20,
        };
        let mut report = Report::default();

        run(&options, &mut report).unwrap();

        let has = |text: &str| report.names().any(|name| name.starts_with(text));
        for text in [
            "first ADD",
            "ADD, whole plugin: p50",
            "ADD, in the agent, 100 conntrack entries: p99",
            "DEL, whole plugin: p99",
            "restart with 12 endpoints: until all are realized",
            "resident memory of the agent an endpoint",
            "12 pods added by 10 workers",
            "60 label sets",
            "10000 DNS answers/s, through the proxy: p99",
            "a cached name of 500",
            "fleet of 20 nodes, 800 pods, 80 identities: resident memory",
        ] {
            assert!(has(text), "{text}");
        }
    }
}
