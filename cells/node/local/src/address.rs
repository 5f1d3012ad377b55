// SPDX-License-Identifier: Apache-2.0

//! Row of table `node-addresses`: an address of the node and what it is used for.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statedb::row::{self, BoxError};
use statedb::{Index, Key, KeyBuf, KeyWriter, Row, TextKeyError};

/// Device name of addresses that stand for the node as a whole.
pub const WILDCARD_DEVICE: &str = "*";

/// An address of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase", deserialize = "lowercase"))]
pub struct NodeAddress {
    /// The address.
    pub addr: IpAddr,
    /// Whether node ports are open on it.
    #[serde(rename(serialize = "NodePort", deserialize = "nodeport"), default)]
    pub node_port: bool,
    /// Whether it is the preferred source address of its family on the device.
    #[serde(default)]
    pub primary: bool,
    /// Name of the device; [`WILDCARD_DEVICE`] for the node's fallback addresses.
    #[serde(rename(serialize = "DeviceName", deserialize = "devicename"), default)]
    pub device_name: String,
}

/// Primary key of [`NodeAddress`]: `<ip>/<device>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddressKey {
    /// The address.
    pub addr: IpAddr,
    /// Name of the device.
    pub device_name: String,
}

impl Key for NodeAddressKey {
    fn encode(&self, out: &mut KeyWriter) {
        self.addr.encode(out);
        out.bytes(self.device_name.as_bytes());
    }

    /// `<ip>/<device>`; the device may be left out or incomplete in a prefix search.
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let (addr, device_name) = text.trim().split_once('/').unwrap_or((text.trim(), ""));
        let addr = addr
            .parse()
            .map_err(|_| TextKeyError::Invalid(format!("`{addr}` is not an IP address")))?;
        Ok(KeyBuf::of(&Self {
            addr,
            device_name: device_name.to_owned(),
        }))
    }
}

impl NodeAddress {
    /// Primary index: by address and device.
    pub const BY_ID: Index<Self, NodeAddressKey> = Index::new("id", |row, keys| {
        keys.add(&NodeAddressKey {
            addr: row.addr,
            device_name: row.device_name.clone(),
        });
    });
    /// By device name.
    pub const BY_DEVICE: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.device_name));
    /// By whether node ports are open.
    pub const BY_NODE_PORT: Index<Self, bool> = Index::new("node-port", |row, keys| keys.add(&row.node_port));
}

impl Row for NodeAddress {
    fn header() -> &'static [&'static str] {
        &["Address", "NodePort", "Primary", "DeviceName"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.addr.to_string(),
            self.node_port.to_string(),
            self.primary.to_string(),
            self.device_name.clone(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }

    fn type_name() -> String {
        "tables.NodeAddress".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_of_a_script_makes_a_row() {
        let row =
            NodeAddress::from_yaml("addr: 10.20.30.40\nnodeport: true\nprimary: true\ndevicename: eth7\n")
                .unwrap();

        assert_eq!(row.cells(), ["10.20.30.40", "true", "true", "eth7"]);
        assert_eq!(
            NodeAddress::from_yaml(&row.to_yaml().unwrap().to_string()).unwrap(),
            row
        );
        assert_eq!(
            NodeAddress::header(),
            ["Address", "NodePort", "Primary", "DeviceName"]
        );
    }

    #[test]
    fn key_has_a_text_form() {
        let key = NodeAddressKey {
            addr: "10.20.30.40".parse().unwrap(),
            device_name: "eth7".into(),
        };

        assert_eq!(
            NodeAddressKey::from_text("10.20.30.40/eth7").unwrap(),
            KeyBuf::of(&key)
        );
        assert!(NodeAddressKey::from_text("x/eth7").is_err());
    }
}
