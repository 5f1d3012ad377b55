// SPDX-License-Identifier: Apache-2.0

//! A node with an interface `eth0`, whose other side is in the network namespace of a client.

use std::{
    error::Error,
    future::Future,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use hive::{Cell, Hive, MemoryHealth, Readiness, Running, Settings};
use skep_bpf_sys::{
    MapStore,
    filter::Filters,
    link::{InterfaceHook, InterfaceLinks, has_interface_links},
    testing::{Node, Pod, slowness},
};
use skep_datapath_hooks::EndpointHooks;
use skep_datapath_loader::{Attachment, PacketDatapath};
use skep_datapath_socketlb::SocketDatapath;
use skep_k8s_types::slim::NodeAddressType;
use skep_node_local::{LocalNode, LocalNodeStore};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(30);

/// What tests know about the node.
pub(crate) struct World {
    pub(crate) root: PathBuf,
    pub(crate) cgroup: PathBuf,
    pub(crate) client: Pod,
    pub(crate) other: Pod,
}

/// Runs an async test on a node with `eth0` (192.0.2.1, 2001:db8::1), whose peer is `eth0` of a client (192.0.2.9 and
/// .20, 2001:db8::9 and ::20).
pub(crate) fn run<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    start(name, true, test);
}

/// As [`run`], of links at interfaces: not on kernels that have filters alone (before Linux 6.6).
pub(crate) fn run_with_links<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    if has_interface_links() {
        start(name, true, test);
    } else {
        eprintln!("skipped: the kernel has no links at interfaces (tcx)");
    }
}

/// As [`run`], with a loopback interface and nothing else.
pub(crate) fn run_bare<F>(name: &str, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    start(name, false, test);
}

fn start<F>(name: &str, has_network: bool, test: impl FnOnce(World) -> F + Send)
where
    F: Future<Output = Outcome>,
{
    let result = Node::run(name, |node| {
        let world = World {
            root: node.bpf_root(),
            cgroup: node.cgroup_root().to_owned(),
            client: node.pod("client")?,
            other: node.pod("other")?,
        };
        if has_network {
            world.connect()?;
        }
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?
            .block_on(test(world))
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}

pub(crate) fn run_program(program: &str, arguments: &str) -> Outcome<String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {arguments}: {text}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

pub(crate) fn ip(arguments: &str) -> Outcome<String> {
    run_program("ip", arguments)
}

/// Ids of the programs at a hook, in their order: of links, or of filters on kernels that have those alone.
pub(crate) fn at(interface: &str, hook: InterfaceHook) -> Vec<u32> {
    if has_interface_links() {
        return linked_at(interface, hook);
    }
    let filters = Filters::new(interface).unwrap().list(hook).unwrap();
    filters.into_iter().map(|filter| filter.program).collect()
}

/// Ids of the programs that links run at a hook; none on kernels without such links.
pub(crate) fn linked_at(interface: &str, hook: InterfaceHook) -> Vec<u32> {
    if !has_interface_links() {
        return Vec::new();
    }
    let links = InterfaceLinks::new(Path::new("/"), interface);
    links.and_then(|links| links.attached(hook)).unwrap()
}

/// How programs are attached by default: as status has it, and as health says it.
pub(crate) fn attachment() -> (Attachment, &'static str) {
    if has_interface_links() {
        (Attachment::Link, "tcx links")
    } else {
        (Attachment::Filter { priority: 1 }, "filters")
    }
}

impl World {
    fn connect(&self) -> Outcome {
        for setting in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{setting}"), "1")?;
        }
        self.add_interface("eth0", "192.0.2.1/24", "2001:db8::1/64")?;
        ip(&format!("link set p-eth0 netns {}", self.client.path().display()))?;
        self.client.run(|| {
            ip("link set p-eth0 name eth0")?;
            ip("link set eth0 up")?;
            for address in ["192.0.2.9/24", "192.0.2.20/24"] {
                ip(&format!("addr add {address} dev eth0"))?;
            }
            for address in ["2001:db8::9/64", "2001:db8::20/64"] {
                ip(&format!("addr add {address} dev eth0 nodad"))?;
            }
            Ok(())
        })
    }

    /// A veth pair whose other side is `p-<name>`, up, with addresses.
    pub(crate) fn add_interface(&self, name: &str, ipv4: &str, ipv6: &str) -> Outcome {
        ip(&format!("link add {name} type veth peer name p-{name}"))?;
        ip(&format!("link set {name} up"))?;
        ip(&format!("link set p-{name} up"))?;
        ip(&format!("addr add {ipv4} dev {name}"))?;
        ip(&format!("addr add {ipv6} dev {name} nodad"))?;
        Ok(())
    }

    /// Starts the cells with these flags besides those for the node.
    pub(crate) async fn start(&self, flags: &[&str]) -> Outcome<Agent> {
        Agent::start(&self.root, &self.cgroup, flags).await
    }

    /// Starts the cells and waits until the programs are attached, and health reports it.
    pub(crate) async fn attached(&self, flags: &[&str]) -> Outcome<Agent> {
        let agent = self.start(flags).await?;
        agent
            .until("attached", |agent| {
                agent.datapath().status().is_attached && !agent.health().0.starts_with("Waiting")
            })
            .await;
        Ok(agent)
    }

    /// Asserts that these links of a device or endpoint are pinned; none where programs are attached by filters.
    #[track_caller]
    pub(crate) fn assert_pins(&self, owner: &str, links: &[&str]) {
        let expected = if has_interface_links() { links } else { &[] };
        assert_eq!(self.pins(owner), expected, "{owner}");
    }

    /// Pins of the links of a device or endpoint: `devices/eth0`.
    pub(crate) fn pins(&self, owner: &str) -> Vec<String> {
        let directory = self.root.join("cilium").join(owner).join("links");
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn readiness(readiness: Readiness) -> Arc<Readiness> {
    Arc::new(readiness)
}

pub(crate) struct Agent {
    pub(crate) running: Running,
    health: Arc<MemoryHealth>,
}

impl Agent {
    /// Starts the cells with this BPF file system and control group, and with these flags besides those for the node.
    pub(crate) async fn start(root: &Path, cgroup: &Path, flags: &[&str]) -> Outcome<Self> {
        let mut all: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut default = |key: &str, value: String| {
            if !all.iter().any(|flag| flag.starts_with(&format!("--{key}"))) {
                all.push(format!("--{key}={value}"));
            }
        };
        default("bpf-root", root.display().to_string());
        default("cgroup-root", cgroup.display().to_string());
        default("devices", "eth+".to_owned());
        for key in [
            "lb-map-max",
            "sock-rev-map-max",
            "ct-global-tcp-max",
            "ct-global-any-max",
            "nat-global-max",
        ] {
            default(&format!("bpf-{key}"), "1024".to_owned());
        }
        let plan = Hive::new([
            statedb::cell(),
            skep_base_settings::cell(),
            skep_datapath_maps::cell(),
            skep_loadbalancer_maglev::cell(),
            skep_loadbalancer_model::cell(),
            skep_base_settings::node_name::cell(),
            skep_node_local::cell(),
            skep_datapath_socketlb::cell(),
            skep_datapath_loader::cell(),
            Cell::module("readiness", "Readiness").provide(readiness),
        ])
        .root::<Arc<PacketDatapath>>()
        .root::<Arc<dyn EndpointHooks>>()
        .root::<Arc<SocketDatapath>>()
        .root::<Arc<MapStore>>()
        .root::<LocalNodeStore>()
        .root::<Arc<Readiness>>()
        .plan(Settings::new().args(all))?;
        let running = plan.build()?.start().await?;
        let health = running.health();
        Ok(Self { running, health })
    }

    pub(crate) fn datapath(&self) -> Arc<PacketDatapath> {
        self.running.get().unwrap()
    }

    pub(crate) fn hooks(&self) -> Arc<dyn EndpointHooks> {
        self.running.get().unwrap()
    }

    /// What the agent is not ready for.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        self.running.get::<Arc<Readiness>>().unwrap().pending()
    }

    pub(crate) fn local_node(&self) -> LocalNodeStore {
        self.running.get().unwrap()
    }

    /// What the loader says of itself: message, and error if it is degraded.
    pub(crate) fn health(&self) -> (String, Option<String>) {
        let entries = self.health.entries();
        let of_loader = entries
            .into_iter()
            .find(|entry| entry.id.to_string().contains("attach-programs"));
        of_loader.map_or_else(Default::default, |entry| (entry.message, entry.error))
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE * slowness();
        while !is_so(self) {
            assert!(
                Instant::now() < deadline,
                "not {what}: {:?}, {:?}",
                self.datapath().status(),
                self.health()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn stop(self) -> Outcome {
        self.running.stop().await?;
        Ok(())
    }
}

/// Gives the node pod CIDRs and addresses of its router.
pub(crate) fn with_pods(node: &mut LocalNode) {
    node.pod_cidrs = ["10.1.0.0/24", "fd00:1::/64"]
        .map(|cidr| cidr.parse().unwrap())
        .into();
    let routers = ["10.1.0.1", "fd00:1::1"];
    let own = |ip: &str| (NodeAddressType::CiliumInternalIp, ip.parse().unwrap());
    node.addresses.extend(routers.map(own));
}
