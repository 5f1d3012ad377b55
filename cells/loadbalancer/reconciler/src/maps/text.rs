// SPDX-License-Identifier: Apache-2.0

//! Lines of `lb/maps-dump`: every entry of the maps as sorted text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_loadbalancer_model::types::LbAlgorithm;

use super::{MapEntry, ServiceKey};

/// All entries as lines, sorted bytewise, each with a line end. Empty for empty maps.
pub fn dump(entries: &[MapEntry]) -> String {
    let mut lines: Vec<String> = entries.iter().map(line).collect();
    lines.sort_unstable();
    lines.iter().fold(String::new(), |mut text, line| {
        text.push_str(line);
        text.push('\n');
        text
    })
}

/// One entry as a line, without line end.
pub fn line(entry: &MapEntry) -> String {
    match entry {
        MapEntry::Service(key, value) => service(key, value),
        MapEntry::Backend(key, value) => {
            let state = match value.state {
                0 => "active",
                1 => "terminating",
                2 => "quarantined",
                3 => "maintenance",
                _ => "invalid",
            };
            format!("BE: ID={} ADDR={} STATE={state}", key.id, value.address)
        }
        MapEntry::ReverseNat(key, value) => match value.ip {
            IpAddr::V4(ip) => format!("REV: ID={} ADDR={ip}:{}", key.id, value.port),
            IpAddr::V6(ip) => format!("REV: ID={} ADDR=[{ip}]:{}", key.id, value.port),
        },
        MapEntry::AffinityMatch(key) => format!("AFF: ID={} BEID={}", key.id, key.backend),
        MapEntry::SourceRange(key) => format!("SRCRANGE: ID={} CIDR={}", key.id, key.cidr),
        MapEntry::Maglev(key, table) => format!("MAGLEV: ID={} INNER=[{}]", key.id, shares(table)),
    }
}

fn service(key: &ServiceKey, value: &ServiceValue) -> String {
    let flags = value.service_flags();
    let mut text = format!(
        "SVC: ID={} ADDR={} SLOT={} ",
        value.rev_nat.get(),
        key.address,
        key.slot
    );
    // Writing to a string cannot fail.
    let _ = match key.slot {
        0 if flags.contains(ServiceFlags::L7_LOAD_BALANCER) => write!(text, "L7Proxy={}", value.l7_port()),
        0 => {
            let algorithm = match value.algorithm() {
                1 => LbAlgorithm::Random,
                2 => LbAlgorithm::Maglev,
                _ => LbAlgorithm::Unset,
            };
            write!(text, "LBALG={algorithm} AFFTimeout={}", value.affinity_timeout())
        }
        _ => write!(text, "BEID={}", value.backend_id()),
    };
    let words: Vec<&str> = flags.words().collect();
    let _ = write!(
        text,
        " COUNT={} QCOUNT={} FLAGS={}",
        value.count,
        value.qcount,
        words.join("+")
    );
    text
}

// Slots of each backend in a Maglev table, most first, then by id.
fn shares(table: &[u32]) -> String {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    table.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
    let mut counts: Vec<(u32, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    counts
        .iter()
        .map(|(id, slots)| format!("{id}({slots})"))
        .collect::<Vec<_>>()
        .join(", ")
}
