// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::{
    event::{DecodeError, Event},
    gob,
};

/// Writes a stream: definitions of types, and values with their fields.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn structure(&mut self, id: i64, fields: &[(&str, i64)]) {
        // wireType: field 2 (struct), CommonType (name, id), fields
        let mut body = vec![3, 1, 2];
        gob::write_int(&mut body, id);
        body.extend([0, 1]);
        gob::write_uint(&mut body, fields.len() as u64);
        for (name, of) in fields {
            body.push(1);
            gob::write_bytes(&mut body, name.as_bytes());
            body.push(1);
            gob::write_int(&mut body, *of);
            body.push(0);
        }
        body.extend([0, 0]);
        self.define(id, &body);
    }

    fn slice(&mut self, id: i64, element: i64) {
        let mut body = vec![2, 1, 2];
        gob::write_int(&mut body, id);
        body.extend([0, 1]);
        gob::write_int(&mut body, element);
        body.extend([0, 0]);
        self.define(id, &body);
    }

    fn map(&mut self, id: i64, key: i64, element: i64) {
        let mut body = vec![4, 1, 2];
        gob::write_int(&mut body, id);
        body.extend([0, 1]);
        gob::write_int(&mut body, key);
        body.push(1);
        gob::write_int(&mut body, element);
        body.extend([0, 0]);
        self.define(id, &body);
    }

    fn marshaler(&mut self, id: i64) {
        // wireType: field 5 (binary marshaler)
        let mut body = vec![6, 1, 2];
        gob::write_int(&mut body, id);
        body.extend([0, 0, 0]);
        self.define(id, &body);
    }

    fn define(&mut self, id: i64, wire_type: &[u8]) {
        let mut body = Vec::new();
        gob::write_int(&mut body, -id);
        body.extend_from_slice(wire_type);
        self.0.extend(gob::message(&body));
    }

    fn value(&mut self, id: i64, fields: &[u8]) {
        let mut body = Vec::new();
        gob::write_int(&mut body, id);
        body.extend_from_slice(fields);
        self.0.extend(gob::message(&body));
    }
}

fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    gob::write_bytes(&mut out, text.as_bytes());
    out
}

const UINT: i64 = 3;
const INT: i64 = 2;
const TEXT: i64 = 6;

/// Types of a record, with the ids of a process that has others too.
fn definitions() -> Writer {
    let mut writer = Writer::default();
    writer.structure(
        66,
        &[
            ("Type", TEXT),
            ("ObservationPoint", TEXT),
            ("SourceEndpoint", 67),
            ("DestinationEndpoint", 67),
            ("Verdict", TEXT),
            ("HTTP", 70),
            ("DNS", 75),
        ],
    );
    writer.structure(
        67,
        &[("ID", UINT), ("Port", UINT), ("Identity", UINT), ("Labels", 68)],
    );
    writer.slice(68, 69);
    writer.structure(69, &[("Key", TEXT), ("Value", TEXT), ("Source", TEXT)]);
    writer.structure(
        70,
        &[("Code", INT), ("Method", TEXT), ("URL", 71), ("Headers", 72)],
    );
    writer.marshaler(71);
    writer.map(72, TEXT, 73);
    writer.slice(73, TEXT);
    writer.structure(75, &[("Query", TEXT), ("IPs", 76), ("TTL", UINT), ("QTypes", 77)]);
    writer.slice(76, 71);
    writer.slice(77, UINT);
    writer
}

#[test]
fn http_records_are_read() {
    let mut writer = definitions();
    let fields = [
        vec![1],
        text("Request"),
        vec![1],
        text("Ingress"),
        vec![1, 1, 101, 2, 0xff, 200, 1, 1, 1],
        text("app"),
        vec![1],
        text("cart"),
        vec![1],
        text("k8s"),
        vec![0, 0, 1, 0, 1],
        text("Forwarded"),
        vec![1, 2],
        text("GET"),
        vec![1],
        text("http://web/ping"),
        vec![1, 1],
        text("Accept"),
        vec![1],
        text("*/*"),
        vec![0, 0],
    ]
    .concat();
    writer.value(66, &fields);

    let mut event = vec![129];
    event.extend(&writer.0);
    let Ok(Event::AccessLog(record)) = Event::decode(&event) else {
        panic!("{:?}", Event::decode(&event));
    };

    assert_eq!(record.kind, "Request");
    assert_eq!(record.transport, 6);
    assert_eq!(
        record.source,
        EndpointInfo {
            id: 101,
            address: None,
            port: 0,
            identity: 200,
            labels: vec!["k8s:app=cart".to_owned()]
        }
    );
    assert_eq!(record.destination, EndpointInfo::default());
    assert_eq!(record.verdict, "Forwarded");
    let http = record.http.as_ref().unwrap();
    assert_eq!(
        (http.method.as_str(), http.url.as_str()),
        ("GET", "http://web/ping")
    );
    assert_eq!(http.headers["Accept"], ["*/*"]);
    assert_eq!(record.l7_proto(), "http");

    for end in 0..event.len() {
        let error = Event::decode(&event[..end]).unwrap_err();
        assert!(
            matches!(error, DecodeError::Gob { .. } | DecodeError::Empty),
            "{error} at {end}"
        );
    }
}

#[test]
fn dns_records_are_read() {
    let mut writer = definitions();
    let fields = [
        vec![1],
        text("Response"),
        vec![6, 1],
        text("web.example."),
        vec![1, 1, 4, 10, 0, 0, 1, 1, 30, 1, 2, 1, 28, 0, 0],
    ]
    .concat();
    writer.value(66, &fields);

    let record = LogRecord::decode(&writer.0).unwrap();

    let dns = record.dns.as_ref().unwrap();
    assert_eq!(dns.query, "web.example.");
    assert_eq!(dns.ips, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(dns.ttl, 30);
    assert_eq!(dns.qtypes, [1, 28]);
    assert_eq!(record.l7_proto(), "dns");
    assert_eq!([1, 28, 300].map(dns_type), ["A", "AAAA", "Unknown"]);
}

#[test]
fn records_of_the_dns_proxy_are_read_as_they_were_written() {
    let info = |id, address: &str| EndpointInfo {
        id,
        address: address.parse().ok(),
        port: 53,
        identity: 1000 + id,
        labels: vec!["k8s:app=web".to_owned(), "reserved:world".to_owned()],
    };
    let record = LogRecord {
        kind: "Response".to_owned(),
        timestamp: "2026-01-02T03:04:05Z".to_owned(),
        observation_point: "Egress".to_owned(),
        source: info(0, "10.0.0.10"),
        destination: info(7, "10.0.1.7"),
        verdict: "Forwarded".to_owned(),
        info: "Allowed by policy".to_owned(),
        transport: 17,
        dns: Some(LogRecordDns {
            query: "www.example.com.".to_owned(),
            ips: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            ttl: 300,
            cnames: vec!["a.example.".to_owned()],
            observation_source: "proxy".to_owned(),
            rcode: 3,
            qtypes: vec![1],
            answer_types: vec![5, 1],
        }),
        ..LogRecord::default()
    };

    let bytes = record.to_bytes();
    let read = Event::decode(&bytes).unwrap();

    assert_eq!(read, Event::AccessLog(Box::new(record)));
}
