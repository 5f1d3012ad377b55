// SPDX-License-Identifier: Apache-2.0

//! The cells of the agent between tables and packets, in a network namespace: what attaches programs to interfaces of a
//! node and of its pods.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use hive::{Hive, Running, Settings};
use skep_bpf_sys::{
    MapStore,
    testing::{Node, Pod},
};
use skep_datapath_hooks::EndpointHooks;
use skep_datapath_loader::PacketDatapath;
use skep_datapath_maps::Maps;
use skep_datapath_socketlb::SocketDatapath;
use skep_endpoint::{EndpointSpec, Endpoints, Mac};
use skep_identity::NumericIdentity;
use skep_node_local::LocalNodeStore;
use tokio::runtime::Runtime;

/// Longest wait for the cells to do something.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running hive. Its threads are in the namespace.
pub(crate) struct Datapath {
    netns: Pod,
    runtime: Runtime,
    running: Option<Running>,
}

impl Datapath {
    /// Starts the cells for devices `eth*` in the namespace `netns`, with maps, state and cgroup of their own named `name`,
    /// and waits until the programs are attached.
    pub(crate) fn start(node: &Node, netns: &Pod, name: &str, flags: &[&str]) -> anyhow::Result<Self> {
        let state = node.directory().join(format!("state-{name}"));
        std::fs::create_dir_all(&state)?;
        let mut arguments = vec![
            format!("--state-dir={}", state.display()),
            format!("--bpf-root={}", bpf_root(node, name).display()),
            format!("--cgroup-root={}", cgroup(node, name)?.display()),
            "--devices=eth+".to_owned(),
        ];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_base_settings::cluster::cell(),
            skep_datapath_maps::cell(),
            skep_loadbalancer_maglev::cell(),
            skep_loadbalancer_model::cell(),
            skep_base_settings::node_name::cell(),
            skep_node_local::cell(),
            skep_ipcache::cell(),
            skep_policy_maps::cell(),
            skep_datapath_socketlb::cell(),
            skep_datapath_loader::cell(),
            skep_endpoint::cell(),
        ];
        let plan = Hive::new(cells)
            .root::<Arc<PacketDatapath>>()
            .root::<Arc<dyn EndpointHooks>>()
            .root::<Arc<MapStore>>()
            .root::<Arc<Maps>>()
            .root::<Arc<SocketDatapath>>()
            .root::<Endpoints>()
            .root::<LocalNodeStore>()
            .plan(Settings::new().args(arguments))?;
        let (runtime, running) = netns.run(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()?;
            let running =
                runtime.block_on(async { plan.build()?.start().await.map_err(anyhow::Error::from) })?;
            anyhow::Ok((runtime, running))
        })?;
        let started = Self {
            netns: netns.clone(),
            runtime,
            running: Some(running),
        };
        let datapath = started.get::<Arc<PacketDatapath>>()?;
        let deadline = Instant::now() + PATIENCE;
        while !datapath.status().is_attached {
            ensure!(Instant::now() < deadline, "{name}: no programs attached");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(started)
    }

    pub(crate) fn get<T: hive::Inject>(&self) -> anyhow::Result<T> {
        let running = self.running.as_ref();
        running
            .and_then(Running::get)
            .with_context(|| std::any::type_name::<T>())
    }

    /// Adds an endpoint and waits until its packets are handled. Returns its id, and the time that took.
    pub(crate) fn add_endpoint(&self, spec: &EndpointSpec) -> anyhow::Result<(u16, Duration)> {
        let endpoints = self.get::<Endpoints>()?;
        self.netns.run(|| {
            let begun = Instant::now();
            let row = endpoints.create(spec.clone(), None, Some(NumericIdentity::INIT))?;
            self.runtime.block_on(endpoints.wait_ready(row.id))?;
            Ok((row.id, begun.elapsed()))
        })
    }

    /// Deletes an endpoint and waits until nothing is left of it.
    pub(crate) fn delete_endpoint(&self, id: u16) -> anyhow::Result<()> {
        let endpoints = self.get::<Endpoints>()?;
        endpoints.disconnect(id)?;
        Ok(self.runtime.block_on(endpoints.wait_gone(id))?)
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        let running = self.running.take();
        // It goes with its namespaces in any case.
        let _ = self
            .netns
            .run(|| running.map(|running| self.runtime.block_on(running.stop()).is_ok()));
    }
}

fn bpf_root(node: &Node, name: &str) -> PathBuf {
    node.bpf_root().join(name)
}

/// A cgroup below that of the node, made if it is missing. It has to be removed with [`remove_cgroup`].
pub(crate) fn cgroup(node: &Node, name: &str) -> anyhow::Result<PathBuf> {
    let path = node.cgroup_root().join(name);
    if !path.exists() {
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        // Single threads of this process move there.
        std::fs::write(path.join("cgroup.type"), "threaded").with_context(|| path.display().to_string())?;
    }
    Ok(path)
}

/// Removes a cgroup in which nothing is left.
pub(crate) fn remove_cgroup(node: &Node, name: &str) {
    let _ = std::fs::remove_dir(node.cgroup_root().join(name));
}

/// Runs `ip` with these commands, one a line, in the namespace of the calling thread.
pub(crate) fn ip(commands: &str) -> anyhow::Result<()> {
    feed("ip", &["-batch", "-"], commands)
}

/// Runs a program that reads `input`.
pub(crate) fn feed(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<()> {
    use std::io::Write as _;

    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} (is it installed?)"))?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(input.as_bytes())
            .with_context(|| program.to_owned())?;
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {text}");
    Ok(())
}

/// A setting below `/proc/sys/net`, in the namespace of the calling thread.
pub(crate) fn set(setting: &str, value: &str) -> anyhow::Result<()> {
    let path = format!("/proc/sys/net/{setting}");
    std::fs::write(&path, value).with_context(|| path.clone())
}

/// Index and MAC address of an interface, in the namespace of the calling thread.
pub(crate) fn identify(interface: &str) -> anyhow::Result<(u32, Mac)> {
    let output = Command::new("ip")
        .args(["-o", "link", "show", interface])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let index = text.split(':').next().unwrap_or_default();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    let mac = words.nth(1).unwrap_or_default();
    let index = index
        .parse()
        .with_context(|| format!("index of {interface}: {text}"))?;
    Ok((index, mac.parse()?))
}
