// SPDX-License-Identifier: Apache-2.0

//! What the kernel sends to the interface of a pod that has a route of its own.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsRawFd as _,
};

use run_packets::{
    Error,
    node::{Called, PacketNode, with_node},
};
use skep_bpf_maps::{
    MapSizes,
    endpoint::{Endpoint, endpoint_flags},
    policy::{POLICIES, POLICY_STATIC_BITS},
};
use skep_bpf_programs::testing::run::SkBuff;
use skep_bpf_sys::{KernelMap, RawMap as _};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{dsr::*, frame::*, itself::serve_by, packet::*};

const PROGRAM: &str = "cil_to_container";
const ENDPOINT: u16 = 1426;
const REMOTE_POD_IDENTITY: u32 = 40_001;
/// `TC_ACT_OK`
const PASS: u32 = 0;
const HOST: u32 = 0x0c00;
const IDENTITY: u32 = 0x0f00;
const POLICY: u8 = 133;
const HEADER: u8 = 135;
const CT_PROTOCOL: u8 = 137;
const UNSUPPORTED_L3: u8 = 139;
const NO_CONFIG: u8 = 165;
const POLICY_DENY: u8 = 181;

fn world(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(203, 0, 113, 5), "2001:db8:ffff::5")
}

fn remote_node(family: Family) -> IpAddr {
    family.pick(Ipv4Addr::new(172, 30, 0, 2), "fd00:30::2")
}

fn pod(family: Family) -> SocketAddr {
    (family.local_pod(), 8080).into()
}

/// Of the second pod's interface, after a packet with this mark came by another one; 0: it is the node's own.
pub(crate) fn leaving(mark: u32, ingress_ifindex: u32) -> SkBuff {
    SkBuff {
        mark,
        ifindex: P2_IFINDEX,
        ingress_ifindex,
        ..SkBuff::default()
    }
}

/// Changes what programs know of the second pod.
pub(crate) fn change_flags(node: &PacketNode, change: impl Fn(&mut Endpoint)) -> Result<(), Error> {
    let key = P2_IFINDEX.to_ne_bytes();
    let entries = node.entries("skep_endpoints")?;
    let mut endpoint = Endpoint::read_from_bytes(&entries[&key[..]]).unwrap();
    change(&mut endpoint);
    node.write("skep_endpoints", &key, endpoint.as_bytes())
}

/// Says that the second pod has the program.
pub(crate) fn add_program(node: &PacketNode) -> Result<(), Error> {
    change_flags(node, |endpoint| endpoint.flags |= endpoint_flags::EGRESS_PROGRAM)
}

/// Runs `test` on a node whose second pod has the program.
fn with_program(test: impl Fn(&PacketNode) -> Result<(), Error> + Send) {
    let done = with_node(&facts(), move |node| {
        add_program(node)?;
        test(node)
    });
    done.unwrap();
}

/// The policy of the second pod for what it receives: nothing is allowed yet.
pub(crate) fn closed(node: &PacketNode) -> Result<KernelMap, Error> {
    let sizes = MapSizes::default();
    let inner = KernelMap::create(&POLICIES.inner_spec("cilium_policy_v2", &sizes).unwrap())?;
    let descriptor = inner.fd().unwrap().as_raw_fd();
    let key = u32::from(ENDPOINT).to_ne_bytes();
    node.write("skep_policies", &key, &descriptor.to_ne_bytes())?;
    change_flags(node, |endpoint| {
        endpoint.flags &= !endpoint_flags::OPEN_INGRESS;
        endpoint.verdicts = 1;
    })?;
    Ok(inner)
}

/// Adds an entry for an identity: any protocol and port.
fn rule(policy: &KernelMap, identity: u32, is_denied: bool) {
    let mut key = POLICY_STATIC_BITS.to_ne_bytes().to_vec();
    key.extend(identity.to_ne_bytes());
    key.extend([0; 4]);
    let mut value = [0; 12];
    value[2] = u8::from(is_denied);
    let failed = policy.update(&key, &value);
    assert!(failed.is_empty(), "{failed:?}");
}

fn run(node: &PacketNode, frame: &Frame, context: &SkBuff) -> Result<Called, Error> {
    node.run(PROGRAM, &frame.bytes(), context)
}

/// Kinds, subtypes and source identities of the events since the last call. That of a verdict is the other side.
pub(crate) fn events(node: &PacketNode) -> Result<Vec<(u8, u8, u32)>, Error> {
    let events = node.take_events()?;
    let read = |event: &Vec<u8>| {
        let identity = u32::from_ne_bytes(event[16..20].try_into().unwrap());
        (event[0], event[1], identity)
    };
    Ok(events.iter().map(read).collect())
}

/// How many entries of flows there are.
fn flow_count(node: &PacketNode, family: Family) -> Result<usize, Error> {
    Ok(flows(node, family)?.len())
}

#[test]
fn who_sent_a_packet_is_in_its_mark_or_known_by_its_address() {
    with_program(|node| {
        each(|family, proto| {
            let of_world = if family == V4 { 9 } else { 10 };
            let identity =
                |identity: u32, magic: u32| (identity & 0xffff) << 16 | magic | identity >> 16 & 0xff;
            let (pod_of_other_node, client) = (family.remote_pod(), family.client());
            for (what, mark, ingress, source, expected) in [
                ("a pod", identity(3211, IDENTITY), 0, world(family), 3211),
                (
                    "of another cluster",
                    identity(0x2_0c8b, IDENTITY),
                    0,
                    client,
                    0x2_0c8b,
                ),
                (
                    "a proxy at ingress",
                    identity(3211, 0x0a00),
                    0,
                    family.node(),
                    3211,
                ),
                (
                    "a proxy at egress",
                    identity(3211, 0x0b00),
                    0,
                    family.node(),
                    3211,
                ),
                ("the host", HOST, 0, family.node(), 1),
                (
                    "a remote pod",
                    0,
                    ETH0_IFINDEX,
                    pod_of_other_node,
                    REMOTE_POD_IDENTITY,
                ),
                ("a remote node", 0, ETH0_IFINDEX, remote_node(family), 6),
                ("the world", 0, ETH0_IFINDEX, world(family), of_world),
                ("after masquerade", 0, ETH0_IFINDEX, family.node(), of_world),
                ("the host, unmarked", 0, 0, family.node(), 1),
                (
                    "the address says more",
                    identity(6, IDENTITY),
                    0,
                    pod_of_other_node,
                    REMOTE_POD_IDENTITY,
                ),
            ] {
                node.forget_flows()?;
                events(node)?;
                let frame = Frame::new(proto, (source, 40_000).into(), pod(family));

                let ran = run(node, &frame, &leaving(mark, ingress))?;

                assert_eq!(ran.verdict, PASS, "{what}: {:?}", events(node)?);
                assert_eq!(
                    events(node)?,
                    [(4, 0, expected)],
                    "{what}, {family:?}: to endpoint"
                );
                assert_eq!(ran.mark, 0);
                assert_eq!(ran.packet, frame.bytes(), "as the kernel sent it");
                for (_, entry) in flows(node, family)? {
                    assert_eq!(entry[44..48], expected.to_ne_bytes());
                }
            }
            Ok(())
        })
    });
}

#[test]
fn the_policy_of_the_pod_decides() {
    with_program(|node| {
        let policy = closed(node)?;
        rule(&policy, REMOTE_POD_IDENTITY, false);
        rule(&policy, 6, true);
        each(|family, proto| {
            node.forget_flows()?;
            events(node)?;
            let from = |source| Frame::new(proto, (source, 40_000).into(), pod(family));
            let network = leaving(0, ETH0_IFINDEX);
            let of_world = if family == V4 { 9 } else { 10 };

            let allowed = run(node, &from(family.remote_pod()), &network)?;
            assert_eq!(allowed.verdict, PASS);
            let id = REMOTE_POD_IDENTITY;
            assert_eq!(events(node)?, [(5, 0, id), (4, 0, id)], "verdict, to endpoint");

            let other = run(node, &from(world(family)), &network)?;
            assert_eq!(other.verdict, SHOT);
            assert_eq!(events(node)?, [(5, 0, of_world), (1, POLICY, of_world)]);

            let denied = run(node, &from(remote_node(family)), &network)?;
            assert_eq!(denied.verdict, SHOT);
            assert_eq!(events(node)?, [(5, 0, 6), (1, POLICY_DENY, 6)]);

            // The proxy has asked before.
            let proxied = run(node, &from(world(family)), &leaving(3211 << 16 | 0x0a00, 0))?;
            assert_eq!(proxied.verdict, PASS);
            assert_eq!(events(node)?, [(4, 0, 3211)]);
            Ok(())
        })
    });
}

#[test]
fn without_a_policy_nothing_passes() {
    with_program(|node| {
        closed(node)?;
        node.delete("skep_policies", &u32::from(ENDPOINT).to_ne_bytes())?;
        each(|family, proto| {
            drops(node)?;
            let frame = Frame::new(proto, (family.remote_pod(), 40_000).into(), pod(family));
            let ran = run(node, &frame, &leaving(0, ETH0_IFINDEX))?;
            assert_eq!(ran.verdict, SHOT);
            assert_eq!(drops(node)?, [NO_CONFIG]);
            Ok(())
        })
    });
}

#[test]
fn replies_of_services_come_from_the_service_whatever_the_policy() {
    with_program(|node| {
        closed(node)?;
        each(|family, proto| {
            node.forget_flows()?;
            let (service, backend) = serve_by(node, family, family.remote_pod(), proto)?;
            let request = Frame::new(proto, (family.local_pod(), 40_000).into(), service);
            let sent = node.run("cil_from_container", &request.bytes(), &at(P2_IFINDEX))?;
            assert_eq!(read_back(&sent).destination, backend);
            let count = flow_count(node, family)?;
            let reply = Frame {
                source: backend,
                ..request.answer()
            };

            let ran = run(node, &reply, &leaving(0, ETH0_IFINDEX))?;

            assert_eq!(ran.verdict, PASS, "{:?}", events(node)?);
            assert_eq!(read_back(&ran), request.answer());
            assert_eq!(flow_count(node, family)?, count, "no flow of its own");
            Ok(())
        })
    });
}

#[test]
fn errors_about_flows_of_the_pod_pass_and_name_the_service() {
    with_program(|node| {
        closed(node)?;
        each(|family, proto| {
            node.forget_flows()?;
            let (service, backend) = serve_by(node, family, family.remote_pod(), proto)?;
            let request = Frame::new(proto, (family.local_pod(), 40_000).into(), service);
            let sent = node.run("cil_from_container", &request.bytes(), &at(P2_IFINDEX))?;
            // Unreachable port.
            let mut message = match family {
                V4 => vec![3, 3, 0, 0, 0, 0, 0, 0],
                V6 => vec![1, 4, 0, 0, 0, 0, 0, 0],
            };
            message.extend(&sent.packet[14..]);
            let error = Raw::icmp(backend.ip(), family.local_pod(), message);

            let ran = node.run(PROGRAM, &error.frame(), &leaving(0, ETH0_IFINDEX))?;

            assert_eq!(ran.verdict, PASS, "{:?}", events(node)?);
            let (source, _, message) = read_icmp(&ran.packet);
            assert_eq!(source, service.ip());
            let mut inside = ran.packet[..14].to_vec();
            inside.extend(&message[8..]);
            assert_eq!(Frame::read(&inside).unwrap().destination, service);

            // About a flow that the pod does not have.
            drops(node)?;
            node.forget_flows()?;
            let ran = node.run(PROGRAM, &error.frame(), &leaving(0, ETH0_IFINDEX))?;
            assert_eq!(ran.verdict, SHOT);
            assert_eq!(drops(node)?, [POLICY]);
            Ok(())
        })
    });
}

#[test]
fn what_is_no_packet_for_the_pod_is_dropped_or_left_alone() {
    with_program(|node| {
        closed(node)?;
        let network = leaving(0, ETH0_IFINDEX);
        let one = |frame: &[u8], context: &SkBuff| -> Result<(u32, Vec<u8>), Error> {
            Ok((node.run(PROGRAM, frame, context)?.verdict, drops(node)?))
        };
        drops(node)?;
        for family in [V4, V6] {
            let frame = Frame::new(TCP, (family.remote_pod(), 40_000).into(), pod(family)).bytes();

            let nowhere = SkBuff {
                ifindex: ETH0_IFINDEX,
                ..network
            };
            assert_eq!(one(&frame, &nowhere)?, (SHOT, vec![NO_CONFIG]));
            let mut broken = frame.clone();
            broken[14] = 0xf5;
            assert_eq!(one(&broken, &network)?, (SHOT, vec![HEADER]));
            let gre = Raw::new(family.remote_pod(), family.local_pod(), 47, vec![0; 40]);
            assert_eq!(one(&gre.frame(), &network)?, (SHOT, vec![CT_PROTOCOL]));
            let mut other = frame;
            other[12..14].copy_from_slice(&[0x88, 0xcc]);
            assert_eq!(one(&other, &network)?, (SHOT, vec![UNSUPPORTED_L3]));
            other[12..14].copy_from_slice(&[8, 6]);
            assert_eq!(one(&other, &network)?, (PASS, vec![]), "ARP");
        }
        Ok(())
    });
}

#[test]
fn neighbour_discovery_of_the_kernel_passes_and_of_others_is_dropped() {
    with_program(|node| {
        closed(node)?;
        for kind in [135, 136] {
            let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            let target = V6.local_pod();
            let IpAddr::V6(octets) = target else {
                unreachable!()
            };
            message.extend(octets.octets());
            let source: IpAddr = "fe80::4027:deff:fed3:bad".parse().unwrap();
            let mut frame = Raw::icmp(source, target, message).frame();
            drops(node)?;
            frame[14 + 7] = 255;
            assert_eq!(node.run(PROGRAM, &frame, &leaving(0, 0))?.verdict, PASS);
            assert_eq!(flow_count(node, V6)?, 0);

            frame[14 + 7] = 254;
            let ran = node.run(PROGRAM, &frame, &leaving(0, ETH0_IFINDEX))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![POLICY]));
        }
        Ok(())
    });
}

#[test]
fn reports_of_multicast_groups_stay_on_the_link() {
    with_program(|node| {
        closed(node)?;
        let source: IpAddr = "fe80::4027:deff:fed3:bad".parse().unwrap();
        // Version 2, no records (RFC 3810 5.2). Routers forward what is not for the link.
        for (group, expected) in [("ff02::16", (PASS, vec![])), ("ff05::16", (SHOT, vec![POLICY]))] {
            let report = vec![143, 0, 0, 0, 0, 0, 0, 0];
            let frame = Raw::icmp(source, group.parse().unwrap(), report).frame();
            drops(node)?;

            let ran = node.run(PROGRAM, &frame, &leaving(0, 0))?;
            assert_eq!((ran.verdict, drops(node)?), expected, "{group}");
        }
        Ok(())
    });
}

#[test]
fn what_another_program_has_delivered_is_not_looked_at_again() {
    with_program(|node| {
        closed(node)?;
        each(|family, proto| {
            node.forget_flows()?;
            events(node)?;
            let frame = Frame::new(proto, (world(family), 40_000).into(), pod(family));

            // The pod's own program answers it.
            let mark = 0x1234_0f00;
            let ran = run(node, &frame, &leaving(mark, P2_IFINDEX))?;
            assert_eq!((ran.verdict, ran.mark), (PASS, mark));

            // Until the flag is set, who delivers asks the policy.
            change_flags(node, |endpoint| endpoint.flags &= !endpoint_flags::EGRESS_PROGRAM)?;
            let ran = run(node, &frame, &leaving(mark, ETH0_IFINDEX))?;
            assert_eq!((ran.verdict, ran.mark), (PASS, mark));
            add_program(node)?;

            assert_eq!(flow_count(node, family)?, 0);
            assert_eq!(events(node)?, []);
            Ok(())
        })
    });
}

#[test]
fn the_policy_is_asked_once_of_what_the_host_sends_by_cilium_host() {
    let done = with_node(&facts(), |node| {
        let policy = closed(node)?;
        rule(&policy, 1, false);
        let cilium_host = |mark| SkBuff {
            mark,
            ifindex: 4,
            ..SkBuff::default()
        };
        each(|family, proto| {
            node.forget_flows()?;
            let frame = Frame::new(proto, (family.node(), 40_000).into(), pod(family));
            let hop = frame.clone().hop_limit(63);

            // Without the program at the pod, here.
            change_flags(node, |endpoint| endpoint.flags &= !endpoint_flags::EGRESS_PROGRAM)?;
            let ran = node.run("cil_from_host", &frame.bytes(), &cilium_host(HOST))?;
            assert_eq!((ran.verdict, ran.mark), (REDIRECT, 0));
            let entries = flow_count(node, family)?;
            assert!(entries > 0);

            // With it, there.
            node.forget_flows()?;
            events(node)?;
            add_program(node)?;
            let ran = node.run("cil_from_host", &frame.bytes(), &cilium_host(HOST))?;
            assert_eq!((ran.verdict, ran.mark), (REDIRECT, 1 << 16 | IDENTITY));
            assert_eq!(read_back(&ran), hop);
            assert_eq!(ran.packet[..6], P2_MAC);
            assert_eq!(flow_count(node, family)?, 0);
            assert_eq!(events(node)?, []);

            let ran = node.run(PROGRAM, &ran.packet, &leaving(ran.mark, 0))?;
            assert_eq!((ran.verdict, ran.mark), (PASS, 0), "{:?}", events(node)?);
            assert_eq!(read_back(&ran), hop);
            assert_eq!(flow_count(node, family)?, entries);
            assert_eq!(events(node)?, [(5, 0, 1), (4, 0, 1)]);

            // Another sender is dropped there.
            let stranger = Frame::new(proto, (world(family), 40_000).into(), pod(family));
            let ran = node.run("cil_from_host", &stranger.bytes(), &cilium_host(0))?;
            assert_eq!(ran.verdict, REDIRECT);
            let ran = node.run(PROGRAM, &ran.packet, &leaving(ran.mark, 0))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![POLICY]));
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn what_goes_straight_into_the_pod_passes_its_policy_where_it_is_delivered() {
    with_program(|node| {
        let policy = closed(node)?;
        rule(&policy, REMOTE_POD_IDENTITY, false);
        each(|family, proto| {
            node.forget_flows()?;
            let from = |source| Frame::new(proto, (source, 40_000).into(), pod(family));
            let ran = receive(node, TC, &from(family.remote_pod()))?;
            assert_eq!(ran.verdict, REDIRECT);
            assert!(flow_count(node, family)? > 0);
            drops(node)?;
            let ran = receive(node, TC, &from(world(family)))?;
            assert_eq!((ran.verdict, drops(node)?), (SHOT, vec![POLICY]));
            Ok(())
        })
    });
}
