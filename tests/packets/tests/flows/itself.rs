// SPDX-License-Identifier: Apache-2.0

//! A pod that reaches itself through a service: packets of both sides.

use std::net::{IpAddr, SocketAddr};

use run_packets::{
    Error,
    node::{PacketNode, with_node},
};
use skep_bpf_maps::{
    endpoint::{Endpoint, endpoint_flags},
    lb::{LbMapSizes, ReverseNat4, ReverseNat6, ReverseNatKey},
    testing::{Frontend, LbMaps},
};

use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{dsr::*, frame::*, packet::*};

const CONTAINER: &str = "cil_from_container";
const INVALID_SOURCE: u8 = 132;
/// Of the options of the facts.
const LOOPBACK: [&str; 2] = ["169.254.42.1", "fe80::1"];

fn loopback(family: Family) -> IpAddr {
    LOOPBACK[usize::from(family == V6)].parse().unwrap()
}

/// Writes which address the answers of a service have.
pub(crate) fn answer_from(node: &PacketNode, id: u16, service: SocketAddr) -> Result<(), Error> {
    let store = node.store();
    match service {
        SocketAddr::V4(at) => {
            let map = store.open("cilium_lb4_reverse_nat")?;
            map.update(&ReverseNatKey::new(id), &ReverseNat4::new(*at.ip(), at.port()))?;
        }
        SocketAddr::V6(at) => {
            let map = store.open("cilium_lb6_reverse_nat")?;
            map.update(&ReverseNatKey::new(id), &ReverseNat6::new(*at.ip(), at.port()))?;
        }
    }
    Ok(())
}

/// Makes the second pod the backend of a service, and returns both.
fn serve(node: &PacketNode, family: Family, proto: u8) -> Result<(SocketAddr, SocketAddr), Error> {
    serve_by(node, family, family.local_pod(), proto)
}

/// Makes a pod the backend of a service, and returns both.
pub(crate) fn serve_by(
    node: &PacketNode,
    family: Family,
    pod: impl Into<IpAddr>,
    proto: u8,
) -> Result<(SocketAddr, SocketAddr), Error> {
    let service = SocketAddr::from((family.pick([203, 0, 113, 80].into(), "2001:db8:80::1"), 80));
    let backend = SocketAddr::from((pod.into(), 8080));
    let (id, store) = (900, node.store());
    let maps = LbMaps::open(&store, LbMapSizes::uniform(4096)).unwrap();
    maps.upsert(&Frontend::new(id, service, proto, &[backend]))
        .unwrap();
    answer_from(node, id, service)?;
    Ok((service, backend))
}

#[test]
fn requests_come_from_the_loopback_address_and_answers_from_the_service() {
    let done = with_node(&facts(), |node| {
        each(|family, proto| {
            let (service, backend) = serve(node, family, proto)?;
            let client = SocketAddr::from((family.local_pod(), 40_000));
            let mut servers = vec![family.local_pod()];
            // That of a server that binds no address.
            servers.extend((family == V6).then(|| "fe80::5cff:fe00:1".parse::<IpAddr>().unwrap()));
            for server in servers {
                node.forget_flows()?;
                let request = Frame::new(proto, client, service);

                let ran = node.run(CONTAINER, &request.bytes(), &at(P2_IFINDEX))?;

                assert_eq!(ran.verdict, REDIRECT);
                let seen = Frame {
                    source: (loopback(family), 40_000).into(),
                    destination: backend,
                    hop_limit: 63,
                    ..request.clone()
                };
                assert_eq!(read_back(&ran), seen, "{family:?}");

                let answer = Frame {
                    source: (server, 8080).into(),
                    ..seen.answer()
                };
                let ran = node.run(CONTAINER, &answer.bytes(), &at(P2_IFINDEX))?;

                assert_eq!(ran.verdict, REDIRECT, "{server}");
                let expected = Frame {
                    hop_limit: 63,
                    ..request.answer()
                };
                assert_eq!(read_back(&ran), expected, "{server}");
            }
            Ok(())
        })
    });
    done.unwrap();
}

#[test]
fn link_local_addresses_that_answer_nothing_are_dropped() {
    let done = with_node(&facts(), |node| {
        for (key, value) in node.entries("skep_endpoints")? {
            let mut endpoint = Endpoint::read_from_bytes(&value).unwrap();
            endpoint.flags |= endpoint_flags::VERIFY_SOURCE;
            node.write("skep_endpoints", &key, endpoint.as_bytes())?;
        }
        let link_local = SocketAddr::from(("fe80::5cff:fe00:1".parse::<IpAddr>().unwrap(), 8080));
        let loopback = SocketAddr::from((loopback(V6), 40_000));
        for proto in [TCP, UDP] {
            drops(node)?;
            for to in [loopback, (V6.remote_pod(), 40_000).into()] {
                let frame = Frame::new(proto, link_local, to);
                let ran = node.run(CONTAINER, &frame.bytes(), &at(P2_IFINDEX))?;
                assert_eq!(ran.verdict, SHOT);
                assert_eq!(drops(node)?, [INVALID_SOURCE], "{to}");
            }

            // Another port than the one that was asked.
            let (service, _) = serve(node, V6, proto)?;
            let request = Frame::new(proto, (V6.local_pod(), 40_000).into(), service);
            node.run(CONTAINER, &request.bytes(), &at(P2_IFINDEX))?;
            let answer = Frame::new(proto, (link_local.ip(), 8081).into(), loopback);
            let ran = node.run(CONTAINER, &answer.bytes(), &at(P2_IFINDEX))?;
            assert_eq!(ran.verdict, SHOT);
            assert_eq!(drops(node)?, [INVALID_SOURCE]);
        }
        Ok(())
    });
    done.unwrap();
}
