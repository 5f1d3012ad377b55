// SPDX-License-Identifier: Apache-2.0

//! Frames on the links of a network, whose checksums are verified.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use etherparse::{IpNumber, IpPayloadSlice, Ipv4HeaderSlice, Ipv4Slice, Ipv6Slice, checksum::Sum16BitWords};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike},
    },
};

use crate::Place;

/// Bytes of frames that wait for the reader.
const QUEUE: usize = 64 << 20;
/// Milliseconds between two looks at whether to stop.
const LOOK: i64 = 50;
/// Index of the loopback link: what it carries is on no wire, and the kernel leaves its checksums out.
const LOOPBACK: usize = 1;
/// Most wrong frames that are described.
const DESCRIBED: usize = 10;
const ETHERNET: usize = 14;
const VXLAN: usize = 8;
const VXLAN_PORT: [u8; 2] = 8472_u16.to_be_bytes();

/// Reads every frame on the links of a network, in both directions.
#[derive(Debug)]
pub struct Capture {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<io::Result<Seen>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames by kind, such as `IPv4 TCP`; `VXLAN IPv4 TCP` in a tunnel. Those in the first ones are not among them.
    pub frames: BTreeMap<String, u64>,
    pub wrong: u64,
    pub described: Vec<String>,
}

impl Capture {
    pub fn start(place: Place) -> io::Result<Self> {
        let socket = place.inside(async || {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
            setsockopt(&socket, sockopt::RcvBufForce, &QUEUE)?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(LOOK))?;
            Ok(socket)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let stop = stop.clone();
            move || read(&socket, &stop)
        });
        Ok(Self { stop, reader })
    }

    /// Stops, and returns what was seen.
    pub fn finish(self) -> io::Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.reader
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the reader panicked")))
    }
}

fn read(socket: &OwnedFd, stop: &AtomicBool) -> io::Result<Seen> {
    let mut seen = Seen::default();
    let mut buffer = vec![0; 1 << 17];
    loop {
        match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            Ok((length, from)) if from.is_some_and(|from| from.ifindex() != LOOPBACK) => {
                seen.add(&buffer[..length]);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            // The queue is empty.
            Err(Errno::EAGAIN) if stop.load(Ordering::Relaxed) => return Ok(seen),
            Err(Errno::EAGAIN) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

impl Seen {
    /// Returns the number of frames of a kind.
    fn count(&self, kind: &str) -> u64 {
        self.frames.get(kind).copied().unwrap_or_default()
    }

    /// Asserts that all checksums are right, and that there are frames of these kinds.
    ///
    /// # Panics
    /// When a checksum is wrong, or a kind is missing.
    #[track_caller]
    pub fn assert_right(&self, kinds: &[&str]) {
        assert_eq!(self.wrong, 0, "wrong checksums: {self:#?}");
        for kind in kinds {
            assert!(self.count(kind) > 0, "no {kind} on the wire: {self:#?}");
        }
    }

    fn add(&mut self, frame: &[u8]) {
        let mut prefix = String::new();
        match check(frame, &mut prefix) {
            Ok(kind) => *self.frames.entry(format!("{prefix}{kind}")).or_default() += 1,
            Err(what) => {
                self.wrong += 1;
                if self.described.len() < DESCRIBED {
                    self.described.push(format!("{prefix}{what}: {}", hex(frame)));
                }
            }
        }
    }
}

/// Verifies all checksums of a frame. Returns its kind, or what is wrong; `prefix` gets the encapsulation.
fn check(frame: &[u8], prefix: &mut String) -> Result<String, String> {
    let (Some(header), Some(packet)) = (frame.get(..ETHERNET), frame.get(ETHERNET..)) else {
        return Ok("runt".to_owned());
    };
    match header[12..] {
        [0x08, 0x00] => check4(packet, prefix),
        [0x86, 0xdd] => check6(packet, prefix),
        _ => Ok("other".to_owned()),
    }
}

fn check4(packet: &[u8], prefix: &mut String) -> Result<String, String> {
    let ip = Ipv4Slice::from_slice(packet).map_err(|err| err.to_string())?;
    let header = ip.header();
    if !has_right_sum(header.slice()) {
        return Err("IPv4 header".to_owned());
    }
    let ends = [
        IpAddr::V4(header.source_addr()),
        IpAddr::V4(header.destination_addr()),
    ];
    check_payload(ends, ip.payload(), prefix)
}

fn check6(packet: &[u8], prefix: &mut String) -> Result<String, String> {
    let ip = Ipv6Slice::from_slice(packet).map_err(|err| err.to_string())?;
    let header = ip.header();
    let ends = [
        IpAddr::V6(header.source_addr()),
        IpAddr::V6(header.destination_addr()),
    ];
    check_payload(ends, ip.payload(), prefix)
}

/// Whether these bytes match the checksum in them (RFC 1071).
fn has_right_sum(bytes: &[u8]) -> bool {
    Sum16BitWords::new().add_slice(bytes).ones_complement() == 0
}

fn check_payload(
    ends: [IpAddr; 2],
    payload: &IpPayloadSlice<'_>,
    prefix: &mut String,
) -> Result<String, String> {
    let family = if ends[0].is_ipv4() { "IPv4" } else { "IPv6" };
    let bytes = payload.payload;
    if payload.fragmented {
        return Ok(format!("{family} fragment"));
    }
    let (name, has_pseudo_header) = match payload.ip_number {
        IpNumber::TCP => ("TCP", true),
        IpNumber::UDP => ("UDP", true),
        IpNumber::ICMP => ("ICMP", false),
        IpNumber::IPV6_ICMP => ("ICMP", true),
        _ => return Ok(format!("{family} other")),
    };
    // Where UDP has its checksum. None is allowed over IPv4.
    let is_without = name == "UDP" && ends[0].is_ipv4() && bytes.get(6..8) == Some(&[0, 0]);
    let mut covered = Vec::with_capacity(bytes.len() + 40);
    if has_pseudo_header {
        for end in ends {
            match end {
                IpAddr::V4(end) => covered.extend(end.octets()),
                IpAddr::V6(end) => covered.extend(end.octets()),
            }
        }
        covered.extend(u32::try_from(bytes.len()).unwrap_or_default().to_be_bytes());
        covered.extend([0, 0, 0, payload.ip_number.0]);
    }
    covered.extend(bytes);
    if !is_without && !has_right_sum(&covered) {
        return Err(format!("{family} {name}"));
    }
    if name == "UDP"
        && bytes.get(2..4) == Some(&VXLAN_PORT)
        && let Some(inner) = bytes.get(8 + VXLAN..)
    {
        prefix.push_str("VXLAN ");
        return check(inner, prefix);
    }
    if name == "ICMP"
        && let Some(kind) = check_error(family, bytes)?
    {
        return Ok(kind);
    }
    Ok(format!("{family} {name}"))
}

/// An ICMP error about a packet that was too large: the header inside is checked, too.
fn check_error(family: &str, bytes: &[u8]) -> Result<Option<String>, String> {
    let is_too_large = match (family, bytes) {
        ("IPv4", [3, 4, ..]) | ("IPv6", [2, 0, ..]) => true,
        _ => return Ok(None),
    };
    if family == "IPv4" {
        let inner = bytes.get(8..).unwrap_or_default();
        let header = Ipv4HeaderSlice::from_slice(inner).map_err(|err| err.to_string())?;
        if !has_right_sum(header.slice()) {
            return Err("IPv4 header in an ICMP error".to_owned());
        }
    }
    Ok(is_too_large.then(|| format!("{family} too large")))
}

fn hex(frame: &[u8]) -> String {
    let shown = &frame[..frame.len().min(120)];
    shown.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn frame(builder: etherparse::PacketBuilderStep<etherparse::UdpHeader>) -> Vec<u8> {
        let mut frame = Vec::new();
        builder.write(&mut frame, b"odd").expect("a frame");
        frame
    }

    fn udp4() -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        frame(builder.udp(1000, 53))
    }

    #[test]
    fn right_frames_are_counted_by_kind() {
        let mut seen = Seen::default();

        seen.add(&udp4());
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([1; 16], [2; 16], 64);
        seen.add(&frame(builder.udp(1000, 53)));
        let mut tunnelled = vec![0; 8];
        tunnelled.extend(udp4());
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let mut outer = Vec::new();
        builder
            .udp(1000, 8472)
            .write(&mut outer, &tunnelled)
            .expect("a frame");
        seen.add(&outer);

        assert_eq!(seen.wrong, 0, "{seen:?}");
        for kind in ["IPv4 UDP", "IPv6 UDP", "VXLAN IPv4 UDP"] {
            assert_eq!(seen.count(kind), 1, "{seen:?}");
        }
    }

    #[test]
    fn any_changed_byte_is_found() {
        // From the IP header on, except lengths and protocol, which decide how the rest is read.
        let right = udp4();
        for at in [22, 24, 26, 30, 34, 36, 40, 42, 44] {
            let mut wrong = right.clone();
            wrong[at] ^= 0x10;
            let mut seen = Seen::default();

            seen.add(&wrong);

            assert_eq!(seen.wrong, 1, "byte {at}");
        }
    }
}
