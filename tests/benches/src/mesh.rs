// SPDX-License-Identifier: Apache-2.0

//! The agent of one cluster, connected to the etcd of another: all real processes in a world of their own.
//!
//! Measures how long it takes to connect and to read a whole cluster, from a write in etcd to the entry in the agent's map, and to
//! drain the cluster when its configuration is removed.

mod load;
pub(crate) mod remote;
pub(crate) mod store;
mod updates;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use skep_bpf_maps::lb::{Service4Key, ServiceValue};
use skep_bpf_maps::node::{IpcacheKey, IpcacheValue};
use skep_bpf_sys::testing::Node;
use skep_bpf_sys::{Map, MapStore};

use crate::agent::{self, Process};
use crate::etcd::{Etcd, EtcdOptions};
use crate::mesh::remote::Size;
use crate::report::{Report, Row};
use crate::{objects, usage};

const SERVICES_MAP: &str = "cilium_lb4_services_v2";
pub(crate) const IPCACHE_MAP: &str = "cilium_ipcache_v2";
/// Longest wait for the agent to do something.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between looks into a map.
const POLL: Duration = Duration::from_millis(5);
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The agent's program; by default the one beside this program.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The remote cluster.
    #[command(flatten)]
    size: Size,
    /// How often all entries of addresses were written before, without compaction.
    #[arg(long, default_value_t = 0)]
    history: u32,
    /// How long addresses are changed, at each of five paces.
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// The etcd of the remote cluster.
    #[command(flatten)]
    etcd: EtcdOptions,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let program = match &options.agent {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("skep-agent"),
    };
    let program = fs::canonicalize(&program).with_context(|| program.display().to_string())?;
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let rows = Node::run("mesh-benchmark", |node| {
        // Made in the namespace, so that its threads are there.
        let runtime = runtime()?;
        Ok::<_, std::io::Error>(runtime.block_on(measure(options, node, &program)))
    })??;
    for row in rows {
        report.add(row);
    }
    Ok(())
}

struct World<'a> {
    node: &'a Node,
    size: Size,
    etcd: Etcd,
    agent: Process,
    config: PathBuf,
    /// How often the first pod was moved.
    turn: u32,
}

async fn measure(options: &Options, node: &Node, program: &Path) -> anyhow::Result<Vec<Row>> {
    let size = options.size;
    let etcd = Etcd::start(&options.etcd).await?;
    for round in 0..options.history {
        let old = (0..size.pods).map(|pod| remote::address(size, pod, (pod + round + 1) % size.nodes));
        store::write(&etcd.backend(), old.collect::<Result<_, _>>()?).await?;
    }
    store::write(&etcd.backend(), remote::items(size)?).await?;

    let (_server, url) = agent::start_server(&agent::ServerOptions::global(size.services))?;
    let folder = node.directory();
    let config = folder.join("clustermesh");
    fs::create_dir(&config)?;
    let agent = agent::start(
        node,
        program,
        &url,
        &[
            "--cluster-name=local".to_owned(),
            "--cluster-id=1".to_owned(),
            format!("--clustermesh-config={}", config.display()),
        ],
    )?;
    let mut world = World {
        node,
        size,
        etcd,
        agent,
        config,
        turn: 0,
    };
    let case = match options.history {
        0 => format!("mesh, {} addresses{}", size.pods, options.etcd),
        rounds => format!(
            "mesh, {} addresses written {} times{}",
            size.pods,
            rounds + 1,
            options.etcd
        ),
    };
    let time = Duration::from_secs(options.seconds.into());
    let measured = world.measure(&case, time).await;
    measured.with_context(|| agent::last_lines(&folder.join("agent.log")))
}

impl World<'_> {
    async fn measure(&mut self, case: &str, time: Duration) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        let pid = self.agent.id();
        self.wait_until("the services of this cluster are in the maps", |world| {
            world.services_have(0)
        })
        .await?;
        let alone = usage::resident_mib(pid)?;
        self.join(case, &mut rows).await?;
        rows.push(Row::cost(format!("{case}: resident memory before"), alone, "MiB"));
        let load = self.all_updates(case, time, &mut rows).await?;
        self.drain(case, &mut rows).await?;
        load.without_reader(case, &mut rows).await?;
        Ok(rows)
    }

    /// Connects, and waits until all that the cluster has is in the maps.
    async fn join(&mut self, case: &str, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let pid = self.agent.id();
        let (begun, used) = (Instant::now(), usage::processor_time_of(pid)?);
        let file = self.config.join(remote::NAME);
        fs::copy(self.etcd.client_config(), &file)?;
        let backends = self.size.backends;
        let (mut services, mut addresses) = (None, None);
        while services.is_none() || addresses.is_none() {
            if services.is_none() && self.services_have(backends)? {
                services = Some(begun.elapsed());
            }
            if addresses.is_none() && self.has_all_addresses()? {
                addresses = Some(begun.elapsed());
            }
            self.check(begun, "the remote cluster is in the maps")?;
            tokio::time::sleep(POLL).await;
        }
        let used = usage::processor_time_of(pid)? - used;
        let seconds = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
        rows.push(
            Row::cost(
                format!("{case}: from connecting to services in the maps"),
                seconds(services),
                "s",
            )
            .target(2.0),
        );
        rows.push(
            Row::cost(
                format!("{case}: from connecting to addresses in the map"),
                seconds(addresses),
                "s",
            )
            .target(3.0),
        );
        rows.push(Row::cost(format!("{case}: processor time for it"), used.as_secs_f64(), "s").target(4.0));
        sleep(Duration::from_secs(3));
        rows.push(
            Row::cost(
                format!("{case}: resident memory"),
                usage::resident_mib(pid)?,
                "MiB",
            )
            .target(150.0),
        );
        rows.push(Row::cost(
            format!("{case}: highest resident memory"),
            usage::highest_mib(pid)?,
            "MiB",
        ));
        Ok(())
    }

    /// Removes the cluster, and waits until nothing of it is in the maps.
    async fn drain(&mut self, case: &str, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        let pid = self.agent.id();
        let (begun, used) = (Instant::now(), usage::processor_time_of(pid)?);
        fs::remove_file(self.config.join(remote::NAME))?;
        self.wait_until("nothing of the cluster is in the maps", |world| {
            Ok(world.services_have(0)? && world.has_no_address()?)
        })
        .await?;
        let took = begun.elapsed();
        let used = usage::processor_time_of(pid)? - used;
        rows.push(Row::cost(format!("{case}: drain"), took.as_secs_f64(), "s").target(2.0));
        rows.push(Row::cost(
            format!("{case}: processor time of the drain"),
            used.as_secs_f64(),
            "s",
        ));
        Ok(())
    }

    async fn wait_until(
        &mut self,
        what: &str,
        is_so: impl Fn(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !is_so(self)? {
            self.check(begun, what)?;
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Fails if the agent ended, or if it takes too long until `what`.
    fn check(&mut self, since: Instant, what: &str) -> anyhow::Result<()> {
        self.agent.check()?;
        anyhow::ensure!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        Ok(())
    }

    fn maps(&self) -> Arc<MapStore> {
        self.node.store()
    }

    fn ipcache(&self) -> anyhow::Result<Map<IpcacheKey, IpcacheValue>> {
        self.maps().open(IPCACHE_MAP).context(IPCACHE_MAP)
    }

    /// Whether all services here have as many backends of the other cluster, and one of this.
    fn services_have(&self, remote: u32) -> anyhow::Result<bool> {
        let Ok(map) = self.maps().open::<Service4Key, ServiceValue>(SERVICES_MAP) else {
            return Ok(false);
        };
        // The last ones first: most looks end at the first service.
        for number in (0..self.size.services).rev() {
            if agent::backends(&map, objects::cluster_ip(number))? != Some(remote + 1) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn has_all_addresses(&self) -> anyhow::Result<bool> {
        let map = self.ipcache()?;
        for number in (0..self.size.pods).rev() {
            if !is_on(&map, number, number % self.size.nodes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn has_no_address(&self) -> anyhow::Result<bool> {
        let map = self.ipcache()?;
        for number in 0..self.size.pods {
            // A lookup finds wider networks too: what remains says that it is of a remote pod.
            if found(&map, remote::pod(number))?.is_some_and(|value| value.identity >> 16 == remote::ID) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn found(map: &Map<IpcacheKey, IpcacheValue>, pod: Ipv4Addr) -> anyhow::Result<Option<IpcacheValue>> {
    Ok(map.lookup(&IpcacheKey::host(pod.into()))?)
}

/// Whether a pod is on a node, as far as the map knows.
fn is_on(map: &Map<IpcacheKey, IpcacheValue>, pod: u32, node: u32) -> anyhow::Result<bool> {
    let value = found(map, remote::pod(pod))?;
    Ok(value.is_some_and(|value| value.tunnel_endpoint[..4] == remote::node(node).octets()))
}
