// SPDX-License-Identifier: Apache-2.0

//! The agent against an API server on the same machine, both real processes in a world of their own.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use skep_bpf_maps::lb::{Service4Key, ServiceValue};
use skep_bpf_sys::Map;
use skep_bpf_sys::testing::Node;
use skep_k8s_apiserver::{HttpOptions, HttpServer};
use skep_k8s_memory::{ApiServer, Domain, Gvr, Kind, Mode, Registry, Rows, Settings, Tracker, WriteOptions};
use tokio_util::sync::CancellationToken;

use crate::report::{Report, Row};
use crate::{objects, throughput, usage};

const NODE: &str = "bench-node";
const SERVICES_MAP: &str = "cilium_lb4_services_v2";
/// Longest wait for the agent to do something.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an agent with nothing to do is watched.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The agent's program; by default the one beside this program.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Services in the second case; the first has none.
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// Backends of each service.
    #[arg(long, default_value_t = 10)]
    backends_per_service: u32,
}

#[derive(Debug, Default, Args)]
pub(crate) struct ServerOptions {
    #[arg(long)]
    pub(crate) services: u32,
    #[arg(long)]
    pub(crate) backends_per_service: u32,
    /// Services use the backends of all clusters.
    #[arg(long)]
    pub(crate) global: bool,
    /// CiliumEndpoints.
    #[arg(long)]
    pub(crate) pods: u32,
    /// CiliumIdentities.
    #[arg(long)]
    pub(crate) identities: u32,
    /// CiliumNodes.
    #[arg(long)]
    pub(crate) nodes: u32,
    /// Address of the agent's node; by default that of the loopback interface.
    #[arg(long)]
    pub(crate) node_address: Option<Ipv4Addr>,
    /// Pods of the agent's node.
    #[arg(long)]
    pub(crate) local_pods: u32,
    /// Label sets of these.
    #[arg(long)]
    pub(crate) label_sets: u32,
}

impl ServerOptions {
    /// Global services with one backend each.
    pub(crate) fn global(services: u32) -> Self {
        Self {
            services,
            backends_per_service: 1,
            global: true,
            ..Self::default()
        }
    }
}

/// A process that ends with this value.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn new(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Fails if the process has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            Some(status) => anyhow::bail!("the program ended: {status}"),
            None => Ok(()),
        }
    }

    /// Asks the program to end, and waits until it has: it gives up its leases and locks.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.0.wait()?;
        anyhow::ensure!(status.success(), "the program ended: {status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Found {
    settled: Duration,
    // Processor time of the agent until then.
    used: Duration,
    peak: f64,
    resident: f64,
    // The part that is not pages of the program.
    own: f64,
    idle: f64,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let agent = match &options.agent {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("skep-agent"),
    };
    let agent = std::fs::canonicalize(&agent).with_context(|| agent.display().to_string())?;
    for services in [0, options.services] {
        let backends = options.backends_per_service;
        let found = Node::run("agent-benchmark", |node| {
            Ok::<_, std::io::Error>(case(node, &agent, services, backends))
        })??;
        let case = match services {
            0 => "agent, no service".to_owned(),
            _ => format!("agent, {services}×{backends}"),
        };
        let memory = if services == 0 { 15.0 } else { 100.0 };
        report.add(Row::cost(format!("{case}: resident memory"), found.resident, "MiB").target(memory));
        report.add(Row::cost(
            format!("{case}: of that heap and stacks"),
            found.own,
            "MiB",
        ));
        report.add(Row::cost(
            format!("{case}: highest resident memory"),
            found.peak,
            "MiB",
        ));
        if services > 0 {
            let settled = found.settled.as_secs_f64();
            report.add(
                Row::cost(
                    format!("{case}: from start to all frontends in the maps"),
                    settled,
                    "s",
                )
                .target(3.0),
            );
            report.add(Row::cost(
                format!("{case}: processor time until then"),
                found.used.as_secs_f64(),
                "s",
            ));
        }
        report.add(Row::cost(format!("{case}: processor when idle"), found.idle, "%"));
    }
    Ok(())
}

fn case(node: &Node, agent: &Path, services: u32, backends: u32) -> anyhow::Result<Found> {
    let (_server, url) = start_server(&ServerOptions {
        services,
        backends_per_service: backends,
        ..ServerOptions::default()
    })?;
    let begun = Instant::now();
    let mut agent = start(node, agent, &url, &[])?;
    let waited = wait_for_maps(node, &mut agent, services, backends);
    waited.with_context(|| last_lines(&node.directory().join("agent.log")))?;
    let settled = begun.elapsed();
    let pid = agent.id();
    let starting = usage::processor_time_of(pid)?;
    // The rest of the start: health, pruning, first samples.
    sleep(Duration::from_secs(3));
    let (used, watched) = (usage::processor_time_of(pid)?, Instant::now());
    sleep(IDLE);
    let used = usage::processor_time_of(pid)? - used;
    let found = Found {
        settled,
        used: starting,
        peak: usage::highest_mib(pid)?,
        resident: usage::resident_mib(pid)?,
        own: usage::own_mib(pid)?,
        idle: used.as_secs_f64() / watched.elapsed().as_secs_f64() * 100.0,
    };
    Ok(found)
}

/// Starts the agent on a node, with settings beside those that it needs here. Its log is `agent.log` in the node's directory.
pub(crate) fn start(node: &Node, program: &Path, url: &str, settings: &[String]) -> anyhow::Result<Process> {
    let folder = node.directory();
    let at = |name: &str| folder.join(name).display().to_string();
    let log = std::fs::File::create(folder.join("agent.log"))?;
    let child = Command::new(program)
        .args([format!("--k8s-api-server-urls={url}")])
        .args([format!("--k8s-node-name={NODE}")])
        .args([format!("--k8s-api-server-state-file={}", at("api-server"))])
        .args([format!("--bpf-root={}", node.bpf_root().display())])
        .args([format!("--cgroup-root={}", node.cgroup_root().display())])
        .args([format!("--socket-path={}", at("agent.sock"))])
        .args([format!("--shell-sock-path={}", at("shell.sock"))])
        .args([format!("--monitor-socket-path={}", at("monitor.sock"))])
        .args([format!("--health-history-file={}", at("health-history.log"))])
        .args(["--kube-proxy-replacement=true", "--bpf-lb-map-max=262144"])
        .args(settings)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    Ok(Process(child.with_context(|| program.display().to_string())?))
}

pub(crate) fn last_lines(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Waits until every service has all its backends in the map of services.
fn wait_for_maps(node: &Node, agent: &mut Process, services: u32, backends: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let store = node.store();
    let mut map: Option<Map<Service4Key, ServiceValue>> = None;
    let mut done = 0;
    loop {
        agent.check()?;
        if map.is_none() {
            map = store.open(SERVICES_MAP).ok();
        }
        if let Some(map) = &map {
            // Goes on where it stopped: what is complete stays so.
            while done < services && self::backends(map, objects::cluster_ip(done))? == Some(backends) {
                done += 1;
            }
            if done == services {
                return Ok(());
            }
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "only {done} of {services} services are in the maps"
        );
        sleep(Duration::from_millis(10));
    }
}

/// How many backends a service of the benchmark has in the map.
pub(crate) fn backends(
    map: &Map<Service4Key, ServiceValue>,
    address: Ipv4Addr,
) -> anyhow::Result<Option<u32>> {
    let key = Service4Key {
        address: address.octets(),
        port: 80.into(),
        slot: 0,
        proto: 6,
        scope: 0,
        pad: [0; 2],
    };
    Ok(map.lookup(&key)?.map(|value| u32::from(value.count)))
}

/// Starts the API server; returns its URL.
pub(crate) fn start_server(options: &ServerOptions) -> anyhow::Result<(Process, String)> {
    let child = Command::new(std::env::current_exe()?)
        .arg("api-server")
        .args([format!("--services={}", options.services)])
        .args([format!("--backends-per-service={}", options.backends_per_service)])
        .args(options.global.then_some("--global"))
        .args([format!("--pods={}", options.pods)])
        .args([format!("--identities={}", options.identities)])
        .args([format!("--nodes={}", options.nodes)])
        .args(
            options
                .node_address
                .map(|address| format!("--node-address={address}")),
        )
        .args([format!("--local-pods={}", options.local_pods)])
        .args([format!("--label-sets={}", options.label_sets)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Process(child.context("starting the API server")?);
    let output: ChildStdout = server.0.stdout.take().context("output of the API server")?;
    let mut url = String::new();
    BufReader::new(output).read_line(&mut url)?;
    anyhow::ensure!(!url.is_empty(), "the API server does not start");
    Ok((server, url.trim().to_owned()))
}

/// Serves the objects on a port of the loopback until killed; prints the URL.
pub(crate) fn serve(options: &ServerOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let tracker = Tracker::new(Rows::new(&statedb::Db::new())?, 10_000, false);
        let api = ApiServer::new(
            tracker,
            Registry::with_extensions(),
            Mode::Real(Settings::default()),
        );
        fill(&api, options)?;
        let server = HttpServer::bind(([127, 0, 0, 1], 0).into(), api, HttpOptions::default())?;
        println!("http://{}", server.address());
        std::io::stdout().flush()?;
        server.serve(CancellationToken::new()).await;
        Ok(())
    })
}

fn fill(api: &ApiServer, options: &ServerOptions) -> anyhow::Result<()> {
    let (services, backends) = (options.services, options.backends_per_service);
    let kind = |group: &str, resource: &str| {
        let kind = api.kind(&Gvr::new(group, "v1", resource));
        kind.map_err(|error| anyhow::anyhow!("{resource}: {error}"))
    };
    let (nodes, services_kind) = (kind("", "nodes")?, kind("", "services")?);
    let slices_kind = kind("discovery.k8s.io", "endpointslices")?;
    let namespaces = kind("", "namespaces")?;
    let kind = |resource: &str| {
        let kind = api.kind(&Gvr::new("cilium.io", "v2", resource));
        kind.map_err(|error| anyhow::anyhow!("{resource}: {error}"))
    };
    let endpoints_kind = kind("ciliumendpoints")?;
    let (identities_kind, nodes_kind) = (kind("ciliumidentities")?, kind("ciliumnodes")?);
    let address = options.node_address.unwrap_or(Ipv4Addr::LOCALHOST);
    let written: anyhow::Result<()> = api.tracker().write(|txn| {
        let mut put = |kind: &Kind, value: Value| drop(txn.put(Domain::Core, kind, value));
        put(
            &nodes,
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": NODE, "uid": "5f1ab8e2-6b8c-4d0e-9f7a-0123456789ab"},
                "spec": {"podCIDR": "10.127.0.0/16", "podCIDRs": ["10.127.0.0/16"]},
                "status": {"addresses": [{"type": "InternalIP", "address": address.to_string()}]},
            }),
        );
        // Of a namespace that is not there nothing is shared.
        put(
            &namespaces,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": objects::NAMESPACE}}),
        );
        for number in 0..options.pods {
            put(
                &endpoints_kind,
                objects::cilium_endpoint(number, options.identities, options.nodes),
            );
        }
        for number in 0..options.identities {
            put(&identities_kind, objects::cilium_identity(number));
        }
        for number in 0..options.nodes {
            put(&nodes_kind, objects::cilium_node(number));
        }
        for number in 0..services {
            let mut service = document("v1", "Service", &objects::service(number))?;
            if options.global {
                service["metadata"]["annotations"] = json!({"service.cilium.io/global": "true"});
            }
            put(&services_kind, service);
            for slice in 0..backends.div_ceil(throughput::SLICE) {
                let first = slice * throughput::SLICE;
                let last = (first + throughput::SLICE).min(backends);
                let pods = number * backends + first..number * backends + last;
                let object = objects::slice(number, slice, pods, |_| true);
                put(
                    &slices_kind,
                    document("discovery.k8s.io/v1", "EndpointSlice", &object)?,
                );
            }
        }
        Ok(())
    });
    written?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": objects::NAMESPACE},
    });
    if options.local_pods > 0 {
        let kind = Gvr::new("", "v1", "serviceaccounts");
        api.create(&kind, objects::NAMESPACE, account, &WriteOptions::default())?;
    }
    // With the defaults of a server: their labels change.
    for number in 0..options.local_pods {
        let pod = objects::pod(number, options.label_sets, NODE);
        api.create(
            &Gvr::new("", "v1", "pods"),
            objects::NAMESPACE,
            pod,
            &WriteOptions::default(),
        )?;
    }
    Ok(())
}

fn document(version: &str, kind: &str, object: &impl Serialize) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = version.into();
    value["kind"] = kind.into();
    Ok(value)
}
