// SPDX-License-Identifier: Apache-2.0

//! Events as blocks: a line about the event, and the layers or bytes of its packet.

use skep_datapath_monitor_events::{
    event::{DebugCapture, DropNotify, TraceNotify},
    names::{self, point},
    packet::{Packet, Start},
};

use super::view::{self, View};

const RULE: &str = "------------------------------------------------------------------------------";

pub(super) fn dropped(view: &View, cpu: &str, event: &DropNotify<'_>) -> String {
    let mut line = format!(
        "{cpu} MARK {:#x}{} FROM {} DROP: {} bytes, reason {}",
        event.header.hash,
        trace_id(event.ip_trace_id),
        event.header.source,
        event.header.original_length,
        event.reason_text()
    );
    line.push_str(&identities(
        view,
        event.source_identity,
        event.destination_identity,
    ));
    if event.destination != 0 {
        line.push_str(&format!(", to endpoint {}", event.destination));
    }
    let packet = view::packet(event.packet, event.flags);
    block(view, &line, event.packet, &packet)
}

pub(super) fn trace(view: &View, cpu: &str, event: &TraceNotify<'_>) -> String {
    let mut line = format!(
        "{cpu} MARK {:#x}{} FROM {} {}: {} bytes ({} captured), state {}",
        event.header.hash,
        trace_id(event.ip_trace_id),
        event.header.source,
        names::observation_point(event.point),
        event.header.original_length,
        event.header.captured_length,
        names::trace_reason(event.trace_reason())
    );
    if event.ifindex != 0 {
        line.push_str(&format!(", interface {}", view.interface(event.ifindex)));
    }
    let identities = identities(view, event.source_identity, event.destination_identity);
    if !identities.is_empty() {
        // Cilium's form has two commas here.
        line.push_str(&format!(", {identities}"));
    }
    line.push_str(&format!(", orig-ip {}", event.original_source()));
    match (event.point, event.destination) {
        (_, 0) => {}
        (point::TO_PROXY, port) => line.push_str(&format!(", to proxy-port {port}")),
        (_, endpoint) => line.push_str(&format!(", to endpoint {endpoint}")),
    }
    let packet = view::packet(event.packet, event.flags);
    block(view, &line, event.packet, &packet)
}

pub(super) fn capture(view: &View, cpu: &str, event: &DebugCapture<'_>) -> String {
    let line = format!(
        "{cpu} MARK {:#x} FROM {} DEBUG: {} bytes, {}",
        event.header.hash,
        event.header.source,
        event.header.captured_length,
        event.text()
    );
    let packet = Packet::dissect(event.packet, Start::Ethernet, None);
    block(view, &line, event.packet, &packet)
}

fn trace_id(id: u64) -> String {
    match id {
        0 => String::new(),
        id => format!(" [ IP-TRACE-ID = {id} ]"),
    }
}

fn identities(view: &View, source: u32, destination: u32) -> String {
    if source == 0 && destination == 0 {
        return String::new();
    }
    format!(
        ", identity {}->{}",
        view.identity(source),
        view.identity(destination)
    )
}

fn block(view: &View, line: &str, bytes: &[u8], packet: &Packet<'_>) -> String {
    let mut lines = vec![RULE.to_owned(), line.to_owned()];
    if view.hex {
        lines.extend(
            bytes
                .chunks(16)
                .enumerate()
                .map(|(number, row)| hex_row(number * 16, row)),
        );
    } else {
        lines.extend(packet.all_layers().map(|layer| layer.text()));
        if packet.is_truncated {
            lines.push("  Packet has been truncated".to_owned());
        }
        if let Some(error) = &packet.error {
            lines.push(format!("  Failed to decode layer: {error}"));
        }
    }
    lines.join("\n")
}

/// Sixteen bytes, in the form of `hexdump -C`.
fn hex_row(offset: usize, row: &[u8]) -> String {
    let mut hex = String::new();
    for number in 0..16 {
        hex.push_str(
            &row.get(number)
                .map_or("   ".to_owned(), |byte| format!(" {byte:02x}")),
        );
        if number == 7 {
            hex.push(' ');
        }
    }
    let text: String = row
        .iter()
        .map(|byte| {
            if (32..127).contains(byte) {
                char::from(*byte)
            } else {
                '.'
            }
        })
        .collect();
    format!("{offset:08x} {hex}  |{text}|")
}
