// SPDX-License-Identifier: Apache-2.0

//! Random policies: what the program does to packets, the maps' own lookup, and the reference evaluator agree.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::TestRunner,
};
use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use serde_json::json;
use skep_bpf_maps::{
    node::{IpcacheKey, IpcacheValue},
    policy::{POLICY_STATIC_BITS, PolicyEntry, PolicyKey, policy_pin},
};
use skep_policy_model::{
    Content, EndpointFacts, MapState, Policies, PolicySettings, Protocol, filter::ProxyClass,
};
use zerocopy::{IntoBytes as _, network_endian::U16};

use crate::{frame::*, packet::*, to_container::change_flags};

#[path = "../../../../cells/policy/model/tests/model/generate.rs"]
mod generate;
#[path = "../../../../cells/policy/model/tests/model/reference.rs"]
mod reference;

use generate::{SUBJECT, all_peers, identity, labels, parse, rule};
use reference::{Direction, Packet, Peer, World};

/// The second pod.
const ENDPOINT: u16 = 1426;
const CASES: usize = 60;
/// Address of the other side, whose identity the test chooses.
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);

/// There is no proxy.
struct NoProxies;

impl skep_policy_model::map_state::ProxyPorts for NoProxies {
    fn port(&self, _: &ProxyClass) -> Option<u16> {
        None
    }
}

fn engine() -> Policies {
    let mut policies = Policies::new(PolicySettings::default());
    let peers = all_peers().into_iter();
    policies.update_identities(peers.map(|peer| (identity(peer), labels(peer))), [], &NoProxies);
    policies.set_endpoint(
        ENDPOINT,
        identity(SUBJECT),
        labels(SUBJECT),
        EndpointFacts::default(),
    );
    policies
}

fn entries(map: &MapState) -> Vec<(PolicyKey, PolicyEntry)> {
    let rows = map.rows().map(|row| {
        let key = PolicyKey {
            prefix_len: POLICY_STATIC_BITS + u32::from(row.key.length()),
            identity: row.identity.get(),
            direction: u8::from(row.direction == skep_policy_model::Direction::Egress),
            proto: row.key.protocol.0,
            port: U16::new(row.key.port),
        };
        let entry = PolicyEntry {
            proxy_port: U16::ZERO,
            flags: u8::from(row.entry.is_deny) | row.key.length() << 3,
            auth: 0,
            precedence: row.entry.precedence,
            cookie: 0,
        };
        (key, entry)
    });
    rows.collect()
}

fn policy_facts() -> [std::path::PathBuf; 2] {
    let [facts, _] = facts();
    [facts.clone(), facts.with_file_name("facts-pol.json")]
}

/// Makes a state the policy of the pod.
fn realize(node: &PacketNode, state: &MapState) -> Result<(), Error> {
    let map = policy_pin(ENDPOINT);
    for key in node.entries(&map)?.keys() {
        node.delete(&map, key)?;
    }
    entries(state)
        .iter()
        .try_for_each(|(key, entry)| node.write(&map, key.as_bytes(), entry.as_bytes()))
}

/// Whether a packet between the pod and the other side, of this identity, passes.
fn passes(node: &PacketNode, packet: &Packet) -> Result<bool, Error> {
    let entry = IpcacheValue::new(identity(packet.peer).get());
    node.write(
        "cilium_ipcache_v2",
        IpcacheKey::host(OTHER.into()).as_bytes(),
        entry.as_bytes(),
    )?;
    let (pod, other): (IpAddr, IpAddr) = (P2.into(), OTHER.into());
    let (program, source, destination, interface) = match packet.direction {
        Direction::Ingress => ("cil_from_netdev", other, pod, ETH0_IFINDEX),
        Direction::Egress => ("cil_from_container", pod, other, P2_IFINDEX),
    };
    let frame = Frame::new(
        packet.protocol,
        SocketAddr::new(source, 41_000),
        SocketAddr::new(destination, packet.port),
    );
    let verdict = node.run(program, &frame.bytes(), &at(interface))?.verdict;
    node.forget_flows()?;
    Ok(verdict != SHOT)
}

fn decided(map: &MapState, packet: &Packet) -> bool {
    let direction = match packet.direction {
        Direction::Ingress => skep_policy_model::Direction::Ingress,
        Direction::Egress => skep_policy_model::Direction::Egress,
    };
    let found = map.lookup(
        direction,
        identity(packet.peer),
        Protocol(packet.protocol),
        packet.port,
    );
    found.is_some_and(|found| !found.row.entry.is_deny)
}

#[test]
fn the_program_the_maps_and_the_reference_agree() {
    let mut runner = TestRunner::default();
    let rules = proptest::collection::vec(rule(), 0..8);
    let cases: Vec<Vec<reference::Rule>> = (0..CASES)
        .map(|_| rules.new_tree(&mut runner).unwrap().current())
        .map(|rules| {
            rules
                .into_iter()
                .map(|rule| reference::Rule { http: false, ..rule }.possible())
                .collect()
        })
        .collect();
    let quiet = |options: &mut skep_bpf_programs::NodeOptions| {
        options.packets.events.traces = false;
        options.packets.events.drops = false;
        options.packets.events.verdicts = false;
    };
    let done = with_options(&policy_facts(), quiet, |node| {
        change_flags(node, |endpoint| endpoint.flags = 0)?;
        for rules in &cases {
            let mut policies = engine();
            for (number, rule) in rules.iter().enumerate() {
                let object = parse(rule, number);
                let Content::Rules(rules) = &object.content else {
                    panic!("no rules")
                };
                policies.replace(&object.resource, Some(rules));
            }
            policies.refresh(&NoProxies);
            let state = policies.map_of(ENDPOINT).unwrap();
            realize(node, state)?;
            let world = World { rules };
            for direction in [Direction::Ingress, Direction::Egress] {
                for peer in all_peers().into_iter().filter(|peer| *peer != Peer::Host) {
                    let tcp = (77..86).map(|port| (TCP, port));
                    for (protocol, port) in tcp.chain([(UDP, 80), (UDP, 81)]) {
                        let packet = Packet {
                            direction,
                            peer,
                            protocol,
                            port,
                        };
                        let expected = world.decide(&packet) == "allow";
                        assert_eq!(decided(state, &packet), expected, "maps: {packet:?} {rules:?}");
                        assert_eq!(passes(node, &packet)?, expected, "program: {packet:?} {rules:?}");
                    }
                }
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn rules_with_ports_open_their_protocol_alone() {
    let change = |options: &mut skep_bpf_programs::NodeOptions| options.packets.sctp = true;
    let done = with_options(&policy_facts(), change, |node| {
        change_flags(node, |endpoint| endpoint.flags = 0)?;
        for (protocol, allowed) in [
            ("TCP", [TCP].as_slice()),
            ("UDP", &[UDP]),
            ("SCTP", &[SCTP]),
            ("ANY", &[TCP, UDP, SCTP]),
        ] {
            let rules =
                json!([{"toPorts": [{"ports": [{"port": "80", "endPort": 83, "protocol": protocol}]}]}]);
            let object = json!({
                "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "p"},
                "spec": {"endpointSelector": {}, "ingress": rules, "egress": rules},
            });
            let context = skep_policy_model::Context {
                settings: &PolicySettings::default(),
                services: &[],
            };
            let object = skep_policy_model::PolicyObject::parse(&object, &context).unwrap();
            let Content::Rules(rules) = &object.content else {
                panic!("no rules")
            };
            let mut policies = engine();
            policies.replace(&object.resource, Some(rules));
            policies.refresh(&NoProxies);
            realize(node, policies.map_of(ENDPOINT).unwrap())?;
            for direction in [Direction::Ingress, Direction::Egress] {
                for (of_packet, port) in [TCP, UDP, SCTP].into_iter().flat_map(|of| [(of, 81), (of, 84)]) {
                    let packet = Packet {
                        direction,
                        peer: Peer::World,
                        protocol: of_packet,
                        port,
                    };
                    let expected = port == 81 && allowed.contains(&of_packet);
                    assert_eq!(passes(node, &packet)?, expected, "{protocol}: {packet:?}");
                }
            }
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn entries_are_counted_if_accounting_is_on() {
    for is_on in [true, false] {
        let change = |options: &mut skep_bpf_programs::NodeOptions| options.packets.policy_accounting = is_on;
        let done = with_options(&policy_facts(), change, |node| {
            let frame = Frame::new(TCP, (P1, 40_000).into(), (P2, 81).into()).bytes();
            assert_eq!(
                node.run("cil_from_container", &frame, &at(P1_IFINDEX))?.verdict,
                SHOT
            );
            let counted = node.entries("cilium_policystats")?;
            let of_receiver = counted.keys().filter(|key| key[..2] == ENDPOINT.to_ne_bytes());
            // Of what no entry matches nothing is counted: the sender's entry alone.
            assert_eq!((counted.is_empty(), of_receiver.count()), (!is_on, 0));
            Ok(())
        });
        done.unwrap();
    }
}
