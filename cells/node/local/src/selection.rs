// SPDX-License-Identifier: Apache-2.0

//! Which devices carry traffic of the cluster and from outside.
//!
//! The user decides with `--devices`. Without it a device is selected if packets can leave the node through it: it is up,
//! has an address, is neither part of another device nor the veth of a pod, and has a route to other machines or
//! the node's address in the cluster.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::device::{Device, DeviceFlags};

/// Names that are the agent's or a pod's side: never detected.
const OWN_PREFIXES: &[&str] = &["cilium_", "lxc", "cni", "docker", "flannel.", "kube-ipvs"];

/// Devices that the kernel makes by itself when a module is loaded: never detected.
const FALLBACK_DEVICES: &[&str] = &[
    "dummy0", "erspan0", "gre0", "gretap0", "ip6_vti0", "ip6gre0", "ip6tnl0", "ip_vti0", "sit0", "tunl0",
];

/// One pattern of `--devices`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let (text, is_prefix) = text
            .strip_suffix('+')
            .map_or((text, false), |prefix| (prefix, true));
        Self {
            text: text.to_owned(),
            is_prefix,
        }
    }

    fn matches(&self, device: &Device) -> bool {
        let mut names = std::iter::once(&device.name).chain(&device.alt_names);
        names.any(|name| {
            if self.is_prefix {
                name.starts_with(&self.text)
            } else {
                *name == self.text
            }
        })
    }
}

/// The patterns of `--devices`: `eth0,ens+,!ens5`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFilter {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    force_detection: bool,
}

impl DeviceFilter {
    /// From the patterns of `--devices`; with `force_detection` detected devices are selected besides named ones.
    pub fn new(words: &[String], force_detection: bool) -> Self {
        let mut filter = Self {
            force_detection,
            ..Self::default()
        };
        for word in words
            .iter()
            .map(|word| word.trim())
            .filter(|word| !word.is_empty())
        {
            match word.strip_prefix('!') {
                Some(word) => filter.exclude.push(Pattern::new(word)),
                None => filter.include.push(Pattern::new(word)),
            }
        }
        filter
    }

    /// Patterns that match no device: misspelt, or the device does not exist yet.
    pub(crate) fn unmatched<'a>(&self, devices: impl Iterator<Item = &'a Device> + Clone) -> Vec<String> {
        let missing = |pattern: &&Pattern| !devices.clone().any(|device| pattern.matches(device));
        let text = |pattern: &Pattern| match pattern.is_prefix {
            true => format!("{}+", pattern.text),
            false => pattern.text.clone(),
        };
        self.include.iter().filter(missing).map(text).collect()
    }
}

/// A route of the main table, with the attributes that selection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Scope, as in [`DeviceAddress`](crate::DeviceAddress).
    pub scope: u8,
    /// Metric: routes that differ only in this are different routes.
    pub priority: u32,
}

impl Route {
    fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }

    /// Whether it leads to other machines.
    fn leaves_the_node(&self) -> bool {
        let addr = self.dst.addr();
        let link_local = match addr {
            IpAddr::V4(addr) => addr.is_link_local(),
            IpAddr::V6(addr) => addr.is_unicast_link_local(),
        };
        !link_local && !addr.is_multicast() && !addr.is_loopback()
    }
}

/// Decides about a device; the error says why it is not selected.
///
/// `node_addrs` are the node's addresses in the cluster, as far as known.
///
/// # Errors
///
/// The reason, for people.
pub fn select(
    device: &Device,
    routes: &[Route],
    filter: &DeviceFilter,
    node_addrs: &[IpAddr],
) -> Result<(), String> {
    if filter.exclude.iter().any(|pattern| pattern.matches(device)) {
        return Err("excluded by --devices".to_owned());
    }
    if filter.include.iter().any(|pattern| pattern.matches(device)) {
        return Ok(());
    }
    if !filter.include.is_empty() && !filter.force_detection {
        return Err("not in --devices".to_owned());
    }
    detect(device, routes, node_addrs)
}

fn detect(device: &Device, routes: &[Route], node_addrs: &[IpAddr]) -> Result<(), String> {
    if device.flags.has(DeviceFlags::LOOPBACK) {
        return Err("loopback".to_owned());
    }
    if let Some(prefix) = OWN_PREFIXES
        .iter()
        .find(|prefix| device.name.starts_with(*prefix))
    {
        return Err(format!("name starts with `{prefix}`"));
    }
    if FALLBACK_DEVICES.contains(&device.name.as_str()) {
        return Err("made by the kernel itself".to_owned());
    }
    if !device.is_up() {
        return Err("down".to_owned());
    }
    if device.master_index != 0 {
        return Err(format!("part of device {}", device.master_index));
    }
    if device.addrs.is_empty() {
        return Err("no address".to_owned());
    }
    if device.addrs.iter().any(|own| node_addrs.contains(&own.addr)) {
        return Ok(());
    }
    let has_default = routes.iter().any(Route::is_default);
    // Bridges and veths usually lead to containers. Inside a container the veth leads out.
    if matches!(device.kind.as_str(), "bridge" | "veth") && !has_default {
        return Err(format!("{} without default route", device.kind));
    }
    if !routes.iter().any(Route::leaves_the_node) {
        return Err("no route to other machines".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceAddress;

    fn device(name: &str, kind: &str) -> Device {
        Device {
            index: 3,
            name: name.to_owned(),
            kind: kind.to_owned(),
            flags: DeviceFlags(DeviceFlags::UP),
            addrs: vec![DeviceAddress::new("192.0.2.7".parse().unwrap())],
            ..Device::default()
        }
    }

    fn route(dst: &str) -> Route {
        Route {
            dst: dst.parse().unwrap(),
            scope: 0,
            priority: 0,
        }
    }

    #[track_caller]
    fn verdict(device: &Device, routes: &[Route], words: &[&str], force: bool) -> Result<(), String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        select(device, routes, &DeviceFilter::new(&words, force), &[])
    }

    #[test]
    fn named_devices_are_selected_whatever_they_are() {
        let lxc = device("lxc1", "veth");

        assert_eq!(verdict(&lxc, &[], &["eth0", "lxc+"], false), Ok(()));
        assert_eq!(
            verdict(&lxc, &[], &["lxc+", "!lxc1"], false),
            Err("excluded by --devices".into())
        );
        assert_eq!(
            verdict(&lxc, &[], &["eth0"], false),
            Err("not in --devices".into())
        );
        assert_eq!(
            verdict(&lxc, &[], &["eth0"], true),
            Err("name starts with `lxc`".into())
        );
    }

    #[test]
    fn only_exclusions_leave_the_rest_to_detection() {
        let eth = device("eth0", "device");

        assert_eq!(verdict(&eth, &[route("0.0.0.0/0")], &["!eth1"], false), Ok(()));
        assert_eq!(
            verdict(&eth, &[route("0.0.0.0/0")], &["!eth0"], false),
            Err("excluded by --devices".into())
        );
    }

    #[test]
    fn detection_wants_a_way_out() {
        let eth = device("eth0", "device");

        assert_eq!(verdict(&eth, &[route("192.0.2.0/24")], &[], false), Ok(()));
        assert_eq!(
            verdict(&eth, &[route("fe80::/64")], &[], false),
            Err("no route to other machines".into())
        );
        for inside in [
            "169.254.0.0/16",
            "224.0.0.0/4",
            "ff00::/8",
            "127.0.0.0/8",
            "::1/128",
        ] {
            assert_eq!(
                verdict(&eth, &[route(inside)], &[], false),
                Err("no route to other machines".into()),
                "{inside}"
            );
        }
        assert_eq!(
            verdict(&eth, &[route("fe80::/64"), route("2001:db8::/64")], &[], false),
            Ok(())
        );
        let down = Device {
            flags: DeviceFlags(0),
            ..eth.clone()
        };
        assert_eq!(
            verdict(&down, &[route("192.0.2.0/24")], &[], false),
            Err("down".into())
        );
        let member = Device {
            master_index: 9,
            ..eth.clone()
        };
        assert_eq!(
            verdict(&member, &[route("192.0.2.0/24")], &[], false),
            Err("part of device 9".into())
        );
        let bare = Device {
            addrs: Vec::new(),
            ..eth
        };
        assert_eq!(
            verdict(&bare, &[route("192.0.2.0/24")], &[], false),
            Err("no address".into())
        );
    }

    #[test]
    fn cable_or_bridge_needs_a_default_route_or_the_nodes_address() {
        let veth = device("eth0", "veth");

        assert_eq!(
            verdict(&veth, &[route("192.0.2.0/24")], &[], false),
            Err("veth without default route".into())
        );
        assert_eq!(verdict(&veth, &[route("::/0")], &[], false), Ok(()));
        let filter = DeviceFilter::default();
        assert_eq!(
            select(&veth, &[], &filter, &["192.0.2.7".parse().unwrap()]),
            Ok(())
        );
    }

    #[test]
    fn kernels_own_devices_are_not_detected() {
        for name in ["dummy0", "tunl0", "ip_vti0"] {
            let verdict = verdict(&device(name, "device"), &[route("0.0.0.0/0")], &[], false);
            assert_eq!(verdict, Err("made by the kernel itself".into()));
        }
    }
}
