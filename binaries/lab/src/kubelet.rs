// SPDX-License-Identifier: Apache-2.0

//! Runs the pods of a cluster: schedules them, starts and stops their processes, reports their status.
//!
//! Level-triggered: every change of a Pod, and every process that ends, reconciles that pod: it
//! compares the pods of the API server with those that run.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use serde_json::{Value, json};
use skep_k8s_client::{
    Change, Client, DeleteOptions, ListOptions, Patch, RawEvent, Subresource, WatchOptions, WriteOptions,
};
use skep_k8s_types::{Kind, ObjectKey, Resource, slim};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    enter::{Mount, Placement},
    events::{Happened, Recorder},
    lab_options::PodNetwork,
    link,
    machine::Machine,
    plan::PodPlace,
    pod::{self, Ended, Life, Pod, RESTART},
    process::{Process, shell_code},
    runtime,
    volumes::Volumes,
};

/// How long a pod serves on after its deletion has begun, until all nodes have seen it.
const DRAIN: Duration = Duration::from_millis(1_500);
/// Delay before a failed list or watch is retried.
const RETRY: Duration = Duration::from_millis(500);

/// Runs the pods of one cluster.
pub struct Kubelet {
    client: Arc<dyn Client>,
    machines: Vec<Arc<Machine>>,
    network: PodNetwork,
    stop: CancellationToken,
}

enum Signal {
    Seen(ObjectKey, Arc<Value>),
    Gone(ObjectKey),
    Listed(Vec<ObjectKey>),
    /// Key and uid of a pod, and the exit code of its process.
    Ended(ObjectKey, String, i32),
    Retry(ObjectKey),
}

struct Running {
    uid: String,
    place: PodPlace,
    machine: Arc<Machine>,
    network: PodNetwork,
    addresses: Vec<IpAddr>,
    /// Ends the task that owns the process.
    stop: CancellationToken,
    stopping: bool,
    life: Life,
}

impl Kubelet {
    /// A kubelet for all nodes of a cluster.
    #[must_use]
    pub fn new(
        client: Arc<dyn Client>,
        machines: Vec<Arc<Machine>>,
        network: PodNetwork,
        stop: CancellationToken,
    ) -> Self {
        Self {
            client,
            machines,
            network,
            stop,
        }
    }

    /// Creates the nodes in the API server.
    pub async fn register_nodes(&self) -> Result<(), skep_k8s_client::ApiError> {
        for machine in &self.machines {
            let node = &machine.node;
            let addresses: Vec<Value> = node
                .addresses()
                .iter()
                .map(|(address, _)| json!({"type": "InternalIP", "address": address.to_string()}))
                .chain([json!({"type": "Hostname", "address": node.name})])
                .collect();
            let pod_networks: Vec<String> = node
                .pod_networks()
                .iter()
                .map(|(network, prefix)| format!("{network}/{prefix}"))
                .collect();
            let object = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node.name, "labels": {
                    "kubernetes.io/hostname": node.name,
                    "kubernetes.io/os": std::env::consts::OS,
                    "kubernetes.io/arch": architecture(),
                    "topology.kubernetes.io/zone": format!("zone-{}", (node.index - 1) % 2 + 1),
                }},
                "spec": {"podCIDR": pod_networks[0], "podCIDRs": pod_networks},
            });
            let status = json!({"status": {
                "addresses": addresses,
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": node_info(),
            }});
            let (kind, options) = (slim::Node::kind(), WriteOptions::default());
            match self.client.create(&kind, "", object, &options).await {
                Err(err) if !err.is_already_exists() => return Err(err),
                _ => {}
            }
            let patch = Patch::Merge(status);
            self.client
                .patch(&kind, "", &node.name, Subresource::Status, &patch, &options)
                .await?;
        }
        Ok(())
    }

    /// Runs pods until stopped; then ends their processes.
    pub async fn run(self) {
        let (sender, mut signals) = mpsc::unbounded_channel();
        let watcher = tokio::spawn(follow(self.client.clone(), sender.clone(), self.stop.clone()));
        let mut state = State {
            kubelet: &self,
            sender,
            seen: HashMap::new(),
            running: HashMap::new(),
            crashed: HashMap::new(),
            recorder: Recorder::new(self.client.clone()),
            tasks: JoinSet::new(),
        };
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(signal) = signals.recv() => state.take(signal).await,
                Some(_) = state.tasks.join_next() => {}
            }
        }
        watcher.abort();
        for running in state.running.values() {
            running.stop.cancel();
        }
        while state.tasks.join_next().await.is_some() {}
    }
}

/// Architecture of this machine, as Kubernetes calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// System information of a node: that of this machine.
fn node_info() -> Value {
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let release = read("/etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    json!({
        "architecture": architecture(),
        "bootID": read("/proc/sys/kernel/random/boot_id"),
        "containerRuntimeVersion": concat!("skep-lab://", env!("CARGO_PKG_VERSION")),
        "kernelVersion": read("/proc/sys/kernel/osrelease"),
        "kubeletVersion": concat!("v", env!("CARGO_PKG_VERSION")),
        "operatingSystem": std::env::consts::OS,
        "osImage": name.unwrap_or_default().trim_matches('"'),
    })
}

/// Watches all pods, and reconnects when the connection breaks.
async fn follow(client: Arc<dyn Client>, out: mpsc::UnboundedSender<Signal>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Err(err) = follow_once(&*client, &out).await {
            tracing::warn!(error = %err, "Cannot watch pods");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn follow_once(
    client: &dyn Client,
    out: &mpsc::UnboundedSender<Signal>,
) -> Result<(), skep_k8s_client::ApiError> {
    let kind = slim::Pod::kind();
    let list = client.list(&kind, "", &ListOptions::default()).await?;
    let mut keys = Vec::new();
    for item in &list.items {
        if let Ok(value) = item.to_value() {
            keys.push(key_of(&value));
            let _ = out.send(Signal::Seen(key_of(&value), value));
        }
    }
    let _ = out.send(Signal::Listed(keys));
    let options = WatchOptions {
        resource_version: list.resource_version,
        bookmarks: true,
        ..WatchOptions::default()
    };
    let mut events = client.watch(&kind, "", &options).await?;
    while let Some(event) = events.next().await {
        let RawEvent::Object(change, object) = event? else {
            continue;
        };
        let Ok(value) = object.to_value() else { continue };
        let signal = match change {
            Change::Deleted => Signal::Gone(key_of(&value)),
            Change::Added | Change::Modified => Signal::Seen(key_of(&value), value),
        };
        let _ = out.send(signal);
    }
    Ok(())
}

fn key_of(object: &Value) -> ObjectKey {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().into();
    ObjectKey {
        namespace: text("namespace"),
        name: text("name"),
    }
}

struct State<'kubelet> {
    kubelet: &'kubelet Kubelet,
    sender: mpsc::UnboundedSender<Signal>,
    seen: HashMap<ObjectKey, Pod>,
    running: HashMap<ObjectKey, Running>,
    /// Pods that wait for their next start, by uid, and until when.
    crashed: HashMap<String, (Life, Instant)>,
    recorder: Recorder,
    tasks: JoinSet<()>,
}

impl State<'_> {
    async fn take(&mut self, signal: Signal) {
        match signal {
            // Pods of a container runtime are others'.
            Signal::Seen(_, object) if object["spec"]["runtimeClassName"].is_string() => {}
            Signal::Seen(key, object) => {
                self.seen.insert(key.clone(), Pod::read(&object));
                self.look(&key).await;
            }
            Signal::Gone(key) => self.gone(&key).await,
            Signal::Listed(keys) => {
                let listed: BTreeSet<_> = keys.iter().map(ToString::to_string).collect();
                let gone: Vec<_> = self
                    .seen
                    .keys()
                    .filter(|key| !listed.contains(&key.to_string()))
                    .cloned()
                    .collect();
                for key in gone {
                    self.gone(&key).await;
                }
            }
            Signal::Ended(key, uid, code) => self.ended(&key, &uid, code).await,
            Signal::Retry(key) => self.look(&key).await,
        }
    }

    async fn gone(&mut self, key: &ObjectKey) {
        if let Some(pod) = self.seen.remove(key) {
            self.crashed.remove(&pod.uid);
            self.recorder.forget(&pod.uid);
            // One that runs is cleaned up when its process has ended; one that never started, here.
            let machine = self.machine(&pod).filter(|_| !self.running.contains_key(key));
            if let Some(Err(err)) = machine.map(|machine| machine.remove_volumes(&pod.id())) {
                tracing::warn!(error = %err, pod = %key, "Cannot remove volumes of pod");
            }
        }
        self.look(key).await;
    }

    async fn look(&mut self, key: &ObjectKey) {
        let Some(pod) = self.seen.get(key).cloned() else {
            self.stop_process(key, Duration::ZERO);
            return;
        };
        // Replaced by a pod of the same name.
        if self
            .running
            .get(key)
            .is_some_and(|running| running.uid != pod.uid)
        {
            self.stop_process(key, Duration::ZERO);
            return;
        }
        if pod.is_deleting {
            match self.running.get(key) {
                Some(running) => {
                    if !running.stopping {
                        for at in 0..pod.containers.len() {
                            self.recorder.record(&pod, Happened::Killing(at)).await;
                        }
                    }
                    self.stop_process(key, DRAIN);
                }
                None => self.delete(&pod).await,
            }
            return;
        }
        if pod.node.is_empty() {
            if let Err(err) = self.schedule(&pod).await {
                tracing::warn!(error = %err, pod = %key, "Cannot bind pod");
                self.retry(key.clone());
            }
            return;
        }
        if let Some(problem) = &pod.problem {
            if pod.phase != "Failed" {
                let problem = problem.to_string();
                self.write_status(&pod, pod::failed(&problem)).await;
                self.recorder.record(&pod, Happened::Failed(problem)).await;
            }
            return;
        }
        match self.running.get(key) {
            Some(running) if !running.stopping => {
                let want = !pod.is_held_unready;
                if pod.is_ready != want {
                    let life = Life {
                        is_ready: want,
                        ..running.life.clone()
                    };
                    let host = host_addresses(&running.machine);
                    let status = pod::status(&pod, &running.addresses, &host, &life);
                    self.write_status(&pod, status).await;
                }
            }
            Some(_) => {}
            None if self
                .crashed
                .get(&pod.uid)
                .is_some_and(|(_, until)| *until > Instant::now()) => {}
            None => self.start(key, &pod).await,
        }
    }

    async fn schedule(&self, pod: &Pod) -> Result<(), skep_k8s_client::ApiError> {
        let load = |name: &str| self.seen.values().filter(|other| other.node == name).count();
        let Some(machine) = self
            .kubelet
            .machines
            .iter()
            .min_by_key(|machine| load(&machine.node.name))
        else {
            return Ok(());
        };
        let kind = Kind::BINDING;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": machine.node.name},
        });
        let created = self
            .kubelet
            .client
            .create(&kind, &pod.namespace, binding, &WriteOptions::default())
            .await;
        let machine = machine.node.name.clone();
        match created {
            Ok(_) => {
                let bound = Pod {
                    node: machine,
                    ..pod.clone()
                };
                self.recorder.record(&bound, Happened::Scheduled).await;
                Ok(())
            }
            // Deleted, or bound already: the watch delivers it.
            Err(err) if err.is_not_found() || err.is_conflict() => Ok(()),
            other => other.map(drop),
        }
    }

    /// How a pod is connected: one in the node's network is no endpoint.
    fn network_of(&self, pod: &Pod) -> PodNetwork {
        match pod.is_on_host_network {
            true => PodNetwork::Unmanaged,
            false => self.kubelet.network,
        }
    }

    fn machine(&self, pod: &Pod) -> Option<&Arc<Machine>> {
        let mut machines = self.kubelet.machines.iter();
        machines.find(|machine| machine.node.name == pod.node)
    }

    async fn start(&mut self, key: &ObjectKey, pod: &Pod) {
        let Some(machine) = self.machine(pod).cloned() else {
            return;
        };
        let Some(slot) = self.free_slot(&machine) else {
            self.write_status(pod, pod::failed("the node has no address left"))
                .await;
            return;
        };
        let place = PodPlace {
            id: pod.id(),
            hostname: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
            slot,
        };
        let volumes = Volumes::new(self.kubelet.client.clone(), pod, machine.volumes(&place.id));
        let mounts = match volumes.write().await {
            Ok(mounts) => mounts,
            Err(err) => {
                tracing::warn!(error = %err, pod = %key, "Waiting for volumes of pod");
                self.recorder
                    .record(pod, Happened::FailedMount(err.to_string()))
                    .await;
                self.retry(key.clone());
                return;
            }
        };
        keep_log(&machine.log(&place.id), self.crashed.contains_key(&pod.uid));
        let network = self.network_of(pod);
        let started = if pod.is_on_host_network {
            let process = start_on_host(&machine, &place, mounts, pod).await;
            process.map(|process| (process, host_addresses(&machine)))
        } else {
            machine.start_pod(&place, network, mounts, pod.program()).await
        };
        let (process, addresses) = match started {
            Ok(started) => started,
            Err(err) => {
                tracing::warn!(error = %err, pod = %key, "Cannot start pod");
                self.retry(key.clone());
                return;
            }
        };
        let stop = CancellationToken::new();
        let crashed = self.crashed.remove(&pod.uid);
        let crashed = crashed.map(|(life, _)| life).unwrap_or_default();
        let life = Life {
            started: Some(now()),
            is_ready: !pod.is_held_unready,
            ..crashed
        };
        let running = Running {
            uid: pod.uid.clone(),
            place,
            machine: machine.clone(),
            network,
            addresses: addresses.clone(),
            stop: stop.clone(),
            stopping: false,
            life: life.clone(),
        };
        self.running.insert(key.clone(), running);
        if let Some(port) = pod.tcp.first() {
            let to: Vec<SocketAddr> = addresses
                .iter()
                .map(|address| SocketAddr::from((*address, *port)))
                .collect();
            answering(machine.pid(), to).await;
        }
        let status = pod::status(pod, &addresses, &host_addresses(&machine), &life);
        self.write_status(pod, status).await;
        for at in 0..pod.containers.len() {
            for happened in [Happened::Pulled(at), Happened::Created(at), Happened::Started(at)] {
                self.recorder.record(pod, happened).await;
            }
        }
        let (sender, key, uid) = (self.sender.clone(), key.clone(), pod.uid.clone());
        self.tasks.spawn(async move {
            let mut process = process;
            let code = tokio::select! {
                ended = process.ended() => ended.map_or(1, shell_code),
                never = volumes.keep_fresh() => match never {},
                () = stop.cancelled() => {
                    process.stop(Duration::from_secs(2)).await;
                    0
                }
            };
            let _ = sender.send(Signal::Ended(key, uid, code));
        });
    }

    async fn ended(&mut self, key: &ObjectKey, uid: &str, exit_code: i32) {
        let Some(running) = self.running.remove(key).filter(|running| running.uid == uid) else {
            return;
        };
        if let Err(err) = running.machine.clean_pod(&running.place, running.network).await {
            tracing::warn!(error = %err, pod = %key, "Cannot clean up pod");
        }
        let crashed = self
            .seen
            .get(key)
            .filter(|pod| pod.uid == uid && !pod.is_deleting)
            .cloned();
        match crashed {
            Some(pod) => {
                let host = host_addresses(&running.machine);
                let life = Life {
                    started: None,
                    is_ready: false,
                    restarts: running.life.restarts + 1,
                    last: Some(Ended { exit_code, at: now() }),
                };
                let status = pod::status(&pod, &running.addresses, &host, &life);
                self.write_status(&pod, status).await;
                self.crashed
                    .insert(uid.to_owned(), (life, Instant::now() + RESTART));
                for at in 0..pod.containers.len() {
                    self.recorder.record(&pod, Happened::BackOff(at)).await;
                }
                self.retry(key.clone());
            }
            None => self.look(key).await,
        }
    }

    fn retry(&mut self, key: ObjectKey) {
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(RESTART).await;
            let _ = sender.send(Signal::Retry(key));
        });
    }

    fn stop_process(&mut self, key: &ObjectKey, after: Duration) {
        let Some(running) = self.running.get_mut(key).filter(|running| !running.stopping) else {
            return;
        };
        running.stopping = true;
        let stop = running.stop.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(after).await;
            stop.cancel();
        });
    }

    fn free_slot(&self, machine: &Machine) -> Option<u8> {
        let taken: BTreeSet<u8> = self
            .running
            .values()
            .filter(|running| running.machine.node == machine.node)
            .map(|running| running.place.slot)
            .collect();
        (2..=254).find(|slot| !taken.contains(slot))
    }

    async fn write_status(&self, pod: &Pod, status: Value) {
        self.write(pod, Subresource::Status, Patch::Merge(status)).await;
    }

    async fn write(&self, pod: &Pod, part: Subresource, patch: Patch) {
        let (kind, options): (Kind, _) = (slim::Pod::kind(), WriteOptions::default());
        let written = self
            .kubelet
            .client
            .patch(&kind, &pod.namespace, &pod.name, part, &patch, &options)
            .await;
        match written {
            Err(err) if !err.is_not_found() => {
                tracing::warn!(error = %err, pod = %pod.id(), "Cannot update pod");
            }
            _ => {}
        }
    }

    async fn delete(&self, pod: &Pod) {
        let mut options = DeleteOptions::default();
        options.preconditions.uid = pod.uid.as_str().into();
        options.grace_period = Some(Duration::ZERO);
        match self
            .kubelet
            .client
            .delete(&slim::Pod::kind(), &pod.namespace, &pod.name, &options)
            .await
        {
            Err(err) if !err.is_not_found() && !err.is_conflict() => {
                tracing::warn!(error = %err, pod = %pod.id(), "Cannot delete pod");
            }
            _ => {}
        }
    }
}

/// Rotates the log before a process starts; that of the previous run is kept.
fn keep_log(log: &std::path::Path, is_restart: bool) {
    let before = runtime::previous(log);
    let done = match is_restart {
        true => std::fs::rename(log, &before),
        // Another pod of this name was here, or none.
        false => [log, &before]
            .into_iter()
            .try_for_each(|path| match std::fs::remove_file(path) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err),
                _ => Ok(()),
            }),
    };
    if let Err(err) = done {
        tracing::warn!(error = %err, log = %log.display(), "Cannot rotate the previous log");
    }
}

/// The present time as the API writes it.
fn now() -> String {
    jiff::Timestamp::now().strftime("%FT%TZ").to_string()
}

async fn start_on_host(
    machine: &Machine,
    place: &PodPlace,
    mounts: Vec<Mount>,
    pod: &Pod,
) -> Result<Process, crate::machine::MachineError> {
    let group = format!("pods/{}", place.id);
    let placement = Placement {
        mounts,
        ..machine.placement(&group, pod.program())?
    };
    Ok(Process::place(&place.id, &placement, &machine.log(&place.id)).await?)
}

fn host_addresses(machine: &Machine) -> Vec<IpAddr> {
    machine.node.addresses().map(|(address, _)| address).to_vec()
}

/// Waits, a few seconds at most, until all of `to` accept connections from the node.
async fn answering(node: u32, to: Vec<SocketAddr>) {
    let waited = tokio::task::spawn_blocking(move || {
        link::inside(node, move |_| {
            let deadline = Instant::now() + Duration::from_secs(5);
            for address in to {
                let patience = Duration::from_secs(1);
                while std::net::TcpStream::connect_timeout(&address, patience).is_err()
                    && Instant::now() < deadline
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Ok(())
        })
    });
    if !matches!(waited.await, Ok(Ok(()))) {
        tracing::warn!("Readiness probe of pod failed to run");
    }
}
