// SPDX-License-Identifier: Apache-2.0

//! Requests and responses that passed a proxy.

mod encode;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;

use crate::gob::{GobError, Stream, Value};

/// A request or response that passed a proxy. Fields that the reader of events does not show are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogRecord {
    /// `Request`, `Response` or `Sample`.
    pub kind: String,
    /// When: RFC 3339.
    pub timestamp: String,
    /// `Ingress` or `Egress`.
    pub observation_point: String,
    pub source: EndpointInfo,
    pub destination: EndpointInfo,
    /// `Forwarded`, `Denied`, `Error` or `Redirected`.
    pub verdict: String,
    /// Why.
    pub info: String,
    pub transport: u8,
    pub http: Option<LogRecordHttp>,
    pub dns: Option<LogRecordDns>,
    pub l7: Option<LogRecordL7>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointInfo {
    /// Id of the endpoint; 0 if it is not on the node.
    pub id: u64,
    pub address: Option<IpAddr>,
    pub port: u16,
    pub identity: u64,
    /// Labels of the identity: `source:key=value`.
    pub labels: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct LogRecordHttp {
    /// Status; 0 in requests.
    pub code: i64,
    pub method: String,
    #[serde(rename = "URL")]
    pub url: String,
    pub protocol: String,
    pub headers: BTreeMap<String, Vec<String>>,
    /// Headers that a rule asks for, and that are not there.
    pub missing_headers: BTreeMap<String, Vec<String>>,
    pub rejected_headers: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct LogRecordDns {
    /// The name that is asked for.
    pub query: String,
    #[serde(rename = "IPs", skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Time to live of the answer.
    #[serde(rename = "TTL")]
    pub ttl: u64,
    #[serde(rename = "CNAMEs", skip_serializing_if = "Vec::is_empty")]
    pub cnames: Vec<String>,
    /// The node and the proxy that logged it.
    pub observation_source: String,
    #[serde(rename = "RCode")]
    pub rcode: i64,
    #[serde(rename = "QTypes", skip_serializing_if = "Vec::is_empty")]
    pub qtypes: Vec<u16>,
    /// Types of the records in the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer_types: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct LogRecordL7 {
    pub proto: String,
    pub fields: BTreeMap<String, String>,
}

impl LogRecord {
    /// Decodes what follows the type of the event.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, GobError> {
        let value = Stream::first(bytes)?;
        if !matches!(value, Value::Struct(_)) {
            return Err(GobError::Unexpected("an access log record"));
        }
        let transport = match value.field("TransportProtocol") {
            // Writers of older versions leave it out: it is TCP.
            None => 6,
            Some(_) => value.uint("TransportProtocol") as u8,
        };
        Ok(Self {
            kind: value.text("Type"),
            timestamp: value.text("Timestamp"),
            observation_point: value.text("ObservationPoint"),
            source: endpoint(value.field("SourceEndpoint")),
            destination: endpoint(value.field("DestinationEndpoint")),
            verdict: value.text("Verdict"),
            info: value.text("Info"),
            transport,
            http: value.field("HTTP").map(http),
            dns: value.field("DNS").map(dns),
            l7: value.field("L7").map(|found| LogRecordL7 {
                proto: found.text("Proto"),
                fields: pairs(found.field("Fields"), as_text),
            }),
        })
    }

    pub fn l7_proto(&self) -> &str {
        match (&self.http, &self.dns, &self.l7) {
            (Some(_), ..) => "http",
            (_, Some(_), _) => "dns",
            (_, _, Some(l7)) => &l7.proto,
            _ => "unknown-l7",
        }
    }
}

/// Name of a type of DNS records.
pub const fn dns_type(number: u16) -> &'static str {
    match number {
        1 => "A",
        2 => "NS",
        3 => "MD",
        4 => "MF",
        5 => "CNAME",
        6 => "SOA",
        7 => "MB",
        8 => "MG",
        9 => "MR",
        10 => "NULL",
        11 => "WKS",
        12 => "PTR",
        13 => "HINFO",
        14 => "MINFO",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        35 => "NAPTR",
        41 => "OPT",
        46 => "RRSIG",
        48 => "DNSKEY",
        64 => "SVCB",
        65 => "HTTPS",
        256 => "URI",
        _ => "Unknown",
    }
}

fn endpoint(value: Option<&Value>) -> EndpointInfo {
    let Some(value) = value else {
        return EndpointInfo::default();
    };
    let label = |label: &Value| {
        let (source, key, value) = (label.text("Source"), label.text("Key"), label.text("Value"));
        match value.as_str() {
            "" => format!("{source}:{key}"),
            _ => format!("{source}:{key}={value}"),
        }
    };
    EndpointInfo {
        id: value.uint("ID"),
        address: [value.text("IPv4"), value.text("IPv6")]
            .iter()
            .find_map(|text| text.parse().ok()),
        port: value.uint("Port") as u16,
        identity: value.uint("Identity"),
        labels: value.list("Labels").iter().map(label).collect(),
    }
}

fn http(value: &Value) -> LogRecordHttp {
    let headers = |name: &str| {
        pairs(value.field(name), |values| match values {
            Value::List(values) => values.iter().map(as_text).collect(),
            _ => Vec::new(),
        })
    };
    LogRecordHttp {
        code: value.int("Code"),
        method: value.text("Method"),
        // A URL encodes itself: to its text.
        url: String::from_utf8_lossy(value.bytes("URL")).into_owned(),
        protocol: value.text("Protocol"),
        headers: headers("Headers"),
        missing_headers: headers("MissingHeaders"),
        rejected_headers: headers("RejectedHeaders"),
    }
}

fn dns(value: &Value) -> LogRecordDns {
    let types = |name: &str| {
        let numbers = value.list(name).iter();
        numbers
            .filter_map(|number| match number {
                Value::Uint(number) => u16::try_from(*number).ok(),
                _ => None,
            })
            .collect()
    };
    LogRecordDns {
        query: value.text("Query"),
        ips: value.list("IPs").iter().filter_map(address).collect(),
        ttl: value.uint("TTL"),
        cnames: value.list("CNAMEs").iter().map(as_text).collect(),
        observation_source: value.text("ObservationSource"),
        rcode: value.int("RCode"),
        qtypes: types("QTypes"),
        answer_types: types("AnswerTypes"),
    }
}

/// An address, which encodes itself: to its bytes, and its zone if it has one.
fn address(value: &Value) -> Option<IpAddr> {
    let Value::Bytes(bytes) = value else { return None };
    if let Ok(octets) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(octets.into());
    }
    let octets: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    Some(octets.into())
}

fn pairs<T>(value: Option<&Value>, convert: impl Fn(&Value) -> T) -> BTreeMap<String, T> {
    match value {
        Some(Value::Map(pairs)) => pairs
            .iter()
            .map(|(key, value)| (as_text(key), convert(value)))
            .collect(),
        _ => BTreeMap::new(),
    }
}

fn as_text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
