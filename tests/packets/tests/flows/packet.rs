// SPDX-License-Identifier: Apache-2.0

//! Packets made here, and the node of the facts that they are for.

use std::{net::Ipv4Addr, path::PathBuf};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use skep_bpf_programs::testing::run::SkBuff;

pub(crate) const SHOT: u32 = 2;
pub(crate) const REDIRECT: u32 = 7;
pub(crate) const XDP_DROP: u32 = 1;
pub(crate) const XDP_TX: u32 = 3;
pub(crate) const XDP: &str = "cil_xdp_entry";

/// Of the facts: pods, their interfaces and MAC addresses, a service with a backend in the second pod on another port.
pub(crate) const P1: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 165);
pub(crate) const P2: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 221);
pub(crate) const P1_IFINDEX: u32 = 6;
pub(crate) const P2_IFINDEX: u32 = 8;
pub(crate) const ETH0_IFINDEX: u32 = 2;
pub(crate) const P1_MAC: [u8; 6] = [0x56, 0xcf, 0x58, 0x68, 0x5b, 0xd6];
pub(crate) const P2_MAC: [u8; 6] = [0xfa, 0xc6, 0xa2, 0x69, 0xd4, 0x71];
pub(crate) const CLIENT_MAC: [u8; 6] = [0x0a, 0xde, 0xd3, 0xfb, 0x87, 0xf0];
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 101);
pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 3);
pub(crate) const REMOTE_POD: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 10);
pub(crate) const NODE_PORT: u16 = 30_080;

pub(crate) fn facts() -> [PathBuf; 2] {
    ["facts.json", "facts-xdp.json"].map(|file| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("testdata")
            .join(file)
    })
}

pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    words.sum()
}

pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// TCP or UDP over IPv4, with options and payload.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) is_tcp: bool,
    pub(crate) source: Side,
    pub(crate) destination: Side,
    pub(crate) tcp_flags: u8,
    pub(crate) ttl: u8,
    pub(crate) options: u8,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn frame(&self, mac: [u8; 6]) -> Vec<u8> {
        let mut l4 = self.source.1.to_be_bytes().to_vec();
        l4.extend(self.destination.1.to_be_bytes());
        if self.is_tcp {
            l4.extend([
                0,
                0,
                0,
                1,
                0,
                0,
                0,
                0,
                0x50,
                self.tcp_flags,
                0xff,
                0xff,
                0,
                0,
                0,
                0,
            ]);
        } else {
            l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            l4.extend([0, 0]);
        }
        l4.extend(&self.payload);
        let proto = if self.is_tcp { 6 } else { 17 };
        let at = if self.is_tcp { 16 } else { 6 };
        let pseudo =
            sum(&self.source.0.octets()) + sum(&self.destination.0.octets()) + proto + l4.len() as u32;
        // A checksum of zero would mean that there is none (RFC 768).
        let checksum = match !fold(pseudo + sum(&l4)) {
            0 => 0xffff,
            other => other,
        };
        l4[at..at + 2].copy_from_slice(&checksum.to_be_bytes());

        let words = 5 + self.options;
        let mut ip = vec![0x40 | words, 0];
        ip.extend((usize::from(words) * 4 + l4.len()).to_be_bytes()[6..].iter());
        ip.extend([0x12, 0x34, 0x40, 0, self.ttl, proto as u8, 0, 0]);
        ip.extend(self.source.0.octets());
        ip.extend(self.destination.0.octets());
        ip.extend(std::iter::repeat_n(1, usize::from(self.options) * 4));
        let checksum = !fold(sum(&ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());

        let mut frame = vec![2, 0, 0, 0, 0, 1];
        frame.extend(mac);
        frame.extend([8, 0]);
        frame.extend(ip);
        frame.extend(l4);
        frame
    }
}

pub(crate) type Side = (Ipv4Addr, u16);

/// Addresses and ports of a frame whose checksums are right.
pub(crate) fn read(frame: &[u8]) -> Result<(Side, Side), TestCaseError> {
    let header = usize::from(frame[14] & 0xf) * 4;
    let (ip, l4) = frame[14..].split_at(header);
    prop_assert_eq!(fold(sum(ip)), 0xffff, "checksum of the IP header");
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let pseudo = sum(&ip[12..20]) + u32::from(ip[9]) + l4.len() as u32;
    prop_assert_eq!(fold(pseudo + sum(l4)), 0xffff, "checksum of the transport header");
    let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
    Ok(((address(12), port(0)), (address(16), port(2))))
}

pub(crate) fn at(ifindex: u32) -> SkBuff {
    SkBuff {
        ifindex,
        ingress_ifindex: ifindex,
        ..SkBuff::default()
    }
}

pub(crate) fn answer(is_tcp: bool, source: Side, destination: Side, payload: &[u8]) -> Packet {
    Packet {
        is_tcp,
        source,
        destination,
        tcp_flags: 0x12,
        ttl: 64,
        options: 0,
        payload: payload.to_vec(),
    }
}
