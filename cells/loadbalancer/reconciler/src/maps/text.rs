// SPDX-License-Identifier: Apache-2.0

//! Lines of `lb/maps-dump`: every entry of the maps as sorted text.

use std::collections::BTreeMap;
use std::fmt::Write;

use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};
use skep_bpf_sys::MapError;
use skep_loadbalancer_model::types::{L3n4Addr, LbAlgorithm};

use super::LoadBalancerMaps;

/// All entries as lines, sorted bytewise, each with a line end. Empty for empty maps.
///
/// # Errors
/// If a map cannot be read.
pub fn dump(maps: &LoadBalancerMaps) -> Result<String, MapError> {
    let mut lines: Vec<String> = Vec::new();
    maps.each_service(|address, slot, value| lines.push(service(&address, slot, &value)))?;
    maps.each_backend(|id, value| {
        let state = match value.state {
            0 => "active",
            // As Cilium prints both. Quarantine is of one service, and shows in its slots.
            1 | 2 => "terminating",
            3 => "maintenance",
            _ => "invalid",
        };
        lines.push(format!("BE: ID={id} ADDR={} STATE={state}", value.address));
    })?;
    maps.each_reverse_nat(|id, address| lines.push(format!("REV: ID={id} ADDR={address}")))?;
    maps.each_affinity(|id, backend| lines.push(format!("AFF: ID={id} BEID={backend}")))?;
    maps.each_source_range(|id, cidr| lines.push(format!("SRCRANGE: ID={id} CIDR={cidr}")))?;
    maps.each_maglev(|id, _, table| lines.push(format!("MAGLEV: ID={id} INNER=[{}]", shares(&table))))?;
    lines.sort_unstable();
    let mut text = lines.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

fn service(address: &L3n4Addr, slot: u16, value: &ServiceValue) -> String {
    let flags = value.service_flags();
    let mut text = format!("SVC: ID={} ADDR={address} SLOT={slot} ", value.rev_nat.get());
    // Writing to a string cannot fail.
    let _ = match slot {
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
