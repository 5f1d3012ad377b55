// SPDX-License-Identifier: Apache-2.0

//! Which events programs send, and what is in them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use skep_bpf_maps::endpoint::{Device, Endpoint, LxcKey, LxcValue, device_flags, events};
use skep_bpf_programs::{EventKinds, Nat46x64, NodeOptions, Tunnel, TunnelProtocol};
use skep_datapath_monitor_events::event::{Event, PacketFlags};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{dsr::*, frame::*, packet::*};

const DROP: u8 = 1;
const DEBUG: u8 = 2;
const CAPTURE: u8 = 3;
const TRACE: u8 = 4;
const VERDICT: u8 = 5;

fn with_policies() -> [PathBuf; 2] {
    let [facts, _] = facts();
    let policies = facts.with_file_name("facts-pol.json");
    [facts, policies]
}

fn all(change: impl Fn(&mut NodeOptions) + Copy) -> impl Fn(&mut NodeOptions) + Copy {
    move |options| {
        options.trace_aggregation = 0;
        change(options);
    }
}

/// Sends from the first pod to the second one.
fn from_pod(node: &PacketNode, to: SocketAddr) -> Result<u32, Error> {
    let frame = Frame::new(TCP, (P1, 40_000).into(), to);
    Ok(node
        .run("cil_from_container", &frame.bytes(), &at(P1_IFINDEX))?
        .verdict)
}

/// Types of the events about a packet that the policy of its receiver allows, and one that it denies.
fn kinds(events: EventKinds) -> BTreeSet<u8> {
    let change = all(move |options| options.packets.events = events);
    let done = with_options(&with_policies(), change, |node| {
        assert_eq!(from_pod(node, (P2, 80).into())?, REDIRECT);
        assert_eq!(from_pod(node, (P2, 81).into())?, SHOT);
        let events = node.take_events()?;
        Ok(events.iter().map(|event| event[0]).collect())
    });
    done.unwrap()
}

#[test]
fn events_that_are_off_are_not_sent() {
    let default = EventKinds::default();
    assert_eq!(kinds(default), BTreeSet::from([DROP, TRACE, VERDICT]));
    let off = EventKinds {
        drops: false,
        ..default
    };
    assert_eq!(kinds(off), BTreeSet::from([TRACE, VERDICT]));
    let off = EventKinds {
        verdicts: false,
        ..default
    };
    assert_eq!(kinds(off), BTreeSet::from([DROP, TRACE]));
    let off = EventKinds {
        traces: false,
        ..default
    };
    assert_eq!(kinds(off), BTreeSet::from([DROP, VERDICT]));
    let debug = EventKinds {
        debug: true,
        ..default
    };
    assert_eq!(
        kinds(debug),
        BTreeSet::from([DROP, DEBUG, CAPTURE, TRACE, VERDICT])
    );
}

#[test]
fn drops_are_counted_without_their_events() {
    let change = |options: &mut NodeOptions| options.packets.events.drops = false;
    let done = with_options(&with_policies(), change, |node| {
        assert_eq!(from_pod(node, (P2, 81).into())?, SHOT);
        let metrics = node.entries("cilium_metrics")?;
        assert!(metrics.keys().any(|key| key[0] == 133), "{metrics:?}");
        Ok(())
    });
    done.unwrap();
}

#[test]
fn no_more_events_than_the_limit_are_sent_and_the_others_counted() {
    let change = all(|options| options.packets.events_limit = Some((4, 4)));
    let done = with_options(&facts(), change, |node| {
        for port in 1..=50 {
            from_pod(node, (P2, port).into())?;
        }
        let sent = node.take_events()?.len() as u64;
        let usage = 2_u32.to_ne_bytes();
        let counted = node.entries("cilium_ratelimit_metrics")?;
        let limited = u64::from_ne_bytes(counted[&usage[..]].as_slice().try_into().unwrap());
        // At least those that may be sent at once; one more for each quarter of a second that the test takes.
        assert!((4..100).contains(&sent), "{sent}");
        assert_eq!(sent + limited, 100, "two for each packet");
        Ok(())
    });
    done.unwrap();
}

/// Texts of debug messages, and capture points, since the last call; times are left out.
fn debug_messages(node: &PacketNode) -> Result<Vec<String>, Error> {
    let mut texts = Vec::new();
    for event in node.take_events()? {
        match Event::decode(&event).unwrap() {
            Event::Debug(message) => {
                let text = message.text(&|_| None);
                let text = match text.split_once("lifetime=") {
                    Some((before, after)) => {
                        let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
                        format!("{before}lifetime=T{rest}")
                    }
                    None => text,
                };
                texts.push(format!("{}: {text}", message.source));
            }
            Event::Capture(capture) => {
                assert!(!capture.packet.is_empty());
                assert_eq!(capture.header.version, 1);
                texts.push(format!(
                    "{}: capture {} at {}",
                    capture.header.source, capture.point, capture.args[0]
                ));
            }
            _ => {}
        }
    }
    Ok(texts)
}

fn debug(options: &mut NodeOptions) {
    options.packets.events.debug = true;
}

#[track_caller]
fn assert_messages(node: &PacketNode, expected: &[String]) -> Result<(), Error> {
    let found = debug_messages(node)?;
    assert_eq!(found, expected, "found:\n{}", found.join("\n"));
    Ok(())
}

/// What both messages of a lookup say of a TCP packet; `how` is what is looked up.
fn lookup(endpoint: u16, flow: &str, how: &str) -> [String; 2] {
    [
        format!("{endpoint}: Conntrack lookup 1/2: {flow}"),
        format!("{endpoint}: Conntrack lookup 2/2: nexthdr=6 {how}"),
    ]
}

#[test]
fn debug_messages_follow_a_packet_of_a_pod() {
    let flow = "src=10.1.0.165:40000 dst=10.1.0.221:80";
    let denied = "src=10.1.0.165:40000 dst=10.1.0.221:81";
    let frontend = |port: u16| {
        [
            format!("481: Frontend service lookup, addr=10.1.0.221 key.dport={port}"),
            "481: Frontend service lookup failed".to_owned(),
        ]
    };
    let sent = |flow| lookup(481, flow, "flags=1 dir=0 scope=2");
    let received = |flow| lookup(1426, flow, "flags=0 dir=1 scope=2");
    let text = |text: &str| text.to_owned();
    let new = |endpoint: u16| format!("{endpoint}: CT verdict: New, revnat=0");
    let created = |endpoint: u16| {
        format!("{endpoint}: Conntrack create: proxy-port=0 revnat=0 src-identity=3211 lb=0.0.0.0")
    };
    let established = |endpoint: u16| {
        [
            format!("{endpoint}: CT entry found lifetime=T, revnat=0"),
            format!("{endpoint}: CT verdict: Established, revnat=0"),
        ]
    };
    let delivery = "481: Attempting local delivery for container id 1426 from seclabel 3211";
    let allowed = "1426: Matched L4 policy; creating conntrack src=3211 dst=52436 dport=80 proto=6";
    let handed_over = format!("1426: capture 4 at {P2_IFINDEX}");
    let done = with_options(&with_policies(), debug, |node| {
        assert_eq!(from_pod(node, (P2, 80).into())?, REDIRECT);
        let mut expected = [frontend(80), sent(flow)].concat();
        expected.extend([new(481), created(481), text(delivery)]);
        expected.extend(received(flow));
        expected.extend([new(1426), text(allowed), created(1426), handed_over.clone()]);
        assert_messages(node, &expected)?;

        assert_eq!(from_pod(node, (P2, 80).into())?, REDIRECT);
        let mut expected = [frontend(80), sent(flow), established(481)].concat();
        expected.push(text(delivery));
        expected.extend([received(flow), established(1426)].concat());
        expected.extend([text(allowed), handed_over.clone()]);
        assert_messages(node, &expected)?;

        assert_eq!(from_pod(node, (P2, 81).into())?, SHOT);
        let mut expected = [frontend(81), sent(denied)].concat();
        expected.extend([new(481), created(481), text(delivery)]);
        expected.extend(received(denied));
        let policy = "1426: Policy evaluation would deny packet from 3211 to 52436";
        expected.extend([new(1426), text(policy)]);
        assert_messages(node, &expected)
    });
    done.unwrap();
}

#[test]
fn debug_messages_follow_a_packet_to_a_service() {
    let done = with_options(&facts(), debug, |node| {
        // Of no endpoint at XDP.
        for (program, endpoint) in [(TC, 2781), (XDP, 0)] {
            node.forget_flows()?;
            let say = |texts: &[&str]| -> Vec<String> {
                texts.iter().map(|text| format!("{endpoint}: {text}")).collect()
            };
            let forwarded = read_back(&receive(node, program, &request(V4, TCP))?);
            let expected = say(&[
                "Frontend service lookup, addr=172.30.0.1 key.dport=30080",
                "Conntrack lookup 1/2: src=172.30.0.3:40000 dst=172.30.0.1:30080",
                "Conntrack lookup 2/2: nexthdr=6 flags=4 dir=2 scope=1",
                "CT verdict: New, revnat=0",
                "Service backend slot lookup: slot=1, dport=30080",
                "Service backend slot lookup result: target=10.2.0.10 port=80",
                "Conntrack create: proxy-port=0 revnat=15 src-identity=0 lb=0.0.0.0",
                "Conntrack lookup 1/2: src=172.30.0.3:40000 dst=10.2.0.10:80",
                "Conntrack lookup 2/2: nexthdr=6 flags=0 dir=0 scope=0",
                "CT verdict: New, revnat=0",
                "Conntrack create: proxy-port=0 revnat=15 src-identity=9 lb=0.0.0.0",
                "capture 10 at 2",
                "capture 11 at 2",
            ]);
            assert_messages(node, &expected)?;

            receive(node, program, &forwarded.answer())?;
            let expected = say(&[
                "Frontend service lookup, addr=172.30.0.1 key.dport=40000",
                "Frontend service lookup failed",
                "Conntrack lookup 1/2: src=10.2.0.10:80 dst=172.30.0.3:40000",
                "Conntrack lookup 2/2: nexthdr=6 flags=0 dir=1 scope=1",
                "CT entry found lifetime=T, revnat=15",
                "CT verdict: Reply, revnat=15",
                "Reverse NAT lookup, index=15",
                "Performing reverse NAT, address=172.30.0.1 port=30080",
            ]);
            assert_messages(node, &expected)?;
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn debug_messages_of_ipv6_have_the_last_words_of_addresses() {
    let done = with_options(&facts(), debug, |node| {
        receive(node, TC, &request(V6, UDP))?;
        let expected: Vec<String> = [
            "Frontend service lookup, addr.p4=1000000 key.dport=30053",
            "Conntrack lookup 1/2: src=[::0:3]:40000 dst=[::0:1]:30053",
            "Conntrack lookup 2/2: nexthdr=17 flags=4 dir=2 scope=1",
            "CT verdict: New, revnat=0",
            "Service backend slot lookup: slot=1, dport=30053",
            "Service backend slot lookup result: target.p4=10000000 port=5353",
            "Conntrack create: proxy-port=0 revnat=84 src-identity=0",
            "Conntrack lookup 1/2: src=[::0:3]:40000 dst=[::0:10]:5353",
            "Conntrack lookup 2/2: nexthdr=17 flags=0 dir=0 scope=0",
            "CT verdict: New, revnat=0",
            "Conntrack create: proxy-port=0 revnat=84 src-identity=10",
            "capture 10 at 2",
            "capture 11 at 2",
        ]
        .map(|text| format!("2781: {text}"))
        .to_vec();
        assert_messages(node, &expected)
    });
    done.unwrap();
}

/// The messages of a packet that a pod sends that have this in them.
fn said(node: &PacketNode, frame: &Frame, what: &str) -> Result<Vec<String>, Error> {
    node.take_events()?;
    node.run("cil_from_container", &frame.bytes(), &at(P2_IFINDEX))?;
    let mut texts = debug_messages(node)?;
    texts.retain(|text| text.contains(what));
    Ok(texts)
}

#[test]
fn debug_messages_tell_who_a_packet_is_for_and_where_it_goes() {
    let change = |options: &mut NodeOptions| {
        debug(options);
        tunnel(options);
    };
    let done = with_options(&facts(), change, |node| {
        let frame = |to: IpAddr| Frame::new(TCP, (P2, 40_000).into(), (to, 80).into());
        let known = said(node, &frame(REMOTE_POD.into()), "map")?;
        assert_eq!(
            known,
            ["1426: Successfully mapped addr=10.2.0.10 to identity=40001"]
        );
        // Without the entries of all addresses, which have only the bits in front of one.
        for key in node.entries("cilium_ipcache_v2")?.into_keys() {
            if key[..4] == 32_u32.to_ne_bytes() {
                node.delete("cilium_ipcache_v2", &key)?;
            }
        }
        let unknown = said(node, &frame(IpAddr::from([192, 0, 2, 99])), "map")?;
        assert_eq!(unknown, ["1426: Failed to map addr=192.0.2.99 to identity"]);
        let node_of_pod = said(node, &frame(REMOTE_POD.into()), "Encapsulating")?;
        // 172.30.0.2
        assert_eq!(
            node_of_pod,
            ["1426: Encapsulating to node 2887647234 (0xac1e0002) from seclabel 52436"]
        );
        Ok(())
    });
    done.unwrap();

    // The backend is the pod itself.
    let done = with_options(&facts(), debug, |node| {
        let frame = Frame::new(TCP, (P2, 40_000).into(), (VIP, 80).into());
        let looped = said(node, &frame, "Loopback")?;
        assert_eq!(looped, ["1426: Loopback SNAT from=10.1.0.221 to=169.254.42.1"]);
        Ok(())
    });
    done.unwrap();
}

fn tunnel(options: &mut NodeOptions) {
    options.packets.tunnel = Some(Tunnel {
        protocol: TunnelProtocol::Vxlan,
        port: 8472,
        device: 3,
        source_ports: (32_768, 60_999),
    });
    options.packets.trace_length = 100;
    options.packets.trace_length_overlay = 150;
}

/// The trace of a packet that leaves the node: its flags, and how much of it there is.
fn leaving(node: &PacketNode, packet: &[u8], mark: u32) -> Result<(PacketFlags, usize), Error> {
    let context = skep_bpf_programs::testing::run::SkBuff {
        mark,
        ..at(ETH0_IFINDEX)
    };
    node.take_events()?;
    node.run("cil_to_netdev", packet, &context)?;
    let events = node.take_events()?;
    let Some(Event::Trace(trace)) = events
        .iter()
        .map(|event| Event::decode(event).unwrap())
        .find(|event| matches!(event, Event::Trace(_)))
    else {
        panic!("no trace: {events:?}")
    };
    assert_eq!(trace.header.original_length as usize, packet.len());
    Ok((trace.flags, trace.packet.len()))
}

#[test]
fn events_of_the_tunnel_have_more_bytes_of_the_packet() {
    const OVERLAY: u32 = 0x400;
    let done = with_options(&facts(), all(tunnel), |node| {
        for family in [V4, V6] {
            let frame = Frame::new(
                UDP,
                (family.node(), 40_000).into(),
                (family.remote_pod(), 8472).into(),
            );
            let (flags, length) = leaving(node, &frame.payload(200).bytes(), OVERLAY)?;
            assert!(flags.is_vxlan() && !flags.is_l3_device());
            assert_eq!(length, 150);

            let frame = Frame::new(
                UDP,
                (family.node(), 40_000).into(),
                (family.remote_pod(), 53).into(),
            );
            let (flags, length) = leaving(node, &frame.payload(200).bytes(), OVERLAY)?;
            assert!(!flags.is_vxlan());
            assert_eq!(length, 100);
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn events_say_that_packets_have_no_ethernet_header() {
    let done = with_options(&facts(), all(tunnel), |node| {
        let packet = |family: Family, port| {
            let frame = Frame::new(
                UDP,
                (family.node(), 40_000).into(),
                (family.remote_pod(), port).into(),
            );
            frame.payload(200).bytes().split_off(14)
        };
        let device = |flags| Device {
            flags,
            ..Device::default()
        };
        let index = ETH0_IFINDEX.to_ne_bytes();
        let before = node.entries("skep_devices")?[&index[..]].clone();

        node.write("skep_devices", &index, device(device_flags::L3).as_bytes())?;
        for family in [V4, V6] {
            for (port, is_vxlan) in [(53, false), (8472, true)] {
                let (flags, length) = leaving(node, &packet(family, port), 0)?;
                assert!(flags.is_l3_device(), "{family:?}");
                assert_eq!(flags.is_ipv6(), family == V6);
                assert_eq!(flags.is_vxlan(), is_vxlan);
                assert_eq!(length, if is_vxlan { 150 } else { 100 });
            }
        }

        node.write("skep_devices", &index, &before)?;
        let frame = Frame::new(UDP, (NODE, 40_000).into(), (REMOTE_POD, 53).into());
        let (flags, _) = leaving(node, &frame.bytes(), 0)?;
        assert!(!flags.is_l3_device());
        Ok(())
    });
    done.unwrap();
}

#[test]
fn packets_without_ethernet_header_are_left_to_the_kernel() {
    // Where a frame has its type, this one has an address that looks like that of IPv4.
    let source = IpAddr::from(Ipv4Addr::new(8, 0, 0, 7));
    let frame = Frame::new(UDP, (source, 40_000).into(), (NODE, NODE_PORT).into());
    let packet = frame.payload(40).bytes().split_off(14);
    let done = with_options(
        &facts(),
        |_| (),
        |node| {
            let device = Device {
                flags: device_flags::L3,
                ..Device::default()
            };
            node.write("skep_devices", &ETH0_IFINDEX.to_ne_bytes(), device.as_bytes())?;
            for program in [TC, "cil_to_netdev"] {
                let ran = node.run(program, &packet, &at(ETH0_IFINDEX))?;
                assert_eq!((ran.verdict, &ran.packet), (0, &packet), "{program}");
            }
            assert_eq!(drops(node)?, [0; 0]);
            Ok(())
        },
    );
    done.unwrap();
}

#[test]
fn events_of_endpoints_are_those_of_their_options() {
    const IDS: [u16; 2] = [481, 1426];
    let change = all(|options| options.packets.endpoint_debug = true);
    let done = with_options(&with_policies(), change, |node| {
        let sender = |bits: u8| {
            let key = P1_IFINDEX.to_ne_bytes();
            let entries = node.entries("skep_endpoints")?;
            let mut endpoint = Endpoint::read_from_bytes(&entries[&key[..]]).unwrap();
            endpoint.events = bits;
            node.write("skep_endpoints", &key, endpoint.as_bytes())
        };
        let receiver = |bits: u8| {
            let key = LxcKey::new(P2.into());
            let entries = node.entries("cilium_lxc")?;
            let mut value = LxcValue::read_from_bytes(&entries[key.as_bytes()]).unwrap();
            value.events = bits;
            node.write("cilium_lxc", key.as_bytes(), value.as_bytes())
        };
        // Types of the events with the ids of the endpoints that they are of.
        let events = |port: u16| {
            node.forget_flows()?;
            node.take_events()?;
            from_pod(node, (P2, port).into())?;
            let events = node.take_events()?.into_iter();
            let found = events.map(|event| (event[0], u16::from_ne_bytes([event[2], event[3]])));
            Ok::<BTreeSet<_>, Error>(found.collect())
        };
        let [first, second] = IDS;
        let of = |id| BTreeSet::from([(TRACE, id), (VERDICT, id)]);
        assert_eq!(events(80)?, &of(first) | &of(second));

        sender(events::SET | events::DROPS)?;
        assert_eq!(events(80)?, of(second));
        sender(events::SET | events::TRACES | events::DEBUG | 4 << events::LEVEL_SHIFT)?;
        let found = events(80)?;
        assert!(found.contains(&(DEBUG, first)) && !found.contains(&(VERDICT, first)));
        assert!(!found.contains(&(TRACE, first)) && !found.contains(&(DEBUG, second)));

        sender(0)?;
        receiver(events::SET | events::DROPS)?;
        assert_eq!(events(80)?, of(first));
        assert_eq!(events(81)?, &of(first) | &[(DROP, second)].into());
        receiver(events::SET | events::VERDICTS)?;
        assert_eq!(events(81)?, &of(first) | &[(VERDICT, second)].into());
        Ok(())
    });
    done.unwrap();
}

/// Options that add most to the programs.
fn everything(options: &mut NodeOptions) {
    let packets = &mut options.packets;
    packets.sctp = true;
    packets.maglev = true;
    packets.lb_per_service = true;
    packets.ip_masq_agent = true;
    packets.health_probes = true;
    packets.ct_accounting = true;
    packets.extended_protocols = true;
    packets.host_firewall = true;
    packets.masquerade4 = true;
    packets.masquerade6 = true;
    packets.masquerade_nodes = true;
    packets.endpoint_debug = true;
    packets.events_limit = Some((10, 10));
    packets.all_vlans = false;
    packets.vlans = vec![1, 2, 3, 4, 5];
    packets.nat46x64 = Some(Nat46x64 {
        services: true,
        gateway: true,
        prefix: Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0),
        mtu: 1500,
    });
    options.trace_aggregation = 0;
}

/// Instructions that the verifier looked at, of the programs that are there: the largest first.
fn verified() -> Vec<(u32, String)> {
    let mut all: Vec<_> = libbpf_rs::query::ProgInfoIter::default()
        .map(|info| (info.verified_insns, info.name.to_string_lossy().into_owned()))
        .filter(|(_, name)| name.starts_with("cil_"))
        .collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    all
}

/// What a node with the chart's values has.
fn chart(options: &mut NodeOptions) {
    options.ipv6 = false;
    options.nodeport = false;
    options.packets.masquerade4 = true;
    tunnel(options);
}

#[test]
fn verifiers_accept_programs_with_all_options() {
    const LIMIT: u32 = 1_000_000;
    let direct = |options: &mut NodeOptions| options.packets.dsr = Some(DSR);
    let all_direct = |options: &mut NodeOptions| {
        everything(options);
        direct(options);
    };
    let all_tunnelled = |options: &mut NodeOptions| {
        everything(options);
        tunnel(options);
    };
    type Mode<'a> = (&'a str, &'a dyn Fn(&mut NodeOptions));
    let modes: [Mode<'_>; 3] = [
        ("chart", &chart),
        ("all, DSR", &all_direct),
        ("all, tunnel", &all_tunnelled),
    ];
    for (name, mode) in modes {
        for (has_debug, has_flows) in [(false, false), (false, true), (true, false), (true, true)] {
            let change = |options: &mut NodeOptions| {
                mode(options);
                options.packets.events.debug = has_debug;
                options.packets.flows = has_flows;
                // One or the other.
                options.packets.bandwidth = name != "chart" && !has_flows;
            };
            let case = format!("{name}, debug {has_debug}, flow table {has_flows}");
            let most = with_options(&facts(), change, |_| Ok(verified()));
            let most = most.unwrap_or_else(|error| panic!("{case}: {}", error.with_causes()));
            println!("{case}: {:?}", most[0]);
            assert!(most[0].0 < LIMIT / 2, "{case}: {most:?}");
        }
    }
}
