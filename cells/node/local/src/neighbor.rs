// SPDX-License-Identifier: Apache-2.0

//! Row of table `neighbors`: a neighbour as the kernel has it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statedb::row::{self, BoxError};
use statedb::{Index, Key, KeyBuf, KeyWriter, Row, TextKeyError};

use crate::device::HardwareAddr;

/// Names of the attributes of neighbours (`NDA_*`), in the order of their numbers: Cilium prints types with them.
const TYPES: [&str; 16] = [
    "UNSPEC",
    "DST",
    "LLADDR",
    "CACHEINFO",
    "PROBES",
    "VLAN",
    "PORT",
    "VNI",
    "IFINDEX",
    "MASTER",
    "LINK_NETNSID",
    "SRC_VNI",
    "PROTOCOL",
    "NH_ID",
    "FDB_EXT_ATTRS",
    "FLAGS_EXT",
];

/// Names of the states (`NUD_*`), by bit.
const STATES: [&str; 8] = [
    "INCOMPLETE",
    "REACHABLE",
    "STALE",
    "DELAY",
    "PROBE",
    "FAILED",
    "NOARP",
    "PERMANENT",
];

/// Names of the flags (`NTF_*`), by bit.
const FLAGS: [&str; 8] = [
    "USE",
    "SELF",
    "MASTER",
    "PROXY",
    "EXT_LEARNED",
    "OFFLOADED",
    "STICKY",
    "ROUTER",
];

/// Names of the extended flags (`NTF_EXT_*`), by bit.
const EXT_FLAGS: [&str; 1] = ["EXT_MANAGED"];

/// A neighbour as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all(serialize = "PascalCase", deserialize = "lowercase"))]
pub struct Neighbor {
    /// Index of the interface.
    #[serde(rename(serialize = "LinkIndex", deserialize = "linkindex"))]
    pub link_index: u32,
    /// Address.
    #[serde(rename(serialize = "IPAddr", deserialize = "ipaddr"))]
    pub ip: IpAddr,
    /// Hardware address.
    #[serde(rename(serialize = "HardwareAddr", deserialize = "hardwareaddr"))]
    pub hardware_addr: HardwareAddr,
    /// Type, as of routes.
    #[serde(rename(serialize = "Type", deserialize = "type"))]
    pub kind: u8,
    /// State (`NUD_*`).
    pub state: u16,
    /// Flags (`NTF_*`).
    pub flags: u8,
    /// Extended flags (`NTF_EXT_*`).
    #[serde(rename(serialize = "FlagsExt", deserialize = "flagsext"))]
    pub ext_flags: u32,
}

impl Default for Neighbor {
    fn default() -> Self {
        Self {
            link_index: 0,
            ip: IpAddr::from([0; 4]),
            hardware_addr: HardwareAddr::default(),
            kind: 0,
            state: 0,
            flags: 0,
            ext_flags: 0,
        }
    }
}

/// Key of a neighbour: interface and address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighborKey {
    /// Index of the interface.
    pub link_index: u32,
    /// Address.
    pub ip: IpAddr,
}

impl Key for NeighborKey {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        (self.link_index, self.ip).encode(out);
    }

    /// `<link>:<address>`, or `<link>`.
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let invalid = || TextKeyError::Invalid(format!("`{text}` is not <link>:<address>"));
        let mut out = KeyWriter::new();
        let (link, ip) = text.split_once(':').unwrap_or((text, ""));
        if !link.is_empty() {
            link.parse::<u32>().map_err(|_| invalid())?.encode(&mut out);
        }
        if !ip.is_empty() {
            ip.parse::<IpAddr>().map_err(|_| invalid())?.encode(&mut out);
        }
        Ok(out.finish())
    }
}

impl Neighbor {
    /// Primary index.
    pub const BY_ID: Index<Self, NeighborKey> = Index::new("ID", |neighbor, keys| keys.add(&neighbor.key()));
    /// By interface.
    pub const BY_LINK: Index<Self, u32> =
        Index::new("LinkIndex", |neighbor, keys| keys.add(&neighbor.link_index));
    /// By address.
    pub const BY_ADDRESS: Index<Self, IpAddr> = Index::new("IPAddr", |neighbor, keys| keys.add(&neighbor.ip));

    /// `NUD_STALE`.
    pub const STALE: u16 = 0x04;
    /// `NTF_EXT_LEARNED`.
    pub const EXT_LEARNED: u8 = 0x10;
    /// `NTF_EXT_MANAGED`.
    pub const EXT_MANAGED: u32 = 0x1;
    /// `NUD_NOARP`.
    pub(crate) const NOARP: u16 = 0x40;

    /// Identity of a neighbour.
    pub fn key(&self) -> NeighborKey {
        NeighborKey {
            link_index: self.link_index,
            ip: self.ip,
        }
    }
}

/// Names of the bits that are set, `NONE` if none is.
fn names(names: &[&str], bits: u32) -> String {
    let set: Vec<&str> = names
        .iter()
        .enumerate()
        .filter(|(bit, _)| bits & (1 << bit) != 0)
        .map(|(_, name)| *name)
        .collect();
    match set.is_empty() {
        true => "NONE".to_owned(),
        false => set.join("|"),
    }
}

impl Row for Neighbor {
    fn header() -> &'static [&'static str] {
        &[
            "LinkIndex",
            "IPAddr",
            "HardwareAddr",
            "Type",
            "State",
            "Flags",
            "FlagsExt",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let kind = TYPES.get(usize::from(self.kind));
        vec![
            self.link_index.to_string(),
            self.ip.to_string(),
            self.hardware_addr.to_string(),
            kind.map_or_else(|| self.kind.to_string(), |kind| (*kind).to_owned()),
            names(&STATES, self.state.into()),
            names(&FLAGS, self.flags.into()),
            names(&EXT_FLAGS, self.ext_flags),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }

    fn type_name() -> String {
        "*tables.Neighbor".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_names_of_the_kernels_bits() {
        let neighbor = Neighbor {
            link_index: 7,
            ip: "192.0.2.9".parse().unwrap(),
            hardware_addr: HardwareAddr([2, 0, 0, 0, 0, 1].into()),
            kind: 1,
            state: Neighbor::STALE | 2,
            flags: Neighbor::EXT_LEARNED,
            ext_flags: Neighbor::EXT_MANAGED,
        };

        assert_eq!(
            neighbor.cells(),
            [
                "7",
                "192.0.2.9",
                "02:00:00:00:00:01",
                "DST",
                "REACHABLE|STALE",
                "EXT_LEARNED",
                "EXT_MANAGED"
            ]
        );
        assert_eq!(
            Neighbor::default().cells()[3..],
            ["UNSPEC", "NONE", "NONE", "NONE"]
        );
        assert_eq!(
            NeighborKey::from_text("7:192.0.2.9"),
            Ok(KeyBuf::of(&neighbor.key()))
        );
    }
}
