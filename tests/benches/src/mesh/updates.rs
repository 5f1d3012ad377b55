// SPDX-License-Identifier: Apache-2.0

//! Addresses that change while the agent reads them: from a write in etcd to the entry in the map.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use skep_bpf_maps::node::{IpcacheKey, IpcacheValue};
use skep_bpf_sys::Map;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::load::{Load, Pace};
use super::{World, is_on, remote, store};
use crate::report::{Row, quantiles};
use crate::usage;

const POLL_ENTRY: Duration = Duration::from_micros(50);
/// Connections of the load to etcd.
const CONNECTIONS: usize = 4;
/// How addresses are changed, and in how many milliseconds half of the changes and 99 % should be in the map.
const PACES: [(Pace, Option<f64>, Option<f64>); 5] = [
    (Pace::a_second(200), None, None),
    (Pace::a_second(2_000), Some(1.5), Some(10.0)),
    (Pace::UNLIMITED, None, None),
    (Pace::a_second(10_000).together(10), None, None),
    (Pace::UNLIMITED.together(100), None, None),
];
/// How long a pace without a limit lasts at most: etcd keeps all revisions, and has a quota.
const UNLIMITED: Duration = Duration::from_secs(10);
/// How long etcd is measured without readers, at each of the paces without a limit.
const ALONE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);

/// A load and its threads. Measured writes have others: they would be acknowledged late.
pub(super) struct Loader {
    load: Load,
    threads: Threads,
}

impl World<'_> {
    pub(super) async fn all_updates(
        &mut self,
        case: &str,
        time: Duration,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<Loader> {
        let connections: Vec<_> = (0..CONNECTIONS).map(|_| self.etcd.connect()).collect();
        let mut load = Load::new(self.size, &connections);
        let threads = Threads::new()?;
        for (pace, p50, p99) in PACES {
            let name = format!("{case}: {pace}");
            let running = threads.run(load, pace, time);
            load = self.updates(&name, running, (p50, p99), rows).await?;
        }
        Ok(Loader { load, threads })
    }

    /// Moves pods between nodes at a pace. Measures one of them from before a write to when etcd has acknowledged it, and to when
    /// the entry is in the map: changes are read in order, so that what the agent has not read yet counts. The backlog is what was
    /// written in that time, by the last tenth of the measured changes.
    async fn updates(
        &mut self,
        name: &str,
        load: JoinHandle<anyhow::Result<(Load, f64)>>,
        (p50, p99): (Option<f64>, Option<f64>),
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<Load> {
        let processes = [
            ("agent", self.agent.id()),
            ("etcd", self.etcd.id()?),
            ("load", std::process::id()),
        ];
        let begun = Instant::now();
        let used = processes.map(|(_, pid)| usage::processor_time_of(pid));
        let map = self.ipcache()?;
        let (mut writes, mut delays, mut rests) = (Vec::new(), Vec::new(), Vec::new());
        while !load.is_finished() {
            let (acknowledged, delay) = self.change(&map).await?;
            writes.push(acknowledged);
            delays.push(delay);
            rests.push(delay.saturating_sub(acknowledged));
            tokio::time::sleep(PAUSE).await;
        }
        let took = begun.elapsed().as_secs_f64();
        let mut shares = Vec::new();
        for ((process, pid), used) in processes.into_iter().zip(used) {
            let used = usage::processor_time_of(pid)? - used?;
            shares.push((process, used.as_secs_f64() / took));
        }
        let (load, reached) = load.await.context("the load")??;
        let ended = Instant::now();
        for (pod, on) in load.pods() {
            while !is_on(&map, pod, on)? {
                self.check(ended, "all changes are in the map")?;
                sleep(POLL_ENTRY);
            }
        }
        rows.push(Row::rate(format!("{name}: reached"), reached, "1/s"));
        let late = quantiles(rests[rests.len() * 9 / 10..].to_vec())(0.5);
        for (what, delays, p50, p99) in [
            ("acknowledged by etcd", writes, None, None),
            ("from there to the map", rests, None, None),
            ("until in the map", delays, p50, p99),
        ] {
            let at = quantiles(delays);
            rows.push(Row::cost(format!("{name}: {what}, p50"), at(0.5), "ms").target(p50));
            rows.push(Row::cost(format!("{name}: {what}, p99"), at(0.99), "ms").target(p99));
        }
        rows.push(Row::cost(
            format!("{name}: backlog at the end"),
            late / 1e3 * reached,
            "changes",
        ));
        for (process, share) in shares {
            rows.push(Row::cost(
                format!("{name}: processor, {process}"),
                share * 100.0,
                "%",
            ));
        }
        Ok(load)
    }

    /// Moves the first pod. Returns after what time etcd acknowledged it, and after what time it was in the map.
    async fn change(&mut self, map: &Map<IpcacheKey, IpcacheValue>) -> anyhow::Result<(Duration, Duration)> {
        self.turn += 1;
        let on = self.turn % self.size.nodes;
        let (store, item) = (self.etcd.backend(), remote::address(self.size, 0, on)?);
        let written = Instant::now();
        let write = tokio::spawn(async move {
            store::write_together(&store, vec![item]).await?;
            anyhow::Ok(written.elapsed())
        });
        // This thread polls no tasks. Timers of the runtime would add a millisecond.
        while !is_on(map, 0, on)? {
            self.check(written, "a change is in the map")?;
            sleep(POLL_ENTRY);
        }
        let delay = written.elapsed();
        Ok((write.await.context("a write")??, delay))
    }
}

impl Loader {
    /// How many changes etcd takes when nothing reads them.
    pub(super) async fn without_reader(self, case: &str, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let Self { mut load, threads } = self;
        for (pace, _, _) in PACES {
            if pace.is_unlimited() {
                let reached;
                (load, reached) = threads.run(load, pace, ALONE).await??;
                rows.push(Row::rate(
                    format!("{case}: {pace}, without reader"),
                    reached,
                    "1/s",
                ));
            }
        }
        Ok(())
    }
}

struct Threads(Option<Runtime>);

impl Threads {
    fn new() -> std::io::Result<Self> {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        Ok(Self(Some(threads.enable_all().build()?)))
    }

    /// Starts a load. Returns it when it ends, and how many changes a second were acknowledged.
    fn run(&self, mut load: Load, pace: Pace, time: Duration) -> JoinHandle<anyhow::Result<(Load, f64)>> {
        let time = if pace.is_unlimited() {
            time.min(UNLIMITED)
        } else {
            time
        };
        let runtime = self.0.as_ref().expect("it is there until this is dropped");
        runtime.spawn(async move {
            let reached = load.run(pace, time).await?;
            Ok((load, reached))
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Nothing may block here, in a task.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}
