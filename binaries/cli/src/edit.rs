// SPDX-License-Identifier: Apache-2.0

//! Commands that change pinned maps, for debugging. Nothing is changed in the agent, which may write the same entries again.

use std::{error::Error, net::IpAddr};

use clap::Args;
use skep_bpf_maps::{
    endpoint::{LXC, LxcKey, LxcValue},
    event::METRICS,
    node::{IPCACHE, IpcacheKey, IpcacheValue, ipcache_flags},
    policy::{POLICY, POLICY_STATIC_BITS, PolicyEntry, PolicyKey, policy_pin},
};
use skep_bpf_sys::{MapError, RawMap as _};
use skep_policy_model::Protocol;

use crate::{
    bpf_policy::endpoint,
    failure::{Failure, fatal, usage},
    maps::{MapsError, Pinned},
};

/// What `skep bpf ipcache update` writes.
#[derive(Debug, Args)]
pub(crate) struct IpcacheUpdate {
    /// The address or network.
    #[arg(value_name = "PREFIX", value_parser = prefix)]
    prefix: Prefix,
    /// Identity.
    #[arg(long)]
    identity: u32,
    /// Tunnel endpoint.
    #[arg(long, value_name = "ADDRESS")]
    tunnelendpoint: Option<IpAddr>,
    /// Index of the encryption key; 0: no encryption.
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    encryptkey: u8,
    /// Do not encapsulate packets.
    #[arg(long)]
    skiptunnel: bool,
    /// Cluster id of an overlapping address.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    clusterid: u16,
}

/// What `skep bpf ipcache delete` deletes.
#[derive(Debug, Args)]
pub(crate) struct IpcacheDelete {
    /// The address or network.
    #[arg(value_name = "PREFIX", value_parser = prefix)]
    prefix: Prefix,
    /// Cluster id of an overlapping address.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    clusterid: u16,
}

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    pub(crate) fn key(self, cluster_id: u16) -> IpcacheKey {
        IpcacheKey {
            cluster_id,
            ..IpcacheKey::prefix(self.address, self.bits)
        }
    }
}

/// Reads an address or a network. Bits of the address behind the prefix are cleared: the kernel keeps keys as they are.
pub(crate) fn prefix(text: &str) -> Result<Prefix, String> {
    let wrong = || "neither an address nor a network such as 10.0.0.0/8".to_owned();
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), |bits| {
        bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)
    })?;
    let address = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    };
    Ok(Prefix { address, bits })
}

/// An entry of the policy of an endpoint.
#[derive(Debug, Args)]
pub(crate) struct PolicyEdit {
    /// Id of the endpoint, or name or path of its map.
    #[arg(value_parser = endpoint)]
    endpoint: Option<u16>,
    /// `ingress` or `egress`.
    direction: Option<String>,
    /// Identity of the other side; 0 for any.
    identity: Option<u32>,
    /// Port and protocol, such as 80/tcp; without one any traffic.
    #[arg(value_name = "PORT/PROTOCOL")]
    port: Option<String>,
}

impl PolicyEdit {
    /// The map, and the keys of the entries: one for each protocol.
    fn keys(&self, command: &'static str) -> Result<(u16, Vec<PolicyKey>), Failure> {
        const REQUIRED: &str = "<endpoint id>, <traffic-direction>, and <identity> required";
        let (Some(endpoint), Some(direction), Some(identity)) =
            (self.endpoint, &self.direction, self.identity)
        else {
            return Err(usage(command, REQUIRED));
        };
        let direction = match direction.to_ascii_lowercase().as_str() {
            "ingress" => 0,
            "egress" => 1,
            _ => {
                let text =
                    format!("Failed to convert {direction} to a valid traffic direction: unknown direction");
                return Err(fatal(text));
            }
        };
        let key = |proto: u8, port: u16, bits: u32| PolicyKey {
            prefix_len: POLICY_STATIC_BITS + bits,
            identity,
            direction,
            proto,
            port: port.into(),
        };
        let Some(text) = &self.port else {
            return Ok((endpoint, vec![key(0, 0, 0)]));
        };
        let invalid = || fatal(format!("`{text}` is not a port and a protocol such as 80/tcp"));
        let (port, protocol) = text.split_once('/').unwrap_or((text, "any"));
        let port: u16 = port.parse().map_err(|_| invalid())?;
        let protocols = match protocol.eq_ignore_ascii_case("any") {
            true => Protocol::all().collect(),
            false => vec![Protocol::from_name(protocol).ok_or_else(invalid)?],
        };
        // Port 0 is any of the protocol.
        let bits = if port == 0 { 8 } else { 24 };
        let keys = protocols.into_iter().map(|protocol| key(protocol.0, port, bits));
        Ok((endpoint, keys.collect()))
    }
}

/// `skep bpf policy add`: entries of the last level.
pub(crate) fn add_policy(
    pinned: &Pinned,
    edit: &PolicyEdit,
    is_deny: bool,
    cookie: u32,
) -> Result<(), Box<dyn Error>> {
    const ALLOW: u32 = 0x0000_0001;
    const DENY: u32 = 0x0000_00ff;
    let (endpoint, keys) = edit.keys("bpf policy add")?;
    let map = pinned.open::<PolicyKey, PolicyEntry>(&policy_pin(endpoint))?;
    for key in keys {
        let bits = u8::try_from(key.bits()).unwrap_or_default();
        let entry = PolicyEntry {
            proxy_port: 0.into(),
            flags: u8::from(is_deny) | (bits << 3),
            auth: 0,
            precedence: if is_deny { DENY } else { ALLOW },
            cookie,
        };
        map.update(&key, &entry)?;
    }
    Ok(())
}

/// `skep bpf policy delete`.
pub(crate) fn delete_policy(pinned: &Pinned, edit: &PolicyEdit) -> Result<(), Box<dyn Error>> {
    let (endpoint, keys) = edit.keys("bpf policy delete")?;
    let map = pinned.open::<PolicyKey, PolicyEntry>(&policy_pin(endpoint))?;
    let mut is_found = false;
    for key in &keys {
        is_found |= map.delete(key)?;
    }
    let key = keys.first().map(PolicyKey::port_text).unwrap_or_default();
    Ok(deleted(is_found, POLICY.name, key)?)
}

/// `skep bpf ipcache update`.
pub(crate) fn update_ipcache(pinned: &Pinned, update: &IpcacheUpdate) -> Result<(), MapsError> {
    let mut value = IpcacheValue {
        encrypt_key: update.encryptkey,
        ..IpcacheValue::new(update.identity)
    };
    if let Some(node) = update.tunnelendpoint {
        value = value.with_tunnel_endpoint(node);
    }
    if update.skiptunnel {
        value.flags |= ipcache_flags::SKIP_TUNNEL;
    }
    let map = pinned.open::<IpcacheKey, IpcacheValue>(IPCACHE.name)?;
    Ok(map.update(&update.prefix.key(update.clusterid), &value)?)
}

/// `skep bpf ipcache delete`.
pub(crate) fn delete_ipcache(pinned: &Pinned, delete: &IpcacheDelete) -> Result<(), MapsError> {
    let map = pinned.open::<IpcacheKey, IpcacheValue>(IPCACHE.name)?;
    let Prefix { address, bits } = delete.prefix;
    deleted(
        map.delete(&delete.prefix.key(delete.clusterid))?,
        IPCACHE.name,
        format!("{address}/{bits}"),
    )
}

/// `skep bpf endpoint delete`.
pub(crate) fn delete_endpoint(pinned: &Pinned, address: IpAddr) -> Result<(), MapsError> {
    let map = pinned.open::<LxcKey, LxcValue>(LXC.name)?;
    deleted(map.delete(&LxcKey::new(address))?, LXC.name, address.to_string())
}

/// An entry that is not there is an error.
fn deleted(was_there: bool, map: &'static str, key: String) -> Result<(), MapsError> {
    if was_there {
        Ok(())
    } else {
        Err(MapsError::NoEntry { map, key })
    }
}

/// `skep bpf metrics flush`: programs count from 0 again. Returns what it says.
pub(crate) fn flush_metrics(pinned: &Pinned) -> Result<String, MapsError> {
    let map = pinned.open_raw(METRICS.name)?;
    let mut keys = Vec::new();
    let walked = map.walk(&mut |key, _| keys.extend_from_slice(key));
    walked.map_err(|source| MapError::Walk {
        map: METRICS.name.to_owned(),
        source,
    })?;
    let deletion = map.delete(&keys);
    if let Some(failure) = deletion.failures.into_iter().next() {
        return Err(MapsError::Map(MapError::Delete {
            map: METRICS.name.to_owned(),
            key: failure.index.to_string(),
            source: failure.error,
        }));
    }
    Ok(format!(
        "Flushed {} entries from {}\n",
        deletion.deleted,
        pinned.path(METRICS.name)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_addresses_and_networks() {
        let read = |text| prefix(text).map(|prefix| format!("{}/{}", prefix.address, prefix.bits));

        assert_eq!(read("10.0.1.7").unwrap(), "10.0.1.7/32");
        assert_eq!(read("10.0.1.7/8").unwrap(), "10.0.0.0/8");
        assert_eq!(read("0.0.0.0/0").unwrap(), "0.0.0.0/0");
        assert_eq!(read("fd00::1").unwrap(), "fd00::1/128");
        assert_eq!(read("fd00:1::1/32").unwrap(), "fd00:1::/32");
        assert_eq!(read("::/0").unwrap(), "::/0");
        for wrong in [
            "",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0.0/",
            "shop",
            "10.0.0.0/-1",
        ] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
    }
}
