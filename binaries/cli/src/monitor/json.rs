// SPDX-License-Identifier: Apache-2.0

//! Events as JSON, with the keys of Cilium's command in their order.

use serde_json::{Map, Value, json};
use skep_datapath_monitor_events::{
    agent::AgentNotify,
    event::{DebugCapture, DropNotify, TraceNotify},
    names,
    packet::{self, Layer, Packet, Start},
};

use super::view::{self, View};

/// One line. Go's encoder escapes what HTML would take for its own.
pub(super) fn line(value: &Value) -> String {
    let text = value.to_string();
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                line.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            other => line.push(other),
        }
    }
    line
}

pub(super) fn dropped(cpu: &str, event: &DropNotify<'_>) -> String {
    let mut object = json!({
        "cpu": cpu,
        "type": "drop",
        "mark": format!("{:#x}", event.header.hash),
        "reason": event.reason_text(),
        "source": event.header.source,
        "bytes": event.header.original_length,
        "srcLabel": event.source_identity,
        "dstLabel": event.destination_identity,
        "dstID": event.destination,
        "Line": event.line,
        "File": event.file,
        "ExtError": event.extended_error,
        "Ifindex": event.ifindex,
    });
    if event.ip_trace_id != 0 {
        object["IPTraceID"] = event.ip_trace_id.into();
    }
    add_summary(&mut object, &view::packet(event.packet, event.flags));
    line(&object)
}

pub(super) fn trace(view: &View, cpu: &str, event: &TraceNotify<'_>) -> String {
    let mut object = json!({
        "cpu": cpu,
        "type": "trace",
        "mark": format!("{:#x}", event.header.hash),
        "ifindex": view.interface(event.ifindex),
        "state": names::trace_reason(event.trace_reason()),
        "observationPoint": names::observation_point(event.point),
        "traceSummary": view::trace_summary(event),
        "source": event.header.source,
        "bytes": event.header.original_length,
        "srcLabel": event.source_identity,
        "dstLabel": event.destination_identity,
        "dstID": event.destination,
        "IpTraceID": event.ip_trace_id,
    });
    add_summary(&mut object, &view::packet(event.packet, event.flags));
    line(&object)
}

pub(super) fn capture(view: &View, cpu: &str, event: &DebugCapture<'_>) -> String {
    let mut object = json!({
        "cpu": cpu,
        "type": "capture",
        "mark": format!("{:#x}", event.header.hash),
        "message": event.text(),
    });
    if let Some(prefix) = view.capture_prefix(event) {
        object["prefix"] = prefix.into();
    }
    object["source"] = event.header.source.into();
    object["bytes"] = event.header.captured_length.into();
    let packet = Packet::dissect(event.packet, Start::Ethernet, None);
    object["summary"] = packet.connection().into();
    line(&object)
}

/// A message of a program. What HTML takes for its own is not escaped here, as Cilium's command does not.
pub(super) fn debug(cpu: &str, message: &str) -> String {
    json!({ "cpu": cpu, "type": "debug", "message": message }).to_string()
}

pub(super) fn agent(event: &AgentNotify) -> String {
    // A notification is JSON; text of an agent that sends something else stays text.
    let message = serde_json::from_str(&event.text).unwrap_or_else(|_| Value::from(event.text.as_str()));
    line(&json!({ "type": "agent", "subtype": event.name(), "message": message }))
}

fn add_summary(object: &mut Value, packet: &Packet<'_>) {
    let mut found = summary(&packet.layers);
    if let Some((_, layers)) = &packet.tunnel {
        found.insert("tunnel".to_owned(), Value::Object(summary(layers)));
    }
    if !found.is_empty() {
        object["summary"] = Value::Object(found);
    }
}

/// Keys of layers, in their order.
const LAYERS: [&str; 12] = [
    "Ethernet", "IPv4", "IPv6", "TCP", "UDP", "SCTP", "ICMPv4", "ICMPv6", "VRRP", "IGMP", "VXLAN", "Geneve",
];

fn summary(layers: &[Layer<'_>]) -> Map<String, Value> {
    let mut object = Map::new();
    for name in LAYERS.into_iter().take(10) {
        if let Some(layer) = layers.iter().find(|layer| layer.name() == name) {
            object.insert(name.to_ascii_lowercase(), layer.text().into());
        }
    }
    let mut add = |name: &str, ends: Option<(String, String)>| {
        if let Some((source, destination)) = ends {
            object.insert(name.to_owned(), json!({ "src": source, "dst": destination }));
        }
    };
    add(
        "l2",
        packet::mac_addresses(layers).map(|(source, destination, _)| (source, destination)),
    );
    add(
        "l3",
        packet::addresses(layers).map(|(source, destination)| (source.to_string(), destination.to_string())),
    );
    add(
        "l4",
        packet::ports(layers).map(|(source, destination)| (source.to_string(), destination.to_string())),
    );
    for name in LAYERS.into_iter().skip(10) {
        if let Some(layer) = layers.iter().find(|layer| layer.name() == name) {
            object.insert(name.to_ascii_lowercase(), layer.text().into());
        }
    }
    object
}
