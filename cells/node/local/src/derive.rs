// SPDX-License-Identifier: Apache-2.0

//! Devices → addresses of the node.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::{NodeAddress, WILDCARD_DEVICE};
use crate::device::{AddressState, Device, DeviceAddress};

/// The agent's own device: its addresses are the node's, but node ports are not open there.
const HOST_DEVICE: &str = "cilium_host";

/// Widest scope that is used: other machines cannot reach link and host addresses (`RT_SCOPE_LINK` - 1).
const LARGEST_SCOPE: u8 = 252;

/// Rules for the addresses of devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressRules {
    /// Networks whose addresses have node ports; empty for one address of each family on each device.
    pub node_port_networks: Vec<IpNet>,
    /// Networks whose addresses are not the node's.
    pub excluded: Vec<IpNet>,
    /// Addresses of the node in the cluster, which are preferred.
    pub node_addrs: Vec<IpAddr>,
    /// Whether IPv4 is used.
    pub ipv4: bool,
    /// Whether IPv6 is used.
    pub ipv6: bool,
}

impl AddressRules {
    fn uses(&self, addr: IpAddr) -> bool {
        let is_on = if addr.is_ipv4() { self.ipv4 } else { self.ipv6 };
        is_on && !self.excluded.iter().any(|network| network.contains(&addr))
    }
}

/// Whether an address is for private networks (RFC 1918, RFC 4193).
pub fn is_private(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_private(),
        IpAddr::V6(addr) => addr.is_unique_local(),
    }
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

/// Addresses of a device that other machines can reach, in order of preference.
fn usable<'a>(device: &'a Device, rules: &AddressRules) -> Vec<&'a DeviceAddress> {
    let mut addrs: Vec<&DeviceAddress> = device
        .addrs
        .iter()
        .filter(|own| {
            rules.uses(own.addr)
                && own.state.accepts()
                && own.scope <= LARGEST_SCOPE
                && !is_link_local(own.addr)
                && !own.addr.is_loopback()
                && !own.addr.is_multicast()
        })
        .collect();
    addrs.sort_by_key(|own| {
        let (is_known, is_private) = (rules.node_addrs.contains(&own.addr), is_private(own.addr));
        (
            own.state,
            !is_known,
            own.secondary,
            own.scope,
            is_private,
            own.addr,
        )
    });
    addrs
}

/// Addresses of one device, with their use. Empty if the device is down or not selected, but for the node's addresses
/// in the cluster on loopback and dummy devices.
pub fn device_addresses(device: &Device, rules: &AddressRules) -> Vec<NodeAddress> {
    let is_host_device = device.name == HOST_DEVICE;
    if !device.is_up() {
        return Vec::new();
    }
    let has_networks = !rules.node_port_networks.is_empty();
    let in_networks = |own: &DeviceAddress| {
        let mut networks = rules.node_port_networks.iter();
        networks.any(|network| network.contains(&own.addr))
    };
    let row = |own: &DeviceAddress, node_port: bool| NodeAddress {
        addr: own.addr,
        node_port,
        primary: false,
        device_name: device.name.clone(),
    };
    let addrs = usable(device, rules);
    if !(device.selected || is_host_device) {
        // Packets to them arrive by other devices, and "node:port" is to be answered there, too.
        let known = addrs
            .into_iter()
            .filter(|own| device.is_reached_through_others() && rules.node_addrs.contains(&own.addr));
        return known
            .map(|own| row(own, !has_networks || in_networks(own)))
            .collect();
    }
    let mut rows: Vec<NodeAddress> = addrs
        .iter()
        .map(|own| row(own, !is_host_device && in_networks(own)))
        .collect();
    // The node answers to them, but serves nothing there.
    let link_local = device.addrs.iter().filter(|own| is_link_local(own.addr));
    let link_local = link_local.filter(|own| rules.uses(own.addr) && own.state.accepts());
    rows.extend(link_local.filter(|_| !is_host_device).map(|own| row(own, false)));
    for ipv4 in [true, false] {
        let family = || (0..addrs.len()).filter(|row| addrs[*row].addr.is_ipv4() == ipv4);
        // Private addresses if there are any. Deprecated ones may have clients from when they were preferred.
        let class = family().map(|row| !is_private(addrs[row].addr)).min();
        let has_class = |row: &usize| Some(!is_private(addrs[*row].addr)) == class;
        for (place, chosen) in family().filter(has_class).enumerate() {
            let has_clients = addrs[chosen].state == AddressState::Deprecated;
            rows[chosen].node_port |= !has_networks && !is_host_device && (place == 0 || has_clients);
        }
        let rank = |row: &usize| (addrs[*row].state, is_private(addrs[*row].addr));
        if let Some(chosen) = family().min_by_key(rank) {
            rows[chosen].primary = true;
        }
    }
    rows
}

/// Addresses that stand for the node as a whole: the best of each family over all devices.
pub fn fallback_addresses<'a>(
    devices: impl Iterator<Item = &'a Device>,
    rules: &AddressRules,
) -> Vec<NodeAddress> {
    let mut best: [Option<(_, IpAddr)>; 2] = [None, None];
    for device in devices.filter(|device| device.is_up() && device.name != HOST_DEVICE) {
        for own in usable(device, rules) {
            let known = rules.node_addrs.contains(&own.addr);
            let rank = (
                !(known || device.selected),
                own.state,
                !known,
                !device.selected,
                own.secondary,
                own.scope,
                is_private(own.addr),
                device.index,
            );
            let best = &mut best[usize::from(own.addr.is_ipv6())];
            if best.is_none_or(|(other, addr)| (rank, own.addr) < (other, addr)) {
                *best = Some((rank, own.addr));
            }
        }
    }
    best.into_iter()
        .flatten()
        .map(|(_, addr)| NodeAddress {
            addr,
            node_port: false,
            primary: true,
            device_name: WILDCARD_DEVICE.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceFlags;

    fn rules() -> AddressRules {
        AddressRules {
            ipv4: true,
            ipv6: true,
            ..AddressRules::default()
        }
    }

    fn device(name: &str, addrs: &[&str]) -> Device {
        Device {
            index: 3,
            name: name.to_owned(),
            flags: DeviceFlags(DeviceFlags::UP),
            selected: true,
            addrs: addrs
                .iter()
                .map(|addr| {
                    let (addr, scope) = addr.split_once('@').unwrap_or((addr, "0"));
                    DeviceAddress {
                        scope: scope.parse().unwrap(),
                        ..DeviceAddress::new(addr.parse().unwrap())
                    }
                })
                .collect(),
            ..Device::default()
        }
    }

    #[track_caller]
    fn assert_rows(rows: &[NodeAddress], expected: &[&str]) {
        let texts: Vec<String> = rows
            .iter()
            .map(|row| {
                let marks = [(row.node_port, " nodeport"), (row.primary, " primary")];
                let marks: String = marks
                    .iter()
                    .filter(|(set, _)| *set)
                    .map(|(_, mark)| *mark)
                    .collect();
                format!("{}{marks}", row.addr)
            })
            .collect();
        assert_eq!(texts, expected);
    }

    #[test]
    fn node_ports_prefer_private_and_sources_prefer_public_addresses() {
        let eth = device(
            "eth0",
            &[
                "10.0.0.5",
                "198.51.100.5",
                "10.0.0.4",
                "fd00::5",
                "2001:db8::5",
                "fe80::5@253",
            ],
        );

        assert_rows(
            &device_addresses(&eth, &rules()),
            &[
                "198.51.100.5 primary",
                "2001:db8::5 primary",
                "10.0.0.4 nodeport",
                "10.0.0.5",
                "fd00::5 nodeport",
                "fe80::5",
            ],
        );
    }

    #[test]
    fn public_address_has_node_ports_if_there_is_no_private_one() {
        let eth = device("eth0", &["198.51.100.5", "198.51.100.6"]);

        assert_rows(
            &device_addresses(&eth, &rules()),
            &["198.51.100.5 nodeport primary", "198.51.100.6"],
        );
    }

    #[test]
    fn address_known_to_kubernetes_comes_first_within_its_class() {
        let eth = device("eth0", &["10.0.0.5", "10.0.0.4", "198.51.100.5"]);
        let rules = AddressRules {
            node_addrs: vec!["10.0.0.5".parse().unwrap()],
            ..rules()
        };

        assert_rows(
            &device_addresses(&eth, &rules),
            &["10.0.0.5 nodeport", "198.51.100.5 primary", "10.0.0.4"],
        );
    }

    #[test]
    fn networks_choose_every_address_inside() {
        let eth = device("eth0", &["10.0.0.5", "10.0.0.4", "198.51.100.5"]);
        let rules = AddressRules {
            node_port_networks: vec!["10.0.0.0/8".parse().unwrap()],
            ..rules()
        };

        assert_rows(
            &device_addresses(&eth, &rules),
            &["198.51.100.5 primary", "10.0.0.4 nodeport", "10.0.0.5 nodeport"],
        );
    }

    #[test]
    fn excluded_addresses_are_not_the_nodes() {
        let eth = device("eth0", &["10.0.0.5", "169.254.25.10", "fd00::5", "2001:db8::5"]);
        let mut host = device(HOST_DEVICE, &["10.1.0.1"]);
        let rules = AddressRules {
            excluded: ["10.0.0.0/15", "fd00::/8"]
                .map(|text| text.parse().unwrap())
                .into(),
            ..rules()
        };

        assert_rows(
            &device_addresses(&eth, &rules),
            &["169.254.25.10 nodeport primary", "2001:db8::5 nodeport primary"],
        );
        assert_rows(
            &fallback_addresses([&eth].into_iter(), &rules),
            &["169.254.25.10 primary", "2001:db8::5 primary"],
        );
        host.selected = false;
        assert_rows(&device_addresses(&host, &rules), &[]);
    }

    #[test]
    fn agents_own_device_has_no_node_ports() {
        let mut host = device("cilium_host", &["10.1.0.1@0"]);
        host.selected = false;

        assert_rows(&device_addresses(&host, &rules()), &["10.1.0.1 primary"]);
    }

    #[test]
    fn device_that_is_down_or_not_selected_does_not_count() {
        let down = Device {
            flags: DeviceFlags(0),
            ..device("eth0", &["10.0.0.5"])
        };
        let other = Device {
            selected: false,
            ..device("eth1", &["10.0.0.5"])
        };

        assert_rows(&device_addresses(&down, &rules()), &[]);
        assert_rows(&device_addresses(&other, &rules()), &[]);
    }

    #[test]
    fn family_that_is_off_does_not_count() {
        let eth = device("eth0", &["10.0.0.5", "fd00::5"]);

        assert_rows(
            &device_addresses(
                &eth,
                &AddressRules {
                    ipv6: false,
                    ..rules()
                },
            ),
            &["10.0.0.5 nodeport primary"],
        );
    }

    #[test]
    fn addresses_for_the_own_link_do_not_count() {
        let eth = device("eth0", &["169.254.1.1@253", "10.0.0.5@252", "10.0.0.6@254"]);

        assert_rows(&device_addresses(&eth, &rules()), &["10.0.0.5 nodeport primary"]);
    }

    #[test]
    fn first_addresses_come_before_second_ones_and_wide_scopes_before_narrow_ones() {
        let mut eth = device("eth0", &["10.0.0.1", "10.0.0.2@200", "10.0.0.3"]);
        eth.addrs[0].secondary = true;

        assert_rows(
            &device_addresses(&eth, &rules()),
            &["10.0.0.3 nodeport primary", "10.0.0.2", "10.0.0.1"],
        );
    }

    fn in_state(name: &str, addrs: &[(&str, AddressState)]) -> Device {
        let mut found = device(name, &addrs.iter().map(|(addr, _)| *addr).collect::<Vec<_>>());
        for (own, (_, state)) in found.addrs.iter_mut().zip(addrs) {
            own.state = *state;
        }
        found
    }

    #[test]
    fn deprecated_addresses_are_sources_only_without_another() {
        use AddressState::{Deprecated, Preferred};
        let one = in_state("eth0", &[("2001:db8::1", Deprecated), ("fd00::1", Preferred)]);
        assert_rows(
            &device_addresses(&one, &rules()),
            &["fd00::1 nodeport primary", "2001:db8::1"],
        );
        assert_rows(
            &fallback_addresses([&one].into_iter(), &rules()),
            &["fd00::1 primary"],
        );

        let all = in_state("eth0", &[("2001:db8::1", Deprecated), ("fd00::1", Deprecated)]);
        assert_rows(
            &device_addresses(&all, &rules()),
            &["2001:db8::1 primary", "fd00::1 nodeport"],
        );

        // Kubernetes knows the node by an address that is about to go.
        let known = AddressRules {
            node_addrs: vec!["2001:db8::1".parse().unwrap()],
            ..rules()
        };
        assert_rows(
            &fallback_addresses([&one].into_iter(), &known),
            &["fd00::1 primary"],
        );
        // Better than that of another device, which may lead nowhere.
        let docker = Device {
            selected: false,
            ..device("docker0", &["2001:db8:d::1"])
        };
        let only = in_state("eth0", &[("2001:db8::1", Deprecated)]);
        assert_rows(
            &fallback_addresses([&docker, &only].into_iter(), &known),
            &["2001:db8::1 primary"],
        );
    }

    #[test]
    fn deprecated_addresses_keep_their_node_ports() {
        use AddressState::{Deprecated, Preferred};
        let eth = in_state(
            "eth0",
            &[
                ("10.0.0.1", Deprecated),
                ("10.0.0.2", Deprecated),
                ("10.0.0.3", Preferred),
                ("10.0.0.4", Preferred),
                ("198.51.100.1", Deprecated),
            ],
        );

        assert_rows(
            &device_addresses(&eth, &rules()),
            &[
                "10.0.0.3 nodeport primary",
                "10.0.0.4",
                "198.51.100.1",
                "10.0.0.1 nodeport",
                "10.0.0.2 nodeport",
            ],
        );
    }

    #[test]
    fn tentative_and_duplicate_addresses_are_not_the_nodes() {
        use AddressState::{Duplicate, Tentative};
        let eth = in_state("eth0", &[("fd00::1", Tentative), ("fd00::2", Duplicate)]);

        assert_rows(&device_addresses(&eth, &rules()), &[]);
        assert_rows(&fallback_addresses([&eth].into_iter(), &rules()), &[]);
    }

    #[test]
    fn addresses_of_the_node_on_loopback_and_dummy_devices_have_node_ports() {
        let known = AddressRules {
            node_addrs: vec!["192.0.2.1".parse().unwrap()],
            ..rules()
        };
        let unselected = |name, flags, kind: &str| Device {
            flags: DeviceFlags(DeviceFlags::UP | flags),
            kind: kind.to_owned(),
            selected: false,
            ..device(name, &["192.0.2.1", "192.0.2.2", "127.0.0.1@254"])
        };
        let loopback = unselected("lo", DeviceFlags::LOOPBACK, "device");
        for device in [&loopback, &unselected("dummy1", 0, "dummy")] {
            assert_rows(&device_addresses(device, &known), &["192.0.2.1 nodeport"]);
        }
        assert_rows(&device_addresses(&unselected("eth9", 0, "device"), &known), &[]);

        let elsewhere = AddressRules {
            node_port_networks: vec!["10.0.0.0/8".parse().unwrap()],
            ..known
        };
        assert_rows(&device_addresses(&loopback, &elsewhere), &["192.0.2.1"]);
    }

    #[test]
    fn fallback_takes_the_known_the_first_and_the_widest_before_others() {
        let fallback = |devices: &[&Device], rules: &AddressRules| {
            let rows = fallback_addresses(devices.iter().copied(), rules);
            rows.iter().map(|row| row.addr.to_string()).collect::<Vec<_>>()
        };
        let eth = |index, addr| Device {
            index,
            ..device("eth0", &[addr])
        };
        let mut second = eth(1, "10.0.0.1");
        second.addrs[0].secondary = true;
        let known = AddressRules {
            node_addrs: vec!["10.0.0.1".parse().unwrap()],
            ..rules()
        };
        let host = Device {
            name: HOST_DEVICE.to_owned(),
            ..eth(1, "10.0.0.1")
        };
        let down = Device {
            flags: DeviceFlags(0),
            ..eth(1, "10.0.0.1")
        };

        assert_eq!(fallback(&[&second, &eth(2, "10.0.0.2")], &rules()), ["10.0.0.2"]);
        assert_eq!(fallback(&[&second, &eth(2, "10.0.0.2")], &known), ["10.0.0.1"]);
        assert_eq!(
            fallback(&[&eth(1, "10.0.0.1@200"), &eth(2, "10.0.0.2")], &rules()),
            ["10.0.0.2"]
        );
        assert_eq!(
            fallback(&[&eth(1, "10.0.0.1"), &eth(2, "198.51.100.2")], &rules()),
            ["198.51.100.2"]
        );
        assert_eq!(
            fallback(&[&eth(2, "10.0.0.1"), &eth(1, "10.0.0.2")], &rules()),
            ["10.0.0.2"]
        );
        assert_eq!(
            fallback(&[&host, &down, &eth(2, "10.0.0.2")], &rules()),
            ["10.0.0.2"]
        );
    }

    #[test]
    fn fallback_is_the_best_address_of_each_family() {
        let unselected = Device {
            selected: false,
            index: 1,
            ..device("dummy1", &["198.51.100.9"])
        };
        let eth = device("eth0", &["10.0.0.5", "fd00::5"]);

        let rows = fallback_addresses([&unselected, &eth].into_iter(), &rules());

        assert_rows(&rows, &["10.0.0.5 primary", "fd00::5 primary"]);
        assert!(rows.iter().all(|row| row.device_name == "*"));
    }
}
