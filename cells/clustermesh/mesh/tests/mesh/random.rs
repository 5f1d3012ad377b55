// SPDX-License-Identifier: Apache-2.0

//! Random changes of two remote clusters, with faults: in the end the tables hold what the clusters say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::Kind;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::FaultyBackend;
use tokio::time::sleep;

use crate::fixture::{World, eventually, node};

struct Remote {
    name: &'static str,
    store: Memory,
    faulty: Arc<FaultyBackend>,
    cluster: Arc<FakeCluster>,
    nodes: BTreeMap<String, ()>,
    services: BTreeMap<String, Vec<String>>,
    is_configured: bool,
}

impl Remote {
    async fn new(world: &World, name: &'static str, id: u32) -> Self {
        let store = Memory::new();
        let faulty = FaultyBackend::new(Arc::new(store.clone()));
        let cluster = world
            .cluster_via(name, id, Arc::new(store.clone()), faulty.clone())
            .await;
        Self {
            name,
            store,
            faulty,
            cluster,
            nodes: BTreeMap::new(),
            services: BTreeMap::new(),
            is_configured: false,
        }
    }

    async fn step(&mut self, world: &World, random: &mut fastrand::Rng) {
        let (cluster, key) = (&self.cluster, random.u8(0..12));
        match random.u8(0..100) {
            0..30 => {
                let name = format!("n{key}");
                cluster.put(Kind::Nodes, &name, node(cluster, &name)).await;
                self.nodes.insert(name, ());
            }
            30..45 => {
                let name = format!("n{key}");
                cluster.delete(Kind::Nodes, &name).await;
                self.nodes.remove(&name);
            }
            45..70 => {
                let name = format!("s{key}");
                let backends: Vec<String> = (0..random.u8(0..4))
                    .map(|_| format!("10.{}.0.{}", cluster.id, random.u8(1..9)))
                    .collect();
                let texts: Vec<&str> = backends.iter().map(String::as_str).collect();
                let mut service = cluster.service(&name, &texts);
                service.shared = random.u8(0..5) > 0;
                cluster.put_service(&service).await;
                if service.shared {
                    self.services.insert(name, backends);
                } else {
                    self.services.remove(&name);
                }
            }
            70..80 => {
                let name = format!("s{key}");
                cluster.delete(Kind::Services, &format!("shop/{name}")).await;
                self.services.remove(&name);
            }
            80..84 => self.faulty.cut_watches(),
            84..88 => self.faulty.fail(random.u64(..), 0.4),
            88..90 => self.faulty.partition(true),
            90..93 => self.faulty.partition(false),
            93..95 => {
                let now = self.store.header().revision;
                // Compacted there already, if nothing was written since.
                let _ = skep_kvstore_client::Backend::compact(&self.store, now).await;
            }
            95..97 => {
                // Another etcd cluster, which its writers fill again.
                self.store.reset();
                for name in self.nodes.keys() {
                    cluster.put(Kind::Nodes, name, node(cluster, name)).await;
                }
                for (name, backends) in &self.services {
                    let texts: Vec<&str> = backends.iter().map(String::as_str).collect();
                    cluster.put_service(&cluster.service(name, &texts)).await;
                }
                cluster.publish().await;
            }
            _ => {
                if self.is_configured {
                    world.leave(self.name);
                } else {
                    world.join(self.name);
                }
                self.is_configured = !self.is_configured;
            }
        }
        match random.u8(0..10) {
            0 => sleep(Duration::from_secs(random.u64(1..200))).await,
            1..4 => sleep(Duration::from_millis(random.u64(1..3000))).await,
            _ => {}
        }
    }

    fn heal(&mut self, world: &World) {
        self.faulty.fail(0, 0.0);
        self.faulty.partition(false);
        if !self.is_configured {
            world.join(self.name);
            self.is_configured = true;
        }
    }

    fn expected_backends(&self) -> Vec<String> {
        let mut texts: Vec<String> = self
            .services
            .iter()
            .flat_map(|(name, backends)| {
                backends
                    .iter()
                    .map(move |ip| format!("shop/{name} {ip}:80/TCP@{}", self.cluster.id))
            })
            .collect();
        texts.sort();
        texts.dedup();
        texts
    }
}

async fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::start().await;
    let mut remotes = [
        Remote::new(&world, "alder", 7).await,
        Remote::new(&world, "cedar", 8).await,
    ];
    for _ in 0..150 {
        let at = random.usize(0..2);
        remotes[at].step(&world, &mut random).await;
    }
    for remote in &mut remotes {
        remote.heal(&world);
    }

    let nodes: Vec<String> = remotes
        .iter()
        .flat_map(|remote| {
            remote
                .nodes
                .keys()
                .map(move |name| format!("{}/{name}", remote.name))
        })
        .collect();
    let mut backends: Vec<String> = remotes.iter().flat_map(Remote::expected_backends).collect();
    backends.sort();
    eventually(
        &format!("seed {seed}: the tables hold {nodes:?} {backends:?}"),
        || {
            let mut now = world.backends();
            now.sort();
            world.nodes.names() == nodes
                && now == backends
                && world.is_ready("alder")
                && world.is_ready("cedar")
        },
    )
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn tables_end_up_equal_to_the_truth() {
    let seeds = match std::env::var("MESH_SEED") {
        Ok(seed) => vec![seed.parse().expect("it is a number")],
        Err(_) => (0..12).collect(),
    };
    for seed in seeds {
        run(seed).await;
    }
}
