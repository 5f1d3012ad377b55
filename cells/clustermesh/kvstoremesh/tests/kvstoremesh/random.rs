// SPDX-License-Identifier: Apache-2.0

//! Random changes of two remote clusters, with faults on both sides, restarts and clusters that leave: in the end the own
//! store holds what the clusters publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::Kind;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::FaultyBackend;
use skep_kvstore_client::{Backend, LeaseId};
use tokio::time::sleep;

use crate::fixture::{Place, World, canaries, everything};

struct Remote {
    name: &'static str,
    store: Memory,
    faulty: Arc<FaultyBackend>,
    cluster: Arc<FakeCluster>,
    /// What is to be copied, by the keys of the copies.
    truth: BTreeMap<String, Bytes>,
    is_configured: bool,
}

impl Remote {
    async fn new(place: &Place, name: &'static str, id: u32) -> Self {
        let store = Memory::new();
        let faulty = FaultyBackend::new(Arc::new(store.clone()));
        let cluster = place
            .cluster_via(name, id, Arc::new(store.clone()), faulty.clone())
            .await;
        Self {
            name,
            store,
            faulty,
            cluster,
            truth: BTreeMap::new(),
            is_configured: false,
        }
    }

    async fn step(&mut self, place: &Place, random: &mut fastrand::Rng) {
        let kind = Kind::ALL[random.usize(0..Kind::ALL.len())];
        let name = format!("x{}", random.u8(0..20));
        match random.u8(0..100) {
            0..50 => {
                let value = random.u32(..).to_string();
                self.cluster.put(kind, &name, value.clone()).await;
                self.truth.insert(kind.key(self.name, true, &name), value.into());
            }
            50..75 => {
                self.cluster.delete(kind, &name).await;
                self.truth.remove(&kind.key(self.name, true, &name));
            }
            75..80 => self.faulty.cut_watches(),
            80..84 => self.faulty.fail(random.u64(..), 0.4),
            84..87 => self.faulty.partition(true),
            87..91 => self.faulty.partition(false),
            91..94 => {
                let now = self.store.header().revision;
                // Compacted there already, if nothing was written since.
                let _ = self.store.compact(now).await;
            }
            94..96 => {
                // Another etcd, which its writers fill again.
                self.store.reset();
                for (key, value) in &self.truth {
                    self.cluster.put_key(&self.state_key(key), value.clone()).await;
                }
                self.cluster.publish().await;
                self.cluster.configure(everything()).await;
            }
            _ => self.configure(place, !self.is_configured),
        }
        match random.u8(0..10) {
            0 => sleep(Duration::from_secs(random.u64(1..250))).await,
            1..4 => sleep(Duration::from_millis(random.u64(1..3000))).await,
            _ => {}
        }
    }

    fn configure(&mut self, place: &Place, is_configured: bool) {
        match (self.is_configured, is_configured) {
            (false, true) => place.join(self.name),
            (true, false) => place.leave(self.name),
            _ => {}
        }
        self.is_configured = is_configured;
    }

    fn state_key(&self, key: &str) -> String {
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| key.starts_with(kind.cache_prefix()))
            .expect("it is of a kind");
        kind.key(self.name, false, &key[kind.prefix(self.name, true).len() + 1..])
    }
}

async fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (local, place) = Place::in_memory();
    let via = FaultyBackend::new(Arc::new(local.clone()));
    let mut remotes = [
        Remote::new(&place, "alder", 7).await,
        Remote::new(&place, "maple", 8).await,
    ];
    let mut world = World::start_via(place.clone(), via.clone(), &[]).await;
    for _ in 0..200 {
        match random.u8(0..100) {
            0..4 => via.fail(random.u64(..), 0.3),
            4..8 => via.fail(0, 0.0),
            8..10 => via.cut_watches(),
            10..12 => {
                let leases: Vec<LeaseId> = place
                    .items("cilium/cache/")
                    .await
                    .iter()
                    .map(|item| item.lease)
                    .collect();
                if let Some(lease) = leases.first() {
                    local.revoke_lease(*lease).await.expect("it exists");
                }
            }
            12..14 => {
                via.fail(0, 0.0);
                world.stop().await;
                world = World::start_via(place.clone(), via.clone(), &[]).await;
            }
            _ => {
                let at = random.usize(0..2);
                remotes[at].step(&place, &mut random).await;
            }
        }
    }

    via.fail(0, 0.0);
    let stays = random.bool();
    let mut expected = BTreeMap::new();
    for (at, remote) in remotes.iter_mut().enumerate() {
        remote.faulty.fail(0, 0.0);
        remote.faulty.partition(false);
        remote.configure(&place, at == 0 || stays);
        if remote.is_configured {
            expected.extend(remote.truth.clone());
        }
    }
    place.copied(expected).await;
    world.ready("alder").await;
    assert_eq!(place.keys("cilium/synced/alder/").await, canaries("alder"));
    assert_eq!(place.item("cilium/cluster-config/maple").await.is_some(), stays);
    sleep(Duration::from_secs(3600)).await;
    for item in place.items("cilium/cache/").await {
        assert_ne!(item.lease, LeaseId::NONE, "{}", item.key);
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_copies_end_as_what_the_clusters_publish() {
    for seed in 0..5 {
        println!("seed {seed}");
        run(seed).await;
    }
}
