// SPDX-License-Identifier: Apache-2.0

//! Records of the DNS proxy, as Go's `gob` writes them.

use std::net::IpAddr;

use super::{EndpointInfo, LogRecord, LogRecordDns};
use crate::{gob, message_type::MessageType};

const INT: i64 = 2;
const UINT: i64 = 3;
const TEXT: i64 = 6;
const RECORD: i64 = 65;
const ENDPOINT: i64 = 66;
const LABELS: i64 = 67;
const LABEL: i64 = 68;
const DNS: i64 = 69;
const ADDRESSES: i64 = 70;
const ADDRESS: i64 = 71;
const TEXTS: i64 = 72;
const NUMBERS: i64 = 73;

/// Fields of a structure, those without a value left out.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    skipped: u64,
}

impl Fields {
    fn field(&mut self, is_set: bool, write: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        self.skipped += 1;
        if is_set {
            gob::write_uint(&mut self.bytes, self.skipped);
            self.skipped = 0;
            write(&mut self.bytes);
        }
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.field(!text.is_empty(), |out| gob::write_bytes(out, text.as_bytes()))
    }

    fn uint(&mut self, number: u64) -> &mut Self {
        self.field(number > 0, |out| gob::write_uint(out, number))
    }

    fn list<T>(&mut self, list: &[T], write: impl Fn(&mut Vec<u8>, &T)) -> &mut Self {
        self.field(!list.is_empty(), |out| {
            gob::write_uint(out, list.len() as u64);
            list.iter().for_each(|item| write(out, item));
        })
    }

    fn structure(&mut self, fields: Option<Vec<u8>>) -> &mut Self {
        self.field(fields.is_some(), |out| out.extend(fields.unwrap_or_default()))
    }

    fn end(&mut self) -> Vec<u8> {
        self.bytes.push(0);
        std::mem::take(&mut self.bytes)
    }
}

/// Definition of a type: `wire` is its kind, `more` what follows its id.
fn define(out: &mut Vec<u8>, id: i64, wire: u8, more: &[u8]) {
    let mut body = Vec::new();
    gob::write_int(&mut body, -id);
    body.extend([wire, 1, 2]);
    gob::write_int(&mut body, id);
    body.push(0);
    body.extend(more);
    body.extend([0, 0]);
    out.extend(gob::message(&body));
}

fn structure(out: &mut Vec<u8>, id: i64, fields: &[(&str, i64)]) {
    let mut more = vec![1];
    gob::write_uint(&mut more, fields.len() as u64);
    for (name, of) in fields {
        more.push(1);
        gob::write_bytes(&mut more, name.as_bytes());
        more.push(1);
        gob::write_int(&mut more, *of);
        more.push(0);
    }
    define(out, id, 3, &more);
}

fn slice(out: &mut Vec<u8>, id: i64, element: i64) {
    let mut more = vec![1];
    gob::write_int(&mut more, element);
    define(out, id, 2, &more);
}

fn definitions(out: &mut Vec<u8>) {
    structure(
        out,
        RECORD,
        &[
            ("Type", TEXT),
            ("Timestamp", TEXT),
            ("ObservationPoint", TEXT),
            ("SourceEndpoint", ENDPOINT),
            ("DestinationEndpoint", ENDPOINT),
            ("IPVersion", UINT),
            ("Verdict", TEXT),
            ("Info", TEXT),
            ("TransportProtocol", UINT),
            ("DNS", DNS),
        ],
    );
    structure(
        out,
        ENDPOINT,
        &[
            ("ID", UINT),
            ("IPv4", TEXT),
            ("IPv6", TEXT),
            ("Port", UINT),
            ("Identity", UINT),
            ("Labels", LABELS),
        ],
    );
    slice(out, LABELS, LABEL);
    structure(out, LABEL, &[("Key", TEXT), ("Value", TEXT), ("Source", TEXT)]);
    structure(
        out,
        DNS,
        &[
            ("Query", TEXT),
            ("IPs", ADDRESSES),
            ("TTL", UINT),
            ("CNAMEs", TEXTS),
            ("ObservationSource", TEXT),
            ("RCode", INT),
            ("QTypes", NUMBERS),
            ("AnswerTypes", NUMBERS),
        ],
    );
    slice(out, ADDRESSES, ADDRESS);
    define(out, ADDRESS, 6, &[]);
    slice(out, TEXTS, TEXT);
    slice(out, NUMBERS, UINT);
}

fn label(out: &mut Vec<u8>, label: &str) {
    let (source, rest) = label.split_once(':').unwrap_or(("", label));
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    out.extend(Fields::default().text(key).text(value).text(source).end());
}

fn endpoint(info: &EndpointInfo) -> Vec<u8> {
    let text = |is_ipv4: bool| {
        let address = info.address.filter(|address| address.is_ipv4() == is_ipv4);
        address.map(|address| address.to_string()).unwrap_or_default()
    };
    Fields::default()
        .uint(info.id)
        .text(&text(true))
        .text(&text(false))
        .uint(info.port.into())
        .uint(info.identity)
        .list(&info.labels, |out, text| label(out, text))
        .end()
}

fn dns(record: &LogRecordDns) -> Vec<u8> {
    let number = |out: &mut Vec<u8>, number: &u16| gob::write_uint(out, (*number).into());
    Fields::default()
        .text(&record.query)
        .list(&record.ips, |out, address| match address {
            IpAddr::V4(address) => gob::write_bytes(out, &address.octets()),
            IpAddr::V6(address) => gob::write_bytes(out, &address.octets()),
        })
        .uint(record.ttl)
        .list(&record.cnames, |out, name| gob::write_bytes(out, name.as_bytes()))
        .text(&record.observation_source)
        .field(record.rcode != 0, |out| gob::write_int(out, record.rcode))
        .list(&record.qtypes, number)
        .list(&record.answer_types, number)
        .end()
}

impl LogRecord {
    /// The event of a record of the DNS proxy.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![MessageType::AccessLog as u8];
        definitions(&mut bytes);
        let is_ipv6 = self.source.address.is_some_and(|address| address.is_ipv6());
        let mut body = Vec::new();
        gob::write_int(&mut body, RECORD);
        body.extend(
            Fields::default()
                .text(&self.kind)
                .text(&self.timestamp)
                .text(&self.observation_point)
                .structure(Some(endpoint(&self.source)))
                .structure(Some(endpoint(&self.destination)))
                .uint(is_ipv6.into())
                .text(&self.verdict)
                .text(&self.info)
                .uint(self.transport.into())
                .structure(self.dns.as_ref().map(dns))
                .end(),
        );
        bytes.extend(gob::message(&body));
        bytes
    }
}
