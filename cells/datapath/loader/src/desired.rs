// SPDX-License-Identifier: Apache-2.0

//! Tables → what should be attached, and where.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use skep_base_settings::{AddressFamilies, AttachConfig, MtuConfig};
use skep_bpf_maps::endpoint::{self, VlanKey, device_flags};
use skep_datapath_hooks::{EventOptions, HOST_DEVICE as HOST, NET_DEVICE as NET};
use skep_node_local::{Device, LocalNode, NodeAddress, Vlan, WILDCARD_DEVICE};

use crate::{overlay::VXLAN, pair::PairPlan};

/// An interface of the node that faces the cluster and the outside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NativeDevice {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// `None`: packets have no Ethernet header there.
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) masquerade4: Option<Ipv4Addr>,
    pub(crate) masquerade6: Option<Ipv6Addr>,
    /// The VLAN that it is the interface of.
    pub(crate) vlan: Option<Vlan>,
}

impl NativeDevice {
    pub(crate) fn facts(&self) -> endpoint::Device {
        endpoint::Device {
            masquerade4: self.masquerade4.map_or([0; 4], |address| address.octets()),
            masquerade6: self.masquerade6.map_or([0; 16], |address| address.octets()),
            mac: self.mac.unwrap_or_default(),
            flags: if self.mac.is_none() { device_flags::L3 } else { 0 },
            ..endpoint::Device::default()
        }
    }

    /// The tag of its packets, at the device that carries them.
    pub(crate) fn vlan_key(&self) -> Option<VlanKey> {
        let vlan = self.vlan?;
        Some(VlanKey {
            ifindex: vlan.device,
            id: vlan.id,
            pad: 0,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectRouting {
    pub device: String,
    /// The node's IPv4 address there.
    pub ipv4: Option<Ipv4Addr>,
    /// The node's IPv6 address there.
    pub ipv6: Option<Ipv6Addr>,
}

/// What should be attached, and the addresses that programs know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Desired {
    pub(crate) devices: Vec<NativeDevice>,
    pub(crate) direct_routing: Option<DirectRouting>,
    pub(crate) pair: PairPlan,
    /// Indexes of the pair as it is: one that was made anew is another.
    pub(crate) pair_indexes: [Option<u32>; 2],
    /// The same of the tunnel's interface.
    pub(crate) tunnel_index: Option<u32>,
    /// Events other than those of the settings.
    pub(crate) events: Option<EventOptions>,
    /// An endpoint has debug events.
    pub(crate) endpoint_debug: bool,
    /// Rates of endpoints are enforced.
    pub(crate) bandwidth: bool,
    pub(crate) pod_cidr4: Option<ipnet::Ipv4Net>,
    pub(crate) pod_cidr6: Option<ipnet::Ipv6Net>,
}

pub(crate) struct Tables<'a> {
    pub(crate) devices: Vec<&'a Device>,
    pub(crate) addresses: Vec<&'a NodeAddress>,
    pub(crate) node: Option<&'a LocalNode>,
}

impl<'a> Tables<'a> {
    fn device(&self, name: &str) -> Option<&'a Device> {
        self.devices.iter().copied().find(|device| device.name == name)
    }

    /// Addresses of a device, then those of the node as a whole: what leaves by a device that has no address of its own, as
    /// where the node's address is on loopback, has these.
    fn sources(&self, device: &str) -> impl Iterator<Item = &'a NodeAddress> {
        let of = |name: &str| {
            let rows = self.addresses.iter().copied();
            rows.filter(|row| row.device_name == name).collect::<Vec<_>>()
        };
        of(device).into_iter().chain(of(WILDCARD_DEVICE))
    }
}

impl Desired {
    /// What tables and settings ask for.
    pub(crate) fn new(
        tables: &Tables<'_>,
        families: &AddressFamilies,
        config: &AttachConfig,
        mtu: &MtuConfig,
    ) -> Self {
        let mut selected: Vec<&Device> = tables
            .devices
            .iter()
            .copied()
            .filter(|device| device.selected)
            .collect();
        selected.sort_by(|a, b| a.name.cmp(&b.name));
        let pod_cidrs = tables.node.map_or(&[][..], |node| node.pod_cidrs.as_slice());
        let is_on = |network: &&IpNet| match network {
            IpNet::V4(_) => families.ipv4,
            IpNet::V6(_) => families.ipv6,
        };
        let networks: Vec<IpNet> = pod_cidrs.iter().filter(is_on).copied().collect();
        let pod_cidr4 = networks.iter().find_map(|network| match network {
            IpNet::V4(network) => Some(*network),
            IpNet::V6(_) => None,
        });
        let pod_cidr6 = networks.iter().find_map(|network| match network {
            IpNet::V6(network) => Some(*network),
            IpNet::V4(_) => None,
        });
        let pair = PairPlan {
            mtu: mtu.device(selected.iter().map(|device| device.mtu)),
            router4: families.ipv4.then(|| router4(tables, config)).flatten(),
            router6: families.ipv6.then(|| router6(tables, config)).flatten(),
            networks: if config.routes_local_node() {
                networks
            } else {
                Vec::new()
            },
            metric: config.route_metric,
        };
        Self {
            devices: selected
                .iter()
                .map(|device| native(device, tables, families))
                .collect(),
            direct_routing: direct_routing(&selected, tables, families, config),
            pair,
            pair_indexes: [HOST, NET].map(|name| tables.device(name).map(|device| device.index)),
            tunnel_index: tables.device(VXLAN).map(|device| device.index),
            events: None,
            endpoint_debug: false,
            bandwidth: false,
            pod_cidr4,
            pod_cidr6,
        }
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.devices.iter().map(|device| device.name.as_str()).collect()
    }
}

/// Addresses of the router: allocated ones, then those that `cilium_host` has.
fn own_addresses<'a>(tables: &Tables<'a>) -> impl Iterator<Item = IpAddr> + 'a {
    let addrs = tables
        .device(HOST)
        .map_or(&[][..], |device| device.addrs.as_slice());
    let allocated = tables.node.into_iter().flat_map(LocalNode::routers);
    allocated.chain(addrs.iter().map(|own| own.addr))
}

fn router4(tables: &Tables<'_>, config: &AttachConfig) -> Option<Ipv4Addr> {
    let own = own_addresses(tables).find_map(|own| match own {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    config.local_router_ipv4.or(own)
}

fn router6(tables: &Tables<'_>, config: &AttachConfig) -> Option<Ipv6Addr> {
    let own = own_addresses(tables).find_map(|own| match own {
        IpAddr::V6(address) if !address.is_unicast_link_local() => Some(address),
        _ => None,
    });
    config.local_router_ipv6.or(own)
}

fn native(device: &Device, tables: &Tables<'_>, families: &AddressFamilies) -> NativeDevice {
    let (mut masquerade4, mut masquerade6) = (None, None);
    for row in tables.sources(&device.name).filter(|row| row.primary) {
        match row.addr {
            IpAddr::V4(address) if families.ipv4 => masquerade4 = masquerade4.or(Some(address)),
            IpAddr::V6(address) if families.ipv6 => masquerade6 = masquerade6.or(Some(address)),
            _ => {}
        }
    }
    NativeDevice {
        name: device.name.clone(),
        index: device.index,
        mac: <[u8; 6]>::try_from(&*device.hardware_addr.0).ok(),
        masquerade4,
        masquerade6,
        vlan: device.vlan,
    }
}

/// The configured device, else the only one, else the one with the node's address.
fn direct_routing(
    selected: &[&Device],
    tables: &Tables<'_>,
    families: &AddressFamilies,
    config: &AttachConfig,
) -> Option<DirectRouting> {
    let node_ip = |ipv4| tables.node.and_then(|node| node.node_ip(ipv4));
    let has_node_ip = |device: &Device| {
        let found = [node_ip(true), node_ip(false)].into_iter().flatten();
        found.into_iter().any(|address| device.has_addr(address))
    };
    let configured = config.direct_routing_device.as_str();
    let device = match selected {
        _ if !configured.is_empty() => *selected.iter().find(|device| {
            device.name == configured || device.alt_names.iter().any(|name| name == configured)
        })?,
        [only] => *only,
        several => *several.iter().find(|device| has_node_ip(device))?,
    };
    // The address by which others know the node, if the device has it.
    let mut best: BTreeMap<bool, IpAddr> = BTreeMap::new();
    for row in tables.sources(&device.name) {
        let is_ipv4 = row.addr.is_ipv4();
        if node_ip(is_ipv4) == Some(row.addr) && row.device_name == device.name {
            best.insert(is_ipv4, row.addr);
        } else if row.primary {
            best.entry(is_ipv4).or_insert(row.addr);
        }
    }
    let ipv4 = match best.get(&true) {
        Some(IpAddr::V4(address)) if families.ipv4 => Some(*address),
        _ => None,
    };
    let ipv6 = match best.get(&false) {
        Some(IpAddr::V6(address)) if families.ipv6 => Some(*address),
        _ => None,
    };
    Some(DirectRouting {
        device: device.name.clone(),
        ipv4,
        ipv6,
    })
}

#[cfg(test)]
mod tests {
    use skep_k8s_types::slim::NodeAddressType;
    use skep_node_local::{DeviceAddress, HardwareAddr};

    use super::*;

    fn device(name: &str, index: u32, addrs: &[&str]) -> Device {
        Device {
            name: name.to_owned(),
            index,
            mtu: 1500 - index,
            selected: name.starts_with("eth"),
            hardware_addr: HardwareAddr(Box::new([2, 0, 0, 0, 0, 1])),
            addrs: addrs
                .iter()
                .map(|text| DeviceAddress::new(text.parse().unwrap()))
                .collect(),
            ..Device::default()
        }
    }

    fn row(device: &str, addr: &str, primary: bool) -> NodeAddress {
        NodeAddress {
            addr: addr.parse().unwrap(),
            node_port: true,
            primary,
            device_name: device.to_owned(),
        }
    }

    fn node(cidrs: &[&str], ip: &str) -> LocalNode {
        LocalNode {
            pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            addresses: vec![(NodeAddressType::InternalIp, ip.parse().unwrap())],
            ..LocalNode::default()
        }
    }

    fn desired(
        devices: &[Device],
        addresses: &[NodeAddress],
        node: &LocalNode,
        edit: impl Fn(&mut AddressFamilies, &mut AttachConfig),
    ) -> Desired {
        let mut families = <AddressFamilies as hive::Config>::defaults().unwrap();
        let mut config = <AttachConfig as hive::Config>::defaults().unwrap();
        edit(&mut families, &mut config);
        let tables = Tables {
            devices: devices.iter().collect(),
            addresses: addresses.iter().collect(),
            node: Some(node),
        };
        let mtu = <MtuConfig as hive::Config>::defaults().unwrap();
        Desired::new(&tables, &families, &config, &mtu)
    }

    #[test]
    fn selected_devices_have_masquerade_addresses() {
        let found = desired(
            &[
                device("eth1", 3, &[]),
                device("lo", 1, &[]),
                Device {
                    vlan: Some(Vlan { device: 3, id: 10 }),
                    ..device("eth0", 2, &["192.0.2.1"])
                },
            ],
            &[
                row("eth0", "192.0.2.9", false),
                row("eth0", "192.0.2.1", true),
                row("eth0", "2001:db8::1", true),
            ],
            &node(&[], "192.0.2.1"),
            |_, _| (),
        );

        assert_eq!(found.names(), ["eth0", "eth1"]);
        assert_eq!(found.devices[0].masquerade4, Some("192.0.2.1".parse().unwrap()));
        assert_eq!(found.devices[0].masquerade6, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(found.devices[1].masquerade4, None);
        let tag = found.devices[0].vlan_key().map(|key| (key.ifindex, key.id));
        assert_eq!((tag, found.devices[1].vlan_key()), (Some((3, 10)), None));
        assert_eq!(found.devices[0].mac, Some([2, 0, 0, 0, 0, 1]));
        assert_eq!(found.devices[0].facts().flags, 0);
        assert_eq!(found.pair.mtu, 1497);
    }

    #[test]
    fn devices_without_an_address_send_with_that_of_the_node() {
        let found = desired(
            &[device("eth0", 2, &[]), device("eth1", 3, &["192.0.2.1"])],
            &[
                row("*", "198.51.100.1", true),
                row("*", "2001:db8::1", true),
                row("eth1", "192.0.2.1", true),
            ],
            &node(&[], "198.51.100.1"),
            |_, config| config.direct_routing_device = "eth0".to_owned(),
        );

        let masquerade4 = |index: usize| found.devices[index].masquerade4.unwrap().to_string();
        assert_eq!([masquerade4(0), masquerade4(1)], ["198.51.100.1", "192.0.2.1"]);
        assert_eq!(found.devices[0].masquerade6, Some("2001:db8::1".parse().unwrap()));
        let direct = found.direct_routing.unwrap();
        assert_eq!(direct.ipv4, Some("198.51.100.1".parse().unwrap()));
    }

    #[test]
    fn devices_without_an_ethernet_header_are_marked() {
        // WireGuard has no hardware address, GRE that of its tunnel.
        for address in [&[][..], &[192, 0, 2, 1]] {
            let tunnel = Device {
                hardware_addr: HardwareAddr(address.into()),
                ..device("eth0", 2, &[])
            };

            let found = desired(&[tunnel], &[], &node(&[], "192.0.2.1"), |_, _| ());

            let facts = found.devices[0].facts();
            assert_eq!((facts.flags, facts.mac), (device_flags::L3, [0; 6]));
        }
    }

    #[test]
    fn the_router_is_configured_or_allocated_or_kept() {
        let mut cidrs = node(&["10.1.0.0/24", "fd00:1::/64"], "192.0.2.1");
        let missing = desired(&[], &[], &cidrs, |_, _| ());
        assert_eq!(missing.pair.router4, None);
        assert_eq!(missing.pair.networks.len(), 2);

        let host = device(HOST, 9, &["10.1.0.77", "fe80::5", "fd00:1::77"]);
        let kept = desired(std::slice::from_ref(&host), &[], &cidrs, |_, _| ());
        assert_eq!(kept.pair.router4, Some("10.1.0.77".parse().unwrap()));
        assert_eq!(kept.pair.router6, Some("fd00:1::77".parse().unwrap()));

        for router in ["fd00:1::78", "10.1.0.78"] {
            let own = (NodeAddressType::CiliumInternalIp, router.parse().unwrap());
            cidrs.addresses.push(own);
        }
        let allocated = desired(std::slice::from_ref(&host), &[], &cidrs, |_, _| ());
        assert_eq!(allocated.pair.router4, Some("10.1.0.78".parse().unwrap()));
        assert_eq!(allocated.pair.router6, Some("fd00:1::78".parse().unwrap()));

        let configured = desired(&[host], &[], &cidrs, |families, config| {
            families.ipv6 = false;
            config.local_router_ipv4 = Some("10.9.9.9".parse().unwrap());
            config.enable_local_node_route = false;
        });
        assert_eq!(configured.pair.router4, Some("10.9.9.9".parse().unwrap()));
        assert_eq!(configured.pair.router6, None);
        assert_eq!(configured.pair.networks, []);
    }

    #[test]
    fn the_pod_cidr_is_not_routed_where_endpoints_have_routes() {
        let cidrs = node(&["10.1.0.0/24", "fd00:1::/64"], "192.0.2.1");
        let found = desired(&[], &[], &cidrs, |_, config| config.enable_endpoint_routes = true);

        assert_eq!(found.pair.networks, []);
    }

    #[test]
    fn a_bare_node_has_no_router_and_no_devices() {
        let found = desired(&[], &[], &LocalNode::default(), |_, _| ());

        assert_eq!(found.pair.router4, None);
        assert_eq!(found.direct_routing, None);
        assert_eq!(found.pair.mtu, 1500);
    }

    #[test]
    fn nodes_reach_each_other_by_the_device_with_the_address_of_the_node() {
        let devices = [
            device("eth0", 2, &["198.51.100.1"]),
            device("eth1", 3, &["10.0.0.5", "10.0.0.6"]),
        ];
        let addresses = [
            row("eth0", "198.51.100.1", true),
            row("eth1", "10.0.0.5", true),
            row("eth1", "10.0.0.6", false),
            row("*", "10.0.0.6", true),
        ];
        let node = node(&[], "10.0.0.6");
        let found = |edit: &dyn Fn(&mut AttachConfig)| {
            let desired = desired(&devices, &addresses, &node, |_, config| edit(config));
            desired.direct_routing.map(|direct| (direct.device, direct.ipv4))
        };

        assert_eq!(
            found(&|_| ()),
            Some(("eth1".to_owned(), Some([10, 0, 0, 6].into())))
        );
        let configured = |config: &mut AttachConfig| config.direct_routing_device = "eth0".to_owned();
        assert_eq!(
            found(&configured),
            Some(("eth0".to_owned(), Some([198, 51, 100, 1].into())))
        );
        let missing = |config: &mut AttachConfig| config.direct_routing_device = "eth7".to_owned();
        assert_eq!(found(&missing), None);
    }
}
