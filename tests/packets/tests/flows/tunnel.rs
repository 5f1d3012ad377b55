// SPDX-License-Identifier: Apache-2.0

//! What programs decide with a tunnel to other nodes, and with networks that are reached without masquerade. What
//! comes out of the tunnel is in the tests `tunnel`: a packet that is run once has no tunnel around it.

use std::net::Ipv4Addr;

use run_packets::node::{with_node, with_options};
use skep_bpf_maps::ip_masq::IpMasqKey4;
use skep_bpf_programs::{DirectReturn, DsrDispatch, NodeOptions, Tunnel, TunnelProtocol};
use zerocopy::IntoBytes as _;

use crate::{dsr::XDP_PASS, packet::*};

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 142);
const WORLD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
/// An interface of the facts, in the place of the tunnel's.
const DEVICE: u32 = 3;
const DROP: u8 = 1;
const TRACE: u8 = 4;
const TO_OVERLAY: u8 = 4;
const TO_NETWORK: u8 = 11;
const NO_TUNNEL_KEY: u8 = 147;

fn tunnel(options: &mut NodeOptions) {
    options.packets.router4 = ROUTER;
    options.packets.tunnel = Some(Tunnel {
        protocol: TunnelProtocol::Vxlan,
        port: 8472,
        device: DEVICE,
    });
}

fn packet(source: Side, destination: Side) -> Packet {
    Packet {
        is_tcp: true,
        source,
        destination,
        tcp_flags: 2,
        ttl: 64,
        options: 0,
        payload: Vec::new(),
    }
}

#[test]
fn packets_of_pods_go_to_the_tunnel_or_to_the_network() {
    let frame = packet((P1, 40_000), (REMOTE_POD, 80)).frame(P1_MAC);
    let points = |events: Vec<Vec<u8>>| -> Vec<u8> {
        let traces = events.into_iter().filter(|event| event[0] == TRACE);
        traces.map(|event| event[1]).collect()
    };

    let tunnelled = with_options(&facts(), tunnel, |node| {
        let ran = node.run("cil_from_container", &frame, &at(P1_IFINDEX))?;
        Ok((ran.verdict, ran.packet, points(node.take_events()?)))
    })
    .unwrap();
    let routed = with_node(&facts(), |node| {
        let ran = node.run("cil_from_container", &frame, &at(P1_IFINDEX))?;
        Ok((ran.verdict, ran.packet, points(node.take_events()?)))
    })
    .unwrap();

    assert_eq!(tunnelled, (REDIRECT, frame, vec![TO_OVERLAY]));
    assert_eq!((routed.0, routed.2), (REDIRECT, vec![TO_NETWORK]));
    let ttl = 22;
    assert_eq!(routed.1[ttl], 63, "one hop further");
}

#[test]
fn node_ports_have_the_address_of_cilium_host_behind_the_tunnel() {
    let frame = packet((CLIENT, 40_000), (NODE, NODE_PORT)).frame(CLIENT_MAC);
    // Nothing would tell a backend behind the tunnel which service was asked for.
    let directly = |options: &mut NodeOptions| {
        tunnel(options);
        options.packets.dsr = Some(DirectReturn {
            dispatch: DsrDispatch::IpOption,
            all_services: true,
            icmp_errors: false,
        });
    };
    for change in [tunnel, directly] {
        let done = with_options(&facts(), change, |node| {
            let ran = node.run("cil_from_netdev", &frame, &at(ETH0_IFINDEX))?;
            assert_eq!(ran.verdict, REDIRECT);
            let (source, backend) = read(&ran.packet).expect("right checksums");
            assert_eq!((source, backend.0), ((ROUTER, 40_000), REMOTE_POD));

            // The tc program encapsulates.
            node.forget_flows()?;
            let ran = node.run(XDP, &frame, &at(ETH0_IFINDEX))?;
            assert_eq!((ran.verdict, ran.packet), (XDP_PASS, frame.clone()));
            Ok(())
        });
        done.unwrap();
    }
}

#[test]
fn packets_without_a_tunnel_around_them_are_dropped() {
    let frame = packet((REMOTE_POD, 40_000), (P1, 80)).frame(CLIENT_MAC);
    let done = with_options(&facts(), tunnel, |node| {
        for program in ["cil_from_overlay", "cil_to_overlay"] {
            let ran = node.run(program, &frame, &at(DEVICE))?;
            assert_eq!(ran.verdict, SHOT, "{program}");
            let events = node.take_events()?;
            let drops: Vec<_> = events.iter().filter(|event| event[0] == DROP).collect();
            assert_eq!(drops.len(), 1, "{program}");
            assert_eq!(drops[0][1], NO_TUNNEL_KEY, "{program}");
        }
        Ok(())
    });
    done.unwrap();
}

#[test]
fn networks_of_the_ip_masq_agent_are_reached_without_masquerade() {
    let agent = |options: &mut NodeOptions| options.packets.ip_masq_agent = true;
    let frame = packet((P1, 40_000), (WORLD, 80)).frame(P1_MAC);
    let done = with_options(&facts(), agent, |node| {
        let source = || {
            let ran = node.run("cil_to_netdev", &frame, &at(ETH0_IFINDEX))?;
            Ok::<_, run_packets::Error>(read(&ran.packet).expect("right checksums").0.0)
        };
        assert_eq!(source()?, NODE);

        node.forget_flows()?;
        let key = IpMasqKey4::new(Ipv4Addr::new(203, 0, 113, 0), 24);
        node.write("cilium_ipmasq_v4", key.as_bytes(), &[0])?;
        assert_eq!(source()?, P1);

        node.delete("cilium_ipmasq_v4", key.as_bytes())?;
        assert_eq!(source()?, NODE);
        Ok(())
    });
    done.unwrap();
}
