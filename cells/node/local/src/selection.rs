// SPDX-License-Identifier: Apache-2.0

//! Which devices carry traffic of the cluster and from outside.
//!
//! The user decides with `--devices`. Without it a device is selected if packets can leave the node through it: it is up,
//! has an address, is neither part of another device nor the veth of a pod, and has a route to a global address or
//! the node's address in the cluster.

use std::net::IpAddr;

use crate::device::{Device, DeviceFlags};
use crate::route::Route;

/// Names that are the agent's or a pod's side: never detected.
const OWN_PREFIXES: &[&str] = &["cilium_", "lo", "lxc", "cni", "docker", "flannel.", "kube-ipvs"];

/// Kinds of interfaces that lead to containers: never detected, unless they have the node's address.
const CONTAINER_KINDS: &[&str] = &["bridge", "openvswitch", "ipoib"];

/// `IFF_SLAVE`: a port of a bond.
const IFF_SLAVE: u32 = 0x800;

/// Name of the kind of VRFs.
const VRF: &str = "vrf";

/// One pattern of `--devices`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
    excludes: bool,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let (text, excludes) = text.strip_prefix('!').map_or((text, false), |text| (text, true));
        let (text, is_prefix) = text
            .strip_suffix('+')
            .map_or((text, false), |prefix| (prefix, true));
        Self {
            text: text.to_owned(),
            is_prefix,
            excludes,
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

/// The patterns of `--devices`: `!ens5,eth0,ens+`. The first that matches decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFilter {
    patterns: Vec<Pattern>,
    force_detection: bool,
}

impl DeviceFilter {
    /// From the patterns of `--devices`; with `force_detection` detected devices are selected besides named ones.
    pub fn new(words: &[String], force_detection: bool) -> Self {
        let words = words.iter().map(|word| word.trim());
        Self {
            patterns: words.filter(|word| !word.is_empty()).map(Pattern::new).collect(),
            force_detection,
        }
    }

    /// Patterns that match no device: misspelt, or the device does not exist yet.
    pub(crate) fn unmatched<'a>(&self, devices: impl Iterator<Item = &'a Device> + Clone) -> Vec<String> {
        let missing = |pattern: &&Pattern| !devices.clone().any(|device| pattern.matches(device));
        let text = |pattern: &Pattern| match pattern.is_prefix {
            true => format!("{}+", pattern.text),
            false => pattern.text.clone(),
        };
        let wanted = self.patterns.iter().filter(|pattern| !pattern.excludes);
        wanted.filter(missing).map(text).collect()
    }
}

/// What decides about a device besides itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Routes through it.
    pub routes: &'a [&'a Route],
    /// Kind of the interface that it belongs to.
    pub master_kind: Option<&'a str>,
    /// The node's addresses in the cluster, as far as known.
    pub node_addrs: &'a [IpAddr],
}

fn is_default(route: &&Route) -> bool {
    route.dst.prefix_len() == 0
}

/// Whether a route leads to other machines: as Go's `IsGlobalUnicast`, or the default route.
fn is_global(route: &&Route) -> bool {
    let is_limited = match route.dst.addr() {
        IpAddr::V4(addr) => addr.is_link_local() || addr.is_broadcast(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    };
    let addr = route.dst.addr();
    is_default(route) || !(is_limited || addr.is_multicast() || addr.is_loopback() || addr.is_unspecified())
}

/// Decides about a device; the error says why it is not selected.
///
/// # Errors
///
/// The reason, for people.
pub fn select(device: &Device, around: &Surroundings<'_>, filter: &DeviceFilter) -> Result<(), String> {
    match filter.patterns.iter().find(|pattern| pattern.matches(device)) {
        Some(pattern) if pattern.excludes => return Err("excluded by --devices".to_owned()),
        Some(_) => return Ok(()),
        None if !filter.patterns.is_empty() && !filter.force_detection => {
            return Err("not in --devices".to_owned());
        }
        None => {}
    }
    detect(device, around, filter)
}

fn detect(device: &Device, around: &Surroundings<'_>, filter: &DeviceFilter) -> Result<(), String> {
    if device.addrs.is_empty() {
        return Err("no address".to_owned());
    }
    if !device.is_up() {
        return Err("down".to_owned());
    }
    if device.flags.has(DeviceFlags::LOOPBACK) {
        return Err("loopback".to_owned());
    }
    if device.raw_flags & IFF_SLAVE != 0 {
        return Err("part of a bond".to_owned());
    }
    if device.master_index != 0 && around.master_kind != Some(VRF) {
        return Err(format!("part of device {}", device.master_index));
    }
    if let Some(prefix) = OWN_PREFIXES
        .iter()
        .find(|prefix| device.name.starts_with(*prefix))
    {
        return Err(format!("name starts with `{prefix}`"));
    }
    let is_the_nodes = |addr: &IpAddr| around.node_addrs.contains(addr);
    if device.addrs.iter().any(|own| is_the_nodes(&own.addr)) {
        return Ok(());
    }
    if CONTAINER_KINDS.contains(&device.kind.as_str()) {
        return Err(device.kind.clone());
    }
    // A veth usually leads to a container. Inside a container it leads out.
    let has_default = around.routes.iter().any(is_default);
    if device.kind == "veth" && filter.patterns.is_empty() && !has_default {
        return Err("veth without default route".to_owned());
    }
    if !around.routes.iter().any(is_global) {
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
        Route::to(dst.parse().unwrap(), 3)
    }

    #[track_caller]
    fn verdict(device: &Device, routes: &[Route], words: &[&str], force: bool) -> Result<(), String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let routes: Vec<&Route> = routes.iter().collect();
        let around = Surroundings {
            routes: &routes,
            ..Surroundings::default()
        };
        select(device, &around, &DeviceFilter::new(&words, force))
    }

    #[test]
    fn named_devices_are_selected_whatever_they_are() {
        let lxc = device("lxc1", "veth");

        assert_eq!(verdict(&lxc, &[], &["eth0", "lxc+"], false), Ok(()));
        assert_eq!(
            verdict(&lxc, &[], &["!lxc1", "lxc+"], false),
            Err("excluded by --devices".into())
        );
        // The first pattern decides.
        assert_eq!(verdict(&lxc, &[], &["lxc+", "!lxc1"], false), Ok(()));
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
    fn exclusions_leave_the_rest_to_forced_detection() {
        let eth = device("eth0", "device");

        assert_eq!(verdict(&eth, &[route("0.0.0.0/0")], &["!eth1"], true), Ok(()));
        assert_eq!(
            verdict(&eth, &[route("0.0.0.0/0")], &["!eth1"], false),
            Err("not in --devices".into())
        );
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
            "255.255.255.255/32",
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
    fn a_veth_needs_a_default_route_or_the_nodes_address() {
        let veth = device("eth0", "veth");
        let routes = [route("192.0.2.0/24")];

        assert_eq!(
            verdict(&veth, &routes, &[], false),
            Err("veth without default route".into())
        );
        // Not with a list.
        assert_eq!(verdict(&veth, &routes, &["eth9"], true), Ok(()));
        assert_eq!(verdict(&veth, &[route("::/0")], &[], false), Ok(()));
        let around = Surroundings {
            node_addrs: &["192.0.2.7".parse().unwrap()],
            ..Surroundings::default()
        };
        assert_eq!(select(&veth, &around, &DeviceFilter::default()), Ok(()));
    }

    #[test]
    fn a_bridge_is_not_detected_unless_it_has_the_nodes_address() {
        let bridge = device("br0", "bridge");
        let node = ["192.0.2.7".parse().unwrap()];

        assert_eq!(
            verdict(&bridge, &[route("0.0.0.0/0")], &[], false),
            Err("bridge".into())
        );
        let around = Surroundings {
            node_addrs: &node,
            ..Surroundings::default()
        };
        assert_eq!(select(&bridge, &around, &DeviceFilter::default()), Ok(()));
    }

    #[test]
    fn a_part_of_a_vrf_is_detected() {
        let part = Device {
            master_index: 9,
            ..device("eth0", "device")
        };
        let routes = [&route("192.0.2.0/24")];
        let of = |master_kind| {
            let around = Surroundings {
                routes: &routes,
                master_kind: Some(master_kind),
                node_addrs: &[],
            };
            select(&part, &around, &DeviceFilter::default())
        };

        assert_eq!(of("vrf"), Ok(()));
        assert_eq!(of("bond"), Err("part of device 9".into()));
    }
}
