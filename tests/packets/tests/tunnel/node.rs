// SPDX-License-Identifier: Apache-2.0

//! A node with a pod: interfaces, maps, programs attached.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::Arc,
};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHookBuilder, Xdp, XdpFlags};
use skep_bpf_maps::{
    MapSizes,
    endpoint::{Device, Endpoint, LxcKey, LxcValue, VlanKey, endpoint_flags, lxc_flags},
    lb::{Backend4, Backend6, LbMapSizes, ReverseNat4, ReverseNat6, ReverseNatKey, ServiceFlags},
    node::{IDENTITY_HOST, IDENTITY_REMOTE_NODE, IpcacheKey, IpcacheValue},
    policy::{POLICIES, POLICY_STATIC_BITS},
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::{NodeOptions, PacketOptions, Packets, Tunnel, TunnelProtocol, XDP_PROGRAM};
use skep_bpf_sys::{
    KernelMap, MapStore, RawMap as _,
    testing::{Node, Pod},
};

use crate::network;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const PORT: u16 = 8472;
pub(crate) const PREFIX: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
pub(crate) const NODE_PORTS: (u16, u16) = (30_000, 32_767);
pub(crate) const NAT_MIN: u16 = 32_768;
/// What is left of 1500 bytes inside the tunnel.
const MTU: u32 = 1450;
/// Under IPv6 headers are larger.
const MTU_UNDER_IPV6: u32 = 1430;

/// How two nodes are set up.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// The network between nodes is IPv6.
    pub(crate) is_underlay_ipv6: bool,
    /// Routes of the network lead to pods, not the tunnel; the client is next to the second node, too.
    pub(crate) is_routed: bool,
    /// Changes the options of the programs.
    pub(crate) change: &'a (dyn Fn(&mut NodeOptions) + Sync),
}

pub(crate) struct Member {
    pub(crate) n: u8,
    pub(crate) netns: Pod,
    pub(crate) pod: Pod,
    store: Arc<MapStore>,
    pub(crate) services: LbMaps,
    programs: Vec<Packets>,
    policy: KernelMap,
}

/// Address of the node on the network between nodes.
pub(crate) fn node_address(n: u8, is_ipv6: bool) -> IpAddr {
    address(is_ipv6, format!("192.0.2.{n}"), format!("2001:db8::{n}"))
}

/// Address of `cilium_host`.
pub(crate) fn router(n: u8, is_ipv6: bool) -> IpAddr {
    address(is_ipv6, format!("10.{n}.0.1"), format!("fd00:{n}::1"))
}

pub(crate) fn pod_address(n: u8, is_ipv6: bool) -> IpAddr {
    address(is_ipv6, format!("10.{n}.0.10"), format!("fd00:{n}::10"))
}

/// The client and, before it, the first node on the network to it.
pub(crate) fn outside(host: u8, is_ipv6: bool) -> IpAddr {
    address(
        is_ipv6,
        format!("198.51.100.{host}"),
        format!("2001:db8:1::{host}"),
    )
}

pub(crate) fn identity(n: u8) -> u32 {
    1000 + u32::from(n)
}

fn address(is_ipv6: bool, v4: String, v6: String) -> IpAddr {
    if is_ipv6 { v6 } else { v4 }.parse().unwrap()
}

fn bits(is_ipv6: bool, v4: u8, v6: u8) -> u8 {
    if is_ipv6 { v6 } else { v4 }
}

fn sizes() -> MapSizes {
    MapSizes::from(LbMapSizes::uniform(1024))
        .with(skep_bpf_maps::conntrack::CT_TCP_MAX, 8192)
        .with(skep_bpf_maps::conntrack::CT_ANY_MAX, 8192)
        .with(skep_bpf_maps::nat::NAT_MAX, 8192)
        .with(skep_bpf_maps::node::NEIGHBOURS_MAX, 1024)
}

/// Settings of a namespace, before it has interfaces.
pub(crate) fn settings() {
    for setting in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        network::set(setting, "1");
    }
    network::set("ipv4/ping_group_range", "0 2147483647");
    for scope in ["all", "default"] {
        network::set(&format!("ipv6/conf/{scope}/accept_dad"), "0");
        network::set(&format!("ipv4/conf/{scope}/rp_filter"), "0");
    }
}

/// Runs `work` with two nodes, in the namespace of a client.
pub(crate) fn with_cluster(name: &str, setup: Setup<'_>, work: impl FnOnce(&[Member; 2]) + Send) {
    let done: io::Result<()> = Node::run(name, |world| {
        work(&cluster(world, setup));
        Ok(())
    });
    done.unwrap();
}

/// Makes two nodes, and the calling thread's namespace a client of the first one.
fn cluster(world: &Node, setup: Setup<'_>) -> [Member; 2] {
    settings();
    let spaces = [1, 2].map(|n| {
        (
            world.pod(&format!("node{n}")).unwrap(),
            world.pod(&format!("pod{n}")).unwrap(),
        )
    });
    network::pair("under1", "under2");
    for (n, (netns, _)) in (1..).zip(&spaces) {
        network::give(&format!("under{n}"), netns.path());
    }
    network::pair("client", "outside");
    network::give("outside", spaces[0].0.path());
    if setup.is_routed {
        network::pair("client2", "outside");
        network::give("outside", spaces[1].0.path());
        let (client, _) = network::up("client2");
        for is_ipv6 in [false, true] {
            network::add_address(client, outside(2, is_ipv6), bits(is_ipv6, 32, 128));
        }
    }
    let (client, _) = network::up("client");
    for is_ipv6 in [false, true] {
        network::add_address(client, outside(2, is_ipv6), bits(is_ipv6, 24, 64));
    }
    let mut members = Vec::new();
    for (n, (netns, pod)) in (1..).zip(spaces) {
        members.push(member(world, n, netns, pod, setup));
    }
    members.try_into().unwrap_or_else(|_| panic!("two nodes"))
}

fn member(world: &Node, n: u8, netns: Pod, pod: Pod, setup: Setup<'_>) -> Member {
    let is_underlay_ipv6 = setup.is_underlay_ipv6;
    let store = MapStore::new(world.bpf_root().join(format!("node{n}")));
    let other = 3 - n;
    let mtu = if is_underlay_ipv6 { MTU_UNDER_IPV6 } else { MTU };
    let (programs, policy, services) = netns.run(|| {
        settings();
        let eth0 = network::up(&format!("under{n}"));
        let eth1 = (n == 1 || setup.is_routed).then(|| network::up("outside"));
        network::pair("cilium_host", "cilium_net");
        network::without_neighbours("cilium_host");
        network::without_neighbours("cilium_net");
        let host = network::up("cilium_host");
        let net = network::up("cilium_net");
        network::vxlan("cilium_vxlan", PORT);
        let tunnel = network::up("cilium_vxlan");
        network::pair("lxc1", "pod");
        network::give("pod", pod.path());
        let lxc = network::up("lxc1");
        for is_ipv6 in [false, true] {
            network::add_address(eth0.0, node_address(n, is_ipv6), bits(is_ipv6, 24, 64));
            network::add_address(host.0, router(n, is_ipv6), bits(is_ipv6, 32, 128));
            if let Some(eth1) = eth1 {
                if n == 1 {
                    network::add_address(eth1.0, outside(1, is_ipv6), bits(is_ipv6, 24, 64));
                } else {
                    network::add_route(eth1.0, outside(2, is_ipv6), bits(is_ipv6, 32, 128), None, None);
                }
            }
            let pods = |n: u8| address(is_ipv6, format!("10.{n}.0.0"), format!("fd00:{n}::"));
            network::add_route(host.0, pods(n), bits(is_ipv6, 24, 64), None, None);
            let (way, gateway, mtu) = match setup.is_routed {
                true => (eth0.0, Some(node_address(other, is_ipv6)), None),
                false => (host.0, None, Some(mtu)),
            };
            network::add_route(way, pods(other), bits(is_ipv6, 24, 64), gateway, mtu);
        }
        let inside = pod.run(|| {
            settings();
            let link = network::up("pod");
            for is_ipv6 in [false, true] {
                network::add_address(link.0, pod_address(n, is_ipv6), bits(is_ipv6, 32, 128));
                let all = address(is_ipv6, "0.0.0.0".to_owned(), "::".to_owned());
                network::add_route(link.0, all, 0, Some(router(n, is_ipv6)), Some(mtu));
            }
            link
        });
        let mut options = options(n, host.0, net.0, tunnel.0);
        if setup.is_routed {
            options.packets.tunnel = None;
        }
        (setup.change)(&mut options);
        let mut programs = vec![Packets::load(&store, sizes(), &options).unwrap()];
        if options.packets.tunnel.is_some() {
            programs.push(Packets::load_overlay(&store, sizes(), &options).unwrap());
        }
        let devices = store.open::<u32, Device>("skep_devices").unwrap();
        for link in [Some(eth0), eth1, Some(host), Some(net)].into_iter().flatten() {
            let device = Device {
                masquerade4: octets4(node_address(n, false)),
                masquerade6: octets6(node_address(n, true)),
                mac: link.1,
                ..Device::default()
            };
            devices.update(&link.0, &device).unwrap();
        }
        write_endpoint(&store, n, lxc, inside.1);
        write_identities(&store, n, is_underlay_ipv6);
        let policy = policy(&store, n);
        let services = LbMaps::open(&store, LbMapSizes::uniform(1024)).unwrap();
        let hooks = [
            ("cil_from_container", lxc.0, TC_INGRESS),
            ("cil_from_host", host.0, TC_EGRESS),
            ("cil_to_host", host.0, TC_INGRESS),
            ("cil_to_host", net.0, TC_INGRESS),
            ("cil_from_netdev", eth0.0, TC_INGRESS),
            ("cil_to_netdev", eth0.0, TC_EGRESS),
        ];
        if options.packets.tunnel.is_some() {
            attach(&programs, "cil_from_overlay", tunnel.0, TC_INGRESS);
            attach(&programs, "cil_to_overlay", tunnel.0, TC_EGRESS);
        }
        for (program, interface, at) in hooks {
            attach(&programs, program, interface, at);
        }
        if let Some(eth1) = eth1.filter(|_| options.packets.xdp) {
            let xdp = Packets::load_xdp(&store, sizes(), &options).unwrap();
            let program = xdp.program(XDP_PROGRAM).unwrap();
            // Generic: interfaces of these pairs leave checksums to each other, which programs of a driver would see.
            Xdp::new(program)
                .attach(eth1.0 as i32, XdpFlags::SKB_MODE)
                .unwrap();
            programs.push(xdp);
        }
        if let Some(eth1) = eth1 {
            attach(&programs, "cil_from_netdev", eth1.0, TC_INGRESS);
            attach(&programs, "cil_to_netdev", eth1.0, TC_EGRESS);
        }
        (programs, policy, services)
    });
    Member {
        n,
        netns,
        pod,
        store,
        services,
        programs,
        policy,
    }
}

fn options(n: u8, cilium_host: u32, cilium_net: u32, device: u32) -> NodeOptions {
    NodeOptions {
        nodeport_range: NODE_PORTS,
        packets: PacketOptions {
            cilium_host,
            cilium_net,
            host_endpoint: 1,
            router4: octets4(router(n, false)).into(),
            router6: octets6(router(n, true)).into(),
            tunnel: Some(Tunnel {
                protocol: TunnelProtocol::Vxlan,
                port: PORT,
                device,
                source_ports: (32_768, 60_999),
            }),
            nodeport_source4: octets4(node_address(n, false)).into(),
            nodeport_source6: octets6(node_address(n, true)).into(),
            native4: Some(([10, n, 0, 0].into(), 24)),
            native6: Some((format!("fd00:{n}::").parse().unwrap(), 64)),
            nat_ports: (NAT_MIN, u16::MAX),
            masquerade4: true,
            masquerade6: true,
            ..PacketOptions::default()
        },
        ..NodeOptions::default()
    }
}

fn attach(programs: &[Packets], program: &str, interface: u32, at: TcAttachPoint) {
    let descriptor = programs
        .iter()
        .find_map(|loaded| loaded.program(program))
        .unwrap();
    attach_program(descriptor, interface, at);
}

pub(crate) fn attach_program(descriptor: BorrowedFd<'_>, interface: u32, at: TcAttachPoint) {
    let mut hook = TcHookBuilder::new(descriptor)
        .ifindex(interface as i32)
        .replace(true)
        .handle(1)
        .priority(1)
        .hook(at);
    hook.create().unwrap();
    hook.attach().unwrap();
}

fn octets4(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("{address}"),
    }
}

fn octets6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(_) => panic!("{address}"),
    }
}

fn wide(mac: [u8; 6]) -> [u8; 8] {
    let mut wide = [0; 8];
    wide[..6].copy_from_slice(&mac);
    wide
}

fn endpoint(n: u8) -> u16 {
    100 + u16::from(n)
}

fn write_endpoint(store: &MapStore, n: u8, lxc: (u32, [u8; 6]), mac: [u8; 6]) {
    let endpoints = store.open::<u32, Endpoint>("skep_endpoints").unwrap();
    let value = Endpoint {
        ipv4: octets4(pod_address(n, false)),
        ipv6: octets6(pod_address(n, true)),
        identity: identity(n),
        id: endpoint(n),
        flags: endpoint_flags::VERIFY_SOURCE | endpoint_flags::OPEN_EGRESS,
        mac: lxc.1,
        ..Endpoint::default()
    };
    endpoints.update(&lxc.0, &value).unwrap();
    let addresses = store.open::<LxcKey, LxcValue>("cilium_lxc").unwrap();
    let here = LxcValue {
        flags: lxc_flags::HOST,
        ..LxcValue::default()
    };
    let value = LxcValue {
        ifindex: lxc.0,
        endpoint: endpoint(n),
        mac: wide(mac),
        node_mac: wide(lxc.1),
        identity: identity(n),
        ..LxcValue::default()
    };
    for is_ipv6 in [false, true] {
        let mut own = vec![node_address(n, is_ipv6), router(n, is_ipv6)];
        if n == 1 {
            own.push(outside(1, is_ipv6));
        }
        for address in own {
            addresses.update(&LxcKey::new(address), &here).unwrap();
        }
        addresses
            .update(&LxcKey::new(pod_address(n, is_ipv6)), &value)
            .unwrap();
    }
}

fn write_identities(store: &MapStore, n: u8, is_underlay_ipv6: bool) {
    let identities = store
        .open::<IpcacheKey, IpcacheValue>("cilium_ipcache_v2")
        .unwrap();
    let write = |address, value| identities.update(&IpcacheKey::host(address), &value).unwrap();
    let other = 3 - n;
    let by_tunnel =
        |identity| IpcacheValue::new(identity).with_tunnel_endpoint(node_address(other, is_underlay_ipv6));
    for is_ipv6 in [false, true] {
        write(node_address(n, is_ipv6), IpcacheValue::new(IDENTITY_HOST));
        write(router(n, is_ipv6), IpcacheValue::new(IDENTITY_HOST));
        write(pod_address(n, is_ipv6), IpcacheValue::new(identity(n)));
        write(
            node_address(other, is_ipv6),
            IpcacheValue::new(IDENTITY_REMOTE_NODE),
        );
        write(router(other, is_ipv6), by_tunnel(IDENTITY_REMOTE_NODE));
        write(pod_address(other, is_ipv6), by_tunnel(identity(other)));
    }
}

/// The policy of the pod: everybody may come in.
fn policy(store: &MapStore, n: u8) -> KernelMap {
    let outer = store.provide(&POLICIES.spec(&sizes())).unwrap();
    let inner = KernelMap::create(&POLICIES.inner_spec("cilium_policy_v2", &sizes()).unwrap()).unwrap();
    let descriptor = inner.fd().map_or(-1, |fd| fd.as_raw_fd());
    let failed = outer.update(&u32::from(endpoint(n)).to_ne_bytes(), &descriptor.to_ne_bytes());
    assert!(failed.is_empty(), "{failed:?}");
    allow(&inner, 0, true);
    inner
}

/// Adds or removes an entry that lets an identity come in; 0: any.
fn allow(policy: &KernelMap, identity: u32, is_allowed: bool) {
    let mut key = POLICY_STATIC_BITS.to_ne_bytes().to_vec();
    key.extend(identity.to_ne_bytes());
    key.extend([0; 4]);
    if is_allowed {
        let failed = policy.update(&key, &[0; 12]);
        assert!(failed.is_empty(), "{failed:?}");
    } else {
        policy.delete(&key);
    }
}

impl Member {
    /// Routes the addresses of the pod to its interface, where the program for what the kernel sends decides.
    pub(crate) fn route_endpoint(&self) {
        self.netns.run(|| {
            let (lxc, _) = network::link("lxc1");
            attach(&self.programs, "cil_to_container", lxc, TC_EGRESS);
            let endpoints = self.store.open::<u32, Endpoint>("skep_endpoints").unwrap();
            let known = endpoints.lookup(&lxc).unwrap().unwrap();
            let flags = known.flags | endpoint_flags::EGRESS_PROGRAM;
            endpoints.update(&lxc, &Endpoint { flags, ..known }).unwrap();
            for is_ipv6 in [false, true] {
                let address = pod_address(self.n, is_ipv6);
                network::add_route(lxc, address, bits(is_ipv6, 32, 128), None, None);
            }
        });
    }

    /// Packets of an address family that the kernel of the node has forwarded.
    pub(crate) fn forwarded(&self, is_ipv6: bool) -> u64 {
        let text = self.netns.run(|| {
            let name = if is_ipv6 { "snmp6" } else { "snmp" };
            std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap()
        });
        let count = if is_ipv6 {
            let line = text.lines().find(|line| line.starts_with("Ip6OutForwDatagrams"));
            line.and_then(|line| line.split_whitespace().nth(1))
        } else {
            let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
            let names = lines.next().unwrap_or_default().split_whitespace();
            let values = lines.next().unwrap_or_default().split_whitespace();
            names
                .zip(values)
                .find_map(|(name, value)| (name == "ForwDatagrams").then_some(value))
        };
        count.unwrap().parse().unwrap()
    }

    /// Sets an ingress policy that allows these identities only.
    pub(crate) fn allow_only(&self, identities: &[u32]) {
        allow(&self.policy, 0, false);
        for identity in identities {
            allow(&self.policy, *identity, true);
        }
    }

    pub(crate) fn forbid(&self, identity: u32) {
        allow(&self.policy, identity, false);
    }

    /// Changes what the node knows of an address.
    pub(crate) fn identify(&self, address: IpAddr, value: IpcacheValue) {
        let identities = self
            .store
            .open::<IpcacheKey, IpcacheValue>("cilium_ipcache_v2")
            .unwrap();
        identities.update(&IpcacheKey::host(address), &value).unwrap();
    }

    /// Serves the other node's pod, or one of this node, at a node port to clients outside.
    pub(crate) fn serve(&self, frontend: SocketAddr, proto: u8, backend: SocketAddr) {
        self.serve_all(frontend, proto, &[backend]);
    }

    /// As [`serve`](Self::serve), with several backends.
    pub(crate) fn serve_all(&self, frontend: SocketAddr, proto: u8, backends: &[SocketAddr]) {
        self.serve_as(frontend, proto, backends, ServiceFlags::empty());
    }

    /// Serves a backend of the other address family, as the reconciler writes it: in IPv6, with embedded addresses.
    pub(crate) fn serve_other_family(&self, frontend: SocketAddr, proto: u8, backend: SocketAddr) {
        let embed = |address: SocketAddr| match address {
            SocketAddr::V4(at) => {
                let mut octets = PREFIX.octets();
                octets[12..].copy_from_slice(&at.ip().octets());
                SocketAddr::from((octets, at.port()))
            }
            SocketAddr::V6(_) => address,
        };
        if frontend.is_ipv4() {
            self.serve_as(embed(frontend), proto, &[backend], ServiceFlags::empty());
        }
        self.serve_as(frontend, proto, &[embed(backend)], ServiceFlags::NAT46X64);
    }

    /// As [`serve_other_family`](Self::serve_other_family), without a backend.
    pub(crate) fn serve_none_of_other_family(&self, frontend: SocketAddr, proto: u8) {
        self.serve_as(frontend, proto, &[], ServiceFlags::NAT46X64);
    }

    fn serve_as(&self, frontend: SocketAddr, proto: u8, backends: &[SocketAddr], flags: ServiceFlags) {
        let id = 7;
        let flags = flags | ServiceFlags::NODE_PORT | ServiceFlags::ROUTABLE;
        let service = Frontend::new(id, frontend, proto, backends).flags(flags);
        self.services.upsert(&service).unwrap();
        match frontend {
            SocketAddr::V4(at) => {
                let map = self.store.open("cilium_lb4_reverse_nat").unwrap();
                let value = ReverseNat4::new(*at.ip(), at.port());
                map.update(&ReverseNatKey::new(id), &value).unwrap();
            }
            SocketAddr::V6(at) => {
                let map = self.store.open("cilium_lb6_reverse_nat").unwrap();
                let value = ReverseNat6::new(*at.ip(), at.port());
                map.update(&ReverseNatKey::new(id), &value).unwrap();
            }
        }
    }

    /// Lets a socket of this node probe a backend, as the program does when it binds.
    pub(crate) fn probe(&self, socket: BorrowedFd<'_>, backend: SocketAddr) {
        let cookie = skep_base_net::netns::socket_cookie(socket).unwrap();
        match backend {
            SocketAddr::V4(at) => {
                let map = self.store.open("cilium_lb4_health").unwrap();
                map.update(&cookie, &Backend4::new(*at.ip(), at.port(), TCP))
                    .unwrap();
            }
            SocketAddr::V6(at) => {
                let map = self.store.open("cilium_lb6_health").unwrap();
                map.update(&cookie, &Backend6::new(*at.ip(), at.port(), TCP))
                    .unwrap();
            }
        }
    }

    /// Routes an address to the other node.
    pub(crate) fn route_to_other(&self, address: IpAddr) {
        let is_ipv6 = address.is_ipv6();
        self.netns.run(|| {
            let (link, _) = network::link(&format!("under{}", self.n));
            let gateway = Some(node_address(3 - self.n, is_ipv6));
            network::add_route(link, address, bits(is_ipv6, 32, 128), gateway, None);
        });
    }

    /// An interface of this node carries a VLAN for another one with programs.
    pub(crate) fn carry(&self, interface: &str, id: u16) {
        let (ifindex, _) = self.netns.run(|| network::link(interface));
        let vlans = self.store.open::<VlanKey, u8>("skep_vlans").unwrap();
        vlans.update(&VlanKey { ifindex, id, pad: 0 }, &0).unwrap();
    }

    /// Packets dropped on this node, for each reason.
    pub(crate) fn drops(&self) -> Vec<(u8, u64)> {
        let mut drops = std::collections::BTreeMap::<u8, u64>::new();
        let metrics = self.store.open_raw("cilium_metrics").unwrap();
        let walked = metrics.walk(&mut |key, values| {
            if key[0] >= 130 {
                let counts = values
                    .chunks_exact(16)
                    .map(|value| u64::from_ne_bytes(value[..8].try_into().unwrap()));
                *drops.entry(key[0]).or_default() += counts.sum::<u64>();
            }
        });
        walked.unwrap();
        drops.into_iter().collect()
    }
}
