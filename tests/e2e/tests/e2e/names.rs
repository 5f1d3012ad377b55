// SPDX-License-Identifier: Apache-2.0

//! Rules about DNS names at the packets of pods: dnsmasq in a pod, and a server outside of the cluster.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::Stdio,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RecordType},
};
use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, Place, TestLab, beyond_address, lab_options};
use skep_k8s_client::{Subresource, WriteOptions};
use skep_lab::{
    command,
    lab_options::{LabOptions, RoutingMode},
    plan::BEYOND,
    session::{CallMode, at, client_pod},
};
use tokio::process::Child;

use crate::host_policies::{KIND, guard};

const PORT: u16 = 8443;
const LIMIT: Duration = Duration::from_secs(5);

/// Addresses of a pod.
async fn addresses(lab: &TestLab, node: &str, count: usize, pod: &str) -> [IpAddr; 2] {
    let endpoints = lab.endpoints(node, count).await;
    let is_of = |endpoint: &&Value| endpoint["status"]["external-identifiers"]["k8s-pod-name"] == pod;
    let endpoint = endpoints
        .iter()
        .find(is_of)
        .unwrap_or_else(|| panic!("no endpoint of {pod}"));
    let of = &endpoint["status"]["networking"]["addressing"][0];
    ["ipv4", "ipv6"].map(|family| {
        let text = of[family].as_str().unwrap_or_default();
        text.parse()
            .unwrap_or_else(|_| panic!("{pod} has no {family}: {of}"))
    })
}

/// Starts dnsmasq in a pod.
fn dnsmasq(lab: &TestLab, pod: &str) -> Child {
    let (v4, v6) = (beyond_address(true), beyond_address(false));
    let record = |name: &str| format!("--host-record={name},{v4},{v6},60");
    let program = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--pid-file=",
        "--no-resolv",
        "--no-hosts",
        "--log-facility=-",
        "--cname=alias.example.com,www.example.com,30",
        "--local=/#/",
    ]
    .map(str::to_owned);
    let records = ["www.example.com", "other.example.com", "www.example.net"].map(record);
    let program = program.into_iter().chain(records).map(Into::into).collect();
    let mut command = match command::in_place(lab.name(), pod, program) {
        Ok(command) => command,
        Err(err) => panic!("dnsmasq in {pod}: {err}"),
    };
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    spawned.unwrap_or_else(|err| panic!("dnsmasq in {pod}: {err}"))
}

fn query(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(fastrand::u16(..), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap_or_default(), kind));
    message.to_vec().unwrap_or_default()
}

/// Asks a server by UDP; repeats lost queries.
fn ask(place: Place, server: IpAddr, name: &str, kind: RecordType) -> io::Result<Message> {
    let query = query(name, kind);
    place.inside(async move || {
        let any: IpAddr = match server {
            IpAddr::V4(_) => [0; 4].into(),
            IpAddr::V6(_) => [0; 16].into(),
        };
        let socket = tokio::net::UdpSocket::bind((any, 0)).await?;
        // Answers of others are passed over: they come from the server's address.
        socket.connect((server, 53)).await?;
        let mut buffer = vec![0; 65_536];
        for _ in 0..3 {
            socket.send(&query).await?;
            if let Ok(received) = tokio::time::timeout(LIMIT, socket.recv(&mut buffer)).await {
                return Message::from_vec(&buffer[..received?]).map_err(io::Error::other);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    })
}

/// Asks a server by TCP.
fn ask_tcp(place: Place, server: IpAddr, name: &str) -> io::Result<Message> {
    let query = query(name, RecordType::A);
    let mut stream = place.inside(async move || {
        let socket = tokio::time::timeout(LIMIT, tokio::net::TcpStream::connect((server, 53))).await??;
        socket.into_std()
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&(query.len() as u16).to_be_bytes())?;
    stream.write_all(&query)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    Message::from_vec(&answer).map_err(io::Error::other)
}

fn connect(place: Place, to: SocketAddr) -> io::Result<TcpStream> {
    place.inside(async move || {
        let stream = tokio::time::timeout(LIMIT / 2, tokio::net::TcpStream::connect(to)).await??;
        stream.into_std()
    })
}

fn addresses_of(message: &Message) -> Vec<IpAddr> {
    let found = message.answers.iter().filter_map(|record| record.data.ip_addr());
    found.collect()
}

fn policy() -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": "default", "name": "names"},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "client"}},
            "egress": [
                {
                    "toEndpoints": [{"matchLabels": {"app": "dns"}}],
                    "toPorts": [{
                        "ports": [{"port": "53", "protocol": "ANY"}],
                        "rules": {"dns": [{"matchPattern": "*.example.com"}]},
                    }],
                },
                {"toFQDNs": [{"matchName": "www.example.com"}, {"matchName": "alias.example.com"}]},
            ],
        },
    })
}

async fn check(config: &[&str], routing_mode: RoutingMode) {
    let config: Vec<&str> = [AT_PACKETS].into_iter().chain(config.iter().copied()).collect();
    let options = LabOptions {
        routing_mode,
        ..lab_options(2, &config, None)
    };
    let lab = TestLab::up_with("names", options).await;
    let with_label = |mut pod: Value, app: &str| {
        pod["metadata"]["labels"] = json!({"app": app});
        pod
    };
    lab.create_all([
        with_label(client_pod("client", "c1-n1"), "client"),
        with_label(client_pod("near", "c1-n1"), "dns"),
        with_label(client_pod("far", "c1-n2"), "dns"),
    ])
    .await;
    let near = addresses(&lab, "c1-n1", 2, "near").await;
    let far = addresses(&lab, "c1-n2", 1, "far").await;
    let _servers = [dnsmasq(&lab, "default/near"), dnsmasq(&lab, "default/far")];
    let client = lab.place("default/client");
    let listener = |is_ipv4| {
        let address = SocketAddr::new(beyond_address(is_ipv4), PORT);
        let bound = lab.place(BEYOND).inside(async move || TcpListener::bind(address));
        bound.unwrap_or_else(|err| panic!("{address}: {err}"))
    };
    let _listeners = [listener(true), listener(false)];
    let outside = [true, false].map(|is_ipv4| SocketAddr::new(beyond_address(is_ipv4), PORT));
    for server in near.iter().chain(&far) {
        lab.wait("dnsmasq answers", || async {
            ask(client, *server, "www.example.com", RecordType::A)
                .is_ok_and(|answer| !answer.answers.is_empty())
        })
        .await;
    }

    lab.create_all([policy()]).await;
    lab.wait("other names are refused", || async {
        let asked = ask(client, near[0], "www.example.net", RecordType::A);
        asked.is_ok_and(|answer| answer.metadata.response_code == ResponseCode::Refused)
    })
    .await;
    // What was looked up before the policy, and other names with the same address, do not count.
    let other = ask(client, near[0], "other.example.com", RecordType::A).unwrap();
    assert_eq!(addresses_of(&other), [beyond_address(true)]);
    for to in outside {
        assert!(connect(client, to).is_err(), "{to} is not allowed yet");
    }

    // The first packet after the answer passes.
    for (to, kind, server) in [
        (outside[0], RecordType::A, near[0]),
        (outside[1], RecordType::AAAA, far[1]),
    ] {
        let answer = ask(client, server, "www.example.com", kind).unwrap();
        assert_eq!(addresses_of(&answer), [to.ip()]);
        let connected = connect(client, to);
        assert!(connected.is_ok(), "{to}: {connected:?}");
    }
    for server in near.iter().chain(&far) {
        let allowed = ask_tcp(client, *server, "alias.example.com").unwrap();
        assert_eq!(addresses_of(&allowed), [beyond_address(true)], "{server}");
        let denied = ask_tcp(client, *server, "www.example.net").unwrap();
        assert_eq!(denied.metadata.response_code, ResponseCode::Refused, "{server}");
        let udp = ask(client, *server, "alias.example.com", RecordType::A).unwrap();
        assert_eq!(udp.answers.len(), 2, "{server}");
    }
    // Nothing but DNS, to the servers alone.
    lab.call_until(
        "default/client",
        &at(&near[0].to_string(), 54),
        CallMode::TCP,
        1,
        |outcome| outcome.failed == 1,
    )
    .await;

    let listed = lab
        .run("c1-n1", &["skep", "fqdn", "cache", "list", "-o", "json"])
        .await;
    let names: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let is_there = |name: &str| names.iter().any(|lookup| lookup["fqdn"] == name);
    assert!(
        is_there("www.example.com.") && is_there("alias.example.com."),
        "{listed}"
    );
    let selectors = lab.run("c1-n1", &["skep", "fqdn", "names"]).await;
    assert!(selectors.contains("^www[.]example[.]com[.]$"), "{selectors}");

    // A new agent: what was allowed stays so, and it answers again.
    lab.wait("the name is in a state file", async || {
        let search = ["grep", "-rqF", "www.example.com", "/var/run/cilium/state"];
        lab.session.run("c1-n1", &search).await.is_ok()
    })
    .await;
    lab.restart_agent("c1-n1").await;
    assert!(
        connect(client, outside[0]).is_ok(),
        "allowed by the name looked up before"
    );
    lab.wait("DNS is answered", || async {
        ask(client, far[0], "www.example.com", RecordType::A).is_ok_and(|answer| !answer.answers.is_empty())
    })
    .await;
    assert!(connect(client, outside[0]).is_ok());

    lab.run("c1-n1", &["skep", "fqdn", "cache", "clean", "-f"]).await;
    lab.wait("forgotten names are not allowed", || async {
        connect(client, outside[0]).is_err()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_names_are_allowed_before_pods_know_them() {
    check(&[], RoutingMode::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_see_the_address_of_the_pod_in_transparent_mode() {
    check(&["dnsproxy-enable-transparent-mode=true"], RoutingMode::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_behind_the_tunnel_see_the_address_of_the_pod_in_transparent_mode() {
    check(&["dnsproxy-enable-transparent-mode=true"], RoutingMode::Tunnel).await;
}

async fn check_host(config: &[&str], routing_mode: RoutingMode) {
    let config: Vec<&str> = [AT_PACKETS, "enable-host-firewall=true"]
        .into_iter()
        .chain(config.iter().copied())
        .collect();
    let options = LabOptions {
        routing_mode,
        ..lab_options(2, &config, None)
    };
    let lab = TestLab::up_with("host-names", options).await;
    let server = |name: &str, node: &str| {
        let mut pod = client_pod(name, node);
        pod["metadata"]["labels"] = json!({"app": "dns"});
        pod
    };
    lab.create_all([server("near", "c1-n1"), server("far", "c1-n2")])
        .await;
    let near = addresses(&lab, "c1-n1", 1, "near").await;
    let far = addresses(&lab, "c1-n2", 1, "far").await;
    let _servers = [dnsmasq(&lab, "default/near"), dnsmasq(&lab, "default/far")];
    let host = lab.place("c1-n1");
    let outside = SocketAddr::new(beyond_address(true), PORT);
    let bound = lab.place(BEYOND).inside(async move || TcpListener::bind(outside));
    let _listener = bound.unwrap();
    for server in near.iter().chain(&far) {
        lab.wait("dnsmasq answers", || async {
            ask(host, *server, "www.example.com", RecordType::A)
                .is_ok_and(|answer| !answer.answers.is_empty())
        })
        .await;
    }

    let label = json!({"metadata": {"labels": {"role": "guarded"}}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "c1-n1"}});
    lab.session.merge(&node, Subresource::None, label).await.unwrap();
    let rules = json!([
        {"toEntities": ["host", "remote-node", "health", "kube-apiserver"]},
        {
            "toEndpoints": [{"matchLabels": {"app": "dns", "k8s:io.kubernetes.pod.namespace": "default"}}],
            "toPorts": [{
                "ports": [{"port": "53", "protocol": "ANY"}],
                "rules": {"dns": [{"matchPattern": "*.example.com"}]},
            }],
        },
        {"toFQDNs": [{"matchName": "www.example.com"}]},
    ]);
    let (client, options) = (lab.session.client(), WriteOptions::default());
    client
        .create(&KIND, "", guard("egress", rules), &options)
        .await
        .unwrap();
    lab.wait("other names are refused", || async {
        let asked = ask(host, near[0], "www.example.net", RecordType::A);
        asked.is_ok_and(|answer| answer.metadata.response_code == ResponseCode::Refused)
    })
    .await;
    let other = ask(host, near[0], "other.example.com", RecordType::A).unwrap();
    assert_eq!(addresses_of(&other), [beyond_address(true)]);
    assert!(connect(host, outside).is_err(), "not allowed yet");

    let answer = ask(host, far[0], "www.example.com", RecordType::A).unwrap();
    assert_eq!(addresses_of(&answer), [outside.ip()]);
    let connected = connect(host, outside);
    assert!(connected.is_ok(), "{connected:?}");
    for server in near.iter().chain(&far) {
        for (name, code) in [
            ("other.example.com", ResponseCode::NoError),
            ("www.example.net", ResponseCode::Refused),
        ] {
            let asked = ask(host, *server, name, RecordType::A).unwrap();
            assert_eq!(asked.metadata.response_code, code, "{server}: {name}");
            let asked = ask_tcp(host, *server, name).unwrap();
            assert_eq!(asked.metadata.response_code, code, "{server}: {name} by TCP");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_nodes_look_up_are_allowed_by_their_policy() {
    check_host(&["dnsproxy-enable-transparent-mode=true"], RoutingMode::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_look_up_names_by_the_tunnel() {
    check_host(&[], RoutingMode::Tunnel).await;
}
