// SPDX-License-Identifier: Apache-2.0

//! Longest-prefix match over an ordered index of networks.
//!
//! Network keys sort by address, then by length. The last key at or before an address is its longest match if it
//! holds the address; otherwise every match is at most as long as the bits both share, so the search goes on from
//! there. Each step shortens the length.

use ipnet::IpNet;

use crate::{
    Obj,
    key::{Key, KeyBuf, KeyWriter, decode_network, encode_network},
    tree::Tree,
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

/// The first object of the longest network that holds `addr`.
pub(crate) fn longest<'a, T>(
    tree: &'a Tree<KeyBuf, Obj<T>>,
    addr: &[u8; 16],
    is_ipv4: bool,
) -> Option<&'a Obj<T>> {
    // Networks of IPv4 have the 96 bits of the mapped form in front.
    let least = if is_ipv4 { 96 } else { 0 };
    let (mut from, mut bits) = (*addr, 128u32);
    loop {
        // Everything stored for `from`/`bits`, whatever primary key follows, sorts before the next length.
        let mut probe = KeyWriter::new();
        encode_network(&from, (bits + 1) as u8, &mut probe);
        let (key, object) = tree.before(&probe.finish())?;
        let (network, length, size) = decode_network(key.as_bytes())?;
        let common = common_bits(&network, addr);
        if common >= length {
            if length < least {
                return None;
            }
            if key.as_bytes().len() == size {
                return Some(object);
            }
            // Several objects may share the network: the first of them.
            let start = KeyBuf::new(&key.as_bytes()[..size]);
            return tree.at_least(&start).next().map(|(_, object)| object);
        }
        // Here `common < length`: a match has at most `common` bits, and fewer than before.
        bits = common.min(bits.checked_sub(1)?);
        if bits < least {
            return None;
        }
        from = masked(addr, bits);
    }
}

/// Objects whose network is `net` or inside it.
pub(crate) fn within<T>(
    tree: &Tree<KeyBuf, Obj<T>>,
    net: IpNet,
) -> impl Iterator<Item = &Obj<T>> + use<'_, T> {
    let mut writer = KeyWriter::new();
    net.encode(&mut writer);
    let start = writer.finish();
    let bounds = decode_network(start.as_bytes());
    tree.at_least(&start)
        .map_while(move |(key, object)| {
            let ((base, length, _), (network, ..)) = (bounds?, decode_network(key.as_bytes())?);
            (common_bits(&base, &network) >= length).then_some((key, object))
        })
        .filter(move |(key, _)| match (bounds, decode_network(key.as_bytes())) {
            (Some((_, length, _)), Some((_, inner, _))) => inner >= length,
            _ => false,
        })
        .map(|(_, object)| object)
}
