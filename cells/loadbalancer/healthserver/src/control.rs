// SPDX-License-Identifier: Apache-2.0

//! Job `control-loop`: a server for every service that wants one, and a frontend for its virtual addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hive::{Health, Job, JobCtx, Jobs};
use parking_lot::Mutex;
use skep_listen::Tcp;
use skep_loadbalancer_model::types::TrafficPolicy;
use skep_loadbalancer_model::{
    BackendParams, FrontendKind, FrontendParams, L3n4Addr, L4Proto, NodeFacts, Service, ServiceName, Source,
    Writer,
};
use statedb::{ChangeIterator, Db, InitGuard, Snapshot, WatchSet};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::answer::answer;
use crate::server::serve;

/// Shortest time between two looks at the tables.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Waits between attempts to listen on a port that is in use.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// Name as a source of frontends.
pub(crate) const INITIALIZER: &str = "health-servers";
/// Appended to the name of a service for the one that leads to its health-check port.
const SUFFIX: &str = ":healthserver";

pub(crate) struct Control {
    pub(crate) db: Db,
    pub(crate) writer: Writer,
    pub(crate) jobs: Jobs,
    /// Where servers listen; all addresses if `None`.
    pub(crate) listen_on: Option<IpAddr>,
    pub(crate) ports: Arc<Ports>,
    /// Reported once the frontends of the services of all sources are there; `None` if virtual addresses do not lead to the
    /// servers.
    pub(crate) initializer: Option<InitGuard>,
}

/// Which service answers on which port. Shared with the servers, which look it up for each request.
#[derive(Default)]
pub(crate) struct Ports {
    table: Mutex<BTreeMap<u16, Assigned>>,
    /// A server ended; its port may be used again.
    ended: Notify,
}

struct Assigned {
    service: ServiceName,
    stop: CancellationToken,
}

/// A service that wants a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    port: u16,
    /// Virtual addresses, if they shall lead to the server.
    virtual_ips: BTreeSet<IpAddr>,
}

/// What was seen and done so far.
struct Progress {
    changes: ChangeIterator<Service>,
    /// Services with a health-check port and policy Local.
    candidates: BTreeSet<ServiceName>,
    /// Services with a pseudo-service for their virtual addresses, with its port and addresses.
    exposed: BTreeMap<ServiceName, (u16, BTreeSet<IpAddr>, Vec<IpAddr>)>,
    /// Services refused because another one has the port: said once.
    refused: BTreeSet<(ServiceName, u16)>,
    is_complete: bool,
}

impl Control {
    /// Works until the job ends, then stops all servers.
    pub(crate) async fn run(self: Arc<Self>, cx: JobCtx) {
        let mut progress = Progress {
            changes: self.writer.services().follow(&self.db),
            candidates: BTreeSet::new(),
            exposed: BTreeMap::new(),
            refused: BTreeSet::new(),
            is_complete: self.initializer.is_none(),
        };
        loop {
            let mut watches = WatchSet::new();
            self.look(&mut progress, &mut watches);
            cx.health.ok(format!(
                "{} health servers running",
                self.ports.table.lock().len()
            ));
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = cx.cancelled() => break,
            }
            tokio::select! {
                _ = watches.wait(Duration::ZERO) => {}
                () = self.ports.ended.notified() => {}
                () = cx.cancelled() => break,
            }
        }
        let stopped = std::mem::take(&mut *self.ports.table.lock());
        stopped.into_values().for_each(|assigned| assigned.stop.cancel());
    }

    /// Brings servers and frontends in line with the tables; `watches` tell when to look again.
    fn look(&self, progress: &mut Progress, watches: &mut WatchSet) {
        let snapshot = self.db.read();
        let (changes, watch) = progress.changes.next_watch(&snapshot);
        watches.add(watch);
        for change in changes {
            let Some(service) = change.object() else {
                progress.candidates.clear();
                continue;
            };
            if !change.is_delete() && is_candidate(service) {
                progress.candidates.insert(service.name.clone());
            } else {
                progress.candidates.remove(&service.name);
            }
        }
        let wanted: BTreeMap<ServiceName, Wanted> = progress
            .candidates
            .iter()
            .filter_map(|name| Some((name.clone(), self.wanted(name, &snapshot, watches)?)))
            .collect();
        self.assign(&wanted, &mut progress.refused);
        if self.initializer.is_some() {
            let (facts, watch) = self.writer.node_watch(&snapshot);
            watches.add(watch);
            let node = node_addresses(&facts);
            self.expose(&wanted, &node, &mut progress.exposed);
        }
        if !progress.is_complete {
            progress.is_complete = self.report_complete(&snapshot, watches);
        }
    }

    /// Reports the frontends complete if they follow from all that other sources deliver.
    fn report_complete(&self, snapshot: &Snapshot, watches: &mut WatchSet) -> bool {
        let Some(initializer) = &self.initializer else {
            return true;
        };
        let frontends = self.writer.frontends();
        let (_, watch) = frontends.initialized_watch(snapshot);
        let pending = frontends.pending_initializers(snapshot);
        if pending.iter().any(|source| source != INITIALIZER) {
            watches.add(watch);
            return false;
        }
        let mut txn = self.writer.write();
        if let Err(error) = txn.initialized(initializer) {
            tracing::error!(%error, "Cannot mark health servers as initialized");
        }
        txn.commit();
        true
    }

    /// What a candidate wants: nothing unless it can be reached from outside.
    fn wanted(&self, name: &ServiceName, snapshot: &Snapshot, watches: &mut WatchSet) -> Option<Wanted> {
        let services = self.writer.services();
        let port = services
            .get(snapshot, skep_loadbalancer_model::SERVICES_BY_NAME.key(name))?
            .health_check_node_port;
        let query = skep_loadbalancer_model::FRONTENDS_BY_SERVICE.key(name);
        let frontends = self.writer.frontends();
        let (frontends, watch) = frontends.list_watch(snapshot, query);
        watches.add(watch);
        let mut is_outside = false;
        let mut virtual_ips = BTreeSet::new();
        for frontend in frontends {
            match frontend.params.kind {
                FrontendKind::NodePort => is_outside = true,
                FrontendKind::LoadBalancer => {
                    is_outside = true;
                    virtual_ips.insert(frontend.address().ip());
                }
                _ => {}
            }
        }
        is_outside.then_some(Wanted { port, virtual_ips })
    }

    /// Starts, stops and hands over servers. The first service by name gets a port.
    fn assign(&self, wanted: &BTreeMap<ServiceName, Wanted>, refused: &mut BTreeSet<(ServiceName, u16)>) {
        let mut owners: BTreeMap<u16, &ServiceName> = BTreeMap::new();
        let mut still_refused = BTreeSet::new();
        let mut table = self.ports.table.lock();
        // Who has a port keeps it.
        for (name, Wanted { port, .. }) in wanted {
            if table.get(port).is_some_and(|assigned| assigned.service == *name) {
                owners.insert(*port, name);
            }
        }
        for (name, Wanted { port, .. }) in wanted {
            let owner = *owners.entry(*port).or_insert(name);
            if owner != name {
                let refusal = (name.clone(), *port);
                if !refused.contains(&refusal) {
                    tracing::warn!(service = %name, port, %owner, "Not serving health checks: port in use by another service");
                }
                still_refused.insert(refusal);
            }
        }
        *refused = still_refused;
        table.retain(|port, assigned| {
            let keep = owners.contains_key(port);
            if !keep {
                assigned.stop.cancel();
            }
            keep
        });
        for (port, name) in owners {
            match table.get_mut(&port) {
                Some(assigned) => assigned.service = name.clone(),
                None => {
                    let stop = CancellationToken::new();
                    if self.start(port, stop.clone()) {
                        table.insert(
                            port,
                            Assigned {
                                service: name.clone(),
                                stop,
                            },
                        );
                    }
                }
            }
        }
    }

    /// Starts a server; not if the last one of that port is still ending, which a later event reports.
    fn start(&self, port: u16, stop: CancellationToken) -> bool {
        let listener = Arc::new(Listener {
            port,
            stop,
            listen_on: self.listen_on,
            writer: self.writer.clone(),
            db: self.db.clone(),
            ports: self.ports.clone(),
        });
        let job = Job::once(format!("listener-{port}"), move |cx: JobCtx| {
            listener.clone().run(cx)
        });
        match self.jobs.spawn(job) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(port, %error, "Cannot start health-check server yet");
                false
            }
        }
    }

    /// Makes the virtual addresses of services lead to their servers.
    fn expose(
        &self,
        wanted: &BTreeMap<ServiceName, Wanted>,
        node: &[IpAddr],
        exposed: &mut BTreeMap<ServiceName, (u16, BTreeSet<IpAddr>, Vec<IpAddr>)>,
    ) {
        let wanted: BTreeMap<_, _> = wanted
            .iter()
            .filter(|(_, wanted)| !wanted.virtual_ips.is_empty())
            .map(|(name, wanted)| {
                // One backend for each family of the virtual addresses.
                let is_used =
                    |ip: &&IpAddr| wanted.virtual_ips.iter().any(|vip| vip.is_ipv4() == ip.is_ipv4());
                let node = node.iter().filter(is_used).copied().collect();
                (name.clone(), (wanted.port, wanted.virtual_ips.clone(), node))
            })
            .collect();
        if wanted == *exposed {
            return;
        }
        let mut txn = self.writer.write();
        let note = |name: &ServiceName, result: Result<(), skep_loadbalancer_model::WriterError>| {
            if let Err(error) = result {
                tracing::warn!(service = %name, error = hive::error_chain(&error),
                    "Cannot redirect virtual address to the health-check port");
            }
        };
        for name in exposed.keys().filter(|name| !wanted.contains_key(*name)) {
            let pseudo = name.with_suffix(SUFFIX);
            let removed = self
                .writer
                .set_backends(&mut txn, &pseudo, Source::Local, 0, Vec::new());
            note(&pseudo, removed);
            note(
                &pseudo,
                self.writer
                    .delete_service_and_frontends(&mut txn, &pseudo)
                    .map(drop),
            );
        }
        for (name, (port, virtual_ips, node)) in &wanted {
            if exposed
                .get(name)
                .is_some_and(|old| (&old.0, &old.1, &old.2) == (port, virtual_ips, node))
            {
                continue;
            }
            let mut service = Service::new(name.with_suffix(SUFFIX), Source::Local);
            service.ext_traffic_policy = TrafficPolicy::Local;
            service.int_traffic_policy = TrafficPolicy::Local;
            let address = |&ip: &IpAddr| L3n4Addr::new(ip, *port, L4Proto::Tcp);
            let frontend = |ip| FrontendParams {
                address: address(ip),
                kind: FrontendKind::LoadBalancer,
                port_name: Default::default(),
                service_port: *port,
            };
            let pseudo = service.name.clone();
            let frontends = virtual_ips.iter().map(frontend).collect();
            note(
                &pseudo,
                self.writer
                    .upsert_service_and_frontends(&mut txn, service, frontends),
            );
            let backend = |ip| BackendParams::new(address(ip), Source::Local);
            let backends = node.iter().map(backend).collect();
            let set = self
                .writer
                .set_backends(&mut txn, &pseudo, Source::Local, 0, backends);
            note(&pseudo, set);
        }
        txn.commit();
        *exposed = wanted;
    }
}

/// Addresses of the node that answer node ports, one a family.
fn node_addresses(node: &NodeFacts) -> Vec<IpAddr> {
    let first = |ipv6: bool| node.addresses.node_ports(ipv6).first().copied();
    first(false).into_iter().chain(first(true)).collect()
}

fn is_candidate(service: &Service) -> bool {
    service.health_check_node_port != 0 && service.ext_traffic_policy == TrafficPolicy::Local
}

struct Listener {
    port: u16,
    stop: CancellationToken,
    listen_on: Option<IpAddr>,
    writer: Writer,
    db: Db,
    ports: Arc<Ports>,
}

impl Listener {
    /// Serves until the job ends, or no service wants the port.
    async fn run(self: Arc<Self>, cx: JobCtx) {
        let stop = cx.token.child_token();
        let released = async {
            tokio::select! {
                () = self.stop.cancelled() => stop.cancel(),
                () = stop.cancelled() => {}
            }
        };
        tokio::join!(self.clone().serve(&cx.health, stop.clone()), released);
        self.ports.ended.notify_one();
    }

    async fn serve(self: Arc<Self>, health: &Health, stop: CancellationToken) {
        let endpoint = match self.listen_on {
            Some(ip) => Tcp::new((ip, self.port).into()),
            None => Tcp::all(self.port),
        };
        let mut wait = FIRST_RETRY;
        while !stop.is_cancelled() {
            let error = match endpoint.bind() {
                Ok(listener) => {
                    health.ok("Running");
                    return serve(listener, stop, move |_| self.respond()).await;
                }
                Err(error) => error,
            };
            tracing::warn!(
                port = self.port,
                error = hive::error_chain(&error),
                "Cannot listen for health checks, retrying"
            );
            health.degraded("Cannot listen", &error);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
            wait = (wait * 2).min(LONGEST_RETRY);
        }
    }

    /// Any path: the number of local backends of the service that has the port.
    fn respond(&self) -> http::Response<String> {
        let owner = self
            .ports
            .table
            .lock()
            .get(&self.port)
            .map(|assigned| assigned.service.clone());
        let Some(owner) = owner else {
            return answer("", "", 0);
        };
        answer(owner.namespace(), owner.name(), self.local_backends(&owner))
    }

    /// Active, healthy backends on this node. A service behind a proxy counts as one: the proxy is local.
    fn local_backends(&self, name: &ServiceName) -> usize {
        let snapshot = self.db.read();
        let services = self.writer.services();
        let Some(service) = services.get(&snapshot, skep_loadbalancer_model::SERVICES_BY_NAME.key(name))
        else {
            return 0;
        };
        if service
            .proxy_redirects
            .as_deref()
            .is_some_and(|redirects| !redirects.is_empty())
        {
            return 1;
        }
        let node = self.writer.node(&snapshot);
        let backends = self.writer.preferred_backends(&snapshot, name);
        backends
            .iter()
            .filter(|backend| backend.is_active_healthy() && backend.is_on_node(&node.name))
            .count()
    }
}
