// SPDX-License-Identifier: Apache-2.0

//! What is claimed: an address or a network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use skep_bpf_maps::node::IpcacheKey;
use statedb::{Key, KeyBuf, KeyWriter, TextKeyError};

/// Whether a prefix is one address or a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrefixKind {
    /// An address: of an endpoint, a node, a listener.
    Address,
    /// A network, also if it has one address only.
    Cidr,
}

/// An address or a network, in a cluster where addresses of several overlap.
///
/// The text of an address is `10.0.1.23`, with a cluster `10.0.1.23@7`; that of a network `10.0.0.0/8`.
///
/// ```
/// use skep_ipcache::Prefix;
///
/// let (address, cidr): (Prefix, Prefix) = ("10.0.1.23".parse()?, "10.0.1.23/32".parse()?);
/// assert_ne!(address, cidr);
/// assert_eq!(address.map_key(), cidr.map_key());
/// # Ok::<(), ipnet::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    net: IpNet,
    kind: PrefixKind,
    cluster_id: u16,
}

impl Prefix {
    pub fn address(address: IpAddr) -> Self {
        Self {
            net: address.into(),
            kind: PrefixKind::Address,
            cluster_id: 0,
        }
    }

    /// A network; bits beyond its length are cleared.
    pub fn cidr(net: IpNet) -> Self {
        Self {
            net: net.trunc(),
            kind: PrefixKind::Cidr,
            cluster_id: 0,
        }
    }

    /// The same in another cluster; 0 unless addresses of clusters overlap.
    #[must_use]
    pub fn in_cluster(self, cluster_id: u16) -> Self {
        Self { cluster_id, ..self }
    }

    /// The network; of an address, the one that has only this address.
    pub const fn net(&self) -> IpNet {
        self.net
    }

    /// Whether it is an address or a network.
    pub const fn kind(&self) -> PrefixKind {
        self.kind
    }

    /// The cluster whose address it is; 0 unless addresses of clusters overlap.
    pub const fn cluster_id(&self) -> u16 {
        self.cluster_id
    }

    /// The other prefix with the same entry in the map: the network of an address, the address of a network that has only
    /// one.
    pub fn twin(&self) -> Option<Self> {
        let kind = match self.kind {
            PrefixKind::Address => PrefixKind::Cidr,
            PrefixKind::Cidr => PrefixKind::Address,
        };
        (self.net.prefix_len() == self.net.max_prefix_len()).then_some(Self { kind, ..*self })
    }

    /// The first of all prefixes within a network, in the order of the table.
    pub(crate) fn first_within(net: IpNet) -> Self {
        Self {
            kind: PrefixKind::Address,
            ..Self::cidr(net)
        }
    }

    /// Networks around it, the longest first: of an address also the one that has only this address.
    pub(crate) fn networks_around(self) -> impl Iterator<Item = Self> {
        let longest = match self.kind {
            PrefixKind::Address => self.net.prefix_len() + 1,
            PrefixKind::Cidr => self.net.prefix_len(),
        };
        let nets = (0..longest)
            .rev()
            .filter_map(move |bits| IpNet::new(self.net.addr(), bits).ok());
        nets.map(move |net| Self::cidr(net).in_cluster(self.cluster_id))
    }

    /// Key of its entry in the map.
    pub fn map_key(&self) -> IpcacheKey {
        IpcacheKey {
            cluster_id: self.cluster_id,
            ..IpcacheKey::prefix(self.net.addr(), self.net.prefix_len())
        }
    }

    /// The network that an entry of the map is about; `None` for keys that no program looks up.
    pub fn of_map_key(key: &IpcacheKey) -> Option<Self> {
        let (address, bits) = key.address_and_bits()?;
        let net = IpNet::new(address, bits).ok()?;
        Some(Self::cidr(net).in_cluster(key.cluster_id))
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self::address(address)
    }
}

impl From<IpNet> for Prefix {
    fn from(net: IpNet) -> Self {
        Self::cidr(net)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PrefixKind::Address => write!(f, "{}", self.net.addr())?,
            PrefixKind::Cidr => write!(f, "{}", self.net)?,
        }
        match self.cluster_id {
            0 => Ok(()),
            cluster => write!(f, "@{cluster}"),
        }
    }
}

impl FromStr for Prefix {
    type Err = ipnet::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (prefix, cluster) = match text.rsplit_once('@') {
            Some((prefix, cluster)) => match cluster.parse() {
                Ok(cluster) => (prefix, cluster),
                // The whole is no address either: the error of the parser.
                Err(_) => (text, 0),
            },
            None => (text, 0),
        };
        let parsed = match prefix.parse::<IpAddr>() {
            Ok(address) => Self::address(address),
            Err(_) => Self::cidr(prefix.parse()?),
        };
        Ok(parsed.in_cluster(cluster))
    }
}

/// By network, an address before the network that has only this address.
impl Key for Prefix {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        self.net.encode(out);
        out.bytes(&[self.kind as u8]);
        out.bytes(&self.cluster_id.to_be_bytes());
    }

    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        match text.trim().parse::<Self>() {
            Ok(prefix) => Ok(KeyBuf::of(&prefix)),
            Err(error) => Err(TextKeyError::Invalid(format!("cannot parse `{text}`: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn texts_survive_a_round_trip() {
        for text in [
            "10.0.1.23",
            "10.0.1.23/32",
            "10.0.0.0/8",
            "fd00::1",
            "fd00::/64",
            "10.0.1.23@7",
            "0.0.0.0/0@511",
        ] {
            assert_eq!(prefix(text).to_string(), text);
            assert!(Prefix::from_text(text).is_ok());
        }
        assert_eq!(prefix("10.1.2.3/8").to_string(), "10.0.0.0/8");
        for text in [
            "",
            "10.0.1",
            "10.0.1.23@",
            "10.0.1.23@x",
            "10.0.0.0/33",
            "10.0.1.23@70000",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        let error = Prefix::from_text("x").unwrap_err().to_string();
        assert!(error.contains("cannot parse `x`"), "{error}");
    }

    #[test]
    fn address_and_its_network_are_twins_with_one_entry() {
        let (address, cidr) = (prefix("10.0.1.23@3"), prefix("10.0.1.23/32@3"));

        assert_eq!((address.twin(), cidr.twin()), (Some(cidr), Some(address)));
        assert_eq!(address.map_key(), cidr.map_key());
        assert_eq!(Prefix::of_map_key(&address.map_key()), Some(cidr));
        assert_eq!(address.map_key().cluster_id, 3);
        assert_eq!(prefix("10.0.1.0/24").twin(), None);
        assert_eq!(
            Prefix::from("10.0.0.0/8".parse::<IpNet>().unwrap()).kind(),
            PrefixKind::Cidr
        );
        assert_eq!(
            Prefix::from("10.0.0.1".parse::<IpAddr>().unwrap()).kind(),
            PrefixKind::Address
        );
    }

    #[test]
    fn keys_sort_addresses_before_their_networks() {
        let mut keys = ["10.0.1.23/32", "10.0.1.0/24", "10.0.1.23", "10.0.1.23@1"]
            .map(|text| (KeyBuf::of(&prefix(text)), text));

        keys.sort();

        assert_eq!(
            keys.map(|(_, text)| text),
            ["10.0.1.0/24", "10.0.1.23", "10.0.1.23@1", "10.0.1.23/32"]
        );
    }
}
