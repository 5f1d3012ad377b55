// SPDX-License-Identifier: Apache-2.0

//! A node with an API server, an agent and pods.

use std::{
    io::Write as _,
    net::Ipv4Addr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use serde_json::{Value, json};
use skep_base_api_client::Client;
use skep_base_net::{LinkSpec, Netlink, Route, netns::Namespace};
use skep_bpf_sys::{MapStore, testing::Node};

use super::relay::Relay;
use crate::{
    agent::{self, Process, ServerOptions},
    objects,
};

/// Longest wait for the agent to do something.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);
const SETTINGS: [&str; 9] = [
    "--enable-ipv6=false",
    "--ipam=kubernetes",
    "--devices=eth0",
    "--routing-mode=native",
    "--ipv4-native-routing-cidr=10.0.0.0/8",
    "--enable-bpf-masquerade=true",
    "--enable-ipv4-masquerade=true",
    "--identity-allocation-mode=crd",
    "--bpf-map-dynamic-size-ratio=0",
];

pub(super) struct World<'a> {
    node: &'a Node,
    programs: PathBuf,
    _server: Process,
    url: String,
    agent: Option<Process>,
    count: u32,
    /// The socket that the plugin uses.
    socket: PathBuf,
    _outside: Namespace,
}

/// What an invocation of the plugin took, and its answer.
pub(super) struct Done {
    pub(super) took: Duration,
    pub(super) answer: Value,
}

impl Done {
    /// The IPv4 address of the pod.
    pub(super) fn address(&self) -> anyhow::Result<Ipv4Addr> {
        let text = self.answer["ips"][0]["address"].as_str().unwrap_or_default();
        let address = text.split('/').next().unwrap_or_default();
        address.parse().with_context(|| self.answer.to_string())
    }
}

impl<'a> World<'a> {
    /// Namespaces of `count` pods, whose objects the server has if they are its `local_pods`.
    pub(super) fn new(
        node: &'a Node,
        programs: &Path,
        server: &ServerOptions,
        count: u32,
    ) -> anyhow::Result<Self> {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        for folder in ["/var/lib/cilium", "/etc/cni"] {
            if Path::new(folder).is_dir() {
                mount("tmpfs", folder, "tmpfs", MountFlags::empty(), None)?;
            }
        }
        std::fs::create_dir_all("/run/netns")?;
        std::fs::create_dir_all("/run/cilium/netns")?;
        let outside = network()?;
        for pod in 0..count {
            let namespace = Namespace::new()?;
            namespace.pin(Path::new(&namespace_of(pod)))?;
            // Where the agent finds those of containers.
            namespace.pin(&Path::new("/run/cilium/netns").join(name(pod)))?;
        }
        let (server, url) = agent::start_server(&ServerOptions {
            node_address: Some(objects::NODE_ADDRESS),
            ..*server
        })?;
        Ok(Self {
            node,
            programs: programs.to_owned(),
            _server: server,
            url,
            agent: None,
            count,
            socket: node.directory().join("agent.sock"),
            _outside: outside,
        })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.node.directory().join("agent.sock")
    }

    pub(super) fn store(&self) -> Arc<MapStore> {
        self.node.store()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn log(&self) -> String {
        agent::last_lines(&self.node.directory().join("agent.log"))
    }

    /// Process id of the agent.
    pub(super) fn agent(&self) -> anyhow::Result<u32> {
        self.agent.as_ref().map(Process::id).context("no agent runs")
    }

    /// The plugin reaches the agent through a relay, or directly.
    pub(super) fn through(&mut self, relay: Option<&Relay>) {
        self.socket = relay.map_or_else(|| self.socket(), |relay| relay.path.clone());
    }

    /// Starts the agent, and waits until its API answers. Returns when it was started.
    pub(super) fn start(&mut self, settings: &[&str]) -> anyhow::Result<Instant> {
        let all: Vec<String> = SETTINGS
            .iter()
            .chain(settings)
            .map(|&text| text.to_owned())
            .collect();
        let begun = Instant::now();
        let mut process = agent::start(self.node, &self.programs.join("skep-agent"), &self.url, &all)?;
        let client = Client::at(&self.socket());
        while client.get::<Value>("healthz", &[]).is_err() {
            process.check().with_context(|| self.log())?;
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "the API does not answer\n{}",
                self.log()
            );
            sleep(POLL);
        }
        self.agent = Some(process);
        Ok(begun)
    }

    /// Stops the agent and starts it again, as [`start`](Self::start).
    pub(super) fn restart(&mut self, settings: &[&str]) -> anyhow::Result<Instant> {
        if let Some(process) = self.agent.take() {
            process.stop()?;
        }
        self.start(settings)
    }

    /// Waits until so many endpoints of pods are ready.
    pub(super) fn wait_ready(&self, count: u32) -> anyhow::Result<()> {
        let (client, begun) = (Client::at(&self.socket()), Instant::now());
        loop {
            let endpoints: Vec<Value> = client.get("endpoint", &[])?;
            let is_ready = |endpoint: &&Value| {
                let status = &endpoint["status"];
                let pod = status["external-identifiers"]["k8s-pod-name"].as_str();
                status["state"] == "ready" && pod.is_some_and(|pod| !pod.is_empty())
            };
            let ready = endpoints.iter().filter(is_ready).count();
            if ready == count as usize {
                return Ok(());
            }
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "{ready} of {count} endpoints are ready\n{}",
                self.log()
            );
            sleep(POLL);
        }
    }

    pub(super) fn add(&self, pod: u32) -> anyhow::Result<Done> {
        self.invoke("ADD", pod)
    }

    pub(super) fn delete(&self, pod: u32) -> anyhow::Result<Done> {
        self.invoke("DEL", pod)
    }

    /// Runs the plugin as a container runtime does.
    pub(super) fn invoke(&self, command: &str, pod: u32) -> anyhow::Result<Done> {
        let (container, name) = (format!("{pod:064x}"), name(pod));
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container}",
            objects::NAMESPACE
        );
        let begun = Instant::now();
        let mut process = Command::new(self.programs.join("skep-cni"))
            .env_clear()
            .env("CILIUM_SOCK", &self.socket)
            .envs([
                ("CNI_COMMAND", command),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/opt/cni/bin"),
                ("CNI_CONTAINERID", &container),
                ("CNI_NETNS", &namespace_of(pod)),
                ("CNI_ARGS", &arguments),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("skep-cni")?;
        let configuration = json!({"cniVersion": "1.0.0", "name": "cilium", "type": "cilium-cni"});
        if let Some(mut stdin) = process.stdin.take() {
            stdin.write_all(configuration.to_string().as_bytes())?;
        }
        let output = process.wait_with_output()?;
        let took = begun.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        anyhow::ensure!(
            output.status.success(),
            "{command} of {name}: {text}\n{}",
            self.log()
        );
        Ok(Done {
            took,
            answer: serde_json::from_str(&text).unwrap_or_default(),
        })
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if let Some(process) = self.agent.take() {
            // The endpoint for health ends with it.
            let _ = process.stop();
        }
    }
}

fn name(pod: u32) -> String {
    format!("pod-{pod}")
}

pub(super) fn namespace_of(pod: u32) -> String {
    format!("/run/netns/{}", name(pod))
}

/// The interface of the node, and what is behind it.
fn network() -> anyhow::Result<Namespace> {
    let outside = Namespace::new()?;
    outside.pin(Path::new("/run/netns/outside"))?;
    let file = std::fs::File::open("/run/netns/outside")?;
    let net = Netlink::open()?;
    net.add_link(LinkSpec::veth(
        "eth0",
        LinkSpec::new().name("eth0").netns(file.as_fd()),
    ))?;
    let up = |net: &Netlink, address: &str| -> anyhow::Result<u32> {
        let link = net.link("eth0")?;
        net.set_link(&link, LinkSpec::new().up())?;
        net.add_address(&link, address.parse()?)?;
        Ok(link.index)
    };
    let device = up(&net, &format!("{}/24", objects::NODE_ADDRESS))?;
    outside.inside(|| up(&Netlink::open()?, "172.31.0.2/24"))??;
    net.add_route(&Route {
        device: Some(device),
        gateway: Some("172.31.0.2".parse()?),
        ..Route::to("0.0.0.0/0".parse()?)
    })?;
    Ok(outside)
}
