// SPDX-License-Identifier: Apache-2.0

//! Queries of an ordered index of networks: keys sort by address, then by length.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    key::{KeyBytes, NETWORK_SIZE, decode_network, encoded, is_mapped, mapped},
    slots::Slot,
    tree::{KeyAt, Texts, Tree},
};

fn common_bits(a: &[u8; 16], b: &[u8; 16]) -> u32 {
    (u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b)).leading_zeros()
}

/// Returns the network a stored key starts with.
#[inline]
fn network(key: &KeyAt<'_, Texts>) -> Option<([u8; 16], u32)> {
    // Mostly the part of the key that is quick to get will do.
    let (word, known) = key.word();
    if let Some((network, length, used)) = decode_network(&word)
        && used <= known
    {
        return Some((network, length));
    }
    let mut start = [0; NETWORK_SIZE];
    let size = key.copy(&mut start).min(NETWORK_SIZE);
    let (network, length, _) = decode_network(&start[..size])?;
    Some((network, length))
}

/// Of the encoded networks of an object, the longest that holds `addr`.
pub(crate) fn longest_of(networks: impl IntoIterator<Item = KeyBytes>, addr: IpAddr) -> Option<KeyBytes> {
    let addr = mapped(addr);
    let holds = |key: KeyBytes| {
        let (base, length, _) = decode_network(&key)?;
        (common_bits(&base, &addr) >= length).then_some((length, key))
    };
    let held = networks.into_iter().filter_map(holds);
    held.max_by_key(|(length, _)| *length).map(|(_, key)| key)
}

/// Objects whose network is `net` or inside it. Networks of IPv4 are inside of no IPv6 one.
pub(crate) fn within(tree: &Tree<Texts, Slot>, net: IpNet) -> impl Iterator<Item = Slot> + use<'_> {
    let start = encoded(&net);
    let bounds = decode_network(&start);
    let is_ipv4 = matches!(net, IpNet::V4(_));
    tree.at_least(&start)
        .map_while(move |(key, &slot)| {
            let ((base, length, _), (network, inner)) = (bounds?, network(&key)?);
            let is_inside = inner >= length && (is_ipv4 || !is_mapped(&network));
            (common_bits(&base, &network) >= length).then_some((is_inside, slot))
        })
        .filter_map(|(is_inside, slot)| is_inside.then_some(slot))
}
