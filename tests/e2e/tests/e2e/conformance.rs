// SPDX-License-Identifier: Apache-2.0

//! The behaviours that the conformance tests of NetworkPolicy check: pods a, b and c in namespaces x, y and z; after each change
//! all of them call all others.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, Place, TestLab, beyond_address, lab_options};
use skep_k8s_client::Subresource;
use skep_lab::{plan::BEYOND, session::echo_pod};
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];
/// How long an answer may take before a call counts as dropped; calls that differ are made again.
const ANSWER: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Port {
    Tcp80,
    Tcp81,
    Udp80,
}

use Port::{Tcp80, Tcp81, Udp80};

/// A call between pods, each by namespace and name.
#[derive(Clone, Copy, Debug)]
struct Call {
    from: (&'static str, &'static str),
    to: (&'static str, &'static str),
    port: Port,
}

struct World {
    lab: TestLab,
    addresses: BTreeMap<(&'static str, &'static str), IpAddr>,
}

struct Case {
    name: &'static str,
    policies: Vec<Value>,
    allowed: fn(&Call) -> bool,
}

/// A NetworkPolicy in a namespace.
fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    })
}

fn ingress(namespace: &str, name: &str, subject: Value, rules: Value) -> Value {
    policy(
        namespace,
        name,
        json!({"podSelector": subject, "policyTypes": ["Ingress"], "ingress": rules}),
    )
}

fn egress(namespace: &str, name: &str, subject: Value, rules: Value) -> Value {
    policy(
        namespace,
        name,
        json!({"podSelector": subject, "policyTypes": ["Egress"], "egress": rules}),
    )
}

fn pod(name: &str) -> Value {
    json!({"matchLabels": {"pod": name}})
}

fn ns(name: &str) -> Value {
    json!({"matchLabels": {"ns": name}})
}

fn one_of(key: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": "In", "values": values}]})
}

/// From `peer` on `ports`, as an element of `ingress`.
fn from(peers: Value, ports: Value) -> Value {
    json!([{"from": peers, "ports": ports}])
}

fn tcp(port: Value) -> Value {
    json!([{"protocol": "TCP", "port": port}])
}

fn cilium(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    })
}

fn is(pod: (&str, &str), namespace: &str, name: &str) -> bool {
    pod == (namespace, name)
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let all = || json!({});
    let case = |name, policies, allowed| Case { name, policies, allowed };
    vec![
        case("default deny ingress", vec![ingress("x", "p", all(), json!([]))], |call| call.to.0 != "x"),
        case("default deny both", vec![policy("x", "p", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))],
            |call| call.to.0 != "x" && call.from.0 != "x"),
        case("pods of the own namespace by selector", vec![ingress("x", "p", all(), from(json!([{"podSelector": pod("a")}]), json!([])))],
            |call| call.to.0 != "x" || is(call.from, "x", "a")),
        case("a selected target only", vec![ingress("x", "p", pod("a"), from(json!([{"podSelector": pod("b")}]), json!([])))],
            |call| !is(call.to, "x", "a") || is(call.from, "x", "b")),
        case("all namespaces", vec![ingress("x", "p", all(), from(json!([{"namespaceSelector": {}}]), json!([])))], |_| true),
        case("one other namespace", vec![ingress("x", "p", all(), from(json!([{"namespaceSelector": ns("y")}]), json!([])))],
            |call| call.to.0 != "x" || call.from.0 == "y"),
        case("pods by expression", vec![ingress("x", "p", all(), from(json!([{"podSelector": one_of("pod", &["b", "c"])}]), json!([])))],
            |call| call.to.0 != "x" || (call.from.0 == "x" && call.from.1 != "a")),
        case("namespaces by expression", vec![ingress("x", "p", all(), from(json!([{"namespaceSelector": one_of("ns", &["y", "z"])}]), json!([])))],
            |call| call.to.0 != "x" || call.from.0 != "x"),
        case("pods or namespaces", vec![ingress("x", "p", all(),
            from(json!([{"podSelector": pod("b")}, {"namespaceSelector": ns("y")}]), json!([])))],
            |call| call.to.0 != "x" || is(call.from, "x", "b") || call.from.0 == "y"),
        case("pods in namespaces", vec![ingress("x", "p", all(),
            from(json!([{"podSelector": pod("b"), "namespaceSelector": ns("y")}]), json!([])))],
            |call| call.to.0 != "x" || is(call.from, "y", "b")),
        case("several of both", vec![ingress("x", "p", all(), from(json!([
            {"podSelector": one_of("pod", &["b"]), "namespaceSelector": one_of("ns", &["y", "z"])}, {"podSelector": pod("c")}]), json!([])))],
            |call| call.to.0 != "x" || (call.from.0 != "x" && call.from.1 == "b") || is(call.from, "x", "c")),
        case("any pod of the own namespace", vec![ingress("x", "p", all(), from(json!([{"podSelector": {}}]), json!([])))],
            |call| call.to.0 != "x" || call.from.0 == "x"),
        case("one port by number", vec![ingress("x", "p", all(), from(json!([]), tcp(json!(81))))],
            |call| call.to.0 != "x" || call.port == Tcp81),
        case("stacked policies", vec![
            ingress("x", "one", pod("a"), from(json!([{"namespaceSelector": ns("y")}]), tcp(json!(80)))),
            ingress("x", "two", pod("a"), from(json!([{"namespaceSelector": ns("z")}]), tcp(json!(81))))],
            |call| !is(call.to, "x", "a") || (call.from.0 == "y" && call.port == Tcp80) || (call.from.0 == "z" && call.port == Tcp81)),
        case("explicit allow-all beside a deny", vec![ingress("x", "deny", all(), json!([])), ingress("x", "allow", all(), json!([{}]))], |_| true),
        case("a named port", vec![ingress("x", "p", all(), from(json!([]), tcp(json!("serve-81"))))],
            |call| call.to.0 != "x" || call.port == Tcp81),
        case("a named port of one namespace", vec![ingress("x", "p", all(), from(json!([{"namespaceSelector": ns("y")}]), tcp(json!("serve-80"))))],
            |call| call.to.0 != "x" || (call.from.0 == "y" && call.port == Tcp80)),
        case("egress to a named port", vec![egress("x", "p", all(), json!([{"ports": tcp(json!("serve-80"))}]))],
            |call| call.from.0 != "x" || call.port == Tcp80),
        case("egress of some pods denied", vec![egress("x", "p", pod("a"), json!([]))], |call| !is(call.from, "x", "a")),
        case("egress of a namespace denied", vec![egress("y", "p", all(), json!([]))], |call| call.from.0 != "y"),
        case("ingress and egress in one object", vec![policy("x", "p", json!({"podSelector": pod("a"), "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"namespaceSelector": ns("y")}]}], "egress": [{"to": [{"namespaceSelector": ns("z")}]}]}))],
            |call| (!is(call.to, "x", "a") || call.from.0 == "y") && (!is(call.from, "x", "a") || call.to.0 == "z")),
        case("the client's egress although the server allows", vec![
            ingress("x", "allow", all(), json!([{}])), egress("y", "deny", pod("b"), json!([]))], |call| !is(call.from, "y", "b")),
        case("egress to a pod of another namespace", vec![egress("x", "p", pod("a"),
            json!([{"to": [{"podSelector": pod("c"), "namespaceSelector": ns("z")}]}]))],
            |call| !is(call.from, "x", "a") || is(call.to, "z", "c")),
        case("any port of one protocol", vec![ingress("x", "p", all(), from(json!([]), json!([{"protocol": "UDP"}])))],
            |call| call.to.0 != "x" || call.port == Udp80),
        case("several, allow-all wins for egress", vec![egress("x", "deny", all(), json!([])), egress("x", "allow", all(), json!([{}]))], |_| true),
        case("a rule for UDP opens no TCP", vec![ingress("x", "p", all(), from(json!([]), json!([{"protocol": "UDP", "port": 80}])))],
            |call| call.to.0 != "x" || call.port == Udp80),
        case("a rule for SCTP opens nothing else", vec![ingress("x", "p", all(), from(json!([]), json!([{"protocol": "SCTP", "port": 80}])))],
            |call| call.to.0 != "x"),
        case("a range of ports", vec![egress("x", "p", all(), json!([{"ports": [{"protocol": "TCP", "port": 79, "endPort": 80}]}]))],
            |call| call.from.0 != "x" || call.port == Tcp80),
        case("denies win", vec![cilium("x", "p", json!({"endpointSelector": {},
            "ingress": [{"fromEntities": ["cluster"]}],
            "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"k8s:io.kubernetes.pod.namespace": "y"}}],
                "toPorts": [{"ports": [{"port": "81", "protocol": "TCP"}]}]}]}))],
            |call| call.to.0 != "x" || call.from.0 != "y" || call.port != Tcp81),
    ]
}

impl World {
    async fn up() -> Self {
        let config = [AT_PACKETS, "identity-change-grace-period=100ms"];
        let lab = TestLab::up_with("conformance", lab_options(2, &config, None)).await;
        let namespaces = NAMESPACES.map(|name| {
            json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"ns": name}}})
        });
        lab.create_all(namespaces).await;
        let pods = NAMESPACES.iter().flat_map(|namespace| {
            PODS.iter().map(move |name| {
                let node = if *name == "b" { "c1-n2" } else { "c1-n1" };
                let mut pod = echo_pod(name, name, node);
                pod["metadata"]["namespace"] = json!(namespace);
                pod["metadata"]["labels"] = json!({"pod": name});
                pod["spec"]["containers"][0]["ports"] = json!([
                    {"containerPort": 80, "protocol": "TCP", "name": "serve-80"},
                    {"containerPort": 81, "protocol": "TCP", "name": "serve-81"},
                    {"containerPort": 80, "protocol": "UDP", "name": "serve-80-udp"}]);
                pod
            })
        });
        lab.create_all(pods).await;
        let mut addresses = BTreeMap::new();
        for (node, count) in [("c1-n1", 6), ("c1-n2", 3)] {
            for endpoint in lab.endpoints(node, count).await {
                let ids = &endpoint["status"]["external-identifiers"];
                let find = |all: [&'static str; 3], key: &str| {
                    all.into_iter().find(|known| ids[key] == *known).unwrap()
                };
                let of = (find(NAMESPACES, "k8s-namespace"), find(PODS, "k8s-pod-name"));
                let text = endpoint["status"]["networking"]["addressing"][0]["ipv4"]
                    .as_str()
                    .unwrap();
                addresses.insert(of, text.parse().unwrap());
            }
        }
        Self { lab, addresses }
    }

    fn place(&self, (namespace, name): (&str, &str)) -> Place {
        self.lab.place(&format!("{namespace}/{name}"))
    }

    /// All calls between pods.
    fn calls(&self) -> Vec<Call> {
        let pods = self.addresses.keys();
        let pairs = pods.flat_map(|from| self.addresses.keys().map(move |to| (*from, *to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        pairs
            .flat_map(|(from, to)| [Tcp80, Tcp81, Udp80].map(|port| Call { from, to, port }))
            .collect()
    }

    /// Those of the calls that do not go as `allowed` says.
    fn differences(&self, calls: &[Call], allowed: fn(&Call) -> bool) -> Vec<Call> {
        let of_pod = |from: (&str, &str)| {
            let of_pod = calls.iter().filter(move |call| call.from == from);
            let calls: Vec<(Call, IpAddr)> = of_pod.map(|call| (*call, self.addresses[&call.to])).collect();
            let place = self.place(from);
            move || {
                place.inside(async move || {
                    let calls = calls.into_iter().map(async |(call, address)| {
                        (answers(address, call.port).await != allowed(&call)).then_some(call)
                    });
                    Ok(futures::future::join_all(calls).await)
                })
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .addresses
                .keys()
                .map(|from| scope.spawn(of_pod(*from)))
                .collect();
            let found = threads.into_iter().map(|thread| thread.join().unwrap().unwrap());
            found.flatten().flatten().collect()
        })
    }

    /// Waits until all calls go as `allowed` says; those that did are not made again.
    #[track_caller]
    fn expect(&self, what: &str, allowed: fn(&Call) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut calls = self.calls();
        loop {
            calls = self.differences(&calls, allowed);
            if calls.is_empty() {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: {} calls differ, such as {:?}",
                calls.len(),
                &calls[..calls.len().min(5)]
            );
        }
    }

    async fn create(&self, policies: &[Value]) {
        for policy in policies {
            self.lab.session.create(policy.clone()).await.unwrap();
        }
    }

    async fn delete(&self, policies: &[Value]) {
        for policy in policies {
            self.lab.session.delete(policy).await.unwrap();
        }
    }
}

/// Whether an echo server answers.
async fn answers(address: IpAddr, port: Port) -> bool {
    let to = |port| SocketAddr::new(address, port);
    let call = async {
        match port {
            Tcp80 => TcpStream::connect(to(80)).await.map(drop),
            Tcp81 => TcpStream::connect(to(81)).await.map(drop),
            Udp80 => {
                let socket = UdpSocket::bind("0.0.0.0:0").await?;
                socket.connect(to(80)).await?;
                socket.send(b"hello").await?;
                socket.recv(&mut [0; 64]).await.map(drop)
            }
        }
    };
    timeout(ANSWER, call)
        .await
        .is_ok_and(|done: io::Result<()>| done.is_ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn network_policies_behave_as_the_conformance_tests_say() {
    let world = World::up().await;
    world.expect("without policies", |_| true);
    for case in cases() {
        world.create(&case.policies).await;
        world.expect(case.name, case.allowed);
        world.delete(&case.policies).await;
    }
    world.expect("enforcement ends with the policies", |_| true);
    changes_of_objects(&world).await;
    networks_outside(&world).await;
}

/// Policies, namespaces and pods that change.
async fn changes_of_objects(world: &World) {
    let object = ingress(
        "x",
        "p",
        json!({}),
        from(json!([{"podSelector": pod("a")}]), json!([])),
    );
    world.create(std::slice::from_ref(&object)).await;
    world.expect("before the update", |call| {
        call.to.0 != "x" || is(call.from, "x", "a")
    });
    let rules = from(
        json!([{"namespaceSelector": ns("q")}, {"podSelector": pod("q")}]),
        json!([]),
    );
    let change = json!({"spec": {"ingress": rules}});
    let merge = |object: Value, change: Value| async move {
        world
            .lab
            .session
            .merge(&object, Subresource::None, change)
            .await
            .unwrap();
    };
    merge(object.clone(), change).await;
    world.expect("after the update", |call| call.to.0 != "x");

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "y"}});
    merge(namespace.clone(), json!({"metadata": {"labels": {"ns": "q"}}})).await;
    world.expect("a namespace gets the label", |call| {
        call.to.0 != "x" || call.from.0 == "y"
    });
    merge(namespace, json!({"metadata": {"labels": {"ns": "y"}}})).await;
    world.expect("and loses it", |call| call.to.0 != "x");

    let peer = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "x", "name": "b"}});
    merge(peer.clone(), json!({"metadata": {"labels": {"pod": "q"}}})).await;
    world.expect("a pod gets the label", |call| {
        call.to.0 != "x" || is(call.from, "x", "b")
    });
    merge(peer, json!({"metadata": {"labels": {"pod": "b"}}})).await;
    world.expect("and loses it", |call| call.to.0 != "x");
    world.delete(&[object]).await;
    world.expect("the policy is gone", |_| true);
}

/// `ipBlock` and its exceptions, with a machine outside.
async fn networks_outside(world: &World) {
    let outside = SocketAddr::new(beyond_address(true), 8443);
    let bound = world
        .lab
        .place(BEYOND)
        .inside(async move || TcpListener::bind(outside).await?.into_std());
    let _listener = bound.unwrap();
    let pause = Duration::from_millis(50);
    let place = world.place(("x", "a"));
    let reaches = move || {
        let call = place.inside(async move || {
            Ok(timeout(ANSWER, TcpStream::connect(outside))
                .await
                .is_ok_and(|done| done.is_ok()))
        });
        call.unwrap()
    };
    let expect = |wanted: bool, what: &'static str| {
        let deadline = Instant::now() + PATIENCE;
        while reaches() != wanted {
            assert!(Instant::now() < deadline, "{what}");
            // No accept call: the queue of the listener holds some hundred connections.
            std::thread::sleep(pause);
        }
    };
    expect(true, "without a policy");
    let wide = match outside.ip() {
        IpAddr::V4(address) => ipnet::Ipv4Net::new(address, 8).unwrap().trunc().to_string(),
        IpAddr::V6(_) => unreachable!(),
    };
    let host = format!("{}/32", outside.ip());
    let block = |name: &str, block: Value| egress("x", name, pod("a"), json!([{"to": [{"ipBlock": block}]}]));
    let except = block("except", json!({"cidr": wide, "except": [host]}));
    world.create(std::slice::from_ref(&except)).await;
    expect(false, "an exception is not allowed");
    let other = block("other", json!({"cidr": host}));
    world.create(std::slice::from_ref(&other)).await;
    expect(true, "another rule allows what is an exception of the first");
    world.delete(&[except]).await;
    expect(true, "the address alone");
    world.delete(&[other]).await;
    let elsewhere = block("elsewhere", json!({"cidr": "192.0.2.0/24"}));
    world.create(std::slice::from_ref(&elsewhere)).await;
    expect(false, "another network");
    world.delete(&[elsewhere]).await;
}
