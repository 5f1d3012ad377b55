// SPDX-License-Identifier: Apache-2.0

//! Addresses of endpoints with their identities.

use std::net::IpAddr;

use compact_str::CompactString;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::address::{mask, maybe_ip, prefix_length};
use crate::error::ValueError;
use crate::go_json;
use crate::remote::{RemoteInfo, check_name};

const HOST: u32 = 1;
const REMOTE_NODE: u32 = 6;

/// An address or a prefix with its identity, `cilium/state/ip/v1/default/<address>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct IpIdentityPair {
    /// The address; always there in values that were read.
    #[serde(rename = "IP", with = "maybe_ip")]
    pub ip: Option<IpAddr>,
    /// The mask of a prefix, in base64; absent for a single address. See [`prefix`](Self::prefix).
    pub mask: Option<CompactString>,
    /// The node of the endpoint: where tunnels end.
    #[serde(rename = "HostIP", with = "maybe_ip")]
    pub host_ip: Option<IpAddr>,
    /// Identity as it is written. See [`identity`](Self::identity).
    #[serde(rename = "ID")]
    pub id: u32,
    /// Index of the encryption key; 0 for none.
    pub key: u8,
    /// Names the endpoint, in values of agents.
    pub metadata: CompactString,
    #[serde(rename = "K8sNamespace", skip_serializing_if = "CompactString::is_empty")]
    pub k8s_namespace: CompactString,
    #[serde(rename = "K8sPodName", skip_serializing_if = "CompactString::is_empty")]
    pub k8s_pod_name: CompactString,
    #[serde(rename = "K8sServiceAccount", skip_serializing_if = "CompactString::is_empty")]
    pub k8s_service_account: CompactString,
    /// Ports with names, sorted by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named_ports: Vec<NamedPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NamedPort {
    pub name: CompactString,
    pub port: u16,
    pub protocol: CompactString,
}

impl IpIdentityPair {
    /// Reads the value of a remote cluster. `name` is the key below the prefix: `<address>` or `<address>/<length>`.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is invalid or not the cluster's.
    pub fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
        let pair: Self = go_json::from_slice(value).map_err(ValueError::Json)?;
        check_name(&pair.key_name()?, name)?;
        remote.check_usable_identity(pair.id)?;
        Ok(pair)
    }

    pub fn encode(&self) -> Result<Vec<u8>, ValueError> {
        go_json::to_vec(self).map_err(ValueError::Encode)
    }

    /// The mask of a prefix as it is written.
    pub fn mask_of(net: IpNet) -> CompactString {
        mask(net).into()
    }

    /// What has the identity: a whole prefix, or a single address. These differ even if the prefix is of full length.
    pub fn prefix(&self) -> Result<(IpNet, bool), ValueError> {
        let ip = self.ip.ok_or(ValueError::Empty { field: "IP" })?;
        let Some(mask) = &self.mask else {
            return Ok((ip.into(), false));
        };
        let invalid = || ValueError::Address {
            field: "Mask",
            value: mask.to_string(),
        };
        let length = prefix_length(mask, ip.is_ipv4()).map_err(|_| invalid())?;
        Ok((IpNet::new(ip, length).map_err(|_| invalid())?, true))
    }

    /// The identity for this node: the host of there is a remote node here.
    pub fn identity(&self) -> u32 {
        if self.id == HOST { REMOTE_NODE } else { self.id }
    }

    /// The key below the cluster's prefix.
    pub fn key_name(&self) -> Result<String, ValueError> {
        let (net, is_prefix) = self.prefix()?;
        Ok(if is_prefix {
            net.to_string()
        } else {
            net.addr().to_string()
        })
    }
}
