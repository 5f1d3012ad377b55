// SPDX-License-Identifier: Apache-2.0

//! A node as the facts say: interfaces and routes in a network namespace, maps, programs.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd as _, BorrowedFd},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use libbpf_rs::{MapHandle, PerfBuffer, PerfBufferBuilder, Xdp, XdpFlags};
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        link::{InfoData, InfoVeth, LinkAttribute, LinkInfo, LinkMessage},
        neighbour::NeighbourState,
    },
};
use skep_bpf_maps::{
    MapSizes,
    endpoint::{Device, Endpoint, endpoint_flags},
    lb::LbMapSizes,
    policy::{POLICIES, POLICY_STATIC_BITS, endpoint_of_pin, policy_pin},
};
use skep_bpf_programs::{
    Calls, Counter, LoadError, NodeOptions, Packets, XDP_PROGRAM,
    testing::run::{SkBuff, run_tc, run_xdp},
};
use skep_bpf_sys::{KernelMap, MapStore, RawMap, testing::Node};
use zerocopy::IntoBytes as _;

use crate::{
    Error,
    options::{Settings, address, missing, network_of, options},
    twins::FlowTable,
    vectors::{Entry, Facts},
};

/// Maps that programs write, which are empty when a scenario begins.
pub(crate) const FLOW_MAPS: [&str; 12] = [
    "cilium_ct4_global",
    "cilium_ct_any4_global",
    "cilium_ct6_global",
    "cilium_ct_any6_global",
    "cilium_snat_v4_external",
    "cilium_snat_v6_external",
    "cilium_lb4_affinity",
    "cilium_lb6_affinity",
    "cilium_ipv4_frag_datagrams",
    "cilium_ipv6_frag_datagrams",
    "cilium_nodeport_neigh4",
    "cilium_nodeport_neigh6",
];

/// What a program did with a packet.
#[derive(Debug)]
pub struct Called {
    pub verdict: u32,
    pub packet: Vec<u8>,
    /// What an XDP program left in front of it.
    pub metadata: Vec<u8>,
    /// `skb->mark` afterwards.
    pub mark: u32,
    pub duration: Duration,
}

/// Programs see no more than what they were loaded with and the maps of this node.
pub(crate) struct World {
    pub(crate) store: Arc<MapStore>,
    pub(crate) flow_table: FlowTable,
    programs: Vec<Packets>,
    /// Of programs that count what they call.
    counters: Vec<Counter>,
    pub(crate) facts: Facts,
    /// Endpoints send from their own addresses only.
    verifies_sources: bool,
    /// By name. The policies of endpoints live as long as this has them.
    maps: BTreeMap<String, KernelMap>,
    /// `None`: events have no listener.
    events: Option<Rings>,
    signals: Rings,
}

impl World {
    /// Makes the node in the namespaces of this thread.
    pub(crate) fn new(node: &Node, facts: Facts, see: &str, table: FlowTable) -> Result<Self, Error> {
        let mut options = options(&facts, see)?;
        options.packets.flows = table != FlowTable::Off;
        let mut world = Self::with_options(node, facts, see, &options, &small())?;
        world.flow_table = table;
        Ok(world)
    }

    /// As [`World::new`], with these options instead of those of the facts, and maps of these sizes.
    pub(crate) fn with_options(
        node: &Node,
        facts: Facts,
        see: &str,
        options: &NodeOptions,
        sizes: &MapSizes,
    ) -> Result<Self, Error> {
        Self::load(node, facts, see, options, sizes, false)
    }

    /// As [`World::with_options`], with programs that count what they call.
    pub(crate) fn counting(
        node: &Node,
        facts: Facts,
        options: &NodeOptions,
        sizes: &MapSizes,
    ) -> Result<Self, Error> {
        Self::load(node, facts, "", options, sizes, true)
    }

    fn load(
        node: &Node,
        facts: Facts,
        see: &str,
        options: &NodeOptions,
        sizes: &MapSizes,
        counts: bool,
    ) -> Result<Self, Error> {
        network(async |handle| interfaces(&handle, &facts).await)?;
        let store = node.store();
        let mut programs = Vec::new();
        let mut counters = Vec::new();
        let mut load = |plain: Load<Packets>, counted: Load<(Packets, Counter)>| {
            if counts {
                let (loaded, counter) = counted(&store, sizes.clone(), options)?;
                programs.push(loaded);
                counters.push(counter);
            } else {
                programs.push(plain(&store, sizes.clone(), options)?);
            }
            Ok::<_, LoadError>(())
        };
        load(Packets::load, Packets::load_counted)?;
        if options.packets.tunnel.is_some() {
            load(Packets::load_overlay, Packets::load_overlay_counted)?;
        }
        if facts.has_xdp() {
            load(Packets::load_xdp, Packets::load_xdp_counted)?;
            // It is only run on packets of interfaces that have one.
            let found = programs.iter().find_map(|loaded| loaded.program(XDP_PROGRAM));
            if let (Some(program), Some(device)) = (found, facts.devices.get("eth0")) {
                Xdp::new(program).attach(device.ifindex as i32, XdpFlags::DRV_MODE)?;
            }
        }
        let mut world = Self {
            programs,
            counters,
            maps: policies(&store, sizes, &facts)?,
            events: Some(Rings::open(&store, "cilium_events")?),
            signals: Rings::open(&store, "cilium_signals")?,
            verifies_sources: true,
            flow_table: FlowTable::Off,
            facts,
            store: store.clone(),
        };
        for family in skep_bpf_maps::families() {
            if store.path(family.name).exists() {
                world
                    .maps
                    .insert(family.name.to_owned(), store.provide(&family.spec(sizes))?);
            }
        }
        world.verifies_sources = verifies_sources(&world.facts, see);
        world.write_devices()?;
        world.write_endpoints()?;
        let names: Vec<String> = world.facts.maps.keys().cloned().collect();
        for name in names {
            world.restore(&name)?;
        }
        Ok(world)
    }

    /// Runs a program on a packet.
    pub(crate) fn run(&self, program: &str, frame: &[u8], context: &SkBuff) -> Result<Called, Error> {
        let failed = |source| Error::Kernel {
            what: format!("run a packet of {} bytes", frame.len()),
            source,
        };
        let found = self.program(program).ok_or_else(|| Error::Facts {
            what: format!("program {program}"),
        })?;
        if program == XDP_PROGRAM {
            let ran = run_xdp(found, frame, context.ifindex, 1).map_err(failed)?;
            return Ok(Called {
                verdict: ran.verdict,
                packet: ran.packet,
                metadata: ran.metadata,
                mark: context.mark,
                duration: ran.duration,
            });
        }
        let ran = run_tc(found, frame, context, 1).map_err(failed)?;
        Ok(Called {
            verdict: ran.verdict,
            packet: ran.packet,
            metadata: Vec::new(),
            mark: ran.context.mark,
            duration: ran.duration,
        })
    }

    /// A program, if it is loaded.
    pub(crate) fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.programs.iter().find_map(|loaded| loaded.program(name))
    }

    /// What programs have called since the last call of this, if they count it.
    pub(crate) fn take_calls(&self) -> Result<Calls, Error> {
        let counters = self.counters.iter();
        counters
            .map(Counter::take)
            .try_fold(Calls::default(), |all, calls| Ok(all + calls?))
    }

    /// Whether the node knows its neighbours in this scenario.
    pub(crate) fn know_neighbours(&self, scenario: &str, is_known: bool) -> Result<(), Error> {
        if self.facts.what.contains(&format!("except in {scenario})")) {
            network(async |handle| neighbours(&handle, &self.facts, is_known).await)?;
        }
        Ok(())
    }

    /// A map of the node; none if no program uses it.
    pub(crate) fn map(&self, name: &str) -> Option<&KernelMap> {
        self.maps.get(name)
    }

    /// Writes what the facts say of a map.
    fn restore(&self, name: &str) -> Result<(), Error> {
        let (Some(entries), Some(map)) = (self.facts.maps.get(name), self.map(name)) else {
            return Ok(());
        };
        for Entry { key, value } in entries {
            write(map, &key.0, &value.0)?;
        }
        Ok(())
    }

    /// Writes an entry as another program would, or deletes it if there is no value.
    pub(crate) fn change(&self, name: &str, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let map = self.map(name).ok_or_else(|| missing(format!("map {name}")))?;
        match value {
            Some(value) => write(map, key, value)?,
            None => {
                map.delete(key);
            }
        }
        self.follow(name)
    }

    /// Makes the content of a map what it was.
    pub(crate) fn reset(&self, name: &str, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), Error> {
        let map = self.map(name).ok_or_else(|| missing(format!("map {name}")))?;
        for key in content(map)?.keys().filter(|key| !entries.contains_key(*key)) {
            map.delete(key);
        }
        for (key, value) in entries {
            write(map, key, value)?;
        }
        self.follow(name)
    }

    /// What programs know of a policy beside its map.
    fn follow(&self, name: &str) -> Result<(), Error> {
        match endpoint_of_pin(name) {
            Some(_) => self.write_endpoints(),
            None => Ok(()),
        }
    }

    /// Empties the maps that programs write.
    pub(crate) fn forget_flows(&self) -> Result<(), Error> {
        self.empty(&FLOW_MAPS)
    }

    /// Forgets the ports of all datagrams whose fragments are on their way.
    pub(crate) fn forget_fragments(&self) -> Result<(), Error> {
        self.empty(&FLOW_MAPS[8..10])
    }

    fn empty(&self, names: &[&str]) -> Result<(), Error> {
        for name in names {
            if let Some(map) = self.map(name) {
                let keys: Vec<u8> = content(map)?.into_keys().flatten().collect();
                map.delete(&keys);
            }
        }
        Ok(())
    }

    pub(crate) fn take_events(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.events.as_ref().map_or_else(|| Ok(Vec::new()), Rings::take)
    }

    /// Makes events ones that were not taken yet.
    pub(crate) fn return_events(&self, events: impl Iterator<Item = Vec<u8>>) {
        if let Some(rings) = &self.events {
            rings.put_back(events);
        }
    }

    /// Programs find no ring for events from now on, as on a node whose monitor has no listener.
    pub(crate) fn stop_listening(&mut self) {
        self.events = None;
    }

    pub(crate) fn take_signals(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.signals.take()
    }

    /// Index of an interface, by its name or that of the pod behind it.
    pub(crate) fn index(&self, device: &str) -> Option<u32> {
        let devices = &self.facts.devices;
        let found = devices
            .get(device)
            .or_else(|| devices.get(&format!("lxc of {device}")))?;
        Some(found.ifindex)
    }

    /// What is kept by interface here was given to each object of programs there.
    fn write_endpoints(&self) -> Result<(), Error> {
        let has_program = self.facts.has_endpoint_routes();
        for (name, endpoint) in &self.facts.endpoints {
            let Some(device) = self.facts.devices.get(&format!("lxc of {name}")) else {
                continue;
            };
            let mut flags = self.open_directions(endpoint.id)?;
            if self.verifies_sources {
                flags |= endpoint_flags::VERIFY_SOURCE;
            }
            if has_program {
                flags |= endpoint_flags::EGRESS_PROGRAM;
            }
            let value = Endpoint {
                ipv4: endpoint.ipv4.map_or([0; 4], |address| address.octets()),
                ipv6: endpoint.ipv6.map_or([0; 16], |address| address.octets()),
                identity: endpoint.identity,
                id: endpoint.id,
                flags,
                verdicts: self.verdicts(endpoint.id)?,
                mac: device.mac.0,
                netns_cookie: self.netns_cookie(name),
                ..Endpoint::default()
            };
            self.put("skep_endpoints", device.ifindex, value.as_bytes())?;
        }
        Ok(())
    }

    /// Cookie of the network namespace of an endpoint of the facts; 0 if they have none.
    fn netns_cookie(&self, endpoint: &str) -> u64 {
        let object = format!("bpf_lxc of {endpoint}");
        let bytes = self.facts.variable(&object, "endpoint_netns_cookie");
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_ne_bytes)
    }

    fn write_devices(&self) -> Result<(), Error> {
        for (name, device) in &self.facts.devices {
            if name.starts_with("lxc of ") {
                continue;
            }
            let object = format!("bpf_host on {name}");
            let bytes = |name: &str| self.facts.variable(&object, name).unwrap_or_default();
            let value = Device {
                masquerade4: bytes("nat_ipv4_masquerade").try_into().unwrap_or_default(),
                masquerade6: bytes("nat_ipv6_masquerade").try_into().unwrap_or_default(),
                mac: device.mac.0,
                ..Device::default()
            };
            self.put("skep_devices", device.ifindex, value.as_bytes())?;
        }
        Ok(())
    }

    fn put(&self, name: &str, ifindex: u32, value: &[u8]) -> Result<(), Error> {
        match self.map(name) {
            Some(map) => write(map, &ifindex.to_ne_bytes(), value),
            None => Ok(()),
        }
    }

    /// Directions that a policy restricts have verdict events: those without an entry that allows everything.
    fn verdicts(&self, endpoint: u16) -> Result<u8, Error> {
        let open = [self.is_open(endpoint, 0)?, self.is_open(endpoint, 1)?];
        Ok(u8::from(!open[0]) | u8::from(!open[1]) << 1)
    }

    /// Directions whose policy need not be looked up.
    fn open_directions(&self, endpoint: u16) -> Result<u8, Error> {
        let mut open = 0;
        for (flag, direction) in [
            (endpoint_flags::OPEN_INGRESS, 0),
            (endpoint_flags::OPEN_EGRESS, 1),
        ] {
            if self.is_open(endpoint, direction)? {
                open |= flag;
            }
        }
        Ok(open)
    }

    /// Whether the policy has one entry for a direction, which allows everything.
    fn is_open(&self, endpoint: u16, direction: u8) -> Result<bool, Error> {
        let Some(policy) = self.map(&policy_pin(endpoint)) else {
            return Ok(false);
        };
        let mut all = POLICY_STATIC_BITS.to_ne_bytes().to_vec();
        all.extend([0, 0, 0, 0, direction, 0, 0, 0]);
        let entries = content(policy)?;
        let of_direction = |key: &&Vec<u8>| key.get(8).is_some_and(|found| found & 1 == direction);
        let mut keys = entries.keys().filter(of_direction);
        Ok(keys.next() == Some(&all) && keys.next().is_none())
    }
}

/// A file says in words, or by a setting, where the sources of packets are not verified.
fn verifies_sources(facts: &Facts, see: &str) -> bool {
    let text = format!("{see} {}", facts.what);
    let settings = Settings(facts);
    let setting = settings.text("source_ip_verification").unwrap_or_default();
    !text.contains("source IP verification off") && !setting.starts_with("off")
}

/// Loads the programs of an object.
type Load<T> = fn(&MapStore, MapSizes, &NodeOptions) -> Result<T, LoadError>;

/// Sizes for a few flows and services.
pub(crate) fn small() -> MapSizes {
    MapSizes::from(LbMapSizes::uniform(4096))
        .with(skep_bpf_maps::conntrack::CT_TCP_MAX, 8192)
        .with(skep_bpf_maps::conntrack::CT_ANY_MAX, 8192)
        .with(skep_bpf_maps::nat::NAT_MAX, 8192)
        .with(skep_bpf_maps::flow::FLOWS_MAX, 1024)
        .with(skep_bpf_maps::node::NEIGHBOURS_MAX, 1024)
}

/// Writes an entry, or several in a row.
pub(crate) fn write(map: &KernelMap, key: &[u8], value: &[u8]) -> Result<(), Error> {
    let entries = key.len() / map.info().key_size as usize;
    let sizes = (entries * map.info().key_size as usize, entries * map.value_len());
    if entries == 0 || (key.len(), value.len()) != sizes {
        return Err(Error::Entry {
            map: map.name().to_owned(),
            key: key.len(),
            value: value.len(),
        });
    }
    match map.update(key, value).pop() {
        None => Ok(()),
        Some(failure) => Err(Error::Kernel {
            what: format!("write an entry of {}", map.name()),
            source: failure.error,
        }),
    }
}

pub(crate) fn content(map: &KernelMap) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let mut entries = BTreeMap::new();
    map.walk(&mut |key, value| {
        entries.insert(key.to_vec(), value.to_vec());
    })
    .map_err(|source| Error::Kernel {
        what: format!("read {}", map.name()),
        source,
    })?;
    Ok(entries)
}

/// Ring buffers, and their records that were not taken.
struct Rings {
    buffer: PerfBuffer<'static>,
    seen: Rc<RefCell<Vec<Vec<u8>>>>,
    /// The kernel forgets the rings when the descriptor that they were added with is closed.
    _map: MapHandle,
}

impl Rings {
    fn open(store: &MapStore, name: &str) -> Result<Self, Error> {
        let map = MapHandle::from_pinned_path(store.path(name))?;
        let seen = Rc::<RefCell<Vec<Vec<u8>>>>::default();
        let sink = seen.clone();
        let buffer = PerfBufferBuilder::new(&map)
            .sample_cb(move |_, record: &[u8]| sink.borrow_mut().push(record.to_vec()))
            .build()?;
        Ok(Self {
            buffer,
            seen,
            _map: map,
        })
    }

    fn take(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.buffer.consume()?;
        Ok(self.seen.take())
    }

    fn put_back(&self, records: impl Iterator<Item = Vec<u8>>) {
        self.seen.borrow_mut().splice(0..0, records);
    }
}

/// The policy map of each endpoint, by its pin.
fn policies(
    store: &Arc<MapStore>,
    sizes: &MapSizes,
    facts: &Facts,
) -> Result<BTreeMap<String, KernelMap>, Error> {
    let outer = store.provide(&POLICIES.spec(sizes))?;
    let mut made = BTreeMap::new();
    for (name, entries) in &facts.maps {
        let Some(id) = endpoint_of_pin(name) else {
            continue;
        };
        let Some(spec) = POLICIES.inner_spec("cilium_policy_v2", sizes) else {
            continue;
        };
        let inner = store.provide_inner(&spec, &policy_pin(id))?;
        for Entry { key, value } in entries {
            write(&inner, &key.0, &value.0)?;
        }
        let descriptor = inner.fd().map_or(-1, |fd| fd.as_raw_fd());
        write(&outer, &u32::from(id).to_ne_bytes(), &descriptor.to_ne_bytes())?;
        made.insert(name.clone(), inner);
    }
    Ok(made)
}

/// Changes the network of the node.
fn network(change: impl AsyncFnOnce(rtnetlink::Handle) -> Result<(), Error>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let changed = change(handle).await;
        connection.abort();
        changed
    })
}

fn set(setting: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{setting}");
    fs::write(&path, value).map_err(|source| Error::Kernel {
        what: format!("write {path}"),
        source,
    })
}

/// Interfaces with the indexes and MAC addresses of the facts, addresses, routes and neighbours.
async fn interfaces(handle: &rtnetlink::Handle, facts: &Facts) -> Result<(), Error> {
    for setting in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        set(setting, "1")?;
    }
    set("ipv6/conf/default/accept_dad", "0")?;
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| Error::Network { what, source }
    };
    for (n, (name, device)) in (0_u32..).zip(&facts.devices) {
        // The names of the facts are for people.
        let short = name.rsplit(' ').next().unwrap_or(name);
        let peer = format!("peer{n}");
        let mut pair = LinkVeth::new(short, &peer).build();
        pair.header.index = device.ifindex;
        // Out of the way of the indexes of the facts.
        set_peer_index(&mut pair, PEERS + n);
        handle.link().add(pair).execute().await.map_err(failed(short))?;
        for (link, mac) in [(short, Some(device.mac.0)), (&*peer, None)] {
            let mut change = LinkMessageBuilder::<LinkUnspec>::default()
                .name(link.to_owned())
                .up();
            if let Some(mac) = mac {
                change = change.address(mac.to_vec());
            }
            handle
                .link()
                .set(change.build())
                .execute()
                .await
                .map_err(failed(link))?;
        }
    }
    let index = |name: &str| {
        let device = facts.devices.get(name);
        device.map(|device| device.ifindex).ok_or_else(|| missing(name))
    };
    let own = [
        ("eth0", &facts.addresses.node.ipv4, 24),
        ("eth0", &facts.addresses.node.ipv6, 64),
        ("cilium_host", &facts.addresses.router.ipv4, 32),
        ("cilium_host", &facts.addresses.router.ipv6, 128),
    ];
    for (device, own, bits) in own.into_iter().filter(|(_, own, _)| !own.is_empty()) {
        let own: IpAddr = address(own)?;
        let add = handle.address().add(index(device)?, own, bits);
        add.execute().await.map_err(failed(&own.to_string()))?;
    }
    for route in &facts.addresses.routes {
        add_route(handle, route, &index).await?;
    }
    neighbours(handle, facts, true).await
}

/// Adds or removes the neighbours at `eth0`.
async fn neighbours(handle: &rtnetlink::Handle, facts: &Facts, is_known: bool) -> Result<(), Error> {
    let Some(device) = facts.devices.get("eth0") else {
        return Ok(());
    };
    for neighbour in [&facts.addresses.remote_node, &facts.addresses.client] {
        for own in [&neighbour.addresses.ipv4, &neighbour.addresses.ipv6] {
            if own.is_empty() {
                continue;
            }
            let mut add = handle
                .neighbours()
                .add(device.ifindex, address(own)?)
                .replace()
                .state(NeighbourState::Permanent)
                .link_layer_address(&neighbour.mac.0);
            let changed = if is_known {
                add.execute().await
            } else {
                let message = add.message_mut().clone();
                handle.neighbours().del(message).execute().await
            };
            changed.map_err(|source| Error::Network {
                what: format!("neighbour {own}"),
                source,
            })?;
        }
    }
    Ok(())
}

/// Index of the first of the interfaces that nothing is said of.
const PEERS: u32 = 1000;

fn set_peer_index(pair: &mut LinkMessage, index: u32) {
    for attribute in &mut pair.attributes {
        let LinkAttribute::LinkInfo(infos) = attribute else {
            continue;
        };
        for info in infos {
            if let LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))) = info {
                peer.header.index = index;
            }
        }
    }
}

/// `NETWORK [via GATEWAY] dev INTERFACE`; `default` is of the gateway's family.
async fn add_route(
    handle: &rtnetlink::Handle,
    route: &str,
    index: &impl Fn(&str) -> Result<u32, Error>,
) -> Result<(), Error> {
    let words: Vec<&str> = route.split_whitespace().collect();
    let after = |word: &str| {
        let at = words.iter().position(|found| *found == word)?;
        words.get(at + 1).copied()
    };
    let device = index(after("dev").ok_or_else(|| missing(format!("interface of route {route}")))?)?;
    let gateway: Option<IpAddr> = after("via").map(address).transpose()?;
    let to = match words.first() {
        Some(&"default") | None => None,
        Some(to) => Some(*to),
    };
    let is_ipv6 = to.map_or(gateway.is_some_and(|gateway| gateway.is_ipv6()), |to| {
        to.contains(':')
    });
    let message = if is_ipv6 {
        let (network, bits) = network_of(to.unwrap_or("::/0"))?;
        let mut route = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(network, bits);
        if let Some(IpAddr::V6(gateway)) = gateway {
            route = route.gateway(gateway);
        }
        route.output_interface(device).build()
    } else {
        let (network, bits) = network_of(to.unwrap_or("0.0.0.0/0"))?;
        let mut route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(network, bits);
        if let Some(IpAddr::V4(gateway)) = gateway {
            route = route.gateway(gateway);
        }
        route.output_interface(device).build()
    };
    let added = handle.route().add(message).execute().await;
    added.map_err(|source| Error::Network {
        what: format!("route {route}"),
        source,
    })
}

/// Seconds of the clock that entries are dated with.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0)
}
