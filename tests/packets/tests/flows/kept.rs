// SPDX-License-Identifier: Apache-2.0

//! Which backend a flow has as time passes and backends change.

use std::net::SocketAddr;

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};
use skep_bpf_maps::{
    lb::{LbMapSizes, ServiceFlags},
    testing::{Frontend, LbMaps},
};

use crate::{apart::serve_two, dsr::*, frame::*, itself::answer_from, packet::*};

const PORTS: std::ops::Range<u16> = 8080..8084;
const ID: u16 = 910;
const LIFETIME: std::ops::Range<usize> = 32..36;
const NO_SERVICE: u8 = 158;
const ACTIVE: u8 = 0;
const TERMINATING: u8 = 1;
const QUARANTINED: u8 = 2;
const MAINTENANCE: u8 = 3;

fn address(family: Family) -> SocketAddr {
    SocketAddr::from((family.pick([203, 0, 113, 90].into(), "2001:db8:90::1"), 80))
}

/// New flows to the service get one of these ports of a pod on another node.
fn upsert(maps: &LbMaps, family: Family, proto: u8, ports: impl Iterator<Item = u16>, affinity: u32) {
    let backends: Vec<SocketAddr> = ports.map(|port| (family.remote_pod(), port).into()).collect();
    let mut frontend = Frontend::new(ID, address(family), proto, &backends)
        .flags(ServiceFlags::ROUTABLE | ServiceFlags::EXTERNAL_IP);
    frontend.affinity = affinity;
    maps.upsert(&frontend).unwrap();
}

/// The service with all its backends.
fn serve(node: &PacketNode, family: Family, proto: u8, affinity: u32) -> (SocketAddr, LbMaps) {
    let maps = LbMaps::open(&node.store(), LbMapSizes::uniform(4096)).unwrap();
    upsert(&maps, family, proto, PORTS, affinity);
    let service = address(family);
    answer_from(node, ID, service).unwrap();
    (service, maps)
}

fn upsert_others(maps: &LbMaps, family: Family, proto: u8, port: u16, affinity: u32) {
    upsert(
        maps,
        family,
        proto,
        PORTS.filter(|other| *other != port),
        affinity,
    );
}

/// Sets the state of the backend with this port; one that is not active gets no new flows.
fn set_state(node: &PacketNode, family: Family, port: u16, state: u8) -> Result<(), Error> {
    let map = family.map("cilium_lb4_backends_v3");
    let size = if family == V4 { 4 } else { 16 };
    for (key, mut backend) in node.entries(&map)? {
        if backend[size..][..2] == port.to_be_bytes() {
            backend[size + 3] = state;
            node.write(&map, &key, &backend)?;
            if state != ACTIVE {
                let [high, low] = ID.to_be_bytes();
                let matched = [key.as_slice(), &[high, low, 0, 0]].concat();
                node.delete("cilium_lb_affinity_match", &matched).ok();
            }
        }
    }
    Ok(())
}

/// Port of the backend that a packet goes to.
fn backend_of(node: &PacketNode, program: &str, frame: &Frame) -> Result<u16, Error> {
    let ran = receive(node, program, frame)?;
    assert!(
        [REDIRECT, XDP_TX].contains(&ran.verdict),
        "{program}: {:?}",
        drops(node)?
    );
    Ok(read_back(&ran).destination.port())
}

/// Changes the entries of all flows.
fn change_flows(node: &PacketNode, family: Family, change: impl Fn(&mut [u8])) -> Result<(), Error> {
    for map in ["cilium_ct4_global", "cilium_ct_any4_global"] {
        let map = family.map(map);
        for (key, mut entry) in node.entries(&map)? {
            change(&mut entry);
            node.write(&map, &key, &entry)?;
        }
    }
    Ok(())
}

fn expire(node: &PacketNode, family: Family) -> Result<(), Error> {
    change_flows(node, family, |entry| {
        entry[LIFETIME].copy_from_slice(&1_u32.to_ne_bytes())
    })
}

#[test]
fn a_flow_that_was_silent_for_long_keeps_its_backend() {
    let done = with_node(&facts(), |node| {
        everywhere(node, |program, _, family| {
            for proto in [TCP, UDP] {
                let (service, maps) = serve(node, family, proto, 0);
                for port in 40_000..40_008 {
                    let first = Frame::new(proto, (family.client(), port).into(), service);
                    let next = first.clone().flags(if proto == TCP { ACK } else { 0 });
                    let backend = backend_of(node, program, &first)?;
                    expire(node, family)?;
                    assert_eq!(backend_of(node, program, &next)?, backend, "{program} {proto}");
                    let is_alive = |entry: &[u8]| entry[LIFETIME] != 1_u32.to_ne_bytes();
                    assert!(flows(node, family)?.iter().any(|(_, entry)| is_alive(entry)));

                    // One that ends is not kept.
                    expire(node, family)?;
                    upsert_others(&maps, family, proto, backend, 0);
                    set_state(node, family, backend, TERMINATING)?;
                    assert_ne!(backend_of(node, program, &next)?, backend, "{program} {proto}");
                    set_state(node, family, backend, ACTIVE)?;
                    serve(node, family, proto, 0);
                    node.forget_flows()?;
                }
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn a_late_answer_comes_from_the_service() {
    let done = with_node(&facts(), |node| {
        everywhere(node, |program, _, family| {
            for proto in [TCP, UDP] {
                node.forget_flows()?;
                let (service, _) = serve(node, family, proto, 0);
                let asked = Frame::new(proto, (family.client(), 40_000).into(), service);
                let seen = read_back(&receive(node, program, &asked)?);
                expire(node, family)?;
                let back = read_back(&receive(node, program, &seen.answer())?);
                assert_eq!(
                    (back.source, back.destination),
                    (service, asked.source),
                    "{program}"
                );
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn answers_of_a_service_that_is_gone_do_not_leave_from_the_backend() {
    let done = with_node(&facts(), |node| {
        for family in [V4, V6] {
            let [service, _] = serve_two(node, family, TCP, family.local_pod())?;
            let asked = Frame::new(TCP, (family.client(), 40_000).into(), service);
            let seen = read_back(&receive(node, TC, &asked)?);
            let map = family.map("cilium_lb4_reverse_nat");
            node.delete(&map, &900_u16.to_be_bytes())?;
            let sent = node.run("cil_from_container", &seen.answer().bytes(), &at(P2_IFINDEX))?;
            drops(node)?;
            let left = node.run("cil_to_netdev", &sent.packet, &at(ETH0_IFINDEX))?;
            assert_eq!(left.verdict, SHOT);
            assert_eq!(drops(node)?, [NO_SERVICE]);
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn flows_stay_with_a_backend_as_its_state_and_their_protocol_say() {
    let done = with_node(&facts(), |node| {
        everywhere(node, |program, _, family| {
            for (proto, state, stays) in [
                (TCP, TERMINATING, true),
                (UDP, TERMINATING, true),
                (TCP, QUARANTINED, true),
                (UDP, QUARANTINED, false),
                (TCP, MAINTENANCE, true),
                (UDP, MAINTENANCE, false),
            ] {
                node.forget_flows()?;
                let (service, maps) = serve(node, family, proto, 0);
                let first = Frame::new(proto, (family.client(), 40_000).into(), service);
                let backend = backend_of(node, program, &first)?;
                upsert_others(&maps, family, proto, backend, 0);
                set_state(node, family, backend, state)?;

                let next = first.clone().flags(if proto == TCP { ACK } else { 0 });
                let now = backend_of(node, program, &next)?;
                assert_eq!(now == backend, stays, "{program} {family:?} {proto} {state}");
                assert_eq!(backend_of(node, program, &next)?, now, "and there it is");
                set_state(node, family, backend, ACTIVE)?;
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn an_old_connection_does_not_take_the_client_back_to_its_backend() {
    let done = with_node(&facts(), |node| {
        everywhere(node, |program, _, family| {
            for state in [TERMINATING, ACTIVE] {
                node.forget_flows()?;
                for (key, _) in node.entries(&family.map("cilium_lb4_affinity"))? {
                    node.delete(&family.map("cilium_lb4_affinity"), &key)?;
                }
                let (service, maps) = serve(node, family, TCP, 600);
                let call = |port| Frame::new(TCP, (family.client(), port).into(), service);
                let old = backend_of(node, program, &call(40_000))?;
                // New calls may not have it: it ends, or a preference is for others.
                set_state(node, family, old, TERMINATING)?;
                set_state(node, family, old, state)?;
                upsert_others(&maps, family, TCP, old, 600);

                let choice = backend_of(node, program, &call(40_001))?;
                assert_ne!(choice, old, "{program}");
                for port in 40_002..40_012 {
                    let data = call(40_000).flags(ACK);
                    assert_eq!(backend_of(node, program, &data)?, old, "{program}");
                    assert_eq!(backend_of(node, program, &call(port))?, choice, "{program}");
                }
                set_state(node, family, old, ACTIVE)?;
            }
            Ok(())
        })
    });
    done.unwrap();
}
