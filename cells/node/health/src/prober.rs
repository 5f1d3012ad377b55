// SPDX-License-Identifier: Apache-2.0

//! Probes all addresses, round by round, and remembers the last result of each.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    fmt,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use hive::{Cfg, JobCtx};
use jiff::Timestamp;
use parking_lot::Mutex;
use skep_base_api_types::{
    ConnectivityStatus, HealthStatusResponse, HostStatus, NodeHealthStatus, PathStatus, SelfStatus,
};
use skep_base_settings::{AddressFamilies, HealthCheckConfig};
use skep_node_manager::NodeManager;
use tokio::time::Instant;

use crate::{
    HealthMetrics,
    metrics::Reachability,
    probe::{HttpClient, Outcome, Probed, client, probe},
    round::{Path, PathKind, Target, interval, paths},
};

/// Longest wait for the first list of nodes.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// Time between two looks at the nodes while there are none.
const IDLE: Duration = Duration::from_secs(60);
/// Time between first probes of addresses, unless those of a round follow each other faster.
const FIRST: Duration = Duration::from_millis(200);
/// Time until a first probe that failed is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Time from a change of the nodes to the look at them.
const LOOK: Duration = Duration::from_millis(500);
/// Shortest time between two reports, for each address.
const REPORT: Duration = Duration::from_micros(100);

/// Probes of the connectivity to all nodes.
pub struct Prober {
    nodes: NodeManager,
    config: Cfg<HealthCheckConfig>,
    families: Cfg<AddressFamilies>,
    metrics: Arc<HealthMetrics>,
    http: HttpClient,
    state: Mutex<State>,
}

struct State {
    /// Start of the round.
    begun: Timestamp,
    targets: Vec<Target>,
    /// All addresses of the targets; none before they are probed.
    results: HashMap<IpAddr, Option<Probed>>,
    /// Last report, and whether it is outdated.
    reported: Option<Instant>,
    is_changed: bool,
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").finish_non_exhaustive()
    }
}

impl Prober {
    pub(crate) fn new(
        nodes: NodeManager,
        config: Cfg<HealthCheckConfig>,
        families: Cfg<AddressFamilies>,
        metrics: Arc<HealthMetrics>,
    ) -> Self {
        Self {
            nodes,
            config,
            families,
            metrics,
            http: client(),
            state: Mutex::new(State {
                begun: Timestamp::now(),
                targets: Vec::new(),
                results: HashMap::new(),
                reported: None,
                is_changed: true,
            }),
        }
    }

    /// Probes until cancelled.
    pub(crate) async fn run(&self, cx: &JobCtx) -> Result<(), Infallible> {
        cx.health.starting("Waiting for the nodes");
        let table = self.nodes.table();
        let _ = tokio::time::timeout(FIRST_LIST, table.wait_initialized(self.nodes.db())).await;
        loop {
            self.round(cx).await;
        }
    }

    async fn round(&self, cx: &JobCtx) {
        let mut watch = self.look();
        let mut queue = VecDeque::new();
        let interval = {
            let mut state = self.state.lock();
            let all = paths(&state.targets);
            let interval = interval(self.config.frequency_ratio, all.len());
            state.begun = Timestamp::now();
            queue.extend(all);
            interval
        };
        self.first_ones_first(&mut queue);
        self.report(cx);
        let pause = match queue.len() {
            0 => IDLE,
            count => interval / count as u32,
        };
        let begun = Instant::now();
        let (mut next, mut look) = (begun, None::<Instant>);
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {
                    let Some(path) = queue.pop_front() else { break };
                    running.push(async move {
                        let probed = probe(&self.http, path.address, self.config.port, self.config.icmp_requests);
                        (path, probed.await)
                    });
                    next = match queue.front() {
                        Some(path) if self.is_new(path) => next + pause.min(FIRST),
                        Some(_) => next + pause,
                        None => begun + interval.max(pause),
                    };
                }
                Some((path, probed)) = running.next() => {
                    if self.finish(path, probed) {
                        queue.push_back(path);
                        next = next.min(Instant::now() + RETRY);
                    }
                    self.report(cx);
                }
                () = watch.closed(), if look.is_none() => look = Some(Instant::now() + LOOK),
                () = tokio::time::sleep_until(look.unwrap_or(next)), if look.is_some() => {
                    (watch, look) = (self.look(), None);
                    self.requeue(&mut queue);
                    if queue.front().is_some_and(|path| self.is_new(path)) {
                        next = next.min(Instant::now() + FIRST);
                    }
                    self.report(cx);
                }
            }
        }
        while let Some((path, probed)) = running.next().await {
            self.finish(path, probed);
        }
    }

    fn is_new(&self, path: &Path) -> bool {
        self.state.lock().result(&path.address).is_none()
    }

    /// Sorts addresses that were never probed to the front.
    fn first_ones_first(&self, queue: &mut VecDeque<Path>) {
        let state = self.state.lock();
        queue
            .make_contiguous()
            .sort_by_key(|path| state.result(&path.address).is_some());
    }

    /// Takes over the nodes as they are now; returns what reports their next change.
    fn look(&self) -> statedb::Watch {
        let snapshot = self.nodes.db().read();
        let watch = self.nodes.table().table_watch(&snapshot);
        let mut targets: Vec<Target> = self
            .nodes
            .nodes(&snapshot)
            .iter()
            .map(|node| Target::new(node, &self.families, &self.config))
            .collect();
        targets.sort_by(|a, b| a.name.cmp(&b.name));
        let mut state = self.state.lock();
        state.results = paths(&targets)
            .iter()
            .map(|path| (path.address, state.results.remove(&path.address).flatten()))
            .collect();
        (state.targets, state.is_changed) = (targets, true);
        watch
    }

    /// Removes addresses that are gone from the queue, and puts new ones first.
    fn requeue(&self, queue: &mut VecDeque<Path>) {
        let (all, mut present): (Vec<Path>, HashSet<IpAddr>) = {
            let state = self.state.lock();
            let is_new = |path: &Path| state.result(&path.address).is_none();
            let new = paths(&state.targets).into_iter().filter(is_new).collect();
            (new, state.results.keys().copied().collect())
        };
        queue.retain(|path| present.contains(&path.address));
        present = queue.iter().map(|path| path.address).collect();
        queue.extend(all.into_iter().filter(|path| !present.contains(&path.address)));
        self.first_ones_first(queue);
    }

    /// Keeps the result. Returns whether the probe is repeated: the first one failed, and the responder may have just started.
    fn finish(&self, path: Path, probed: Probed) -> bool {
        if !path.is_local {
            for (protocol, outcome) in [("icmp", &probed.icmp), ("http", &probed.http)] {
                let latency = outcome.result.as_ref().ok().copied();
                self.metrics.probed(path.kind, protocol, path.is_primary, latency);
            }
        }
        let mut state = self.state.lock();
        let is_reachable = probed.is_reachable();
        if let Some(result) = state.results.get_mut(&path.address) {
            let before = result.replace(probed);
            let is_first = before.is_none();
            state.is_changed |= before.is_none_or(|before| before.is_reachable() != is_reachable);
            return is_first && !is_reachable;
        }
        false
    }

    /// Reports changes, the less often the more addresses there are.
    fn report(&self, cx: &JobCtx) {
        let mut state = self.state.lock();
        let pause = REPORT * state.results.len() as u32;
        if !state.is_changed || state.reported.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        (state.reported, state.is_changed) = (Some(Instant::now()), false);
        self.metrics
            .count(&state.targets, |target, kind| state.reachability(target, kind));
        let unreachable = state.unreachable().count();
        let total = state.targets.len();
        cx.health
            .ok(format!("{} of {total} nodes reachable", total - unreachable));
    }

    /// The last results, in the model of Cilium's API.
    pub fn status(&self) -> HealthStatusResponse {
        let state = self.state.lock();
        let local = state.targets.iter().find(|target| target.is_local);
        HealthStatusResponse {
            local: Some(SelfStatus {
                name: local.map(|target| target.name.clone()).unwrap_or_default(),
            }),
            nodes: state.targets.iter().map(|target| state.node(target)).collect(),
            // Of the nodes of now: a round began with those of then.
            probe_interval: skep_duration::format_duration(interval(
                self.config.frequency_ratio,
                paths(&state.targets).len(),
            )),
            timestamp: seconds(state.begun),
        }
    }
}

impl State {
    fn result(&self, address: &IpAddr) -> Option<&Probed> {
        self.results.get(address)?.as_ref()
    }

    /// None without addresses.
    fn reachability(&self, target: &Target, kind: PathKind) -> Option<Reachability> {
        let addresses = target.addresses(kind);
        let results: Vec<Option<&Probed>> = addresses.iter().map(|address| self.result(address)).collect();
        if results.is_empty() {
            return None;
        }
        let is_bad = |probed: &&Probed| !probed.is_reachable();
        Some(if results.iter().flatten().any(is_bad) {
            Reachability::Unreachable
        } else if results.iter().any(Option::is_none) {
            Reachability::Unknown
        } else {
            Reachability::Reachable
        })
    }

    /// Nodes with an address that is not reached.
    fn unreachable(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(|target| {
            [PathKind::Node, PathKind::Endpoint]
                .into_iter()
                .any(|kind| self.reachability(target, kind) == Some(Reachability::Unreachable))
        })
    }

    fn node(&self, target: &Target) -> NodeHealthStatus {
        let host = self.host(&target.node);
        let endpoint = self.host(&target.endpoint);
        NodeHealthStatus {
            endpoint: endpoint.as_ref().and_then(|host| host.primary_address.clone()),
            health_endpoint: endpoint,
            host,
            name: target.name.clone(),
        }
    }

    fn host(&self, addresses: &[IpAddr]) -> Option<HostStatus> {
        let mut paths = addresses.iter().map(|address| self.path(*address));
        Some(HostStatus {
            primary_address: Some(paths.next()?),
            secondary_addresses: paths.collect(),
        })
    }

    fn path(&self, address: IpAddr) -> PathStatus {
        let probed = self.result(&address);
        PathStatus {
            http: probed.map(|probed| connectivity(&probed.http)),
            icmp: probed.map(|probed| connectivity(&probed.icmp)),
            ip: address.to_string(),
        }
    }
}

fn connectivity(outcome: &Outcome) -> ConnectivityStatus {
    let (latency, status) = match &outcome.result {
        Ok(latency) => (latency.as_nanos() as i64, String::new()),
        Err(error) => (0, error.clone()),
    };
    ConnectivityStatus {
        last_probed: seconds(outcome.at),
        latency,
        status,
    }
}

/// A time in seconds, as RFC 3339 has it.
fn seconds(time: Timestamp) -> String {
    format!("{time:.0}")
}
