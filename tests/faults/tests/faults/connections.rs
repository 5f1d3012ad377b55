// SPDX-License-Identifier: Apache-2.0

//! Connections through services, translated packet by packet, while agents are killed and come back with other settings.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, Place, TestLab, ask, lab_options, transfer};
use skep_lab::{
    plan::OUTSIDE,
    session::{CallMode, at, client_pod, cluster_ips, echo_pod, node_port},
};

const NODES: [&str; 2] = ["c1-n1", "c1-n2"];
/// Both addresses of the node that clients call, which has one of the two backends.
const NODE: [&str; 2] = ["172.30.1.1", "fd00:30:0:1::1"];
/// Idle connections to each address of the service.
const IDLE: usize = 250;
/// Bytes of one transfer of those that go on all the time.
const TRANSFER: usize = 100_000;
const PAUSE: Duration = Duration::from_millis(5);
/// Most connections until one has the backend on the node that is called.
const TRIES: u16 = 64;

/// Two nodes with a backend on each, a client in a pod, and their service.
async fn lab(test: &str) -> (TestLab, Arc<Value>) {
    let lab = TestLab::up_with(test, lab_options(2, &[AT_PACKETS], None)).await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("web-0", "shop", "c1-n1"),
        echo_pod("web-1", "shop", "c1-n2"),
    ])
    .await;
    let service = lab.create_shop(json!({"type": "NodePort"})).await;
    for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
        let inside = cluster_ips(&service)
            .into_iter()
            .map(|ip| ("default/client", at(&ip, 80)));
        let outside = NODE.map(|address| (OUTSIDE, at(address, node_port(&service, protocol))));
        for (from, to) in inside.chain(outside) {
            lab.call_until(from, &to, mode, 20, |outcome| {
                outcome.failed == 0 && outcome.servers.len() == 2
            })
            .await;
        }
    }
    (lab, service)
}

/// Cluster IPs, as the pod calls them, and node ports, as clients outside do.
fn ways(lab: &TestLab, service: &Value) -> Vec<(Place, SocketAddr)> {
    let inside = cluster_ips(service).into_iter().map(|ip| {
        (
            lab.place("default/client"),
            SocketAddr::new(ip.parse().unwrap(), 80),
        )
    });
    let outside = NODE.map(|address| (lab.place(OUTSIDE), node_port_of(service, address, "TCP")));
    inside.chain(outside).collect()
}

fn node_port_of(service: &Value, node: &str, protocol: &str) -> SocketAddr {
    let port = u16::try_from(node_port(service, protocol)).unwrap();
    SocketAddr::new(node.parse().unwrap(), port)
}

/// A connection that is never idle: transfers follow each other.
struct Busy {
    to: SocketAddr,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<io::Result<()>>,
}

impl Busy {
    fn start(from: Place, to: SocketAddr) -> Self {
        let stream = from.connect(to).unwrap();
        let (stop, done): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let thread = std::thread::spawn({
            let (stop, done) = (stop.clone(), done.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    transfer(&stream, TRANSFER)?;
                    done.fetch_add(1, Ordering::Relaxed);
                    // The agents need processors, too.
                    std::thread::sleep(PAUSE);
                }
                Ok(())
            }
        });
        Self {
            to,
            stop,
            done,
            thread,
        }
    }

    /// Waits for a transfer that begins from now on.
    async fn goes_on(&self, lab: &TestLab) {
        let before = self.done.load(Ordering::Relaxed);
        let what = format!("the connection to {} goes on", self.to);
        // The next one to end may have begun before.
        lab.wait(&what, || async { self.done.load(Ordering::Relaxed) > before + 1 })
            .await;
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join().unwrap();
        assert!(ended.is_ok(), "the connection to {}: {ended:?}", self.to);
    }
}

/// Connections that are idle between single calls.
struct Idle(Vec<(SocketAddr, TcpStream)>);

impl Idle {
    fn open(ways: &[(Place, SocketAddr)]) -> Self {
        let mut all = Vec::new();
        for (from, to) in ways {
            let opened = from.connect_all(*to, IDLE).unwrap();
            all.extend(opened.into_iter().map(|stream| (*to, stream)));
        }
        Self(all)
    }

    #[track_caller]
    fn all_answer(&self, when: &str) {
        for (to, stream) in &self.0 {
            let answer = ask(stream, "still there");
            assert!(
                answer.is_ok(),
                "{when}, {to} from {:?}: {answer:?}",
                stream.local_addr()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_outlive_agents_that_are_killed_and_change_their_settings() {
    let (lab, service) = lab("connections").await;
    let ways = ways(&lab, &service);
    let idle = tokio::task::block_in_place(|| Idle::open(&ways));
    assert_eq!(idle.0.len(), 1_000);
    tokio::task::block_in_place(|| idle.all_answer("at first"));
    let busy: Vec<Busy> = ways
        .iter()
        .flat_map(|(from, to)| (0..2).map(|_| Busy::start(*from, *to)))
        .collect();

    let rounds: [(&str, &[(&str, &str)]); 4] = [
        ("killed", &[]),
        (
            "with larger maps",
            &[
                ("bpf-ct-global-tcp-max", "131072"),
                ("bpf-nat-global-max", "131072"),
            ],
        ),
        ("with direct return", &[("bpf-lb-mode", "dsr")]),
        ("with direct return and killed", &[]),
    ];
    for (when, settings) in rounds {
        for node in NODES {
            for (key, value) in settings {
                lab.configure(node, key, value);
            }
            lab.restart_agent(node).await;
            tokio::task::block_in_place(|| idle.all_answer(when));
        }
        for connection in &busy {
            connection.goes_on(&lab).await;
        }
    }

    // The programs have the settings: backends see the client's address in new connections.
    let outside = lab.place(OUTSIDE);
    for node in NODE {
        let to = node_port_of(&service, node, "TCP");
        lab.wait("backends on the other node see the client", || async {
            tokio::task::block_in_place(|| {
                let answers: Vec<_> = (0..20).map(|_| outside.call(to).unwrap()).collect();
                answers.iter().any(|answer| answer.server == "web-1")
                    && answers.iter().all(|answer| answer.client.ip() != to.ip())
            })
        })
        .await;
    }
    tokio::task::block_in_place(|| idle.all_answer("at last"));
    for connection in busy {
        connection.finish();
    }
}

/// Cilium translates the pod's reply back to the node port, and the connection hangs.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_node_port_may_call_the_pod_from_the_same_port() {
    let (lab, service) = lab("same-port").await;
    let outside = lab.place(OUTSIDE);
    let pods = pod_addresses(&lab, "web-0").await;

    for (node, pod) in NODE.into_iter().zip(pods) {
        tokio::task::block_in_place(|| {
            let to = node_port_of(&service, node, "TCP");
            let direct = SocketAddr::new(pod, 8080);
            // The backend must be the one on the node that is called.
            let port = (20_000..20_000 + TRIES).find(|port| {
                let stream = outside.connect_from(to, *port).unwrap();
                ask(&stream, "by node port").unwrap().server == "web-0"
            });
            let port = port.unwrap_or_else(|| panic!("{to}: never web-0"));

            let stream = outside.connect_from(direct, port).unwrap();
            let answer = ask(&stream, "directly").unwrap();
            assert_eq!((answer.server.as_str(), answer.client.port()), ("web-0", port));
        });
    }
}

/// IPv4 and IPv6 address of a pod, as the API server has them.
async fn pod_addresses(lab: &TestLab, name: &str) -> Vec<IpAddr> {
    let kind = skep_k8s_types::Kind::POD;
    let pod = lab.session.client().get(&kind, "default", name).await.unwrap();
    let pod = pod.to_value().unwrap();
    let all = pod["status"]["podIPs"].as_array().unwrap();
    all.iter()
        .map(|address| address["ip"].as_str().unwrap().parse().unwrap())
        .collect()
}
