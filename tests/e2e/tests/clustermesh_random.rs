// SPDX-License-Identifier: Apache-2.0

//! Random changes and faults in two meshed clusters: in the end calls are answered by the backends that they should be.
//!
//! `SKEP_MESH_SEED` repeats a run, `SKEP_MESH_STEPS` makes it longer. How the processes of a run interleave is not part of
//! the seed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use skep_e2e::{TestLab, shape};
use skep_k8s_client::Subresource;
use skep_lab::{
    command::{self, Shape},
    echo::Outcome,
    mesh::Mesh,
    session::{Session, Way, at, client_pod, cluster_ips, dual_stack_service, echo_pod, finish},
};

const CLUSTERS: [&str; 2] = ["c1", "c2"];
const SERVICES: [&str; 3] = ["oak", "elm", "fir"];
/// Changes of a run.
const STEPS: usize = 40;
/// Longest pause between two changes.
const PAUSE: Duration = Duration::from_millis(400);
/// How long it may take until calls are answered by the right backends.
const SETTLE: Duration = Duration::from_secs(90);

/// A service in one cluster.
#[derive(Clone, Debug)]
struct Service {
    address: String,
    is_global: bool,
    is_shared: bool,
    affinity: Option<&'static str>,
}

/// What was written to the API servers.
#[derive(Debug, Default)]
struct Truth {
    services: BTreeMap<(usize, usize), Service>,
    pods: BTreeMap<(usize, usize), BTreeSet<String>>,
}

impl Truth {
    fn pods(&self, cluster: usize, service: usize) -> BTreeSet<String> {
        self.pods.get(&(cluster, service)).cloned().unwrap_or_default()
    }

    /// The pods that answer calls to a service of a cluster.
    fn backends(&self, cluster: usize, service: usize) -> BTreeSet<String> {
        let here = self.pods(cluster, service);
        let own = &self.services[&(cluster, service)];
        let other = self.services.get(&(1 - cluster, service));
        let is_merged = own.is_global && other.is_some_and(|other| other.is_global && other.is_shared);
        let there = match is_merged {
            true => self.pods(1 - cluster, service),
            false => BTreeSet::new(),
        };
        match own.affinity {
            Some("local") if !here.is_empty() => here,
            Some("remote") if !there.is_empty() => there,
            _ => &here | &there,
        }
    }
}

struct World {
    lab: TestLab,
    sessions: [Session; 2],
    mesh: Mesh,
    truth: Truth,
    rng: fastrand::Rng,
    pods: usize,
}

impl World {
    async fn new(rng: fastrand::Rng) -> Self {
        let shape = Shape {
            clusters: 2,
            kvstoremesh: rng.clone().bool(),
            ..shape(1, &[], None)
        };
        let lab = TestLab::up_with("mesh-random", shape).await;
        let sessions = CLUSTERS.map(|cluster| Session::open(lab.name(), cluster).unwrap());
        let mesh = command::mesh(lab.name()).unwrap();
        for (cluster, session) in CLUSTERS.iter().zip(&sessions) {
            let client = client_pod(&format!("client-{cluster}"), &format!("{cluster}-n1"));
            session.create(client).await.unwrap();
        }
        Self {
            lab,
            sessions,
            mesh,
            truth: Truth::default(),
            rng,
            pods: 0,
        }
    }

    /// One change or fault; says which.
    async fn step(&mut self) -> String {
        let (cluster, service) = (self.rng.usize(..CLUSTERS.len()), self.rng.usize(..SERVICES.len()));
        let name = CLUSTERS[cluster];
        match self.rng.u8(..20) {
            0..6 => self.create_pod(cluster, service).await,
            6..9 => self.delete_pod(cluster, service).await,
            9..11 => match self.truth.services.contains_key(&(cluster, service)) {
                true if self.rng.bool() => self.delete_service(cluster, service).await,
                true => self.annotate(cluster, service).await,
                false => self.create_service(cluster, service).await,
            },
            11..14 => match self.truth.services.contains_key(&(cluster, service)) {
                true => self.annotate(cluster, service).await,
                false => self.create_service(cluster, service).await,
            },
            14 => {
                self.mesh.stop_etcd(name).unwrap();
                format!("etcd of {name} is stopped")
            }
            15 => {
                self.mesh.restart_etcd(name).unwrap();
                format!("etcd of {name} is started")
            }
            16 => {
                self.mesh.kill_servers(name).unwrap();
                format!("clustermesh-apiserver of {name} is killed")
            }
            17 => {
                let node = format!("{name}-n1");
                let agent = self.sessions[0].state().unwrap().agents[&node].to_string();
                // It may be about to be restarted.
                let killed = self.sessions[0].run(&node, &["kill", "-KILL", &agent]).await;
                format!("agent of {name} is killed: {}", killed.is_ok())
            }
            18 => {
                self.mesh.leave(name).unwrap();
                format!("{name} leaves")
            }
            _ => {
                self.join();
                "both are in the mesh".to_owned()
            }
        }
    }

    fn join(&self) {
        for cluster in CLUSTERS {
            self.mesh.join(cluster).unwrap();
        }
    }

    async fn create_pod(&mut self, cluster: usize, service: usize) -> String {
        self.pods += 1;
        let name = format!("{}-{}-{}", SERVICES[service], CLUSTERS[cluster], self.pods);
        let pod = echo_pod(&name, SERVICES[service], &format!("{}-n1", CLUSTERS[cluster]));
        self.sessions[cluster].create(pod).await.unwrap();
        let pods = self.truth.pods.entry((cluster, service)).or_default();
        pods.insert(name.clone());
        format!("pod {name} comes")
    }

    async fn delete_pod(&mut self, cluster: usize, service: usize) -> String {
        let pods = self.truth.pods.entry((cluster, service)).or_default();
        let Some(name) = pods.pop_first() else {
            return "nothing".to_owned();
        };
        let pod = echo_pod(&name, SERVICES[service], &format!("{}-n1", CLUSTERS[cluster]));
        self.sessions[cluster].delete(&pod).await.unwrap();
        format!("pod {name} goes")
    }

    async fn create_service(&mut self, cluster: usize, service: usize) -> String {
        let mut object = dual_stack_service(SERVICES[service], &json!({}));
        object["metadata"]["annotations"] = json!({"service.cilium.io/global": "true"});
        let created = self.sessions[cluster].create(object).await.unwrap();
        let address = self.rng.choice(cluster_ips(&created)).unwrap();
        let created = Service {
            address: at(&address, 80),
            is_global: true,
            is_shared: true,
            affinity: None,
        };
        self.truth.services.insert((cluster, service), created);
        format!("service {} of {} comes", SERVICES[service], CLUSTERS[cluster])
    }

    async fn delete_service(&mut self, cluster: usize, service: usize) -> String {
        let object = dual_stack_service(SERVICES[service], &json!({}));
        self.sessions[cluster].delete(&object).await.unwrap();
        self.truth.services.remove(&(cluster, service));
        format!("service {} of {} goes", SERVICES[service], CLUSTERS[cluster])
    }

    async fn annotate(&mut self, cluster: usize, service: usize) -> String {
        let is_global = self.rng.u8(..4) > 0;
        let is_shared = self.rng.u8(..4) > 0;
        let affinity = self
            .rng
            .choice([None, Some("local"), Some("remote"), Some("none")])
            .unwrap();
        let annotations = json!({
            "service.cilium.io/global": is_global.to_string(),
            "service.cilium.io/shared": is_shared.to_string(),
            "service.cilium.io/affinity": affinity.map_or(Value::Null, Value::from),
        });
        let object = dual_stack_service(SERVICES[service], &json!({}));
        let change = json!({"metadata": {"annotations": annotations}});
        self.sessions[cluster]
            .merge(&object, Subresource::None, change)
            .await
            .unwrap();
        let known = self.truth.services.get_mut(&(cluster, service)).unwrap();
        (known.is_global, known.is_shared, known.affinity) = (is_global, is_shared, affinity);
        format!("{} of {}: {known:?}", SERVICES[service], CLUSTERS[cluster])
    }

    async fn call(&self, cluster: usize, to: &str) -> Option<Outcome> {
        let client = format!("default/client-{}", CLUSTERS[cluster]);
        let call = self.sessions[cluster].call(&client, to, Way::TCP, 40).await;
        call.ok()
    }

    /// Waits until every service is answered by its backends and no others.
    async fn settle(&self) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + SETTLE;
        for ((cluster, service), known) in &self.truth.services {
            let wanted = self.truth.backends(*cluster, *service);
            loop {
                let found = self.call(*cluster, &known.address).await;
                let servers = found.as_ref().map(|outcome| outcome.servers.keys());
                let is_complete = found
                    .as_ref()
                    .is_some_and(|outcome| (outcome.failed == 0) != wanted.is_empty());
                if is_complete && servers.is_some_and(|servers| servers.eq(&wanted)) {
                    break;
                }
                if tokio::time::Instant::now() > deadline {
                    let (cluster, service) = (CLUSTERS[*cluster], SERVICES[*service]);
                    return Err(format!(
                        "{service} of {cluster} is answered by {found:?} instead of {wanted:?}; {:?}",
                        self.truth
                    ));
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_by_the_right_clusters_after_random_changes_and_faults() {
    let seed = from_env("SKEP_MESH_SEED").unwrap_or_else(|| fastrand::u64(..));
    let steps = from_env("SKEP_MESH_STEPS").map_or(STEPS, |steps| usize::try_from(steps).unwrap());
    eprintln!("SKEP_MESH_SEED={seed}");
    let mut world = World::new(fastrand::Rng::with_seed(seed)).await;
    // Nothing changes this service: neither do faults. It has backends in both clusters.
    let mut steady = dual_stack_service("steady", &json!({}));
    steady["metadata"]["annotations"] = json!({"service.cilium.io/global": "true"});
    let mut addresses = Vec::new();
    for (cluster, session) in CLUSTERS.iter().zip(&world.sessions) {
        let pod = echo_pod(&format!("steady-{cluster}"), "steady", &format!("{cluster}-n1"));
        session.create(pod).await.unwrap();
        addresses.extend(cluster_ips(&session.create(steady.clone()).await.unwrap()));
    }
    let to = at(&addresses[0], 80);
    let both = |outcome: &Outcome| outcome.failed == 0 && outcome.servers.len() == 2;
    world
        .lab
        .call_until("default/client-c1", &to, Way::TCP, 20, both)
        .await;
    let time = PAUSE * u32::try_from(steps).unwrap();
    let traffic = world.sessions[0]
        .keep_calling("default/client-c1", &to, Way::TCP, time)
        .unwrap();

    for _ in 0..steps {
        let what = world.step().await;
        eprintln!("{what}");
        let pause = world.rng.u64(..PAUSE.as_millis() as u64);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    eprintln!("faults end");
    for cluster in CLUSTERS {
        world.mesh.restart_etcd(cluster).unwrap();
    }
    world.join();

    world.settle().await.unwrap();
    let outcome = finish(traffic).await.unwrap();
    assert_eq!((outcome.failed, outcome.answered > 100), (0, true), "{outcome}");
}
