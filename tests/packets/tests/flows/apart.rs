// SPDX-License-Identifier: Apache-2.0

//! One port of a client, several addresses with the same backend: each flow belongs to the address that was called.

use std::net::{IpAddr, SocketAddr};

use run_packets::{
    Error,
    node::{PacketNode, with_options},
};
use skep_bpf_maps::{
    lb::{LbMapSizes, ServiceFlags},
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::NodeOptions;

use crate::{dsr::*, errors::*, frame::*, itself::answer_from, packet::*};

const CONTAINER: &str = "cil_from_container";
const RST: u8 = 4;
const FIRST_ID: u16 = 900;

/// Two services of a client port of a pod, with the same backend.
pub(crate) fn serve_two(
    node: &PacketNode,
    family: Family,
    proto: u8,
    pod: IpAddr,
) -> Result<[SocketAddr; 2], Error> {
    let maps = LbMaps::open(&node.store(), LbMapSizes::uniform(4096)).unwrap();
    let backend = SocketAddr::from((pod, 8080));
    let mut services = Vec::new();
    for (id, last) in (FIRST_ID..).zip([80, 81]) {
        let service = SocketAddr::from((
            family.pick([203, 0, 113, last].into(), &format!("2001:db8:{last}::1")),
            80,
        ));
        let flags = ServiceFlags::ROUTABLE | ServiceFlags::EXTERNAL_IP;
        maps.upsert(&Frontend::new(id, service, proto, &[backend]).flags(flags))
            .unwrap();
        answer_from(node, id, service)?;
        services.push(service);
    }
    Ok(services.try_into().unwrap())
}

/// What the backend gets of a packet of a client outside.
fn forwarded(node: &PacketNode, program: &str, is_local: bool, sent: &Frame) -> Result<Frame, Error> {
    let mut ran = receive(node, program, sent)?;
    if program == XDP && is_local {
        assert_eq!(ran.verdict, XDP_PASS);
        ran = node.run(TC, &ran.packet, &at(ETH0_IFINDEX))?;
    }
    assert!(
        [REDIRECT, XDP_TX].contains(&ran.verdict),
        "{program} {sent:?}: {} {:?}",
        ran.verdict,
        drops(node)?
    );
    Ok(read_back(&ran))
}

/// What the client gets of the answer to what the backend got.
fn answered(node: &PacketNode, program: &str, is_local: bool, seen: &Frame) -> Result<Frame, Error> {
    let answer = seen.answer().extension(&[]);
    if !is_local {
        return Ok(read_back(&receive(node, program, &answer)?));
    }
    let sent = node.run(CONTAINER, &answer.bytes(), &at(P2_IFINDEX))?;
    assert_eq!(sent.verdict, REDIRECT, "{:?}", drops(node)?);
    let left = node.run("cil_to_netdev", &sent.packet, &at(ETH0_IFINDEX))?;
    assert_eq!(left.verdict, 0);
    Ok(read_back(&left))
}

fn sides(frame: &Frame) -> (SocketAddr, SocketAddr) {
    (frame.source, frame.destination)
}

fn ends(family: Family, services: [SocketAddr; 2]) -> [(SocketAddr, SocketAddr); 2] {
    services.map(|service| (service, (family.client(), 40_000).into()))
}

#[test]
fn one_port_of_a_client_calls_two_addresses_of_a_backend() {
    for is_dsr in [false, true] {
        let change = |options: &mut NodeOptions| options.packets.dsr = is_dsr.then_some(DSR);
        let test = |node: &PacketNode| {
            everywhere(node, |program, _, family| {
                for (proto, is_local) in [(TCP, true), (TCP, false), (UDP, true), (UDP, false)] {
                    // The backend's node is asked below.
                    if is_dsr && !is_local {
                        continue;
                    }
                    node.forget_flows()?;
                    let pod = if is_local {
                        family.local_pod()
                    } else {
                        family.remote_pod()
                    };
                    let case = format!("{program} {family:?} {proto} local {is_local} dsr {is_dsr}");
                    let services = serve_two(node, family, proto, pod)?;
                    let client = (family.client(), 40_000).into();
                    let sent = services.map(|service| Frame::new(proto, client, service));
                    let first = forwarded(node, program, is_local, &sent[0])?;
                    let second = forwarded(node, program, is_local, &sent[1])?;
                    assert_ne!(first.source, second.source, "{case}");
                    assert_eq!(first.source.ip(), second.source.ip(), "{case}");

                    let seen = [&first, &second];
                    for which in [1, 0, 1, 0] {
                        let back = answered(node, program, is_local, seen[which])?;
                        assert_eq!(sides(&back), ends(family, services)[which], "{case}");
                        let next = sent[which].clone().flags(if proto == TCP { ACK } else { 0 });
                        let again = forwarded(node, program, is_local, &next)?;
                        assert_eq!(sides(&again), sides(seen[which]), "{case}");
                    }
                }
                Ok(())
            })
        };
        with_options(&facts(), change, test).unwrap();
    }
}

#[test]
fn a_backend_that_has_not_closed_its_side_goes_on_from_the_address_that_was_called() {
    let test = |node: &PacketNode| {
        everywhere(node, |program, _, family| {
            let services = serve_two(node, family, TCP, family.remote_pod())?;
            let client = (family.client(), 40_000).into();
            let [first, second] = services.map(|service| Frame::new(TCP, client, service));
            let seen = forwarded(node, program, false, &first)?;
            answered(node, program, false, &seen)?;
            forwarded(node, program, false, &first.clone().flags(FIN | ACK))?;

            let other = forwarded(node, program, false, &second)?;

            assert_ne!(other.source, seen.source, "{program}");
            let back = answered(node, program, false, &seen)?;
            assert_eq!(sides(&back), ends(family, services)[0], "{program}");
            Ok(())
        })
    };
    with_options(&facts(), |_| {}, test).unwrap();
}

#[test]
fn pods_call_two_addresses_of_a_backend_from_one_port() {
    let test = |node: &PacketNode| {
        each(|family, proto| {
            let own = family.pick(P1, "fd00:10:1::63cb");
            for pod in [family.local_pod(), family.remote_pod(), own] {
                node.forget_flows()?;
                let services = serve_two(node, family, proto, pod)?;
                let client = SocketAddr::from((own, 40_000));
                let send = |service| {
                    let frame = Frame::new(proto, client, service).bytes();
                    let ran = node.run(CONTAINER, &frame, &at(P1_IFINDEX))?;
                    assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
                    Ok::<_, Error>(read_back(&ran))
                };
                // Whoever calls the backend itself has the port as well.
                let direct = (pod != own).then(|| send((pod, 8080).into())).transpose()?;
                let seen = [send(services[0])?, send(services[1])?];
                assert_ne!(seen[0].source, seen[1].source, "{family:?} {proto} {pod}");
                assert!(
                    !seen
                        .iter()
                        .any(|seen| Some(seen.source) == direct.as_ref().map(|seen| seen.source))
                );
                for (seen, service) in seen.iter().zip(services) {
                    let (program, ifindex) = match pod {
                        pod if pod == own => (CONTAINER, P1_IFINDEX),
                        pod if pod == family.local_pod() => (CONTAINER, P2_IFINDEX),
                        _ => (TC, ETH0_IFINDEX),
                    };
                    let back = node.run(program, &seen.answer().bytes(), &at(ifindex))?;
                    assert_eq!(back.verdict, REDIRECT, "{:?}", drops(node)?);
                    assert_eq!(sides(&read_back(&back)), (service, client), "{pod}");
                    assert_eq!(send(service)?.source, seen.source, "a later packet");
                }
            }
            Ok(())
        })
    };
    with_options(&facts(), |_| {}, test).unwrap();
}

#[test]
fn clients_get_errors_about_the_port_that_they_sent_from() {
    let test = |node: &PacketNode| {
        each(|family, proto| {
            for is_local in [true, false] {
                node.forget_flows()?;
                let pod = if is_local {
                    family.local_pod()
                } else {
                    family.remote_pod()
                };
                let services = serve_two(node, family, proto, pod)?;
                for service in services {
                    let asked = Frame::new(proto, (family.client(), 40_000).into(), service);
                    let ran = receive(node, TC, &asked)?;
                    let source = read_back(&ran).source.ip();
                    for message in messages(family) {
                        let error = about(&ran.packet, message, pod, source);
                        let left = if is_local {
                            leaves(node, &error)?
                        } else {
                            node.run(TC, &error, &at(ETH0_IFINDEX))?
                        };
                        let inside = asked.clone().hop_limit(63);
                        let expected = (service.ip(), family.client(), message, inside);
                        assert_eq!(read_error(&left), expected, "local {is_local}");
                    }
                }
            }
            Ok(())
        })
    };
    with_options(&facts(), |_| {}, test).unwrap();
}

#[test]
fn backends_get_errors_about_the_port_that_they_know() {
    let test = |node: &PacketNode| {
        each(|family, proto| {
            for pod in [family.local_pod(), family.remote_pod()] {
                node.forget_flows()?;
                let is_local = pod == family.local_pod();
                for service in serve_two(node, family, proto, pod)? {
                    let asked = Frame::new(proto, (family.client(), 40_000).into(), service);
                    let seen = forwarded(node, TC, is_local, &asked)?;
                    let back = answered(node, TC, is_local, &seen)?;
                    let message = messages(family)[2];
                    let error = about(&back.bytes(), message, router(family), service.ip());
                    let ran = node.run(TC, &error, &at(ETH0_IFINDEX))?;
                    // The kernel hands it to a pod of this node.
                    assert_eq!(ran.verdict, if is_local { 0 } else { REDIRECT });
                    let (from, to, head, inside) = read_error(&ran);
                    assert_eq!((from, to, head), (router(family), pod, message));
                    assert_eq!(sides(&inside), sides(&seen.answer()), "{family:?} {pod}");
                }
            }
            Ok(())
        })
    };
    with_options(&facts(), |_| {}, test).unwrap();
}

/// With direct return the node of the backend knows the client's port only.
#[test]
fn a_second_address_is_refused_where_the_port_must_be_the_same() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let first = dispatched(family, TCP);
            assert_eq!(receive(node, TC, &first)?.verdict, REDIRECT);
            let elsewhere = SocketAddr::from((service(family).ip(), 444));
            let mut second = first.clone().payload(0);
            second.extension = family.option(elsewhere, TCP);

            let ran = receive(node, TC, &second)?;

            assert_eq!(ran.verdict, REDIRECT, "{:?}", drops(node)?);
            let refusal = read_back(&ran);
            assert_eq!(sides(&refusal), (elsewhere, first.source));
            assert_eq!(refusal.flags, RST | ACK);
            let tcp = &ran.packet[ran.packet.len() - 20..];
            assert_eq!(tcp[4..12], [0, 0, 0, 0, 0, 0, 0, 2], "acknowledges the SYN");
            let back = answered(node, TC, true, &first)?;
            assert_eq!(back.source, service(family), "the first lives");
        }
        Ok(())
    });
}

#[test]
fn datagrams_to_a_second_address_have_another_port_at_the_node_of_the_backend() {
    with_dsr(DSR, |node| {
        for family in [V4, V6] {
            node.forget_flows()?;
            let first = dispatched(family, UDP);
            let elsewhere = SocketAddr::from((service(family).ip(), 444));
            let mut second = first.clone();
            second.extension = family.option(elsewhere, UDP);
            let deliver = |frame: &Frame| forwarded(node, TC, true, frame);
            let seen = [deliver(&first)?, deliver(&second)?];
            assert_ne!(seen[0].source, seen[1].source);
            for (which, address) in [(1, elsewhere), (0, service(family)), (1, elsewhere)] {
                let back = answered(node, TC, true, &seen[which])?;
                assert_eq!(sides(&back), (address, first.source), "{family:?}");
                let again = deliver([&first, &second][which])?;
                assert_eq!(again.source, seen[which].source);
            }
        }
        Ok(())
    });
}

#[test]
fn connections_with_direct_return_are_refused_when_their_backend_is_gone() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            node.forget_flows()?;
            let [service, _] = serve_two(node, family, TCP, family.remote_pod())?;
            let first = Frame::new(TCP, (family.client(), 40_000).into(), service);
            forwarded(node, program, false, &first)?;
            let backends = family.map("cilium_lb4_backends_v3");
            let lost = [1, 0, 0, 0];
            let backend = node.entries(&backends)?.remove(&lost[..]).unwrap();
            node.delete(&backends, &lost)?;

            let data = first.clone().flags(ACK);
            let mut ran = receive(node, program, &data)?;
            if program == XDP {
                assert_eq!(ran.verdict, XDP_PASS);
                assert_eq!(read_back(&ran), data, "as it came");
                ran = node.run(TC, &ran.packet, &at(ETH0_IFINDEX))?;
            }

            assert_eq!(ran.verdict, REDIRECT);
            let refusal = read_back(&ran);
            assert_eq!(sides(&refusal), (service, data.source));
            assert_eq!((refusal.flags, refusal.payload.len()), (RST, 0));
            node.write(&backends, &lost, &backend)
        })
    });
}

#[test]
fn connections_that_are_balanced_anew_tell_the_service() {
    with_dsr(DSR, |node| {
        everywhere(node, |program, _, family| {
            node.forget_flows()?;
            let data = request(family, TCP).flags(ACK);
            let seen = forwarded(node, program, false, &data)?;
            assert_eq!(seen.extension, family.option(data.destination, TCP), "{program}");
            let next = forwarded(node, program, false, &data)?;
            assert_eq!(next.extension, [0; 0], "an entry knows its backend");

            // So the backend's node answers from there.
            node.forget_flows()?;
            let told = dispatched(family, TCP).flags(ACK).extension(&seen.extension);
            assert_eq!(receive(node, TC, &told)?.verdict, REDIRECT);
            let back = answered(node, TC, true, &told)?;
            assert_eq!(back.source, data.destination);
            Ok(())
        })
    });
}
