// SPDX-License-Identifier: Apache-2.0

//! What a step did, and what it should have done: without what differs from machine to machine and from second to second.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use skep_bpf_maps::Family;

use crate::{
    difference::is_xdp,
    ports::{Ports, ports_at},
    vectors::Step,
};

/// Seconds by which times may be off: clocks tick between two calls.
const TOLERANCE: i64 = 2;

pub(crate) type Maps = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Where values have times, and how wide they are.
pub(crate) fn times(map: &str) -> &'static [(usize, usize)] {
    if map.starts_with("cilium_ct") {
        &[(32, 4), (48, 4), (52, 4)]
    } else if map.starts_with("cilium_snat") || map.ends_with("_affinity") {
        &[(0, 8)]
    } else {
        &[]
    }
}

fn time_at(value: &[u8], (at, width): (usize, usize)) -> i64 {
    let bytes = value.get(at..at + width).unwrap_or_default();
    let time = bytes
        .iter()
        .rev()
        .fold(0_u64, |time, byte| time << 8 | u64::from(*byte));
    i64::try_from(time).unwrap_or(i64::MAX)
}

/// Whether two values are the same at their times: zero stays zero, all others are compared to the clock.
fn same_value(map: &str, ours: &[u8], our_now: u64, theirs: &[u8], their_now: u64) -> bool {
    let mut rest = [ours.to_vec(), theirs.to_vec()];
    for field in times(map) {
        let (one, other) = (time_at(ours, *field), time_at(theirs, *field));
        if (one == 0) != (other == 0) {
            return false;
        }
        if one != 0 {
            let one = one - i64::try_from(our_now).unwrap_or(0);
            let other = other - i64::try_from(their_now).unwrap_or(0);
            if (one - other).abs() > TOLERANCE {
                return false;
            }
        }
        for value in &mut rest {
            if let Some(bytes) = value.get_mut(field.0..field.0 + field.1) {
                bytes.fill(0);
            }
        }
    }
    let [ours, theirs] = rest;
    ours == theirs
}

/// Maps whose content is not compared: what they say depends on when they were written.
fn is_compared(map: &str) -> bool {
    !matches!(
        map,
        "cilium_ratelimit" | "cilium_ratelimit_metrics" | "cilium_snat_v6_alloc_retries"
    )
}

fn entry_text(map: &str, key: &[u8], value: &[u8]) -> String {
    let family: Option<&'static Family> = skep_bpf_maps::find(map);
    family.map_or_else(
        || format!("{} = {}", hex::encode(key), hex::encode(value)),
        |family| format!("{}  {}", family.key.text(key), family.value.text(value)),
    )
}

#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) verdict: u32,
    pub(crate) packet: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) metadata: Vec<u8>,
    pub(crate) duration: Duration,
    pub(crate) before: Maps,
    pub(crate) after: Maps,
    /// By reason and direction: packets and bytes.
    pub(crate) metrics: BTreeMap<(u8, u8), (u64, u64)>,
    pub(crate) events: Vec<Vec<u8>>,
    pub(crate) now: u64,
}

/// Differences between what was recorded and what was done, as lines for people; empty if there are none.
pub(crate) fn differences(step: &Step, input: &[u8], done: &Done, ports: &Ports) -> Vec<String> {
    let mut lines = Vec::new();
    if step.ret != Some(done.verdict) {
        lines.push(format!(
            "verdict {} instead of {}",
            verdict(step, Some(done.verdict)),
            verdict(step, step.ret)
        ));
    }
    let packet = match &step.packet_out {
        Some(packet) => ports.packet(&packet.0),
        None => input.to_vec(),
    };
    if packet != done.packet {
        lines.push(format!(
            "packet\n      {}\n    instead of\n      {}",
            frame_text(&done.packet),
            frame_text(&packet)
        ));
    }
    if let Some(context) = &step.ctx_out
        && !is_xdp(step)
        && context.mark != done.mark
    {
        lines.push(format!("mark {:#x} instead of {:#x}", done.mark, context.mark));
    }
    if let Some(metadata) = &step.metadata_out
        && metadata.0 != done.metadata
    {
        lines.push(format!(
            "metadata {} instead of {}",
            hex::encode(&done.metadata),
            hex::encode(&metadata.0)
        ));
    }
    entries(step, done, ports, &mut lines);
    metrics(step, done, &mut lines);
    events(step, done, ports, &mut lines);
    lines
}

fn entries(step: &Step, done: &Done, ports: &Ports, lines: &mut Vec<String>) {
    let empty = BTreeMap::new();
    let mut expected = BTreeSet::new();
    for change in &step.map_changes {
        if !is_compared(&change.map) {
            continue;
        }
        let key = ports.key(&change.map, &change.key.0);
        let ours = done.after.get(&change.map).unwrap_or(&empty).get(&key);
        expected.insert((change.map.clone(), key.clone()));
        match (change.op.as_str(), &change.value, ours) {
            ("count", ..) => {
                let index = change
                    .key_fields
                    .get("collisions")
                    .and_then(serde_json::Value::as_u64);
                let key = index.map_or(key, |index| (index as u32).to_ne_bytes().to_vec());
                expected.insert((change.map.clone(), key.clone()));
                count(change, &key, done, lines);
            }
            ("delete", _, None) => {}
            ("delete", _, Some(value)) => {
                lines.push(format!("not deleted: {}", entry_text(&change.map, &key, value)));
            }
            (_, Some(value), Some(ours)) => {
                let value = ports.value(&change.map, &value.0);
                if !same_value(&change.map, ours, done.now, &value, step.now_monotonic_s) {
                    lines.push(format!(
                        "{}\n      {} (now {})\n    instead of\n      {} (now {})",
                        change.map,
                        entry_text(&change.map, &key, ours),
                        done.now,
                        entry_text(&change.map, &key, &value),
                        step.now_monotonic_s
                    ));
                }
            }
            (_, Some(value), None) => {
                let text = entry_text(&change.map, &key, &value.0);
                lines.push(format!("missing in {}: {text}", change.map));
            }
            _ => {}
        }
    }
    for (map, after) in &done.after {
        if !is_compared(map) {
            continue;
        }
        let before = done.before.get(map).unwrap_or(&empty);
        for (key, value) in after {
            if expected.contains(&(map.clone(), key.clone())) {
                continue;
            }
            match before.get(key) {
                Some(old) if old == value || same_value(map, value, done.now, old, done.now) => {}
                Some(old) => lines.push(format!(
                    "changed in {map}: {} (was {})",
                    entry_text(map, key, value),
                    entry_text(map, key, old)
                )),
                None => lines.push(format!("unexpected in {map}: {}", entry_text(map, key, value))),
            }
        }
        for (key, value) in before {
            if !after.contains_key(key) && !expected.contains(&(map.clone(), key.clone())) {
                lines.push(format!("gone from {map}: {}", entry_text(map, key, value)));
            }
        }
    }
}

/// A counter with a value a CPU.
fn count(change: &crate::vectors::Change, key: &[u8], done: &Done, lines: &mut Vec<String>) {
    let empty = BTreeMap::new();
    let total = |maps: &Maps| {
        let value = maps.get(&change.map).unwrap_or(&empty).get(key);
        value.map_or([0, 0], |value| sums(&change.map, value))
    };
    let (before, after) = (total(&done.before), total(&done.after));
    let ours = [after[0].wrapping_sub(before[0]), after[1].wrapping_sub(before[1])];
    let field = |name: &str| change.delta.get(name).and_then(serde_json::Value::as_u64);
    let theirs = match (&change.delta, field("packets"), field("bytes")) {
        (_, Some(packets), Some(bytes)) => [packets, bytes],
        (delta, ..) => [delta.as_u64().unwrap_or(0), 0],
    };
    if ours != theirs {
        let family = skep_bpf_maps::find(&change.map);
        let key = family.map_or_else(|| hex::encode(key), |family| family.key.text(key));
        lines.push(format!(
            "{} counted {ours:?} instead of {theirs:?} for {key}",
            change.map
        ));
    }
}

/// Both numbers of a counter over all CPUs; the second is 0 if it has one.
fn sums(map: &str, value: &[u8]) -> [u64; 2] {
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    if map.ends_with("alloc_retries") {
        // Four bytes, each in eight.
        return [value.chunks(8).map(|cpu| word(&cpu[..4])).sum(), 0];
    }
    let both = value
        .chunks_exact(16)
        .map(|cpu| (word(&cpu[..8]), word(&cpu[8..])));
    both.fold([0, 0], |[packets, bytes], (p, b)| [packets + p, bytes + b])
}

fn metrics(step: &Step, done: &Done, lines: &mut Vec<String>) {
    let mut expected: BTreeMap<(u8, u8), (u64, u64)> = BTreeMap::new();
    for metric in &step.metrics {
        if let [reason, direction, ..] = metric.key.0[..] {
            let sum = expected.entry((reason, direction & 3)).or_default();
            sum.0 += metric.count;
            sum.1 += metric.bytes;
        }
    }
    if expected != done.metrics {
        lines.push(format!(
            "counters {} instead of {}",
            metrics_text(&done.metrics),
            metrics_text(&expected)
        ));
    }
}

fn metrics_text(metrics: &BTreeMap<(u8, u8), (u64, u64)>) -> String {
    let mut text = String::new();
    for ((reason, direction), (count, bytes)) in metrics {
        let direction = ["?", "ingress", "egress", "service"][usize::from(direction & 3)];
        let _ = write!(
            text,
            "[reason {reason} {direction}: {count} packets, {bytes} bytes] "
        );
    }
    if text.is_empty() {
        "none".to_owned()
    } else {
        text.trim_end().to_owned()
    }
}

fn events(step: &Step, done: &Done, ports: &Ports, lines: &mut Vec<String>) {
    let expected: Vec<Vec<u8>> = step
        .events
        .iter()
        .map(|event| masked(&event.hex.0, Some(ports)))
        .collect();
    let ours: Vec<Vec<u8>> = done.events.iter().map(|event| masked(event, None)).collect();
    if expected == ours {
        return;
    }
    let list = |events: &[Vec<u8>]| {
        let mut text = String::new();
        for event in events {
            let _ = write!(text, "\n      {}", event_text(event));
        }
        if text.is_empty() { " none".to_owned() } else { text }
    };
    lines.push(format!(
        "events{}\n    instead of{}",
        list(&ours),
        list(&expected)
    ));
}

/// Length of an event before the packet in it.
fn fixed_len(event: &[u8]) -> usize {
    match event.first() {
        Some(1) => 48,
        Some(4) => 56,
        Some(5) => 40,
        _ => event.len(),
    }
}

/// Without hash, and line and file of drops; cut behind the captured packet (records are padded).
fn masked(event: &[u8], ports: Option<&Ports>) -> Vec<u8> {
    let fixed = fixed_len(event).min(event.len());
    let captured = match event.get(12..14) {
        Some([low, high]) => usize::from(u16::from_le_bytes([*low, *high])),
        _ => 0,
    };
    let mut event = event[..event.len().min(fixed + captured)].to_vec();
    if let Some(hash) = event.get_mut(4..8) {
        hash.fill(0);
    }
    if event.first() == Some(&1)
        && let Some(place) = event.get_mut(28..31)
    {
        place.fill(0);
    }
    if let Some(ports) = ports {
        let packet = ports.packet(&event[fixed..]);
        event.truncate(fixed);
        event.extend(packet);
    }
    event
}

fn event_text(event: &[u8]) -> String {
    let word = |at: usize| {
        let bytes = event.get(at..at + 4).unwrap_or(&[0; 4]);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let half = |at: usize| {
        let bytes = event.get(at..at + 2).unwrap_or(&[0; 2]);
        u16::from_le_bytes([bytes[0], bytes[1]])
    };
    let byte = |at: usize| event.get(at).copied().unwrap_or_default();
    let head = format!("endpoint {} length {} captured {}", half(2), word(8), half(12));
    let packet = frame_text(event.get(fixed_len(event)..).unwrap_or_default());
    let body = match byte(0) {
        1 => format!(
            "drop {} {head} identities {}>{} to endpoint {} error {} ifindex {} flags {}",
            byte(1),
            word(16),
            word(20),
            word(24),
            byte(31),
            word(32),
            byte(36)
        ),
        4 => format!(
            "trace {} {head} identities {}>{} to {} reason {} flags {} ifindex {} original source {}",
            byte(1),
            word(16),
            word(20),
            half(24),
            byte(26),
            byte(27),
            word(28),
            hex::encode(event.get(32..48).unwrap_or_default())
        ),
        5 => format!(
            "verdict {head} identity {} verdict {} port {} proto {} flags {:#x} auth {} cookie {}",
            word(16),
            word(20).cast_signed(),
            half(24),
            byte(26),
            byte(27),
            byte(28),
            word(32)
        ),
        _ => hex::encode(event),
    };
    format!("{body} [{packet}]")
}

fn verdict(step: &Step, verdict: Option<u32>) -> String {
    if is_xdp(step) {
        return match verdict {
            Some(1) => "XDP_DROP".to_owned(),
            Some(2) => "XDP_PASS".to_owned(),
            Some(3) => "XDP_TX".to_owned(),
            Some(4) => "XDP_REDIRECT".to_owned(),
            Some(other) => other.to_string(),
            None => "none".to_owned(),
        };
    }
    match verdict {
        Some(0) => "OK".to_owned(),
        Some(2) => "SHOT".to_owned(),
        Some(7) => "REDIRECT".to_owned(),
        Some(other) => other.to_string(),
        None => "none".to_owned(),
    }
}

fn frame_text(frame: &[u8]) -> String {
    let bytes = hex::encode(frame);
    let ports = ports_at(frame).and_then(|at| {
        let ports = frame.get(at..at + 4)?;
        Some((
            u16::from_be_bytes([ports[0], ports[1]]),
            u16::from_be_bytes([ports[2], ports[3]]),
        ))
    });
    let (from, to) = ports.map_or_else(Default::default, |(from, to)| {
        (format!(":{from}"), format!(":{to}"))
    });
    let address = |bytes: Option<&[u8]>| match bytes {
        Some([a, b, c, d]) => std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string(),
        Some(bytes) => <[u8; 16]>::try_from(bytes).map_or_else(
            |_| String::new(),
            |octets| std::net::Ipv6Addr::from(octets).to_string(),
        ),
        None => String::new(),
    };
    match frame.get(12..14) {
        Some([0x08, 0x00]) => {
            let (source, destination) = (address(frame.get(26..30)), address(frame.get(30..34)));
            format!("{source}{from} > {destination}{to} {bytes}")
        }
        Some([0x86, 0xdd]) => {
            let (source, destination) = (address(frame.get(22..38)), address(frame.get(38..54)));
            format!("{source}{from} > {destination}{to} {bytes}")
        }
        _ => bytes,
    }
}
