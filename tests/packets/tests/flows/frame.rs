// SPDX-License-Identifier: Apache-2.0

//! Frames of both address families, from what is in them and back, with all checksums.

use std::net::{IpAddr, SocketAddr};

use crate::packet::{CLIENT_MAC, fold, sum};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
const DESTINATION_OPTIONS: u8 = 60;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) proto: u8,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) flags: u8,
    pub(crate) hop_limit: u8,
    /// IPv4 options, or an IPv6 destination options header, whose first byte is the transport protocol.
    pub(crate) extension: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new(proto: u8, source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            proto,
            source,
            destination,
            flags: if proto == TCP { SYN } else { 0 },
            hop_limit: 64,
            extension: Vec::new(),
            payload: b"payload".to_vec(),
        }
    }

    pub(crate) fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn extension(mut self, extension: &[u8]) -> Self {
        self.extension = extension.to_vec();
        self
    }

    pub(crate) fn payload(mut self, length: usize) -> Self {
        self.payload = (0..length).map(|n| n as u8).collect();
        self
    }

    pub(crate) fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// The packet that answers this one.
    pub(crate) fn answer(&self) -> Self {
        Self::new(self.proto, self.destination, self.source).flags(if self.proto == TCP {
            SYN | ACK
        } else {
            0
        })
    }

    fn transport(&self) -> Vec<u8> {
        let mut l4 = self.source.port().to_be_bytes().to_vec();
        l4.extend(self.destination.port().to_be_bytes());
        let checksum_at = match self.proto {
            TCP => {
                l4.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
                Some(16)
            }
            UDP => {
                l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                l4.extend([0, 0]);
                Some(6)
            }
            // Verification tag, and a checksum of what does not change on the way.
            _ => {
                l4.extend([1, 2, 3, 4, 0xcc, 0xcc, 0xcc, 0xcc]);
                None
            }
        };
        l4.extend(&self.payload);
        if let Some(at) = checksum_at {
            let total = pseudo(self.proto, self.source.ip(), self.destination.ip(), l4.len()) + sum(&l4);
            // Zero would mean that there is none (RFC 768).
            let checksum = match !fold(total) {
                0 => 0xffff,
                other => other,
            };
            l4[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        l4
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let l4 = self.transport();
        let mut frame = vec![0x3a, 0x11, 0x4e, 0xee, 0xf2, 0xb2];
        frame.extend(CLIENT_MAC);
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([8, 0]);
                let header = 20 + self.extension.len();
                let mut ip = vec![0x40 | (header / 4) as u8, 0];
                ip.extend(((header + l4.len()) as u16).to_be_bytes());
                ip.extend([0x12, 0x34, 0x40, 0, self.hop_limit, self.proto, 0, 0]);
                ip.extend(source.octets());
                ip.extend(destination.octets());
                ip.extend(&self.extension);
                let checksum = !fold(sum(&ip));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                frame.extend(ip);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(((self.extension.len() + l4.len()) as u16).to_be_bytes());
                let proto = if self.extension.is_empty() {
                    self.proto
                } else {
                    DESTINATION_OPTIONS
                };
                frame.extend([proto, self.hop_limit]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                frame.extend(&self.extension);
            }
            mixed => panic!("one address family each: {mixed:?}"),
        }
        frame.extend(l4);
        frame
    }

    /// Reads a frame; says what is wrong with it.
    pub(crate) fn read(frame: &[u8]) -> Result<Self, String> {
        let check = |is_right: bool, what: &str| if is_right { Ok(()) } else { Err(what.to_owned()) };
        check(frame.len() >= 14 + 20 + 8, "too short")?;
        let is_ipv6 = frame[12..14] == [0x86, 0xdd];
        let packet = &frame[14..];
        let (header, length, mut proto, hop_limit);
        let (from, to): (IpAddr, IpAddr);
        let mut extension = Vec::new();
        if is_ipv6 {
            length = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            (proto, hop_limit) = (packet[6], packet[7]);
            let address = |at: usize| {
                let octets: [u8; 16] = packet[at..at + 16].try_into().unwrap();
                IpAddr::from(octets)
            };
            (from, to) = (address(8), address(24));
            if proto == DESTINATION_OPTIONS {
                extension = packet[40..][..(usize::from(packet[41]) + 1) * 8].to_vec();
                proto = packet[40];
            }
            header = 40 + extension.len();
        } else {
            length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            header = usize::from(packet[0] & 0xf) * 4;
            (hop_limit, proto) = (packet[8], packet[9]);
            let address = |at: usize| {
                let octets: [u8; 4] = packet[at..at + 4].try_into().unwrap();
                IpAddr::from(octets)
            };
            (from, to) = (address(12), address(16));
            extension.extend(&packet[20..header]);
            check(
                fold(sum(&packet[..header])) == 0xffff,
                "checksum of the IP header",
            )?;
        }
        check(length == packet.len(), "length of the packet")?;
        let l4 = &packet[header..];
        if proto != SCTP {
            let total = pseudo(proto, from, to, l4.len()) + sum(l4);
            check(fold(total) == 0xffff, "checksum of the transport header")?;
        }
        let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
        let (flags, data) = match proto {
            TCP => (l4[13], 20),
            UDP => (0, 8),
            SCTP => (0, 12),
            other => return Err(format!("protocol {other}")),
        };
        Ok(Self {
            proto,
            source: (from, port(0)).into(),
            destination: (to, port(2)).into(),
            flags,
            hop_limit,
            extension,
            payload: l4[data..].to_vec(),
        })
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Sum of what a transport checksum covers besides the transport header.
pub(crate) fn pseudo(proto: u8, source: IpAddr, destination: IpAddr, length: usize) -> u32 {
    sum(&octets(source)) + sum(&octets(destination)) + u32::from(proto) + length as u32
}

/// Asserts that this is an ICMP error that goes back to where `sent` came from, and says how large packets may be.
#[track_caller]
pub(crate) fn assert_too_large(error: &[u8], sent: &[u8], mtu: usize) {
    let (packet, quoted) = (&error[14..], &sent[14..]);
    assert_eq!(error[..6], sent[6..12], "back to the sender");
    assert_eq!(error[12..14], sent[12..14]);
    let icmp = if error[12..14] == [8, 0] {
        assert_eq!(packet[9], 1);
        assert_eq!(packet[12..16], quoted[16..20], "from the destination");
        assert_eq!(packet[16..20], quoted[12..16], "to the source");
        assert_eq!(fold(sum(&packet[..20])), 0xffff);
        let icmp = &packet[20..];
        assert_eq!(fold(sum(icmp)), 0xffff, "checksum of the message");
        assert_eq!(icmp[..2], [3, 4]);
        icmp
    } else {
        assert_eq!(packet[6], 58);
        assert_eq!(packet[8..24], quoted[24..40], "from the destination");
        assert_eq!(packet[24..40], quoted[8..24], "to the source");
        let icmp = &packet[40..];
        let covered = sum(&packet[8..40]) + 58 + icmp.len() as u32;
        assert_eq!(fold(covered + sum(icmp)), 0xffff, "checksum of the message");
        assert_eq!(icmp[..2], [2, 0]);
        icmp
    };
    assert_eq!(icmp[2 + 2..8], [0, 0, (mtu >> 8) as u8, mtu as u8]);
    assert_eq!(icmp[8..], quoted[..icmp.len() - 8], "the packet as it was sent");
    assert!(icmp.len() >= 8 + 48);
}

/// An IP packet of any content, with its header's checksum.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) proto: u8,
    pub(crate) tos: u8,
    /// Of IPv4: flags and offset.
    pub(crate) fragment: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Raw {
    pub(crate) fn new(source: IpAddr, destination: IpAddr, proto: u8, payload: Vec<u8>) -> Self {
        Self {
            source,
            destination,
            proto,
            tos: 0,
            fragment: 0x4000,
            options: Vec::new(),
            payload,
        }
    }

    /// An ICMP message with its checksum.
    pub(crate) fn icmp(source: IpAddr, destination: IpAddr, mut message: Vec<u8>) -> Self {
        let proto = if source.is_ipv4() { 1 } else { 58 };
        let pseudo = match proto {
            1 => 0,
            _ => pseudo(58, source, destination, message.len()),
        };
        message[2..4].fill(0);
        let checksum = !fold(pseudo + sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        Self::new(source, destination, proto, message)
    }

    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut ip;
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = 20 + self.options.len();
                ip = vec![0x40 | (header / 4) as u8, self.tos];
                ip.extend(((header + self.payload.len()) as u16).to_be_bytes());
                ip.extend([0x12, 0x34]);
                ip.extend(self.fragment.to_be_bytes());
                ip.extend([64, self.proto, 0, 0]);
                ip.extend(source.octets());
                ip.extend(destination.octets());
                ip.extend(&self.options);
                let checksum = !fold(sum(&ip));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
                ip.extend(((self.options.len() + self.payload.len()) as u16).to_be_bytes());
                ip.extend([if self.options.is_empty() { self.proto } else { 0 }, 64]);
                ip.extend(source.octets());
                ip.extend(destination.octets());
                ip.extend(&self.options);
            }
            mixed => panic!("one address family each: {mixed:?}"),
        }
        ip.extend(&self.payload);
        ip
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0x3a, 0x11, 0x4e, 0xee, 0xf2, 0xb2];
        frame.extend(CLIENT_MAC);
        frame.extend(if self.source.is_ipv4() {
            [8, 0]
        } else {
            [0x86, 0xdd]
        });
        frame.extend(self.packet());
        frame
    }
}

/// Source, destination and message of an ICMP packet, whose checksums must be right.
#[track_caller]
pub(crate) fn read_icmp(frame: &[u8]) -> (IpAddr, IpAddr, Vec<u8>) {
    let packet = &frame[14..];
    let (source, destination, message, pseudo): (IpAddr, IpAddr, _, _) = if packet[0] >> 4 == 4 {
        assert_eq!(fold(sum(&packet[..20])), 0xffff, "checksum of the IP header");
        assert_eq!(packet[2..4], (packet.len() as u16).to_be_bytes());
        assert_eq!(packet[9], 1);
        let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
        (address(12), address(16), &packet[20..], 0)
    } else {
        assert_eq!(packet[4..6], ((packet.len() - 40) as u16).to_be_bytes());
        assert_eq!(packet[6], 58);
        let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
        let (source, destination) = (address(8), address(24));
        let pseudo = pseudo(58, source, destination, packet.len() - 40);
        (source, destination, &packet[40..], pseudo)
    };
    assert_eq!(fold(pseudo + sum(message)), 0xffff, "checksum of the message");
    (source, destination, message.to_vec())
}
