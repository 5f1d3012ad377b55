// SPDX-License-Identifier: Apache-2.0

//! `skep policy explain`: which rules decide about a packet, as the agent says.

use std::{error::Error, net::IpAddr};

use clap::Args;
use ipnet::IpNet;
use serde_json::Value;
use skep_base_api_client::Client;

use crate::{
    agent,
    failure::fatal,
    print::{self, Format},
};

/// A packet.
#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// Sender: `NAMESPACE/POD`, an IP address, `endpoint:ID` or the id alone, `identity:ID`, `reserved:NAME`.
    source: String,
    /// Receiver, in the same form.
    destination: String,
    /// Destination port and protocol, such as `80/TCP`; of ICMP the type.
    #[arg(value_name = "PORT/PROTOCOL", default_value = "0/TCP")]
    port: String,
}

pub(super) fn run(
    agent: &Client,
    options: &ExplainOptions,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let (port, protocol) = options.port.split_once('/').unwrap_or((&options.port, "TCP"));
    if port.parse::<u16>().is_err() {
        return Err(fatal(format!("`{port}` is not a port")).into());
    }
    let query = [
        ("source", &*end(agent, &options.source)?),
        ("destination", &*end(agent, &options.destination)?),
        ("port", port),
        ("protocol", protocol),
    ];
    let found: Value = agent::query(agent, &agent::EXPLAIN_POLICY, "", &query)
        .map_err(|error| fatal(format!("Cannot explain policy: {error}")))?;
    if format != Format::Text {
        return Ok(print::value(&found, format));
    }
    let texts = found.as_array().into_iter().flatten().map(text);
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

/// An end in the form of the API. Pods and addresses are identities of the ipcache.
fn end(agent: &Client, text: &str) -> Result<String, Box<dyn Error>> {
    let address: Option<IpAddr> = text.parse().ok();
    if address.is_none() && !text.contains('/') {
        return Ok(match text.contains(':') {
            true => text.to_owned(),
            false => format!("endpoint:{text}"),
        });
    }
    let entries: Value = agent::get(agent, &agent::LIST_ADDRESSES, "")
        .map_err(|error| fatal(format!("Cannot get IP addresses: {error}")))?;
    match identity(&entries, text, address) {
        Some(identity) => Ok(format!("identity:{identity}")),
        None => Err(fatal(format!("no address of `{text}` is in the ipcache")).into()),
    }
}

/// The identity of the longest prefix with the address, or of the pod.
fn identity<'a>(entries: &'a Value, text: &str, address: Option<IpAddr>) -> Option<&'a Value> {
    let pod = text.split_once('/');
    let prefix = |entry: &Value| entry["cidr"].as_str().and_then(|cidr| cidr.parse::<IpNet>().ok());
    let matching = entries.as_array()?.iter().filter(|entry| match address {
        Some(address) => prefix(entry).is_some_and(|prefix| prefix.contains(&address)),
        None => pod.is_some_and(|(namespace, name)| {
            entry["metadata"]["namespace"] == namespace && entry["metadata"]["name"] == name
        }),
    });
    let longest = matching.max_by_key(|entry| prefix(entry).map(|prefix| prefix.prefix_len()))?;
    Some(&longest["identity"])
}

fn text(explanation: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let get = |name: &str| word(&explanation[name]);
    let (to, peer) = match get("direction").as_str() {
        "egress" => ("to", get("peer")),
        _ => ("from", get("peer")),
    };
    let mut out = format!(
        "Endpoint {} (identity {}), {} {to} identity {peer}, {}/{}: {}\n",
        get("endpoint"),
        get("identity"),
        get("direction"),
        get("port"),
        get("protocol"),
        get("text")
    );
    for (title, name) in [("Entry", "entry"), ("Authentication", "auth")] {
        if !explanation[name].is_null() {
            out.push_str(&format!("  {title}: {}\n", get(name)));
        }
    }
    for rule in explanation["rules"].as_array().into_iter().flatten() {
        let mark = if rule["has-decided"] == true {
            "Decided by"
        } else {
            "Also"
        };
        out.push_str(&format!(
            "  {mark}: {} {} (tier {}, level {}), peer {}\n",
            word(&rule["verdict"]),
            word(&rule["rule"]),
            rule["tier"],
            rule["level"],
            word(&rule["peer"])
        ));
    }
    let selecting = explanation["selecting"].as_array().into_iter().flatten();
    let selecting: Vec<String> = selecting.map(word).collect();
    if !selecting.is_empty() {
        out.push_str(&format!("  Rules of the endpoint: {}\n", selecting.join(", ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_and_addresses_are_found_in_the_ipcache() {
        let entries = json!([
            {"cidr": "0.0.0.0/0", "identity": 2},
            {"cidr": "10.0.0.0/8", "identity": 5},
            {"cidr": "10.0.0.7/32", "identity": 1000, "metadata": {"namespace": "shop", "name": "web"}},
        ]);
        let found = |text: &str| identity(&entries, text, text.parse().ok()).and_then(Value::as_u64);

        assert_eq!(found("shop/web"), Some(1000));
        assert_eq!(found("10.0.0.7"), Some(1000));
        assert_eq!(found("10.1.1.1"), Some(5));
        assert_eq!(found("192.0.2.1"), Some(2));
        assert_eq!(found("shop/cart"), None);
        assert_eq!(found("2001:db8::1"), None);
    }

    #[test]
    fn deciding_rules_come_with_the_decision() {
        let explanation = json!({
            "endpoint": 7, "identity": 1000, "direction": "ingress", "peer": 1001, "port": 80, "protocol": "TCP",
            "decision": "allow", "text": "allowed", "entry": "identity 1001, TCP/80/16, allow",
            "rules": [{"rule": "cnp/shop/p: spec.ingress[0]", "peer": "x", "verdict": "allow", "tier": 200, "level": 0, "has-decided": true}],
            "selecting": ["cnp/shop/p: spec.ingress[0]"],
        });

        assert_eq!(
            text(&explanation),
            "Endpoint 7 (identity 1000), ingress from identity 1001, 80/TCP: allowed\n  \
             Entry: identity 1001, TCP/80/16, allow\n  \
             Decided by: allow cnp/shop/p: spec.ingress[0] (tier 200, level 0), peer x\n  \
             Rules of the endpoint: cnp/shop/p: spec.ingress[0]\n"
        );
    }
}
