// SPDX-License-Identifier: Apache-2.0

//! Services by their own addresses: ClusterIP, families, scopes, errors, what is left alone.

use std::{collections::HashSet, net::UdpSocket};

use skep_bpf_maps::{
    event::reason,
    lb::{Scope, ServiceFlags},
    node::{IDENTITY_HOST, IDENTITY_REMOTE_NODE, IpcacheKey},
    testing::Frontend,
};
use skep_bpf_programs::NodeOptions;

use crate::world::*;

const UNREACHABLE: Option<i32> = Some(libc::EHOSTUNREACH);

fn options() -> NodeOptions {
    NodeOptions::default()
}

#[test]
fn tcp_reaches_the_backends_of_a_cluster_ip() {
    with_each("tcp", &options(), |world, family| {
        let (service, backends) = (family.service(1, 80), family.tcp_servers(2));
        world.maps.upsert(&Frontend::new(1, service, TCP, &backends))?;

        let mut seen = HashSet::new();
        for _ in 0..64 {
            let (backend, peer) = ask_tcp(service)?;
            assert_eq!(peer, service);
            seen.insert(backend);
        }

        assert_eq!(seen, backends.into_iter().collect());
        Ok(())
    });
}

#[test]
fn ipv6_sockets_reach_ipv4_services_by_mapped_addresses() {
    with("mapped", options(), |world| {
        let backend = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("10.96.0.1:80"), TCP, &[backend]))?;
        let datagram = udp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(2, at("10.96.0.1:53"), UDP, &[datagram]))?;

        let service = at("[::ffff:10.96.0.1]:80");
        assert_eq!(ask_tcp(service)?, (backend, service));
        let service = at("[::ffff:10.96.0.1]:53");
        assert_eq!(ask_udp(&udp_client("[::]:0"), service)?, (datagram, service));
        Ok(())
    });
}

#[test]
fn mapped_addresses_work_with_ipv6_switched_off() {
    let options = NodeOptions {
        ipv6: false,
        ..options()
    };
    with("mapped-only", options, |world| {
        let backend = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("10.96.0.1:80"), TCP, &[backend]))?;
        let six = tcp_server("[fd00::1]:0");
        world
            .maps
            .upsert(&Frontend::new(2, at("[fd00::2]:80"), TCP, &[six]))?;

        assert_eq!(ask_tcp(at("[::ffff:10.96.0.1]:80"))?.0, backend);
        assert!(ask_tcp(at("[fd00::2]:80")).is_err());
        Ok(())
    });
}

#[test]
fn ipv4_can_be_switched_off() {
    let options = NodeOptions {
        ipv4: false,
        ..options()
    };
    with("six-only", options, |world| {
        let four = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("10.244.0.2:80"), TCP, &[four]))?;
        let six = tcp_server("[fd00::1]:0");
        world
            .maps
            .upsert(&Frontend::new(2, at("[fd10::1]:80"), TCP, &[six]))?;

        assert_eq!(ask_tcp(at("[fd10::1]:80"))?.0, six);
        for service in spellings(at("10.244.0.2:80")) {
            assert!(ask_tcp(service).is_err(), "{service}");
        }
        Ok(())
    });
}

#[test]
fn udp_works_connected_and_unconnected() {
    with_each("udp", &options(), |world, family| {
        let (service, backend) = (family.service(1, 53), udp_server(family.node(1, 0)));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;

        assert_eq!(ask_udp(&family.udp_client(), service)?, (backend, service));
        let connected = family.udp_client();
        connected.connect(service)?;
        assert_eq!(connected.peer_addr()?, service);
        assert_eq!(ask_connected(&connected)?, backend);
        Ok(())
    });
}

#[test]
fn datagrams_of_one_socket_stay_with_one_backend() {
    with_each("udp-sticky", &options(), |world, family| {
        let (service, backends) = (family.service(1, 53), family.udp_servers(4));
        world.maps.upsert(&Frontend::new(1, service, UDP, &backends))?;

        let mut seen = HashSet::new();
        for _ in 0..16 {
            let socket = family.udp_client();
            let of_socket: HashSet<_> = (0..4)
                .map(|_| ask_udp(&socket, service).map(|(backend, _)| backend))
                .collect::<Result<_, _>>()?;
            assert_eq!(of_socket.len(), 1);
            seen.extend(of_socket);
        }

        assert!(seen.len() > 1, "all sockets chose {seen:?}");
        Ok(())
    });
}

#[test]
fn protocol_must_match() {
    with_each("proto", &options(), |world, family| {
        let (service, backend) = (family.node(2, 53), udp_server(family.node(1, 0)));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;

        assert!(ask_tcp(service).is_err());
        assert_eq!(ask_udp(&family.udp_client(), service)?.0, backend);
        Ok(())
    });
}

#[test]
fn other_addresses_are_left_alone() {
    with_each("direct", &options(), |_world, family| {
        let stream = tcp_server(family.node(1, 0));
        let datagram = udp_server(family.node(1, 0));

        assert_eq!(ask_tcp(stream)?, (stream, stream));
        assert_eq!(ask_udp(&family.udp_client(), datagram)?, (datagram, datagram));
        Ok(())
    });
}

#[test]
fn internal_scope_serves_traffic_from_the_node() {
    with_each("scopes", &options(), |world, family| {
        let (outside, inside) = (tcp_server(family.node(1, 0)), tcp_server(family.node(2, 0)));
        for (port, kind) in [
            (80, ServiceFlags::empty()),
            (81, ServiceFlags::LOAD_BALANCER | ServiceFlags::EXT_LOCAL),
        ] {
            let service = family.service(1, port);
            let external = Frontend::new(1, service, TCP, &[outside]).flags(kind | ServiceFlags::TWO_SCOPES);
            world.maps.upsert(&external)?;
            assert!(
                ask_tcp(service).is_err(),
                "there is no entry of the internal scope"
            );

            world.maps.upsert(&Frontend {
                scope: Scope::Internal,
                id: 2,
                backends: vec![inside],
                ..external
            })?;

            for _ in 0..8 {
                assert_eq!(ask_tcp(service)?, (inside, service));
            }
        }
        Ok(())
    });
}

#[test]
fn service_without_backends_is_unreachable() {
    with_each("no-backends", &options(), |world, family| {
        let (stream, datagram) = (family.service(1, 80), family.service(1, 53));
        world.maps.upsert(&Frontend::new(1, stream, TCP, &[]))?;
        world.maps.upsert(&Frontend::new(2, datagram, UDP, &[]))?;

        for service in spellings(stream) {
            assert_eq!(refusal(ask_tcp(service)), UNREACHABLE, "{service}");
        }
        assert_eq!(refusal(family.udp_client().send_to(b"?", datagram)), UNREACHABLE);
        Ok(())
    });
}

#[test]
fn service_without_backends_can_be_let_through() {
    let options = NodeOptions {
        reject_no_endpoints: false,
        ..options()
    };
    with_each("let-through", &options, |world, family| {
        let server = tcp_server(family.node(1, 80));
        world.maps.upsert(&Frontend::new(1, server, TCP, &[]))?;
        let local = family.node(1, 81);
        world
            .maps
            .upsert(&Frontend::new(2, local, TCP, &[]).flags(ServiceFlags::INT_LOCAL))?;
        let external = family.node(1, 82);
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::EXT_LOCAL;
        world
            .maps
            .upsert(&Frontend::new(3, external, TCP, &[]).flags(flags))?;

        assert_eq!(ask_tcp(server)?.0, server);
        // The traffic policy that applies says Local, and there is no local backend.
        for service in [local, external] {
            assert_eq!(refusal(ask_tcp(service)), UNREACHABLE, "{service}");
        }
        Ok(())
    });
}

#[test]
fn dangling_slots_and_backends_are_counted() {
    with_each("dangling", &options(), |world, family| {
        let (service, backend) = (family.service(1, 80), family.node(1, 80));
        let frontend = Frontend::new(1, service, TCP, &[backend]);
        world.maps.upsert(&frontend)?;

        world.delete_backend(backend, TCP)?;
        assert_eq!(refusal(ask_tcp(service)), UNREACHABLE);
        assert_eq!(world.counted(reason::LB_NO_BACKEND), 1);

        world.delete_slot(&frontend, 1)?;
        assert_eq!(refusal(ask_tcp(service)), UNREACHABLE);
        assert_eq!(world.counted(reason::LB_NO_BACKEND_SLOT), 1);
        Ok(())
    });
}

#[test]
fn inactive_slots_get_no_connections() {
    with_each("inactive", &options(), |world, family| {
        let (active, draining) = (tcp_server(family.node(1, 0)), tcp_server(family.node(2, 0)));
        let service = family.service(1, 80);
        let mut frontend = Frontend::new(1, service, TCP, &[active, draining]);
        frontend.inactive = 1;
        world.maps.upsert(&frontend)?;

        for _ in 0..16 {
            assert_eq!(ask_tcp(service)?.0, active);
        }
        Ok(())
    });
}

#[test]
fn services_on_addresses_of_others_are_left_alone() {
    with_each("left-alone", &options(), |world, family| {
        let backend = tcp_server(family.node(2, 0));
        for (port, flags, if_the_hosts) in [
            // Whoever serves these does so behind the socket.
            (80, ServiceFlags::LOOPBACK, false),
            (81, ServiceFlags::NAT46X64, false),
            // Anybody may name an address in externalIPs: it must not capture traffic to it.
            (82, ServiceFlags::EXTERNAL_IP, true),
            (83, ServiceFlags::HOST_PORT, true),
        ] {
            let real = tcp_server(family.node(1, port));
            world
                .maps
                .upsert(&Frontend::new(port, real, TCP, &[backend]).flags(flags))?;

            assert_eq!(ask_tcp(real)?.0, real, "{port}");
            world.maps.identify(real.ip(), IDENTITY_REMOTE_NODE)?;
            assert_eq!(ask_tcp(real)?.0, real, "{port}, of another node");
            world.maps.identify(real.ip(), IDENTITY_HOST)?;
            let expected = if if_the_hosts { backend } else { real };
            assert_eq!(ask_tcp(real)?.0, expected, "{port}, of the host");
            world.maps.ipcache.delete(&IpcacheKey::host(real.ip()))?;
        }
        Ok(())
    });
}

#[test]
fn external_ip_mitigation_can_be_switched_off() {
    let options = NodeOptions {
        external_ip_mitigation: false,
        ..options()
    };
    with_each("external-ip-off", &options, |world, family| {
        let (service, backend) = (family.service(7, 80), tcp_server(family.node(2, 0)));
        world
            .maps
            .upsert(&Frontend::new(1, service, TCP, &[backend]).flags(ServiceFlags::EXTERNAL_IP))?;

        assert_eq!(ask_tcp(service)?, (backend, service));
        Ok(())
    });
}

#[test]
fn redirected_sockets_reach_the_original_service_when_told_to_skip() {
    let options = NodeOptions {
        local_redirect: true,
        ..options()
    };
    with_each("skip", &options, |world, family| {
        let (real, backend) = (tcp_server(family.node(1, 80)), tcp_server(family.node(2, 0)));
        let frontend = Frontend::new(1, real, TCP, &[backend]).flags(ServiceFlags::LOCAL_REDIRECT);
        world.maps.upsert(&frontend)?;
        let cookie = world.node.netns_cookie();

        assert_eq!(ask_tcp(real)?.0, backend);
        world.maps.skip(cookie + 1, real)?;
        assert_eq!(ask_tcp(real)?.0, backend, "another namespace skips");
        world.maps.skip(cookie, real)?;
        assert_eq!(ask_tcp(real)?.0, real);
        world.maps.skip4.clear()?;
        world.maps.skip6.clear()?;
        assert_eq!(ask_tcp(real)?.0, backend);
        Ok(())
    });
}

#[test]
fn l7_services_go_to_the_proxy_from_the_host_and_nowhere_from_pods() {
    with_each("l7", &options(), |world, family| {
        let (service, proxy) = (family.service(1, 80), tcp_server(family.loopback(0)));
        let mut frontend = Frontend::new(1, service, UDP, &[]);
        frontend.l7_port = proxy.port();
        world.maps.upsert(&frontend)?;
        frontend.proto = TCP;
        world.maps.upsert(&frontend)?;

        assert_eq!(ask_tcp(service)?, (proxy, service));
        let from_pod = world
            .node
            .pod("client")?
            .run(|| family.udp_client().connect(service));
        // No route there: the call went out as it was.
        assert_eq!(refusal(from_pod), Some(libc::ENETUNREACH));
        Ok(())
    });
}

#[test]
fn pods_are_left_alone_in_host_only_mode() {
    let options = NodeOptions {
        host_only: true,
        ..options()
    };
    with_each("host-only", &options, |world, family| {
        let (service, backend) = (family.service(1, 53), udp_server(family.node(1, 0)));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;

        let connect = || UdpSocket::bind(family.unspecified(0)).and_then(|socket| socket.connect(service));
        assert_eq!(
            refusal(world.node.pod("client")?.run(connect)),
            Some(libc::ENETUNREACH)
        );
        connect()?;
        Ok(())
    });
}

#[test]
fn pods_are_translated_by_default() {
    with_each("pods", &options(), |world, family| {
        let pod = world.node.pod("client")?;
        let backend = pod.run(|| tcp_server(family.loopback(0)));
        let service = family.service(1, 80);
        world.maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;

        assert_eq!(pod.run(|| ask_tcp(service))?, (backend, service));
        Ok(())
    });
}
