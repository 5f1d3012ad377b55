// SPDX-License-Identifier: Apache-2.0

//! Node ports: the addresses of the node that serve them, and who has an address of the node for itself.

use super::{addr, at_addresses, params, pending, serve_node_ports_at, set_node, settle, writer};
use crate::types::{Frontend, FrontendKind, Service, ServiceName, Source};
use crate::writer::{Writer, WriterSettings};

const PORT: &str = "0.0.0.0:8080/TCP";

fn upsert(writer: &Writer, name: &str, frontends: &[(&str, FrontendKind)]) {
    let mut txn = writer.write();
    let wanted = frontends.iter().map(|(address, kind)| params(address, *kind));
    let service = Service::new(ServiceName::new("shop", name), Source::Kubernetes);
    writer
        .upsert_service_and_frontends(&mut txn, service, wanted.collect())
        .unwrap();
    txn.commit();
}

fn row(writer: &Writer, address: &str) -> Frontend {
    let (table, txn) = (writer.frontends(), writer.db().read());
    let row = table.get(&txn, crate::FRONTENDS_BY_ADDRESS.key(&addr(address)));
    Frontend::clone(row.unwrap())
}

fn expansions(writer: &Writer, address: &str) -> Vec<String> {
    let row = row(writer, address);
    let ips = row.node_addresses.as_deref().unwrap_or_default().iter();
    ips.map(ToString::to_string).collect()
}

fn number(writer: &Writer) {
    let mut txn = writer.write();
    super::number_all(writer, &mut txn);
    txn.commit();
    settle(writer);
}

#[test]
fn node_ports_are_served_at_the_addresses_of_their_family() {
    let writer = writer(WriterSettings::default());
    let node = [
        ("10.1.0.2", true),
        ("10.1.0.1", true),
        ("10.9.0.1", false),
        ("fd00::1", true),
    ];
    set_node(&writer, at_addresses(&node));

    upsert(
        &writer,
        "web",
        &[
            ("0.0.0.0:30080/TCP", FrontendKind::NodePort),
            ("[::]:30080/TCP", FrontendKind::NodePort),
            (PORT, FrontendKind::HostPort),
            ("10.1.0.1:8081/TCP", FrontendKind::HostPort),
            ("10.50.0.9:80/TCP", FrontendKind::ClusterIp),
        ],
    );

    assert_eq!(expansions(&writer, "0.0.0.0:30080/TCP"), ["10.1.0.2", "10.1.0.1"]);
    assert_eq!(expansions(&writer, "[::]:30080/TCP"), ["fd00::1"]);
    assert_eq!(expansions(&writer, PORT), ["10.1.0.2", "10.1.0.1"]);
    assert!(expansions(&writer, "10.1.0.1:8081/TCP").is_empty());
    assert!(expansions(&writer, "10.50.0.9:80/TCP").is_empty());
    assert!(!row(&writer, "10.50.0.9:80/TCP").is_node_address);
}

#[test]
fn an_address_that_another_frontend_has_is_served_there_and_comes_back_when_that_goes() {
    let writer = writer(WriterSettings::default());
    serve_node_ports_at(&writer, "10.1.0.1");
    upsert(&writer, "web", &[(PORT, FrontendKind::HostPort)]);
    number(&writer);
    let before = row(&writer, PORT).sequence;

    upsert(
        &writer,
        "vip",
        &[("10.1.0.1:8080/TCP", FrontendKind::LoadBalancer)],
    );
    assert!(expansions(&writer, PORT).is_empty());
    assert!(row(&writer, "10.1.0.1:8080/TCP").is_node_address);
    assert_eq!(pending(&writer), [PORT, "10.1.0.1:8080/TCP"]);
    let taken = row(&writer, PORT).sequence;
    assert!(before < row(&writer, "10.1.0.1:8080/TCP").sequence);
    assert!(
        row(&writer, "10.1.0.1:8080/TCP").sequence < taken,
        "after the one that takes the address"
    );
    number(&writer);

    upsert(
        &writer,
        "vip",
        &[("10.1.0.1:8081/TCP", FrontendKind::LoadBalancer)],
    );
    assert_eq!(expansions(&writer, PORT), ["10.1.0.1"]);
    assert!(pending(&writer).contains(&PORT.to_owned()));

    // Another port, scope or address is none of its business.
    number(&writer);
    upsert(
        &writer,
        "vip",
        &[
            ("10.1.0.1:8080/TCP/i", FrontendKind::LoadBalancer),
            ("10.1.0.2:8080/TCP", FrontendKind::LoadBalancer),
            ("10.1.0.1:8080/UDP", FrontendKind::LoadBalancer),
        ],
    );
    assert!(!pending(&writer).contains(&PORT.to_owned()));
    assert_eq!(expansions(&writer, PORT), ["10.1.0.1"]);
}

#[test]
fn a_node_port_without_id_keeps_its_place_when_another_frontend_takes_an_address() {
    let writer = writer(WriterSettings::default());
    serve_node_ports_at(&writer, "10.1.0.1");
    upsert(&writer, "web", &[(PORT, FrontendKind::HostPort)]);

    upsert(
        &writer,
        "vip",
        &[("10.1.0.1:8080/TCP", FrontendKind::LoadBalancer)],
    );

    assert_eq!(super::by_sequence(&writer), [PORT, "10.1.0.1:8080/TCP"]);
    assert!(expansions(&writer, PORT).is_empty());
}

// Ids are allocated in the order in which services came, not in that of what happens to the node.
#[test]
fn addresses_of_the_node_change_no_order() {
    let writer = writer(WriterSettings::default());
    upsert(&writer, "web", &[(PORT, FrontendKind::HostPort)]);
    upsert(&writer, "other", &[("10.50.0.9:80/TCP", FrontendKind::ClusterIp)]);
    let before = row(&writer, PORT).sequence;

    serve_node_ports_at(&writer, "10.1.0.1");

    assert_eq!(row(&writer, PORT).sequence, before);
    assert_eq!(expansions(&writer, PORT), ["10.1.0.1"]);
}
