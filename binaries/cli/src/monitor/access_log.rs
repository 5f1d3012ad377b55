// SPDX-License-Identifier: Apache-2.0

//! Requests and responses that passed a proxy.

use serde_json::{Value, json};
use skep_datapath_monitor_events::access_log::{LogRecord, LogRecordHttp, dns_type};

pub(super) fn line(record: &LogRecord) -> String {
    let direction = match record.observation_point.as_str() {
        "Ingress" => "<-",
        "Egress" => "->",
        _ => "??",
    };
    let (source, destination) = (&record.source, &record.destination);
    let from = format!("from {} ({})", source.id, labels(&source.labels));
    let to = format!("to {} ({})", destination.id, labels(&destination.labels));
    let ends = match record.kind.as_str() {
        "Request" => format!("{from} {to}"),
        "Response" => format!("{to} {from}"),
        // Samples have no ends.
        _ => return tail(record),
    };
    format!(
        "{direction} {} {} {ends}, identity {}->{}, verdict {}{}",
        record.kind,
        record.l7_proto(),
        source.identity,
        destination.identity,
        record.verdict,
        tail(record)
    )
}

fn labels(labels: &[String]) -> String {
    format!("[{}]", labels.join(" "))
}

fn tail(record: &LogRecord) -> String {
    let mut text = String::new();
    if let Some(http) = &record.http {
        text.push_str(&format!(" {} {} => {}", http.method, http.url, http.code));
    }
    if let Some(dns) = &record.dns {
        let types: Vec<&str> = dns.qtypes.iter().map(|number| dns_type(*number)).collect();
        text.push_str(&format!(
            " DNS {}: {} {}",
            dns.observation_source,
            dns.query,
            types.join(",")
        ));
        if record.kind == "Response" {
            let addresses: Vec<String> = dns.ips.iter().map(ToString::to_string).collect();
            text.push_str(&format!(" TTL: {} Answer: '{}'", dns.ttl, addresses.join(",")));
            if !dns.cnames.is_empty() {
                text.push_str(&format!(" CNAMEs: {}", dns.cnames.join(",")));
            }
        }
    }
    if let Some(l7) = &record.l7 {
        for (key, value) in l7.fields.iter().filter(|(key, _)| *key != "status") {
            text.push_str(&format!(" {key}:{value}"));
        }
        if let Some(status) = l7.fields.get("status") {
            text.push_str(&format!(" => status:{status}"));
        }
    }
    text
}

pub(super) fn json(record: &LogRecord) -> String {
    let mut object = json!({
        "type": "logRecord",
        "observationPoint": record.observation_point,
        "flowType": record.kind,
        "l7Proto": record.l7_proto(),
        "srcEpID": record.source.id,
        "srcEpLabels": record.source.labels,
        "srcIdentity": record.source.identity,
        "dstEpID": record.destination.id,
        "dstEpLabels": record.destination.labels,
        "dstIdentity": record.destination.identity,
        "verdict": record.verdict,
    });
    if let Some(http) = &record.http {
        object["http"] = http_json(http);
    }
    if let Some(dns) = &record.dns {
        object["dns"] = json!(dns);
    }
    if let Some(l7) = &record.l7 {
        object["l7"] = json!(l7);
    }
    super::json::line(&object)
}

fn http_json(http: &LogRecordHttp) -> Value {
    let mut object = json!(http);
    object["URL"] = url(&http.url);
    object
}

/// A URL with the fields that Go has for it.
fn url(text: &str) -> Value {
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (scheme, rest) = match rest.split_once("://") {
        Some((scheme, rest)) => (scheme, format!("//{rest}")),
        None => ("", rest.to_owned()),
    };
    let (host, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest.as_str()),
    };
    json!({
        "Scheme": scheme,
        "Opaque": "",
        "User": null,
        "Host": host,
        "Path": path,
        "RawPath": "",
        "OmitHost": false,
        "ForceQuery": query == Some(""),
        "RawQuery": query.unwrap_or_default(),
        "Fragment": fragment,
        "RawFragment": "",
    })
}
