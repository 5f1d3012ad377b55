// SPDX-License-Identifier: Apache-2.0

//! Pods whose labels change: from the request to the API server to the identity in the ipcache.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::json;
use skep_bpf_maps::node::{IpcacheKey, IpcacheValue};
use skep_bpf_sys::{Map, testing::Node};

use super::{REST, world::World};
use crate::{
    agent::ServerOptions,
    mesh, objects,
    report::{Row, milliseconds, quantiles},
    usage,
};

/// Pods whose labels change in turn.
const PODS: u32 = 50;
/// New label sets a second that have to be kept up with.
const PACE: u32 = 40;
const POLL: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench<'a> {
    world: World<'a>,
    map: Map<IpcacheKey, IpcacheValue>,
    addresses: Vec<std::net::Ipv4Addr>,
    /// By pod: when its labels changed, and the identity before.
    waiting: BTreeMap<u32, (Instant, u32)>,
    delays: Vec<Duration>,
    sets: u32,
}

pub(super) fn measure(sets: u32, node: &Node, programs: &Path) -> anyhow::Result<Vec<Row>> {
    let server = ServerOptions {
        local_pods: PODS,
        label_sets: PODS,
        ..ServerOptions::default()
    };
    let mut world = World::new(node, programs, &server, PODS)?;
    // The wait for other nodes is not what is measured, nor the limit that protects an API server.
    world.start(&[
        "--identity-change-grace-period=0s",
        "--k8s-client-qps=1000",
        "--k8s-client-burst=1000",
    ])?;
    let addresses = (0..PODS).map(|pod| world.add(pod)?.address());
    let addresses = addresses.collect::<anyhow::Result<_>>()?;
    let map = world.store().open(mesh::IPCACHE_MAP)?;
    let mut bench = Bench {
        world,
        map,
        addresses,
        waiting: BTreeMap::new(),
        delays: Vec::new(),
        sets: 0,
    };
    sleep(REST);
    let pid = bench.world.agent()?;
    let resident = usage::resident_mib(pid)?;
    let mut rows = Vec::new();

    let paced = sets / 5;
    let (used, begun) = (usage::processor_time_of(pid)?, Instant::now());
    for number in 0..paced {
        let due = begun + Duration::from_secs(1) * number / PACE;
        let pod = number % PODS;
        while Instant::now() < due || bench.waiting.contains_key(&pod) {
            bench.look()?;
            sleep(POLL);
        }
        bench.change(pod)?;
    }
    bench.settle()?;
    let case = format!("{PACE} new label sets a second");
    let late = begun
        .elapsed()
        .saturating_sub(Duration::from_secs(1) * paced / PACE);
    let used = usage::processor_time_of(pid)? - used;
    let delays = quantiles(std::mem::take(&mut bench.delays));
    rows.extend([
        Row::cost(format!("{case}: late after the last"), milliseconds(late), "ms").target(1000.0),
        Row::cost(format!("{case}, identity in the ipcache: p50"), delays(0.5), "ms"),
        Row::cost(
            format!("{case}, identity in the ipcache: p99"),
            delays(0.99),
            "ms",
        ),
        Row::cost(
            format!("{case}: processor"),
            used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0,
            "%",
        ),
    ]);

    let others = sets - paced;
    let (used, begun) = (usage::processor_time_of(pid)?, Instant::now());
    let mut changed = 0;
    while changed < others {
        bench.look()?;
        let free: Vec<u32> = (0..PODS).filter(|pod| !bench.waiting.contains_key(pod)).collect();
        for pod in free.into_iter().take((others - changed) as usize) {
            bench.change(pod)?;
            changed += 1;
        }
    }
    bench.settle()?;
    let rate = f64::from(others) / begun.elapsed().as_secs_f64();
    let used = usage::processor_time_of(pid)? - used;
    sleep(REST);
    let grown = (usage::resident_mib(pid)? - resident) * 1024.0 / f64::from(sets);
    let case = format!("{sets} label sets");
    rows.extend([
        Row::rate(format!("{case}: as many as are realized"), rate, "1/s").target(f64::from(PACE)),
        Row::cost(
            format!("{case}: processor time a set"),
            milliseconds(used) / f64::from(others),
            "ms",
        ),
        Row::cost(format!("{case}: resident memory grows by, a set"), grown, "KiB"),
    ]);
    Ok(rows)
}

impl Bench<'_> {
    fn identity(&self, pod: u32) -> anyhow::Result<u32> {
        let key = IpcacheKey::host(self.addresses[pod as usize].into());
        Ok(self.map.lookup(&key)?.map_or(0, |value| value.identity))
    }

    /// Gives a pod labels that none had.
    fn change(&mut self, pod: u32) -> anyhow::Result<()> {
        let before = self.identity(pod)?;
        self.sets += 1;
        let body = json!({"metadata": {"labels": {"set": format!("s{}", self.sets)}}}).to_string();
        self.waiting.insert(pod, (Instant::now(), before));
        let authority = self.world.url().trim_start_matches("http://");
        let mut stream = TcpStream::connect(authority)?;
        write!(
            stream,
            "PATCH /api/v1/namespaces/{}/pods/pod-{pod} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\
             Content-Type: application/merge-patch+json\r\nContent-Length: {}\r\n\r\n{body}",
            objects::NAMESPACE,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.lines().next().unwrap_or_default();
        anyhow::ensure!(status.contains(" 200 "), "{status}");
        Ok(())
    }

    /// Notes the pods whose identity has changed.
    fn look(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        for pod in self.waiting.keys().copied().collect::<Vec<_>>() {
            let (since, before) = self.waiting.get(&pod).copied().context("it waits")?;
            if self.identity(pod)? != before {
                self.waiting.remove(&pod);
                self.delays.push(now - since);
            }
            anyhow::ensure!(
                now.saturating_duration_since(since) < PATIENCE,
                "pod {pod} keeps its identity\n{}",
                self.world.log()
            );
        }
        Ok(())
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        while !self.waiting.is_empty() {
            self.look()?;
            sleep(POLL);
        }
        Ok(())
    }
}
