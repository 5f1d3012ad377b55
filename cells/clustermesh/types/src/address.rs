// SPDX-License-Identifier: Apache-2.0

//! Addresses and masks in Go's forms.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::{IpNet, ip_mask_to_prefix};
use serde::{Deserialize, Serialize};

/// Reads an address; IPv4 addresses in IPv6 form are IPv4.
fn parse(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| format!("`{text}` is not an IP address"))?;
    Ok(ip.to_canonical())
}

/// Length of the prefix of a mask: base64 of its bytes.
pub(crate) fn prefix_length(mask: &str, is_ipv4: bool) -> Result<u8, String> {
    let invalid = || format!("`{mask}` is not a mask");
    let bytes = STANDARD.decode(mask).map_err(|_| invalid())?;
    let mask: IpAddr = match (bytes.as_slice(), is_ipv4) {
        (&[a, b, c, d], true) => [a, b, c, d].into(),
        // The IPv6 form of an IPv4 mask.
        (
            &[
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                a,
                b,
                c,
                d,
            ],
            true,
        ) => [a, b, c, d].into(),
        (bytes, false) => <[u8; 16]>::try_from(bytes).map_err(|_| invalid())?.into(),
        _ => return Err(invalid()),
    };
    ip_mask_to_prefix(mask).map_err(|_| invalid())
}

/// The mask of a prefix: base64 of its bytes.
pub(crate) fn mask(net: IpNet) -> String {
    match net.netmask() {
        IpAddr::V4(mask) => STANDARD.encode(mask.octets()),
        IpAddr::V6(mask) => STANDARD.encode(mask.octets()),
    }
}

/// Addresses that may be missing: the empty text.
pub(crate) mod maybe_ip {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(ip: &Option<IpAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        match ip {
            Some(ip) => serializer.collect_str(ip),
            None => serializer.serialize_str(""),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        parse(&text).map(Some).map_err(D::Error::custom)
    }
}

/// A prefix as it is written: `{"IP":"10.4.1.0","Mask":"////AA=="}`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Cidr {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "Mask")]
    mask: String,
}

impl Cidr {
    /// Bits of the host are kept.
    fn parse(&self) -> Result<IpNet, String> {
        let ip = parse(&self.ip)?;
        let length = prefix_length(&self.mask, ip.is_ipv4())?;
        IpNet::new(ip, length).map_err(|_| format!("`{}` is not a mask of `{ip}`", self.mask))
    }
}

impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        Self {
            ip: net.addr().to_string(),
            mask: mask(net),
        }
    }
}

/// Prefixes that may be missing: `null`.
pub(crate) mod cidr {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(net: &Option<IpNet>, serializer: S) -> Result<S::Ok, S::Error> {
        net.map(Cidr::from).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNet>, D::Error> {
        let cidr = Option::<Cidr>::deserialize(deserializer)?;
        cidr.map(|cidr| cidr.parse().map_err(D::Error::custom))
            .transpose()
    }
}

/// Lists of prefixes that may be missing: `null`.
pub(crate) mod cidrs {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        nets: &Option<Vec<IpNet>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let cidrs = nets
            .as_ref()
            .map(|nets| nets.iter().copied().map(Cidr::from).collect::<Vec<_>>());
        cidrs.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<IpNet>>, D::Error> {
        // An entry that is `null` names no prefix.
        let cidrs = Option::<Vec<Option<Cidr>>>::deserialize(deserializer)?;
        let parse = |cidrs: Vec<Option<Cidr>>| {
            let cidrs = cidrs.into_iter().flatten();
            cidrs.map(|cidr| cidr.parse().map_err(D::Error::custom)).collect()
        };
        cidrs.map(parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_fit_their_address() {
        assert_eq!(prefix_length("////AA==", true), Ok(24));
        assert_eq!(prefix_length("AAAAAA==", true), Ok(0));
        assert_eq!(prefix_length("/////////////////////w==", false), Ok(128));
        assert_eq!(prefix_length("////////////////////AA==", true), Ok(24));
        for (mask, is_ipv4) in [
            ("////AA==", false),
            ("/wD/AA==", true),
            ("", true),
            ("//8=", true),
            ("x", true),
            ("AAAAAAAAAAAAAAAA////AA==", true),
        ] {
            assert_eq!(
                prefix_length(mask, is_ipv4),
                Err(format!("`{mask}` is not a mask"))
            );
        }
    }
}
