// SPDX-License-Identifier: Apache-2.0

//! Direct server return: backends on other nodes see the client, and reply to it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use serde_json::{Value, json};
use skep_e2e::{AT_PACKETS, Capture, Place, TestLab, beyond_address, lab_options};
use skep_lab::{
    lab_options::{LabOptions, LbMode},
    plan::{BEYOND, OUTSIDE},
    session::{CallMode, at, echo_pod, node_port},
};

/// Both addresses of the first node, which clients call.
const NODE: [&str; 2] = ["172.30.1.1", "fd00:30:0:1::1"];
const NODES: [&str; 2] = ["c1-n1", "c1-n2"];
/// How often a service is called, so that both backends answer.
const CALLS: usize = 40;
/// Payload of the largest datagrams that fit into a link as they are; with the option they do not.
const LARGEST_DATAGRAM: [usize; 2] = [1_472, 1_452];

/// Returns the clients that the backend on the other node sees. That on the node that is called must see the caller.
fn clients_of_remote_backend(from: Place, service: &Value, protocol: &str) -> BTreeSet<IpAddr> {
    let mut clients = BTreeSet::new();
    let port = u16::try_from(node_port(service, protocol)).unwrap();
    for (address, size) in NODE.into_iter().zip(LARGEST_DATAGRAM) {
        let to = SocketAddr::new(address.parse().unwrap(), port);
        let answers: Vec<_> = (0..CALLS)
            .map(|_| match protocol {
                "TCP" => from.call(to).unwrap(),
                _ => from.call_udp(to, size).unwrap(),
            })
            .collect();
        let own = beyond_address(to.is_ipv4());
        assert!(
            answers
                .iter()
                .all(|answer| answer.server == "web-1" || answer.client.ip() == own),
            "{to}: {answers:?}"
        );
        let remote = answers.iter().filter(|answer| answer.server == "web-1");
        let seen: BTreeSet<IpAddr> = remote.map(|answer| answer.client.ip()).collect();
        assert!(!seen.is_empty(), "{protocol} {to}: only one backend answers");
        clients.extend(seen);
    }
    clients
}

async fn wait_mode(lab: &TestLab, node: &str, mode: &str) {
    lab.wait(mode, || async {
        let status = lab.session.run(node, &["skep", "status", "--verbose"]).await;
        status.is_ok_and(|status| {
            status
                .lines()
                .any(|line| line.trim_start().starts_with("Mode:") && line.contains(mode))
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backends_on_other_nodes_see_the_client_and_reply_to_it() {
    let lab_options = LabOptions {
        lb_mode: LbMode::Dsr,
        ..lab_options(2, &[AT_PACKETS, "enable-pmtu-discovery=true"], None)
    };
    let lab = TestLab::up_with("dsr", lab_options).await;
    lab.create_all([
        echo_pod("web-0", "shop", "c1-n1"),
        echo_pod("web-1", "shop", "c1-n2"),
    ])
    .await;
    let service = lab.create_shop(json!({"type": "NodePort"})).await;
    for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
        for address in NODE {
            let to = at(address, node_port(&service, protocol));
            lab.call_until(BEYOND, &to, mode, 20, |outcome| {
                outcome.failed == 0 && outcome.servers.len() == 2
            })
            .await;
        }
    }
    lab.checksums_in_software(&[
        OUTSIDE,
        BEYOND,
        "c1-n1",
        "c1-n2",
        "default/web-0",
        "default/web-1",
    ])
    .await;
    let capture = Capture::start(lab.place(OUTSIDE)).unwrap();
    let beyond = lab.place(BEYOND);
    let (own, nodes) = (
        BTreeSet::from([beyond_address(true), beyond_address(false)]),
        BTreeSet::from(NODE.map(|address| address.parse().unwrap())),
    );

    tokio::task::block_in_place(|| {
        for protocol in ["TCP", "UDP"] {
            assert_eq!(
                clients_of_remote_backend(beyond, &service, protocol),
                own,
                "{protocol}"
            );
        }
        let port = u16::try_from(node_port(&service, "TCP")).unwrap();
        for address in NODE {
            let to = SocketAddr::new(address.parse().unwrap(), port);
            let servers: BTreeSet<String> = (0..CALLS / 2)
                .map(|_| beyond.transfer(to, 200_000).unwrap().server)
                .collect();
            assert_eq!(servers.len(), 2, "{to}: {servers:?}");
        }
    });

    // What does not fit with the option is answered.
    capture.finish().unwrap().assert_right(&[
        "IPv4 TCP",
        "IPv6 TCP",
        "IPv4 UDP",
        "IPv6 UDP",
        "IPv4 too large",
        "IPv6 too large",
    ]);
    for node in NODES {
        lab.configure(node, "bpf-lb-mode", "hybrid");
        lab.restart_agent(node).await;
        wait_mode(&lab, node, "Hybrid").await;
    }
    tokio::task::block_in_place(|| {
        assert_eq!(clients_of_remote_backend(beyond, &service, "TCP"), own);
        assert_eq!(clients_of_remote_backend(beyond, &service, "UDP"), nodes);
    });
}
