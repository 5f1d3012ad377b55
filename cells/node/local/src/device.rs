// SPDX-License-Identifier: Apache-2.0

//! Row of table `devices`: a network interface of the node.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use statedb::row::{self, BoxError};
use statedb::{Index, Row};

/// Flags of an interface, with the bits that Go programs use in YAML and JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceFlags(pub u32);

impl DeviceFlags {
    /// Administratively up.
    pub const UP: u32 = 1;
    /// Can broadcast.
    pub const BROADCAST: u32 = 2;
    /// Loopback.
    pub const LOOPBACK: u32 = 4;
    /// Has one peer.
    pub const POINT_TO_POINT: u32 = 8;
    /// Can multicast.
    pub const MULTICAST: u32 = 16;
    /// Can pass packets: up, with a carrier.
    pub const RUNNING: u32 = 32;

    /// Bits of Linux (`IFF_*`) and of these flags.
    const LINUX: [(u32, u32); 6] = [
        (0x1, Self::UP),
        (0x2, Self::BROADCAST),
        (0x8, Self::LOOPBACK),
        (0x10, Self::POINT_TO_POINT),
        (0x40, Self::RUNNING),
        (0x1000, Self::MULTICAST),
    ];

    /// From Linux' flags.
    pub fn from_linux(raw: u32) -> Self {
        Self(
            Self::LINUX
                .iter()
                .filter(|(linux, _)| raw & linux != 0)
                .map(|(_, flag)| flag)
                .sum(),
        )
    }

    /// Whether a flag is set.
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// `up|broadcast|multicast`, `0` for none.
impl fmt::Display for DeviceFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            "up",
            "broadcast",
            "loopback",
            "pointtopoint",
            "multicast",
            "running",
        ];
        let set: Vec<&str> = names
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.has(1 << bit))
            .map(|(_, name)| *name)
            .collect();
        formatter.write_str(if set.is_empty() { "0" } else { "" })?;
        formatter.write_str(&set.join("|"))
    }
}

/// Hardware address; `aa:bb:cc:dd:ee:ff` or empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HardwareAddr(pub Box<[u8]>);

impl fmt::Display for HardwareAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let separator = if index > 0 { ":" } else { "" };
            write!(formatter, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for HardwareAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HardwareAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Bytes(Vec<u8>),
            Null(()),
        }
        let bytes = match Form::deserialize(deserializer)? {
            Form::Null(()) => Vec::new(),
            Form::Bytes(bytes) => bytes,
            Form::Text(text) if text.is_empty() => Vec::new(),
            Form::Text(text) => text
                .split(':')
                .map(|byte| u8::from_str_radix(byte, 16))
                .collect::<Result<_, _>>()
                .map_err(|_| serde::de::Error::custom(format!("`{text}` is not a hardware address")))?,
        };
        Ok(Self(bytes.into_boxed_slice()))
    }
}

/// What an address may be used for (RFC 4862), in order of preference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressState {
    /// For everything.
    #[default]
    Preferred,
    /// Accepts, and is no source of new connections while another address can be.
    Deprecated,
    /// Not the node's yet: duplicate address detection is not complete.
    Tentative,
    /// Not the node's: duplicate address detection has found that another machine has it.
    Duplicate,
}

impl AddressState {
    /// Whether the node accepts packets to the address.
    pub fn accepts(self) -> bool {
        matches!(self, Self::Preferred | Self::Deprecated)
    }

    fn is_preferred(&self) -> bool {
        *self == Self::Preferred
    }
}

impl fmt::Display for AddressState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Preferred => "preferred",
            Self::Deprecated => "deprecated",
            Self::Tentative => "tentative",
            Self::Duplicate => "duplicate",
        })
    }
}

/// An address of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase", deserialize = "lowercase"))]
pub struct DeviceAddress {
    /// The address.
    pub addr: IpAddr,
    /// Whether the kernel prefers another address of the same network as source.
    #[serde(default)]
    pub secondary: bool,
    /// Scope: 0 universe, 200 site, 253 link, 254 host (`RT_SCOPE_*`).
    #[serde(default)]
    pub scope: u8,
    /// What it may be used for. No field of Cilium's.
    #[serde(default, skip_serializing_if = "AddressState::is_preferred")]
    pub state: AddressState,
}

impl DeviceAddress {
    /// A preferred address of scope universe.
    pub fn new(addr: IpAddr) -> Self {
        Self {
            addr,
            secondary: false,
            scope: 0,
            state: AddressState::Preferred,
        }
    }
}

/// The address, with its state if that is not preferred.
impl fmt::Display for DeviceAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            AddressState::Preferred => write!(formatter, "{}", self.addr),
            state => write!(formatter, "{} ({state})", self.addr),
        }
    }
}

/// A VLAN, carried by a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vlan {
    /// Index of the device that carries it.
    pub device: u32,
    /// VLAN id.
    pub id: u16,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all(serialize = "PascalCase", deserialize = "lowercase"))]
pub struct Device {
    /// Index in the kernel.
    pub index: u32,
    /// MTU, in bytes.
    #[serde(rename(serialize = "MTU", deserialize = "mtu"))]
    pub mtu: u32,
    /// Name.
    pub name: String,
    /// Alternative names.
    #[serde(rename(serialize = "AltNames", deserialize = "altnames"))]
    pub alt_names: Vec<String>,
    /// Hardware address.
    #[serde(rename(serialize = "HardwareAddr", deserialize = "hardwareaddr"))]
    pub hardware_addr: HardwareAddr,
    /// Flags.
    pub flags: DeviceFlags,
    /// Addresses, primary ones first.
    pub addrs: Vec<DeviceAddress>,
    /// Linux' flags (`IFF_*`).
    #[serde(rename(serialize = "RawFlags", deserialize = "rawflags"))]
    pub raw_flags: u32,
    /// Kind of interface, such as `veth`; `device` for a physical one.
    #[serde(rename(serialize = "Type", deserialize = "type"))]
    pub kind: String,
    /// Index of the bridge, bond or VRF that the device belongs to; 0 for none.
    #[serde(rename(serialize = "MasterIndex", deserialize = "masterindex"))]
    pub master_index: u32,
    /// Whether it can carry packets: `up`, `down`, `unknown`, `lower-layer-down` ….
    #[serde(rename(serialize = "OperStatus", deserialize = "operstatus"))]
    pub oper_status: String,
    /// Whether traffic of the cluster and from outside uses this device.
    pub selected: bool,
    /// Why it is not selected.
    #[serde(rename(serialize = "NotSelectedReason", deserialize = "notselectedreason"))]
    pub not_selected_reason: String,
    /// The VLAN that it is the interface of. No column of Cilium's.
    #[serde(skip)]
    pub vlan: Option<Vlan>,
}

impl Device {
    /// Primary index: by the kernel's index.
    pub const BY_INDEX: Index<Self, u32> = Index::new("id", |device, keys| keys.add(&device.index));
    /// By name, alternative names included.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |device, keys| {
        keys.add(&device.name);
        device.alt_names.iter().for_each(|name| keys.add(name));
    });
    /// By whether it is selected.
    pub const BY_SELECTED: Index<Self, bool> =
        Index::new("selected", |device, keys| keys.add(&device.selected));

    /// Whether it is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags.has(DeviceFlags::UP)
    }

    /// Whether its addresses are reached through other devices: loopback and dummy devices.
    pub fn is_reached_through_others(&self) -> bool {
        self.flags.has(DeviceFlags::LOOPBACK) || self.kind == "dummy"
    }

    /// Whether it has an address.
    pub fn has_addr(&self, addr: IpAddr) -> bool {
        self.addrs.iter().any(|own| own.addr == addr)
    }
}

impl Row for Device {
    fn header() -> &'static [&'static str] {
        &[
            "Name",
            "Index",
            "Selected",
            "Type",
            "MTU",
            "HWAddr",
            "Flags",
            "Addresses",
            "OperStatus",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let name = match self.alt_names.is_empty() {
            true => self.name.clone(),
            false => format!("{} ({})", self.name, self.alt_names.join(", ")),
        };
        let addrs: Vec<String> = self.addrs.iter().map(ToString::to_string).collect();
        vec![
            name,
            self.index.to_string(),
            self.selected.to_string(),
            self.kind.clone(),
            self.mtu.to_string(),
            self.hardware_addr.to_string(),
            self.flags.to_string(),
            addrs.join(", "),
            self.oper_status.clone(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }

    fn type_name() -> String {
        "*tables.Device".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device {
            index: 7,
            name: "eth7".into(),
            alt_names: vec!["enp0s7".into()],
            hardware_addr: HardwareAddr([2, 0, 0, 0, 0xab, 1].into()),
            flags: DeviceFlags::from_linux(0x1043),
            mtu: 1500,
            kind: "veth".into(),
            oper_status: "lower-layer-down".into(),
            addrs: vec![DeviceAddress::new("192.0.2.7".parse().unwrap())],
            ..Device::default()
        }
    }

    #[test]
    fn row_shows_what_scripts_compare() {
        assert_eq!(
            device().cells(),
            [
                "eth7 (enp0s7)",
                "7",
                "false",
                "veth",
                "1500",
                "02:00:00:00:ab:01",
                "up|broadcast|multicast|running",
                "192.0.2.7",
                "lower-layer-down"
            ]
        );
        assert_eq!(DeviceFlags(0).to_string(), "0");
    }

    #[test]
    fn yaml_of_a_script_makes_a_device() {
        let text = "index: 7\nname: eth7\naddrs:\n  - addr: 192.0.2.7\n  - addr: fd00::7\n    state: deprecated\ntype: veth\nflags: 1\nselected: true\noperstatus: up\n";

        let device = Device::from_yaml(text).unwrap();

        assert!(device.is_up() && device.selected);
        assert!(device.has_addr("192.0.2.7".parse().unwrap()));
        assert_eq!(
            (device.kind.as_str(), device.oper_status.as_str()),
            ("veth", "up")
        );
        assert_eq!(device.cells()[7], "192.0.2.7, fd00::7 (deprecated)");
    }

    #[test]
    fn yaml_survives_a_round_trip() {
        let yaml = device().to_yaml().unwrap().to_string();

        assert_eq!(Device::from_yaml(&yaml).unwrap(), device());
    }
}
