// SPDX-License-Identifier: Apache-2.0

//! Tables → interfaces, programs and maps. Links are checked now and then.

use std::{sync::Arc, time::Duration};

use hive::{Health, Job, JobCtx, Jobs, Params, Readiness, ReadyGuard, SpawnError};
use ipnet::IpNet;
use skep_bpf_sys::MapStore;
use skep_datapath_hooks::{EventSwitch, HOST_DEVICE as HOST, MapsWritten, NET_DEVICE as NET, RateSwitch};
use skep_datapath_socketlb::SocketDatapath;
use skep_node_local::{Device, LocalNode, Neighbor, NodeAddress, Route};
use statedb::{Db, Table};
use tokio::sync::watch;

use crate::{
    datapath::{DatapathError, PacketDatapath, PacketStatus},
    desired::{Desired, Tables},
    options::PacketSettings,
    overlay::{self, TunnelPlan, VXLAN},
    pair::{self, Pair},
    sysctl::{self, SysctlError},
};

/// How often links are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Endpoints get links when none has come for this time, or so long after the first.
const LINK_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Changes within this time are applied at once.
const SETTLE: Duration = Duration::from_millis(500);
/// Pauses before what failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long programs go on with replaced maps before they are switched to the new ones regardless.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Params)]
pub(crate) struct ReconcilerParams {
    db: Db,
    devices: Table<Device>,
    routes: Table<Route>,
    neighbors: Table<Neighbor>,
    store: Arc<MapStore>,
    addresses: Table<NodeAddress>,
    node: Table<LocalNode>,
    datapath: Arc<PacketDatapath>,
    sockets: Arc<SocketDatapath>,
    written: Option<Arc<dyn MapsWritten>>,
    events: Option<Arc<EventSwitch>>,
    rates: Option<Arc<RateSwitch>>,
    readiness: Readiness,
    jobs: Jobs,
}

/// Settings of the kernel that cannot be made as the programs need them. They are attached: some packets get lost.
#[derive(Debug, thiserror::Error)]
enum KernelError {
    /// The kernel or its file system refused.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Sysctl(Vec<SysctlError>),
    /// Node ports with backends elsewhere, and legacy routing, require forwarding: set `net.ipv4.ip_forward` and `net.ipv6.conf.all.forwarding`.
    #[error("forwarding is off: {}", .0.join(", "))]
    Forwarding(Vec<String>),
}

struct Reconciler {
    params: ReconcilerParams,
    /// What was applied last, and with which settings of the kernel.
    applied: Option<Desired>,
    routed: Vec<IpNet>,
    /// Until programs with the settings of this run are attached: those of an earlier run have its settings, and without one
    /// packets for services pass untranslated.
    starting: Option<ReadyGuard>,
}

pub(crate) fn start(params: ReconcilerParams) -> Result<(), SpawnError> {
    let jobs = params.jobs.clone();
    let datapath = params.datapath.clone();
    let linking = params.datapath.clone();
    let starting = params.readiness.guard("programs");
    if params.datapath.settings().maps.flow_table_max > 0 {
        invalidate_flows(&params)?;
    }
    let reconciler = Arc::new(tokio::sync::Mutex::new(Reconciler {
        params,
        applied: None,
        routed: Vec::new(),
        starting: Some(starting),
    }));
    jobs.spawn(Job::once("attach-programs", move |cx: JobCtx| {
        let reconciler = reconciler.clone();
        async move {
            let token = cx.token.clone();
            let mut reconciler = reconciler.lock().await;
            // Programs may have been detached since the last run.
            reconciler.applied = None;
            tokio::select! {
                () = token.cancelled() => {}
                () = reconciler.run(&cx.health) => {}
            }
        }
    }))?;
    let unlinked = linking.unlinked().clone();
    let link_endpoints = Job::every(CHECK_INTERVAL, "link-endpoints", move |_cx: JobCtx| {
        let linking = linking.clone();
        async move { tokio::task::spawn_blocking(move || linking.link_endpoints()).await? }
    });
    jobs.spawn(
        link_endpoints
            .debounce(LINK_AFTER.0, LINK_AFTER.1)
            .trigger(&unlinked),
    )?;
    jobs.spawn(Job::every(
        CHECK_INTERVAL,
        "check-programs",
        move |_cx: JobCtx| {
            let datapath = datapath.clone();
            async move {
                tokio::task::spawn_blocking(move || datapath.check()).await??;
                Ok::<(), DatapathError>(())
            }
        },
    ))
}

/// Invalidates recorded flows when routes or neighbours of the kernel change, which are in no map.
fn invalidate_flows(params: &ReconcilerParams) -> Result<(), SpawnError> {
    let (db, store) = (params.db.clone(), params.store.clone());
    let (routes, neighbors) = (params.routes.clone(), params.neighbors.clone());
    params
        .jobs
        .spawn(Job::once("invalidate-flows", move |cx: JobCtx| {
            let (db, store) = (db.clone(), store.clone());
            let (routes, neighbors) = (routes.clone(), neighbors.clone());
            async move {
                loop {
                    let snapshot = db.read();
                    let routes_changed = routes.table_watch(&snapshot);
                    let neighbors_changed = neighbors.table_watch(&snapshot);
                    drop(snapshot);
                    store.raise_epoch();
                    tokio::select! {
                        () = cx.token.cancelled() => return,
                        () = routes_changed.closed() => {}
                        () = neighbors_changed.closed() => {}
                    }
                }
            }
        }))
}

/// Waits for a change of a switch.
async fn changed<T>(switch: &mut Option<watch::Receiver<T>>) {
    if let Some(switch) = switch
        && switch.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

impl Reconciler {
    async fn run(&mut self, health: &Health) {
        let mut retry = RETRY.0;
        let mut events = self.params.events.as_ref().map(|events| events.subscribe());
        let mut rates = self.params.rates.as_ref().map(|rates| rates.subscribe());
        loop {
            let snapshot = self.params.db.read();
            let (have_devices, devices_complete) = self.params.devices.initialized_watch(&snapshot);
            let (have_addresses, addresses_complete) = self.params.addresses.initialized_watch(&snapshot);
            let (have_node, node_complete) = self.params.node.initialized_watch(&snapshot);
            let devices_changed = self.params.devices.table_watch(&snapshot);
            let addresses_changed = self.params.addresses.table_watch(&snapshot);
            let node_changed = self.params.node.table_watch(&snapshot);

            let is_complete = have_devices && have_addresses && have_node;
            let mut has_failed = false;
            if is_complete {
                let desired = self.desired(&snapshot);
                drop(snapshot);
                if self.applied.as_ref() != Some(&desired) {
                    match self.apply(&desired, health).await {
                        Ok((pair, tunnel)) => {
                            self.applied = Some(Desired {
                                pair_indexes: [Some(pair.host), Some(pair.net)],
                                tunnel_index: tunnel,
                                ..desired
                            });
                            retry = RETRY.0;
                        }
                        Err(error) => {
                            health.degraded("Cannot attach programs as configured, retrying", &error);
                            has_failed = true;
                        }
                    }
                    if self.params.datapath.is_loaded() {
                        self.starting = None;
                    }
                }
            } else {
                health.ok("Waiting for devices and addresses of the node");
            }
            tokio::select! {
                () = devices_complete.closed(), if !have_devices => {}
                () = addresses_complete.closed(), if !have_addresses => {}
                () = node_complete.closed(), if !have_node => {}
                () = devices_changed.closed() => {}
                () = addresses_changed.closed() => {}
                () = node_changed.closed() => {}
                () = changed(&mut events) => {}
                () = changed(&mut rates) => {}
                () = tokio::time::sleep(retry), if has_failed => retry = (retry * 2).min(RETRY.1),
            }
            if is_complete {
                tokio::time::sleep(SETTLE).await;
            }
        }
    }

    fn desired(&self, snapshot: &statedb::Snapshot) -> Desired {
        let devices: Vec<_> = self.params.devices.all(snapshot).collect();
        let addresses: Vec<_> = self.params.addresses.all(snapshot).collect();
        let node = self.params.node.all(snapshot).next();
        let tables = Tables {
            devices: devices.iter().map(|row| &***row).collect(),
            addresses: addresses.iter().map(|row| &***row).collect(),
            node: node.map(|row| &**row),
        };
        let settings = self.settings();
        let events = self.params.events.as_ref();
        let events = events
            .map(|events| *events.subscribe().borrow())
            .unwrap_or_default();
        let rates = self.params.rates.as_ref();
        Desired {
            events: events.options,
            endpoint_debug: events.endpoint_debug,
            bandwidth: rates.is_some_and(|rates| *rates.subscribe().borrow()),
            ..Desired::new(&tables, &settings.families, &settings.attach, &settings.mtu)
        }
    }

    fn settings(&self) -> &PacketSettings {
        self.params.datapath.settings()
    }

    /// Returns the pair, and the index of the tunnel's interface.
    async fn apply(
        &mut self,
        desired: &Desired,
        health: &Health,
    ) -> Result<(Pair, Option<u32>), DatapathError> {
        self.wait_for_maps(health).await;
        let families = self.settings().families.clone();
        let kernel = self.settings().kernel.sysctl();
        let mut refused = sysctl::apply(&kernel, &sysctl::wanted(&[], families.ipv4, families.ipv6));
        let old = self.old_routes(desired);
        let pair_plan = desired.pair.clone();
        let plan = TunnelPlan::new(&self.settings().tunnel, desired.pair.mtu);
        let interfaces = move || {
            let pair = pair::ensure(&pair_plan)?;
            pair::remove_routes(pair.host, &old)?;
            let tunnel = overlay::ensure(plan.as_ref()).map_err(DatapathError::Tunnel)?;
            Ok::<_, DatapathError>((pair, tunnel))
        };
        let (pair, tunnel) = tokio::task::spawn_blocking(interfaces).await??;
        self.routed.clone_from(&desired.pair.networks);
        let mut ours = vec![HOST, NET];
        ours.extend(tunnel.map(|_| VXLAN));
        let of_ours = sysctl::wanted(&ours, families.ipv4, families.ipv6);
        refused.extend(sysctl::apply(&kernel, &of_ours));

        let options = self
            .settings()
            .options(self.params.sockets.options(), desired, pair, tunnel);
        let datapath = self.params.datapath.clone();
        let wanted = desired.clone();
        let work = move || datapath.apply(&wanted, pair, &options);
        let status = tokio::task::spawn_blocking(work).await??;
        self.report(&status, desired, refused, health);
        Ok((pair, tunnel))
    }

    /// Programs that work with the maps of an earlier run go on with them until the new ones are as good.
    async fn wait_for_maps(&self, health: &Health) {
        if !self.params.datapath.waits_for_maps() {
            return;
        }
        let Some(written) = &self.params.written else {
            return;
        };
        health.ok("Waiting for replaced maps to be populated");
        if tokio::time::timeout(WRITTEN_TIMEOUT, written.written())
            .await
            .is_err()
        {
            tracing::warn!("Timed out waiting for services, switching to the new maps");
        }
    }

    /// Networks that are routed no more.
    fn old_routes(&self, desired: &Desired) -> Vec<IpNet> {
        // An earlier run may have routed those of the node, with other settings.
        let own = desired.pod_cidr4.map(IpNet::from).into_iter();
        let own = own.chain(desired.pod_cidr6.map(IpNet::from));
        own.chain(self.routed.iter().copied())
            .filter(|network| !desired.pair.networks.contains(network))
            .collect()
    }

    fn report(&self, status: &PacketStatus, desired: &Desired, refused: Vec<SysctlError>, health: &Health) {
        let message = summary(status);
        let idle = self.not_forwarding(desired);
        if !refused.is_empty() {
            health.degraded(message, &KernelError::Sysctl(refused));
        } else if !idle.is_empty() {
            health.degraded(message, &KernelError::Forwarding(idle));
        } else {
            health.ok(message);
        }
    }

    /// Devices that do not forward packets, though node ports are served there, or the kernel routes packets to pods.
    fn not_forwarding(&self, desired: &Desired) -> Vec<String> {
        let settings = self.settings();
        if !settings.replacement.enabled && !settings.attach.enable_host_legacy_routing {
            return Vec::new();
        }
        let kernel = settings.kernel.sysctl();
        let mut found = Vec::new();
        for device in &desired.devices {
            for (is_ipv6, has_address) in [
                (false, device.masquerade4.is_some()),
                (true, device.masquerade6.is_some()),
            ] {
                if has_address && !sysctl::forwards(&kernel, &device.name, is_ipv6) {
                    found.push(format!("{} (IPv{})", device.name, if is_ipv6 { 6 } else { 4 }));
                }
            }
        }
        found
    }
}

/// What is attached, in a line.
fn summary(status: &PacketStatus) -> String {
    let how = match status.attachment {
        Some(crate::Attachment::Filter { .. }) => "filters",
        _ => "tcx links",
    };
    let devices = if status.devices.is_empty() {
        "no devices".to_owned()
    } else {
        status.devices.join(", ")
    };
    let mut text = format!(
        "{} programs attached by {how} to {HOST}, {NET} and {devices}",
        status.programs.len()
    );
    if !status.xdp_devices.is_empty() {
        text.push_str(&format!("; XDP: {}", status.xdp_devices.join(", ")));
    }
    if let Some(direct) = &status.direct_routing {
        text.push_str(&format!("; direct routing: {}", direct.device));
    }
    text
}
