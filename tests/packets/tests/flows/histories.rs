// SPDX-License-Identifier: Apache-2.0

//! Random histories of packets and of writes to the maps that decide on them: with the flow table, each packet does what it
//! would do without at that moment.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use run_packets::{
    Error, FlowTable,
    node::{PacketNode, with_table},
    take_twins,
};
use skep_base_net::{Netlink, Route};
use skep_bpf_maps::{
    MapSizes,
    flow::FLOW_EPOCH,
    lb::{LbMapSizes, ServiceFlags},
    policy::policy_pin,
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::{NodeOptions, testing::run::SkBuff};
use skep_bpf_sys::{MapStore, RawMap as _};

use crate::{dsr::*, frame::*, itself::answer_from, packet::*, tunnel::tunnel};

const CONTAINER: &str = "cil_from_container";
const OVERLAY: &str = "cil_from_overlay";
const RST: u8 = 4;
/// Name of the variable with another seed. One that differs: 1795945203404780982, with direct return.
const SEED: &str = "SKEP_SEED";
/// Seed of the first history.
const FIRST: u64 = 1;
const HISTORIES: u64 = 3;
const STEPS: u64 = 400;
/// Of all histories of a test.
const BUDGET: Duration = Duration::from_secs(40);

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// A flow, as its client sees it.
#[derive(Clone)]
struct Talk {
    program: &'static str,
    request: Frame,
    /// The last request, as the server got it.
    seen: Option<Frame>,
    is_open: bool,
}

fn first_pod(family: Family) -> IpAddr {
    family.pick(P1, "fd00:10:1::63cb")
}

fn service_of(family: Family) -> SocketAddr {
    (family.pick([203, 0, 113, 80].into(), "2001:db8:80::1"), 80).into()
}

/// Services with a backend on the node and one elsewhere.
fn serve(node: &PacketNode, family: Family) -> Result<(), Error> {
    let maps = LbMaps::open(&node.store(), LbMapSizes::uniform(4096))?;
    for (id, proto) in [(900, TCP), (901, UDP)] {
        let backends = [family.local_pod(), family.remote_pod()].map(|pod| SocketAddr::from((pod, 8080)));
        let flags = ServiceFlags::ROUTABLE | ServiceFlags::EXTERNAL_IP;
        maps.upsert(&Frontend::new(id, service_of(family), proto, &backends).flags(flags))?;
        answer_from(node, id, service_of(family))?;
    }
    Ok(())
}

fn talks(family: Family) -> Vec<Talk> {
    let world = family.pick([203, 0, 113, 5].into(), "2001:db8:ffff::5");
    let pods = [first_pod(family), family.local_pod()];
    let service = service_of(family);
    let ways = [
        (TC, TCP, pods[0], (pods[1], 8080).into()),
        (TC, UDP, pods[0], (family.remote_pod(), 53).into()),
        (TC, TCP, pods[0], service),
        (TC, UDP, pods[0], (world, 443).into()),
        (TC, TCP, pods[1], (world, 443).into()),
        (TC, UDP, family.client(), service),
        (TC, TCP, family.client(), node_port(family, TCP)),
        (TC, TCP, family.client(), (pods[1], 8080).into()),
        (XDP, TCP, family.client(), service),
        (XDP, UDP, family.client(), node_port(family, UDP)),
    ];
    let ports = [40_000, 40_001];
    let all = ways.into_iter().flat_map(|way| ports.map(|port| (way, port)));
    all.map(|((program, proto, from, to), port)| Talk {
        program,
        request: Frame::new(proto, (from, port + u16::from(program == XDP) * 10).into(), to),
        seen: None,
        is_open: false,
    })
    .collect()
}

fn interface_of(address: IpAddr) -> Option<u32> {
    [V4, V6].into_iter().find_map(|family| {
        let pods = [(first_pod(family), P1_IFINDEX), (family.local_pod(), P2_IFINDEX)];
        pods.into_iter()
            .find(|(pod, _)| *pod == address)
            .map(|(_, interface)| interface)
    })
}

/// Runs a packet through the programs on its way. Returns it as it arrives, if it does.
fn send(node: &PacketNode, program: &str, frame: &Frame) -> Result<Option<Frame>, Error> {
    let read = |packet: &[u8]| Frame::read(packet).ok();
    let Some(pod) = interface_of(frame.source.ip()) else {
        let mut ran = node.run(program, &frame.bytes(), &at(ETH0_IFINDEX))?;
        if program == XDP {
            match ran.verdict {
                XDP_TX => return Ok(read(&ran.packet)),
                XDP_PASS => ran = node.run(TC, &ran.packet, &at(ETH0_IFINDEX))?,
                _ => return Ok(None),
            }
        }
        return Ok((ran.verdict != SHOT).then(|| read(&ran.packet)).flatten());
    };
    let mut ran = node.run(CONTAINER, &frame.bytes(), &at(pod))?;
    let sent = read(&ran.packet);
    if ran.verdict != SHOT && sent.is_some_and(|sent| interface_of(sent.destination.ip()).is_none()) {
        let context = SkBuff {
            mark: ran.mark,
            ifindex: ETH0_IFINDEX,
            ..SkBuff::default()
        };
        ran = node.run("cil_to_netdev", &ran.packet, &context)?;
    }
    Ok((ran.verdict != SHOT).then(|| read(&ran.packet)).flatten())
}

/// The next packet of a flow, of either side.
fn packet(
    node: &PacketNode,
    talk: &mut Talk,
    random: &mut Random,
    trace: &mut Vec<String>,
) -> Result<(), Error> {
    let flags = match (talk.is_open, random.below(16)) {
        (false, _) => SYN,
        (true, 0) => SYN,
        (true, 1) => ACK | FIN,
        (true, 2) => RST,
        _ => ACK,
    };
    let length = [0, 7, 7, 600, 1600][random.below(5)];
    let hop_limit = [64, 64, 64, 2, 1][random.below(5)];
    let shape = |frame: Frame| {
        let flags = if frame.proto == TCP { flags } else { 0 };
        frame.flags(flags).payload(length).hop_limit(hop_limit)
    };
    if talk.is_open && random.one_in(2) {
        // Replies of other nodes come by the tunnel, where requests go.
        let comes = |seen: &&Frame| !node.has(OVERLAY) || interface_of(seen.destination.ip()).is_some();
        if let Some(seen) = talk.seen.as_ref().filter(comes) {
            let answer = shape(seen.answer().extension(&[]));
            trace.push(brief("answer", &answer));
            send(node, talk.program, &answer)?;
        }
    } else {
        let request = shape(talk.request.clone());
        trace.push(brief(talk.program, &request));
        talk.seen = send(node, talk.program, &request)?.or(talk.seen.take());
    }
    talk.is_open = flags & (FIN | RST) == 0;
    Ok(())
}

/// Map, key, value.
type Entry = (String, Vec<u8>, Vec<u8>);

/// Entries that decide: those of the flows' own services, and all of the other maps.
fn deciding(node: &PacketNode) -> Result<Vec<Entry>, Error> {
    let mut all = Vec::new();
    let policies = [481, 1426].map(policy_pin);
    for map in [
        "cilium_lb4_services_v2",
        "cilium_lb6_services_v2",
        "cilium_lb4_backends_v3",
        "cilium_lb6_backends_v3",
        "cilium_lb4_reverse_nat",
        "cilium_lb6_reverse_nat",
        "cilium_ipcache_v2",
        "cilium_lxc",
        "skep_endpoints",
        "skep_devices",
    ]
    .into_iter()
    .chain(policies.iter().map(String::as_str))
    {
        let addresses: Vec<Vec<u8>> = [V4, V6]
            .into_iter()
            .flat_map(|family| [service_of(family).ip(), family.node()])
            .map(|address| match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            })
            .collect();
        for (key, value) in node.entries(map)? {
            if !map.contains("services") || addresses.iter().any(|address| key.starts_with(address)) {
                all.push((map.to_owned(), key, value));
            }
        }
    }
    Ok(all)
}

/// One write, by the agent, or by one that is killed in it.
fn write(
    node: &PacketNode,
    map: &str,
    key: &[u8],
    value: Option<&[u8]>,
    is_killed: bool,
) -> Result<(), Error> {
    match value {
        _ if is_killed => node.write_and_die(map, key, value),
        Some(value) => node.write(map, key, value),
        // It may be gone.
        None => node.delete(map, key).or(Ok(())),
    }
}

/// The next start of the agent.
fn restart(node: &PacketNode) -> Result<(), Error> {
    let store = MapStore::new(node.store().root());
    store.open_or_create(&FLOW_EPOCH.spec(&MapSizes::default()))?;
    Ok(())
}

/// Changes the route to the other node's pods. The agent watches the kernel's routes.
fn reroute(node: &PacketNode, is_other: bool) -> Result<(), Error> {
    let failed = |error: skep_base_net::NetError| Error::Io(std::io::Error::other(error));
    let net = Netlink::open().map_err(failed)?;
    for family in [V4, V6] {
        let to = family.remote_pod();
        let route = Route {
            device: Some(ETH0_IFINDEX),
            gateway: Some(family.client()),
            ..Route::to(to.into())
        };
        if is_other {
            net.replace_route(&route).map_err(failed)?;
        } else {
            net.delete_route(&route).map_err(failed)?;
        }
    }
    node.store().raise_epoch();
    Ok(())
}

fn history(node: &PacketNode, seed: u64, trace: &mut Vec<String>) -> Result<(), Error> {
    let mut random = Random(seed);
    for family in [V4, V6] {
        serve(node, family)?;
    }
    node.forget_flows()?;
    let entries = deciding(node)?;
    let mut changed: BTreeMap<usize, ()> = BTreeMap::new();
    let mut talks: Vec<Talk> = [V4, V6].into_iter().flat_map(talks).collect();
    for _ in 0..STEPS {
        // Packets come in trains.
        let which = random.below(talks.len());
        for _ in 0..random.below(12) {
            packet(node, &mut talks[which], &mut random, trace)?;
        }
        if random.one_in(2) {
            continue;
        }
        match random.below(12) {
            0 => {
                trace.push("forget flows".to_owned());
                node.forget_flows()?;
            }
            1 => {
                let is_other = random.one_in(2);
                trace.push(format!("route {is_other}"));
                reroute(node, is_other)?;
            }
            2..6 => {
                for (at, ()) in std::mem::take(&mut changed) {
                    let (map, key, value) = &entries[at];
                    trace.push(format!("restore {map} {}", hex(key)));
                    write(node, map, key, Some(value), false)?;
                    packet(node, &mut talks[which], &mut random, trace)?;
                }
            }
            _ => {
                let at = random.below(entries.len());
                let (map, key, _) = &entries[at];
                // Gone, or as another entry of this map.
                let others: Vec<&Vec<u8>> = entries
                    .iter()
                    .filter(|(name, ..)| name == map)
                    .map(|(_, _, value)| value)
                    .collect();
                let value = (!random.one_in(2)).then(|| others[random.below(others.len())].as_slice());
                let is_killed = random.one_in(5);
                trace.push(format!(
                    "write {map} {} {:?} killed {is_killed}",
                    hex(key),
                    value.map(hex)
                ));
                write(node, map, key, value, is_killed)?;
                changed.insert(at, ());
                for _ in 0..random.below(6) {
                    packet(node, &mut talks[which], &mut random, trace)?;
                }
                if is_killed {
                    restart(node)?;
                }
            }
        }
    }
    for (at, ()) in changed {
        let (map, key, value) = &entries[at];
        write(node, map, key, Some(value), false)?;
    }
    reroute(node, false)
}

fn brief(what: &str, frame: &Frame) -> String {
    let Frame {
        proto,
        source,
        destination,
        flags,
        hop_limit,
        payload,
        ..
    } = frame;
    let length = payload.len();
    format!("{what}: {proto} {source} -> {destination} flags {flags} hop limit {hop_limit} length {length}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs histories of the seed from the environment, or of the same ones each time.
#[track_caller]
fn check(change: fn(&mut NodeOptions)) {
    let seed = std::env::var(SEED).ok().map(|seed| seed.parse().unwrap());
    let first = seed.unwrap_or(FIRST);
    take_twins();
    let done = with_table(&facts(), FlowTable::Twins, change, |node| {
        let began = Instant::now();
        for seed in first..first + HISTORIES {
            let mut trace = Vec::new();
            history(node, seed, &mut trace).unwrap_or_else(|error| {
                let last = trace.len().saturating_sub(30);
                panic!(
                    "{SEED}={seed}: {}\n{}",
                    error.with_causes(),
                    trace[last..].join("\n")
                )
            });
            if began.elapsed() > BUDGET {
                break;
            }
        }
        Ok(())
    });
    done.unwrap();
    let twins = take_twins();
    println!("{twins:?}");
    assert!(twins.hits * 20 > twins.compared, "{twins:?}");
}

/// No family has to declare that it decides: all maps of the store count.
#[test]
fn writes_to_every_map_raise_the_epoch() {
    let done = with_table(
        &facts(),
        FlowTable::Warm,
        |_| (),
        |node| {
            let store = node.store();
            let sizes = MapSizes::default();
            let mut checked = 0;
            for family in skep_bpf_maps::families() {
                let mut spec = family.spec(&sizes);
                spec.max_entries = spec.max_entries.min(64);
                let map = if family.has_instances {
                    store.provide_inner(&spec, &format!("{}_00001", family.name))?
                } else {
                    store.provide(&spec)?
                };
                let (key, value) = (vec![0; spec.key_size as usize], vec![0; map.value_len()]);
                for is_update in [true, false] {
                    let before = store.epoch().unwrap();
                    // Some maps have entries of other kinds: a write that fails may have been a part of one.
                    if is_update {
                        map.update(&key, &value);
                    } else {
                        map.delete(&key);
                    }
                    assert_ne!(store.epoch().unwrap(), before, "{}", family.name);
                    assert_eq!(store.writers(), Some(0), "{}", family.name);
                }
                checked += 1;
            }
            assert!(checked > 40, "{checked}");
            Ok(())
        },
    );
    done.unwrap();
}

#[test]
fn hits_do_what_packets_do_without_a_flow_table() {
    check(|_| ());
}

#[test]
fn hits_do_what_packets_do_without_a_flow_table_in_a_tunnel() {
    check(tunnel);
}

#[test]
fn hits_do_what_packets_do_without_a_flow_table_with_direct_return() {
    check(|options| options.packets.dsr = Some(DSR));
}
