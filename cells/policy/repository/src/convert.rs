// SPDX-License-Identifier: Apache-2.0

//! Rows of a policy → entries of the map in the kernel.

use skep_bpf_maps::policy::{POLICY_STATIC_BITS, PolicyEntry, PolicyKey};
use skep_policy_maps::MapState;
use skep_policy_model::{Direction, map_state, rule::AuthType};
use zerocopy::network_endian::U16;

/// Deny, in [`PolicyEntry::flags`]; above it the bits of protocol and port.
const DENY: u8 = 1;
const BITS_SHIFT: u8 = 3;
/// A rule demands the authentication for these very ports, in [`PolicyEntry::auth`].
const EXPLICIT: u8 = 1 << 7;

/// The entries of a map. What rules redirect to a proxy that is not there, port 0, is denied.
pub(crate) fn map_state(map: &map_state::MapState) -> MapState {
    map.rows().map(|row| (key(&row), entry(&row))).collect()
}

fn key(row: &map_state::MapRow<'_>) -> PolicyKey {
    PolicyKey {
        prefix_len: POLICY_STATIC_BITS + u32::from(row.key.length()),
        identity: row.identity.get(),
        direction: match row.direction {
            Direction::Ingress => 0,
            Direction::Egress => 1,
        },
        proto: row.key.protocol.0,
        port: U16::new(row.key.port),
    }
}

fn entry(row: &map_state::MapRow<'_>) -> PolicyEntry {
    let entry = row.entry;
    let proxy = entry.proxy.as_ref().map(|proxy| proxy.port);
    let is_denied = entry.is_deny || proxy == Some(0);
    let auth = entry
        .auth
        .filter(|auth| auth.kind != AuthType::Disabled || auth.is_explicit);
    PolicyEntry {
        proxy_port: U16::new(proxy.unwrap_or_default()),
        flags: (u8::from(is_denied) * DENY) | (row.key.length() << BITS_SHIFT),
        auth: auth.map_or(0, |auth| {
            auth.kind as u8 | if auth.is_explicit { EXPLICIT } else { 0 }
        }),
        precedence: entry.precedence,
        cookie: 0,
    }
}
