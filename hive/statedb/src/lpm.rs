// SPDX-License-Identifier: Apache-2.0

//! Longest-prefix match over an ordered index of networks.
//!
//! Network keys sort by address, then by length. The last key at or before an address is its longest match if it
//! holds the address; otherwise every match is at most as long as the bits both share, so the search goes on from
//! there. Each step shortens the length.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    key::{KeyBytes, KeyWriter, NETWORK_SIZE, decode_network, encode_network, encoded, is_mapped, mapped},
    slots::Slot,
    tree::{KeyAt, Probe, Texts, Tree},
};

fn common_bits(a: &[u8; 16], b: &[u8; 16]) -> u32 {
    (u128::from_be_bytes(*a) ^ u128::from_be_bytes(*b)).leading_zeros()
}

fn masked(addr: &[u8; 16], bits: u32) -> [u8; 16] {
    let mask = if bits == 0 {
        0
    } else {
        u128::MAX << (128 - bits.min(128))
    };
    (u128::from_be_bytes(*addr) & mask).to_be_bytes()
}

/// The network a stored key starts with.
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

/// The first object of the longest network that holds `addr`.
pub(crate) fn longest(tree: &Tree<Texts, Slot>, addr: IpAddr, is_unique: bool) -> Option<Slot> {
    let addr = match addr {
        IpAddr::V4(addr) => return longest_of_ipv4(tree, addr.into(), is_unique),
        IpAddr::V6(addr) => addr.octets(),
    };
    let (mut from, mut bits) = (addr, 128u32);
    loop {
        // Everything stored for `from`/`bits`, whatever primary key follows, sorts before the next length.
        let before = probe(&from, (bits + 1) as u8);
        let (key, &slot) = tree.before((&*before).into())?;
        let (base, length) = network(&key)?;
        let common = common_bits(&base, &addr);
        if common >= length {
            return if is_unique {
                Some(slot)
            } else {
                first(tree, &probe(&base, length as u8))
            };
        }
        // Here `common < length`: a match has at most `common` bits, and fewer than before.
        bits = common.min(bits.checked_sub(1)?);
        from = masked(&addr, bits);
    }
}

/// [`longest`] of IPv4 addresses, whose networks fit into a register.
fn longest_of_ipv4(tree: &Tree<Texts, Slot>, addr: u32, is_unique: bool) -> Option<Slot> {
    let (mut from, mut bits) = (addr, 32u32);
    loop {
        let before = ipv4_probe(from, bits + 1);
        let (key, &slot) = tree.before(Probe::of_six(&before))?;
        let (base, length) = ipv4_network(&key)?;
        let common = (base ^ addr).leading_zeros();
        if common >= length {
            return if is_unique {
                Some(slot)
            } else {
                first(tree, &ipv4_probe(base, length)[..6])
            };
        }
        bits = common.min(bits.checked_sub(1)?);
        from = addr & u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    }
}

/// What a network of IPv4 is stored as, in front of two zeros.
#[inline]
fn ipv4_probe(addr: u32, bits: u32) -> [u8; 8] {
    (1 << 56 | u64::from(addr) << 24 | u64::from(96 + bits) << 16).to_be_bytes()
}

/// The network of IPv4 a stored key starts with.
#[inline]
fn ipv4_network(key: &KeyAt<'_, Texts>) -> Option<(u32, u32)> {
    let (mut bytes, known) = key.word();
    if known < 6 {
        key.copy(&mut bytes);
    }
    let word = u64::from_be_bytes(bytes);
    let bits = ((word >> 16 & 0xff) as u32).checked_sub(96)?;
    (word >> 56 == 1).then_some(((word >> 24) as u32, bits))
}

/// Several objects may share a network: the first of them.
fn first(tree: &Tree<Texts, Slot>, network: &[u8]) -> Option<Slot> {
    tree.at_least(network).next().map(|(_, slot)| *slot)
}

fn probe(addr: &[u8; 16], bits: u8) -> KeyBytes {
    let mut writer = KeyWriter::new();
    encode_network(addr, bits, &mut writer);
    writer.into_bytes()
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
