// SPDX-License-Identifier: Apache-2.0

//! Random changes and faults in two meshed clusters: when they end, calls are answered by the backends that they should be,
//! and tables and maps of agents have what they should have, and nothing else.
//!
//! `SKEP_MESH_SEED` repeats a run, `SKEP_MESH_STEPS` makes it longer. How the processes of a run interleave is not part of
//! the seed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod tables;

use tables::{Agent, Identities};

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use skep_e2e::{TestLab, lab_options};
use skep_k8s_client::{DeleteOptions, Subresource, WriteOptions};
use skep_k8s_types::Kind;
use skep_lab::{
    command,
    echo::Outcome,
    lab_options::LabOptions,
    mesh::Mesh,
    session::{CallMode, Session, at, client_pod, cluster_ips, dual_stack_service, echo_pod, finish},
};

const CLUSTERS: [&str; 2] = ["c1", "c2"];
const SERVICES: [&str; 3] = ["oak", "elm", "fir"];
/// Times in a run at which faults end for a while, and everything is compared.
const ROUNDS: usize = 2;
const STEPS: usize = 40;
const PAUSE: Duration = Duration::from_millis(400);
/// How long it may take until calls are answered by the right backends, and tables have what they should have.
const SETTLE: Duration = Duration::from_secs(90);

#[derive(Clone, Debug)]
struct Service {
    address: String,
    addresses: Vec<String>,
    is_global: bool,
    is_shared: bool,
    affinity: Option<&'static str>,
}

/// Endpoints of pods, and of a third node that does not run.
fn endpoints() -> Kind {
    Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true)
}

fn endpoint(name: &str, addresses: &[String; 2], identity: u32) -> Value {
    let [ipv4, ipv6] = addresses;
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
        "metadata": {"name": name, "namespace": "default"},
        "status": {
            "id": 1, "identity": {"id": identity, "labels": ["k8s:app=ghost"]}, "state": "ready",
            "networking": {"addressing": [{"ipv4": ipv4, "ipv6": ipv6}], "node": "172.30.77.1"},
        },
    })
}

/// What was written to the API servers.
#[derive(Debug, Default)]
struct Truth {
    services: BTreeMap<(usize, usize), Service>,
    /// All addresses that services of a cluster ever had.
    addresses: [BTreeSet<String>; 2],
    pods: BTreeMap<(usize, usize), BTreeSet<String>>,
    /// Name, addresses and identity of the CiliumEndpoints of clusters.
    endpoints: [BTreeMap<String, ([String; 2], u32)>; 2],
}

impl Truth {
    /// Identities of the addresses of all clusters.
    fn identities(&self) -> Identities {
        let all = self.endpoints.iter().flatten();
        let prefixes = all.flat_map(|(_, ([ipv4, ipv6], identity))| {
            [
                (format!("{ipv4}/32"), *identity),
                (format!("{ipv6}/128"), *identity),
            ]
        });
        prefixes.collect()
    }

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
        let lab_options = LabOptions {
            clusters: 2,
            kvstoremesh: rng.clone().bool(),
            ..lab_options(1, &[], None)
        };
        let lab = TestLab::up_with("mesh-random", lab_options).await;
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
        match self.rng.u8(..24) {
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
            20..23 => self.create_endpoint(cluster).await,
            23 => self.delete_endpoint(cluster).await,
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

    async fn create_endpoint(&mut self, cluster: usize) -> String {
        self.pods += 1;
        let (name, at) = (format!("ghost-{}", self.pods), self.pods);
        let addresses = [
            format!("10.25{cluster}.0.{at}"),
            format!("fd00:25{cluster}::{at}"),
        ];
        let id = u32::try_from(cluster + 1).unwrap();
        let identity = (id << 16) + 1000 + self.rng.u32(..3);
        let object = endpoint(&name, &addresses, identity);
        let client = self.sessions[cluster].client();
        let options = WriteOptions::default();
        client
            .create(&endpoints(), "default", object, &options)
            .await
            .unwrap();
        let text = format!("{name} of {} has identity {identity}", CLUSTERS[cluster]);
        self.truth.endpoints[cluster].insert(name, (addresses, identity));
        text
    }

    async fn delete_endpoint(&mut self, cluster: usize) -> String {
        let Some((name, _)) = self.truth.endpoints[cluster].pop_first() else {
            return "nothing".to_owned();
        };
        let client = self.sessions[cluster].client();
        let options = DeleteOptions::default();
        client
            .delete(&endpoints(), "default", &name, &options)
            .await
            .unwrap();
        format!("{name} of {} goes", CLUSTERS[cluster])
    }

    async fn create_service(&mut self, cluster: usize, service: usize) -> String {
        let mut object = dual_stack_service(SERVICES[service], &json!({}));
        object["metadata"]["annotations"] = json!({"service.cilium.io/global": "true"});
        let created = self.sessions[cluster].create(object).await.unwrap();
        let addresses = cluster_ips(&created);
        self.truth.addresses[cluster].extend(addresses.iter().cloned());
        let created = Service {
            address: at(self.rng.choice(&addresses).unwrap(), 80),
            addresses,
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
        let call = self.sessions[cluster].call(&client, to, CallMode::TCP, 40).await;
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
        loop {
            let different = match self.compare().await {
                Ok(()) => return Ok(()),
                Err(different) => different,
            };
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{different}; {:?}", self.truth));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Compares tables and maps of both agents with what was written to the API servers.
    async fn compare(&self) -> Result<(), String> {
        let mut pods = BTreeMap::new();
        let mut identities = self.truth.identities();
        for session in &self.sessions {
            let of_cluster = tables::pods(session).await?;
            identities.extend(tables::identities(session, &endpoints(), &of_cluster).await?);
            pods.extend(of_cluster);
        }
        for (at, cluster) in CLUSTERS.iter().enumerate() {
            let mut expected = BTreeMap::new();
            for ((of, service), known) in &self.truth.services {
                if *of != at {
                    continue;
                }
                let names = self.truth.backends(at, *service);
                let backends: Option<Vec<_>> = names.iter().map(|name| pods.get(name)).collect();
                let backends = backends.ok_or_else(|| format!("not all of {names:?} run"))?;
                expected.extend(tables::frontends(&known.addresses, &backends));
            }
            let node = format!("{cluster}-n1");
            let agent = Agent {
                session: &self.sessions[at],
                node: &node,
            };
            let services = agent.compare_services(&SERVICES, &expected, &self.truth.addresses[at]);
            let of_agent = |different| format!("agent of {cluster}: {different}");
            services.await.map_err(of_agent)?;
            agent.compare_identities(&identities).await.map_err(of_agent)?;
        }
        Ok(())
    }

    /// Ends all faults, and waits until everything is as it should be.
    async fn recover(&self) {
        eprintln!("faults end");
        for cluster in CLUSTERS {
            self.mesh.restart_etcd(cluster).unwrap();
        }
        self.join();
        self.settle().await.unwrap();
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
        .call_until("default/client-c1", &to, CallMode::TCP, 20, both)
        .await;
    let time = PAUSE * u32::try_from(steps).unwrap();
    let traffic = world.sessions[0]
        .keep_calling("default/client-c1", &to, CallMode::TCP, time)
        .unwrap();

    for step in 1..=steps {
        let what = world.step().await;
        eprintln!("{what}");
        let pause = world.rng.u64(..PAUSE.as_millis() as u64);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if step == steps || step % steps.div_ceil(ROUNDS) == 0 {
            world.recover().await;
        }
    }
    let outcome = finish(traffic).await.unwrap();
    assert_eq!((outcome.failed, outcome.answered > 100), (0, true), "{outcome}");
}
