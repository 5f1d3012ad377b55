// SPDX-License-Identifier: Apache-2.0

//! What a stopped hive of the datapath leaves open: nothing. In a program of its own, since descriptors are counted for
//! the whole process.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    collections::BTreeMap,
    error::Error,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use hive::{Hive, Settings};
use skep_bpf_sys::{MapStore, testing::Node};
use skep_datapath_conntrack::Conntrack;
use skep_datapath_loader::PacketDatapath;
use skep_datapath_monitor::Monitor;
use skep_datapath_socketlb::SocketDatapath;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// Open descriptors of this process, by what they are.
fn descriptors() -> Outcome<BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // That of the directory is closed by now.
        let Ok(target) = std::fs::read_link(entry?.path()) else {
            continue;
        };
        let name = target.to_string_lossy().into_owned();
        // Sockets and pipes have numbers.
        let kind = name.split_once(":[").map_or(name.as_str(), |(kind, _)| kind);
        *found.entry(kind.to_owned()).or_default() += 1;
    }
    Ok(found)
}

/// Starts the cells, waits until programs are attached and rings are read, and stops.
async fn round(node: &Node) -> Outcome {
    let flags = [
        format!("--bpf-root={}", node.bpf_root().display()),
        format!("--cgroup-root={}", node.cgroup_root().display()),
        format!(
            "--monitor-socket-path={}",
            node.directory().join("monitor.sock").display()
        ),
        "--devices=eth+".to_owned(),
    ];
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
        skep_datapath_conntrack::cell(),
        skep_datapath_monitor::cell(),
    ])
    .root::<Arc<PacketDatapath>>()
    .root::<Arc<SocketDatapath>>()
    .root::<Arc<MapStore>>()
    .root::<Arc<Conntrack>>()
    .root::<Arc<Monitor>>()
    .plan(Settings::new().args(flags))?;
    let running = plan.build()?.start().await?;
    let datapath: Arc<PacketDatapath> = running.get().unwrap();
    let health = running.health();
    let is_up = || {
        let entries = health.entries();
        let has = |text: &str| entries.iter().any(|entry| entry.message.contains(text));
        datapath.status().is_attached && has("Waiting for signals") && has("next pass in")
    };
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_up() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(
        waited.await.is_ok(),
        "{:?}, {:?}",
        datapath.status(),
        health.entries()
    );
    running.stop().await?;
    Ok(())
}

#[test]
fn a_hive_that_stopped_leaves_no_descriptor_open() {
    let result = Node::run("descriptors", |node| {
        for words in [
            "link add eth0 type veth peer name p-eth0",
            "link set eth0 up",
            "link set p-eth0 up",
            "addr add 192.0.2.1/24 dev eth0",
        ] {
            assert!(
                Command::new("ip").args(words.split(' ')).status()?.success(),
                "ip {words}"
            );
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        // What the process opens once and keeps.
        runtime.block_on(round(node))?;
        let before = descriptors()?;
        for _ in 0..ROUNDS {
            runtime.block_on(round(node))?;
        }
        let more = |now: BTreeMap<String, usize>| -> BTreeMap<String, usize> {
            let of_kind = |kind: &String| before.get(kind).copied().unwrap_or(0);
            let grown = now.into_iter().filter(|(kind, count)| *count > of_kind(kind));
            grown.collect()
        };
        // Tasks of the runtime may be dropped a moment later.
        let deadline = Instant::now() + PATIENCE;
        while !more(descriptors()?).is_empty() && Instant::now() < deadline {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
        }
        assert_eq!(more(descriptors()?), BTreeMap::new(), "before: {before:?}");
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}
