// SPDX-License-Identifier: Apache-2.0

//! Further entries in the maps of a measured node: services and flows that no measured packet matches.

use std::net::{Ipv4Addr, Ipv6Addr};

use skep_bpf_maps::{
    MapSizes,
    conntrack::{CT_ANY_MAX, CT_TCP_MAX, CtEntry, CtKey4, CtKey6, entry_flags},
    flow::FLOWS_MAX,
    lb::{Backend4, Backend6, LbMapSizes, Scope, Service4Key, Service6Key, ServiceFlags, ServiceValue},
    nat::NAT_MAX,
};
use zerocopy::IntoBytes as _;

use super::Load;
use crate::{
    Error,
    world::{World, now, write},
};

const TCP: u8 = 6;
const PORT: u16 = 80;
/// Ids of backends and services from here on: those of the facts are smaller.
const FIRST_ID: u32 = 20_000;
/// Entries that are written at a time.
const CHUNK: u32 = 65_536;

/// Sizes of maps that hold this load and the flows that are measured.
pub(super) fn sizes(load: Load) -> MapSizes {
    let services = 4 * load.services + 4096;
    let flows = load.flows + load.flows / 4;
    MapSizes::from(LbMapSizes::uniform(services))
        .with(CT_TCP_MAX, flows.max(CT_TCP_MAX.default))
        .with(CT_ANY_MAX, CT_ANY_MAX.default)
        .with(NAT_MAX, NAT_MAX.default)
        .with(FLOWS_MAX, load.flow_table.max(FLOWS_MAX.default))
}

/// Fills the maps of both address families.
pub(super) fn fill(world: &World, load: Load) -> Result<(), Error> {
    for first in (0..load.services).step_by(CHUNK as usize) {
        services(world, first..load.services.min(first + CHUNK))?;
    }
    for first in (0..load.flows).step_by(CHUNK as usize) {
        flows(world, first..load.flows.min(first + CHUNK))?;
    }
    Ok(())
}

fn services(world: &World, range: std::ops::Range<u32>) -> Result<(), Error> {
    let (mut keys4, mut keys6, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ids, mut backends4, mut backends6) = (Vec::new(), Vec::new(), Vec::new());
    for n in range {
        let id = FIRST_ID + n;
        let [high, low] = (n as u16).to_be_bytes();
        let vip4 = Ipv4Addr::new(10, 120, high, low);
        let vip6 = Ipv6Addr::new(0xfd00, 0x120, 0, 0, 0, 0, 0, n as u16);
        let address4 = Ipv4Addr::new(10, 121, high, low);
        let address6 = Ipv6Addr::new(0xfd00, 0x121, 0, 0, 0, 0, 0, n as u16);
        for slot in 0..2 {
            keys4.extend_from_slice(
                Service4Key::new(vip4, PORT, TCP, Scope::External)
                    .at(slot)
                    .as_bytes(),
            );
            keys6.extend_from_slice(
                Service6Key::new(vip6, PORT, TCP, Scope::External)
                    .at(slot)
                    .as_bytes(),
            );
        }
        values.extend_from_slice(ServiceValue::master(1, 0, id as u16, ServiceFlags::empty()).as_bytes());
        values.extend_from_slice(ServiceValue::slot(id, id as u16, ServiceFlags::empty()).as_bytes());
        ids.extend_from_slice(id.as_bytes());
        backends4.extend_from_slice(Backend4::new(address4, PORT, TCP).as_bytes());
        backends6.extend_from_slice(Backend6::new(address6, PORT, TCP).as_bytes());
    }
    write_to(world, "cilium_lb4_backends_v3", &ids, &backends4)?;
    write_to(world, "cilium_lb6_backends_v3", &ids, &backends6)?;
    write_to(world, "cilium_lb4_services_v2", &keys4, &values)?;
    write_to(world, "cilium_lb6_services_v2", &keys6, &values)
}

/// TCP connections of clients outside, alive.
fn flows(world: &World, range: std::ops::Range<u32>) -> Result<(), Error> {
    let now = u32::try_from(now()).unwrap_or(u32::MAX);
    let entry = CtEntry {
        nat_address: [0; 16],
        packets: 0,
        bytes: 0,
        lifetime: now.saturating_add(8000),
        flags: entry_flags::SEEN_NON_SYN,
        flags2: 0,
        rev_nat: 0.into(),
        nat_port: 0.into(),
        tx_flags_seen: 2,
        rx_flags_seen: 2,
        source_identity: 2,
        last_tx_report: now,
        last_rx_report: now,
    };
    let (mut keys4, mut keys6, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for n in range {
        let [_, a, b, c] = (n >> 6).to_be_bytes();
        let sport = 40_000 + (n & 63) as u16;
        keys4.extend_from_slice(
            CtKey4 {
                daddr: [198, 18 + (a & 1), b, c],
                saddr: [10, 1, 0, 165],
                dport: PORT.into(),
                sport: sport.into(),
                proto: TCP,
                flags: 0,
            }
            .as_bytes(),
        );
        let client = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, (n >> 22) as u16, (n >> 6) as u16);
        keys6.extend_from_slice(
            CtKey6 {
                daddr: client.octets(),
                saddr: Ipv6Addr::new(0xfd00, 0x10, 1, 0, 0, 0, 0, 0xa5).octets(),
                dport: PORT.into(),
                sport: sport.into(),
                proto: TCP,
                flags: 0,
            }
            .as_bytes(),
        );
        values.extend_from_slice(entry.as_bytes());
    }
    write_to(world, "cilium_ct4_global", &keys4, &values)?;
    write_to(world, "cilium_ct6_global", &keys6, &values)
}

fn write_to(world: &World, name: &str, keys: &[u8], values: &[u8]) -> Result<(), Error> {
    let map = world.map(name).ok_or_else(|| Error::Facts {
        what: format!("map {name}"),
    })?;
    write(map, keys, values)
}
