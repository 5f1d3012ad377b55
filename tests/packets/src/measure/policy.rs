// SPDX-License-Identifier: Apache-2.0

//! Policies of the endpoints of a measured node that restrict both directions, and allow what is measured.

use std::collections::BTreeMap;

use skep_bpf_maps::policy::{POLICY_STATIC_BITS, PolicyEntry, PolicyKey, policy_pin};
use zerocopy::IntoBytes as _;

use crate::{Error, world::World};

const TCP: u8 = 6;
/// Bits of the protocol.
const PROTOCOL: u32 = 8;
/// Identities that no endpoint has.
const OTHERS: u32 = 100_000;
/// Precedence of an entry that allows.
const ALLOW: u32 = 0xffff_ff01;

/// Gives all endpoints policies that allow TCP with the other endpoints, and with so many other identities.
pub(super) fn restrict(world: &World, others: u32) -> Result<(), Error> {
    let entry = PolicyEntry {
        proxy_port: 0.into(),
        flags: (PROTOCOL as u8) << 3,
        auth: 0,
        precedence: ALLOW,
        cookie: 0,
    };
    let endpoints = world.facts.endpoints.values();
    let identities: Vec<u32> = endpoints
        .map(|endpoint| endpoint.identity)
        .chain(OTHERS..OTHERS + others)
        .collect();
    let entries: BTreeMap<Vec<u8>, Vec<u8>> = identities
        .iter()
        .flat_map(|identity| [(identity, 0), (identity, 1)])
        .map(|(identity, direction)| {
            let key = PolicyKey {
                prefix_len: POLICY_STATIC_BITS + PROTOCOL,
                identity: *identity,
                direction,
                proto: TCP,
                port: 0.into(),
            };
            (key.as_bytes().to_vec(), entry.as_bytes().to_vec())
        })
        .collect();
    let pins = world
        .facts
        .endpoints
        .values()
        .map(|endpoint| policy_pin(endpoint.id));
    for pin in pins.filter(|pin| world.map(pin).is_some()) {
        world.reset(&pin, &entries)?;
    }
    Ok(())
}
