// SPDX-License-Identifier: Apache-2.0

//! Addresses of frontends and backends: IP, cluster, port, protocol and scope in 24 bytes.
//!
//! The text form is `10.0.0.1:80/TCP`, `[fd00::1]:53/UDP`, `10.0.0.1@3:80/TCP` (cluster 3) and `0.0.0.0:30781/TCP/i`
//! (internal scope). The order of [`L3n4Addr`] is that of its binary [key](L3n4Addr::key), which is the order of
//! the tables.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{L4Proto, Scope};

/// Number of bytes of [`L3n4Addr::key`].
pub const ADDRESS_KEY_LEN: usize = 24;

const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// An IP address with cluster id, port, protocol and scope. IPv4-mapped IPv6 addresses are IPv4 addresses.
#[derive(Clone, Copy, Eq)]
pub struct L3n4Addr {
    // Field order is the order of the key. IPv4 addresses are stored in their mapped form.
    ip: [u8; 16],
    cluster_id: u32,
    port: u16,
    proto: L4Proto,
    scope: Scope,
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad address {text:?}, expected \"<addr>:<port>/<proto>(/i)\", e.g. \"10.0.0.1:80/TCP\" or \"[fd00::1]:53/UDP/i\""
)]
pub struct AddressError {
    /// The text that was given.
    pub text: String,
}

impl L3n4Addr {
    /// An address in the local cluster with external scope.
    pub const fn new(ip: IpAddr, port: u16, proto: L4Proto) -> Self {
        Self::with_scope(ip, port, proto, Scope::External)
    }

    /// An address in the local cluster with the given scope.
    pub const fn with_scope(ip: IpAddr, port: u16, proto: L4Proto, scope: Scope) -> Self {
        let ip = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Self {
            ip,
            cluster_id: 0,
            port,
            proto,
            scope,
        }
    }

    /// The same address in another cluster; 0 is the local one.
    pub const fn in_cluster(mut self, cluster_id: u32) -> Self {
        self.cluster_id = cluster_id;
        self
    }

    /// The same address with another IP address.
    pub const fn with_ip(self, ip: IpAddr) -> Self {
        let mut addr = Self::with_scope(ip, self.port, self.proto, self.scope);
        addr.cluster_id = self.cluster_id;
        addr
    }

    /// The same address with another port.
    pub const fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The same address with another protocol.
    pub const fn with_proto(mut self, proto: L4Proto) -> Self {
        self.proto = proto;
        self
    }

    /// The same address in the given scope.
    pub const fn in_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// The IP address.
    pub fn ip(&self) -> IpAddr {
        match self.ipv4() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from(self.ip)),
        }
    }

    /// The IPv4 address, if it is one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        let [.., a, b, c, d] = self.ip;
        self.is_ipv4().then(|| Ipv4Addr::new(a, b, c, d))
    }

    /// The address in its 16-byte form; IPv4 addresses are mapped.
    pub const fn ip_bytes(&self) -> &[u8; 16] {
        &self.ip
    }

    /// Whether this is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        self.ip.starts_with(&V4_MAPPED)
    }

    /// Whether this is an IPv6 address.
    pub fn is_ipv6(&self) -> bool {
        !self.is_ipv4()
    }

    /// Whether the IP address is `0.0.0.0` or `::`.
    pub fn is_unspecified(&self) -> bool {
        self.ip == [0; 16] || (self.is_ipv4() && self.ip.ends_with(&[0; 4]))
    }

    /// Cluster the address belongs to; 0 is the local one.
    pub const fn cluster_id(&self) -> u32 {
        self.cluster_id
    }

    /// Port in host byte order.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Layer 4 protocol.
    pub const fn proto(&self) -> L4Proto {
        self.proto
    }

    /// Lookup scope.
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    // All but the address as a number, in the order of the fields.
    fn rest(&self) -> u64 {
        u64::from(self.cluster_id) << 32
            | u64::from(self.port) << 16
            | u64::from(self.proto as u8) << 8
            | u64::from(self.scope as u8)
    }

    /// Binary index key: address (16 bytes, IPv4 mapped), cluster id (4, big-endian), port (2, big-endian), protocol
    /// letter, scope. Tables are sorted by it.
    pub fn key(&self) -> [u8; ADDRESS_KEY_LEN] {
        let mut key = [0; ADDRESS_KEY_LEN];
        key[..16].copy_from_slice(&self.ip);
        key[16..20].copy_from_slice(&self.cluster_id.to_be_bytes());
        key[20..22].copy_from_slice(&self.port.to_be_bytes());
        key[22] = self.proto.letter();
        key[23] = self.scope as u8;
        key
    }

    /// Key, or the front part of one, for a text query. Besides a full address these are accepted: an IP address, an
    /// IP address with port, a prefix on a byte boundary (`10.0.0.0/8`).
    pub fn partial_key(text: &str) -> Result<Vec<u8>, AddressError> {
        let error = || AddressError {
            text: text.to_owned(),
        };
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::new(ip, 0, L4Proto::Tcp).key()[..16].to_vec());
        }
        if let Ok(net) = text.parse::<ipnet::IpNet>() {
            let mapped = if net.addr().is_ipv4() { V4_MAPPED.len() } else { 0 };
            if net.prefix_len() % 8 != 0 {
                return Err(error());
            }
            let len = mapped + usize::from(net.prefix_len() / 8);
            return Ok(Self::new(net.network(), 0, L4Proto::Tcp).key()[..len].to_vec());
        }
        let addr: Self = text.parse()?;
        let len = if text.contains('/') { ADDRESS_KEY_LEN } else { 22 };
        Ok(addr.key()[..len].to_vec())
    }
}

// Hashed and compared in two steps instead of five or six: tables by address are looked up all the time.
impl Hash for L3n4Addr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_ne_bytes(self.ip));
        state.write_u64(self.rest());
    }
}

impl PartialEq for L3n4Addr {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        u128::from_ne_bytes(self.ip) == u128::from_ne_bytes(other.ip) && self.rest() == other.rest()
    }
}

impl Ord for L3n4Addr {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |addr: &Self| u128::from_be_bytes(addr.ip);
        number(self)
            .cmp(&number(other))
            .then_with(|| self.rest().cmp(&other.rest()))
    }
}

impl PartialOrd for L3n4Addr {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for L3n4Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = self.ip();
        if ip.is_ipv6() {
            f.write_str("[")?;
        }
        write!(f, "{ip}")?;
        if self.cluster_id != 0 {
            write!(f, "@{}", self.cluster_id)?;
        }
        if ip.is_ipv6() {
            f.write_str("]")?;
        }
        write!(f, ":{}/{}", self.port, self.proto)?;
        match self.scope {
            Scope::External => Ok(()),
            Scope::Internal => f.write_str("/i"),
        }
    }
}

impl fmt::Debug for L3n4Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for L3n4Addr {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| AddressError {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<L3n4Addr> {
    let mut parts = text.split('/');
    let host_port = parts.next()?;
    let proto = parts.next().map_or(Ok(L4Proto::Tcp), str::parse).ok()?;
    let scope = if parts.next() == Some("i") {
        Scope::Internal
    } else {
        Scope::External
    };
    let (host, port) = host_port.rsplit_once(':')?;
    let port = port
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| port.parse().ok())??;
    let (host, is_v6) = match host.strip_prefix('[') {
        Some(rest) => (rest.strip_suffix(']')?, true),
        None => (host, false),
    };
    let (ip, cluster_id) = match host.split_once('@') {
        Some((ip, id)) => (ip, id.parse().ok()?),
        None => (host, 0),
    };
    let ip: IpAddr = ip.parse().ok()?;
    if ip.is_ipv6() != is_v6 {
        return None;
    }
    Some(L3n4Addr::with_scope(ip, port, proto, scope).in_cluster(cluster_id))
}

impl serde::Serialize for L3n4Addr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for L3n4Addr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = compact_str::CompactString::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in [
            "10.96.0.10:53/UDP",
            "0.0.0.0:30781/TCP/i",
            "[fd00::1]:443/TCP",
            "10.0.0.1@3:80/TCP",
            "[fd00::1@7]:80/SCTP/i",
            "10.0.0.1:0/ANY",
        ] {
            assert_eq!(text.parse::<L3n4Addr>().unwrap().to_string(), text);
        }
        assert_eq!(
            "10.0.0.1:80".parse::<L3n4Addr>().unwrap().to_string(),
            "10.0.0.1:80/TCP"
        );
        assert_eq!(
            "10.0.0.1:80/udp/e".parse::<L3n4Addr>().unwrap().to_string(),
            "10.0.0.1:80/UDP"
        );
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in [
            "",
            "10.0.0.1",
            "10.0.0.1:x/TCP",
            "fd00::1:80/TCP",
            "10.0.0.1:80/FOO",
            "[10.0.0.1]:80",
            "1.2.3.4:+1/TCP",
        ] {
            assert!(text.parse::<L3n4Addr>().is_err(), "{text}");
        }
    }

    #[test]
    fn order_is_that_of_the_key() {
        let sorted = [
            "[::]:80/TCP",
            "0.0.0.0:80/TCP",
            "10.0.0.1:53/TCP",
            "10.0.0.1:53/UDP",
            "10.0.0.1:53/UDP/i",
            "10.0.0.1:54/SCTP",
            "10.0.0.1@3:1/TCP",
            "[fd00::1]:1/TCP",
        ];
        let addrs: Vec<L3n4Addr> = sorted.iter().map(|text| text.parse().unwrap()).collect();

        assert!(addrs.is_sorted());
        assert!(addrs.is_sorted_by_key(L3n4Addr::key));
        assert_eq!(size_of::<L3n4Addr>(), 24);
    }

    #[test]
    fn partial_texts_are_key_prefixes() {
        let full: L3n4Addr = "10.96.0.10:53/UDP".parse().unwrap();
        for text in [
            "10.96.0.10",
            "10.96.0.10:53",
            "10.96.0.10:53/UDP",
            "10.0.0.0/8",
            "10.96.0.0/16",
        ] {
            assert!(
                full.key().starts_with(&L3n4Addr::partial_key(text).unwrap()),
                "{text}"
            );
        }
        assert!(L3n4Addr::partial_key("10.0.0.0/9").is_err());
        assert_eq!(L3n4Addr::partial_key("fd00::/16").unwrap(), [0xfd, 0]);
    }
}
