// SPDX-License-Identifier: Apache-2.0

//! Services by their own addresses: ClusterIP, families, scopes, errors, what is left alone.

use std::{collections::HashSet, net::UdpSocket};

use skep_bpf::{
    event::reason,
    lb::{Scope, Service4Key, ServiceFlags, Skip4Key, Skip6Key},
    load::SocketOptions,
    node::{IDENTITY_HOST, IDENTITY_REMOTE_NODE},
    testing::Frontend,
};

use crate::world::*;

fn options() -> SocketOptions {
    SocketOptions::default()
}

#[test]
fn tcp_reaches_the_backends_of_a_cluster_ip() {
    with("tcp4", options(), |world| {
        let backends = [tcp_server("10.244.0.1:0"), tcp_server("10.244.0.2:0")];
        let service = at("10.96.0.1:80");
        world.maps.upsert(&Frontend::new(1, service, TCP, &backends))?;

        let mut seen = HashSet::new();
        for _ in 0..64 {
            let (backend, peer) = ask_tcp(service)?;
            assert_eq!(peer, service);
            seen.insert(backend);
        }

        assert_eq!(seen, backends.into());
        Ok(())
    });
}

#[test]
fn tcp_reaches_ipv6_backends() {
    with("tcp6", options(), |world| {
        let backends = [tcp_server("[fd00::1]:0"), tcp_server("[fd00::2]:0")];
        let service = at("[fd10::1]:80");
        world.maps.upsert(&Frontend::new(1, service, TCP, &backends))?;

        let mut seen = HashSet::new();
        for _ in 0..64 {
            let (backend, peer) = ask_tcp(service)?;
            assert_eq!(peer, service);
            seen.insert(backend);
        }

        assert_eq!(seen, backends.into());
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
    let options = SocketOptions {
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
    let options = SocketOptions {
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
        assert!(ask_tcp(at("10.244.0.2:80")).is_err());
        Ok(())
    });
}

#[test]
fn udp_works_connected_and_unconnected() {
    with("udp", options(), |world| {
        for (id, service, backend, client) in [
            (1, "10.96.0.1:53", "10.244.0.1:0", "0.0.0.0:0"),
            (2, "[fd10::1]:53", "[fd00::1]:0", "[::]:0"),
        ] {
            let (service, backend) = (at(service), udp_server(backend));
            world.maps.upsert(&Frontend::new(id, service, UDP, &[backend]))?;

            assert_eq!(ask_udp(&udp_client(client), service)?, (backend, service));
            let connected = udp_client(client);
            connected.connect(service)?;
            assert_eq!(connected.peer_addr()?, service);
            assert_eq!(ask_connected(&connected)?, backend);
        }
        Ok(())
    });
}

#[test]
fn datagrams_of_one_socket_stay_with_one_backend() {
    with("udp-sticky", options(), |world| {
        let backends: Vec<_> = (1..=4).map(|n| udp_server(&format!("10.244.0.{n}:0"))).collect();
        let service = at("10.96.0.1:53");
        world.maps.upsert(&Frontend::new(1, service, UDP, &backends))?;

        let mut seen = HashSet::new();
        for _ in 0..16 {
            let socket = udp_client("0.0.0.0:0");
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
    with("proto", options(), |world| {
        let backend = udp_server("10.244.0.1:0");
        let service = at("10.244.0.2:53");
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;

        assert!(ask_tcp(service).is_err());
        assert_eq!(ask_udp(&udp_client("0.0.0.0:0"), service)?.0, backend);
        Ok(())
    });
}

#[test]
fn other_addresses_are_left_alone() {
    with("direct", options(), |_world| {
        let server = tcp_server("10.244.0.1:0");
        let datagram = udp_server("[fd00::1]:0");

        assert_eq!(ask_tcp(server)?, (server, server));
        assert_eq!(ask_udp(&udp_client("[::]:0"), datagram)?, (datagram, datagram));
        Ok(())
    });
}

#[test]
fn internal_scope_serves_traffic_from_the_node() {
    with("scopes", options(), |world| {
        let (local, remote) = (tcp_server("10.244.0.1:0"), tcp_server("10.244.0.2:0"));
        let service = at("10.96.0.1:80");
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::TWO_SCOPES | ServiceFlags::EXT_LOCAL;
        world
            .maps
            .upsert(&Frontend::new(1, service, TCP, &[local]).flags(flags))?;
        let mut internal = Frontend::new(2, service, TCP, &[remote]).flags(flags);
        internal.scope = Scope::Internal;
        world.maps.upsert(&internal)?;

        for _ in 0..8 {
            assert_eq!(ask_tcp(service)?.0, remote);
        }
        Ok(())
    });
}

#[test]
fn service_without_backends_is_unreachable() {
    with("no-backends", options(), |world| {
        world
            .maps
            .upsert(&Frontend::new(1, at("10.96.0.1:80"), TCP, &[]))?;
        world
            .maps
            .upsert(&Frontend::new(2, at("[fd10::1]:80"), TCP, &[]))?;
        world
            .maps
            .upsert(&Frontend::new(3, at("10.96.0.1:53"), UDP, &[]))?;

        let unreachable = Some(libc::EHOSTUNREACH);
        assert_eq!(
            ask_tcp(at("10.96.0.1:80")).unwrap_err().raw_os_error(),
            unreachable
        );
        assert_eq!(
            ask_tcp(at("[::ffff:10.96.0.1]:80")).unwrap_err().raw_os_error(),
            unreachable
        );
        assert_eq!(
            ask_tcp(at("[fd10::1]:80")).unwrap_err().raw_os_error(),
            unreachable
        );
        let socket = udp_client("0.0.0.0:0");
        assert_eq!(
            socket
                .send_to(b"?", at("10.96.0.1:53"))
                .unwrap_err()
                .raw_os_error(),
            unreachable
        );
        Ok(())
    });
}

#[test]
fn service_without_backends_can_be_let_through() {
    let options = SocketOptions {
        reject_no_endpoints: false,
        ..options()
    };
    with("let-through", options, |world| {
        let server = tcp_server("10.244.0.1:80");
        world.maps.upsert(&Frontend::new(1, server, TCP, &[]))?;
        let local = at("10.244.0.1:81");
        world
            .maps
            .upsert(&Frontend::new(2, local, TCP, &[]).flags(ServiceFlags::INT_LOCAL))?;
        let external = at("10.244.0.1:82");
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::EXT_LOCAL;
        world
            .maps
            .upsert(&Frontend::new(3, external, TCP, &[]).flags(flags))?;

        assert_eq!(ask_tcp(server)?.0, server);
        // The traffic policy that applies says Local, and there is no local backend.
        for service in [local, external] {
            assert_eq!(
                ask_tcp(service).unwrap_err().raw_os_error(),
                Some(libc::EHOSTUNREACH)
            );
        }
        Ok(())
    });
}

#[test]
fn dangling_slots_and_backends_are_counted() {
    with("dangling", options(), |world| {
        let service = at("10.96.0.1:80");
        let frontend = Frontend::new(1, service, TCP, &[at("10.244.0.1:80")]);
        world.maps.upsert(&frontend)?;
        let id = world.maps.backend(at("10.244.0.1:80"), TCP)?;

        world.maps.backends4.delete(&skep_bpf::lb::BackendKey::new(id))?;
        assert_eq!(
            ask_tcp(service).unwrap_err().raw_os_error(),
            Some(libc::EHOSTUNREACH)
        );
        assert_eq!(world.counted(reason::LB_NO_BACKEND), 1);

        world
            .maps
            .services4
            .delete(&Service4Key::new([10, 96, 0, 1].into(), 80, TCP, Scope::External).at(1))?;
        assert_eq!(
            ask_tcp(service).unwrap_err().raw_os_error(),
            Some(libc::EHOSTUNREACH)
        );
        assert_eq!(world.counted(reason::LB_NO_BACKEND_SLOT), 1);
        Ok(())
    });
}

#[test]
fn inactive_slots_get_no_connections() {
    with("inactive", options(), |world| {
        let (active, draining) = (tcp_server("10.244.0.1:0"), tcp_server("10.244.0.2:0"));
        let service = at("10.96.0.1:80");
        world
            .maps
            .upsert(&Frontend::new(1, service, TCP, &[active, draining]))?;
        let key = Service4Key::new([10, 96, 0, 1].into(), 80, TCP, Scope::External);
        let mut master = world.maps.services4.lookup(&key)?.unwrap();
        (master.count, master.qcount) = (1, 1);
        world.maps.services4.update(&key, &master)?;

        for _ in 0..16 {
            assert_eq!(ask_tcp(service)?.0, active);
        }
        Ok(())
    });
}

#[test]
fn external_ips_are_translated_only_if_they_are_the_hosts() {
    with("external-ip", options(), |world| {
        let (real, backend) = (tcp_server("10.244.0.1:80"), tcp_server("10.244.0.2:0"));
        let frontend = Frontend::new(1, real, TCP, &[backend]).flags(ServiceFlags::EXTERNAL_IP);
        world.maps.upsert(&frontend)?;

        // Anybody may name an address in externalIPs: it must not capture traffic to it.
        assert_eq!(ask_tcp(real)?.0, real);
        world.maps.identify(real.ip(), IDENTITY_REMOTE_NODE)?;
        assert_eq!(ask_tcp(real)?.0, real);
        world.maps.identify(real.ip(), IDENTITY_HOST)?;
        assert_eq!(ask_tcp(real)?.0, backend);
        Ok(())
    });
}

#[test]
fn external_ip_mitigation_can_be_switched_off() {
    let options = SocketOptions {
        external_ip_mitigation: false,
        ..options()
    };
    with("external-ip-off", options, |world| {
        let backend = tcp_server("10.244.0.2:0");
        let service = at("203.0.113.7:80");
        world
            .maps
            .upsert(&Frontend::new(1, service, TCP, &[backend]).flags(ServiceFlags::EXTERNAL_IP))?;

        assert_eq!(ask_tcp(service)?, (backend, service));
        Ok(())
    });
}

#[test]
fn redirected_sockets_reach_the_original_service_when_told_to_skip() {
    let options = SocketOptions {
        local_redirect: true,
        ..options()
    };
    with("skip", options, |world| {
        let (real, backend) = (tcp_server("10.244.0.1:80"), tcp_server("10.244.0.2:0"));
        let frontend = Frontend::new(1, real, TCP, &[backend]).flags(ServiceFlags::LOCAL_REDIRECT);
        world.maps.upsert(&frontend)?;
        let (real6, backend6) = (tcp_server("[fd00::1]:80"), tcp_server("[fd00::2]:0"));
        world
            .maps
            .upsert(&Frontend::new(2, real6, TCP, &[backend6]).flags(ServiceFlags::LOCAL_REDIRECT))?;

        assert_eq!(ask_tcp(real)?.0, backend);
        assert_eq!(ask_tcp(real6)?.0, backend6);
        let cookie = world.node.netns_cookie();
        world
            .maps
            .skip4
            .update(&Skip4Key::new(cookie, [10, 244, 0, 1].into(), 80), &0)?;
        world
            .maps
            .skip6
            .update(&Skip6Key::new(cookie, "fd00::1".parse()?, 80), &0)?;
        assert_eq!(ask_tcp(real)?.0, real);
        assert_eq!(ask_tcp(real6)?.0, real6);
        // Only in this namespace.
        world.maps.skip4.clear()?;
        world
            .maps
            .skip4
            .update(&Skip4Key::new(cookie + 1, [10, 244, 0, 1].into(), 80), &0)?;
        assert_eq!(ask_tcp(real)?.0, backend);
        Ok(())
    });
}

#[test]
fn l7_services_go_to_the_proxy_from_the_host_and_nowhere_from_pods() {
    with("l7", options(), |world| {
        let proxy = tcp_server("127.0.0.1:0");
        let service = at("10.96.0.1:80");
        let mut frontend = Frontend::new(1, service, UDP, &[]);
        frontend.l7_port = proxy.port();
        world.maps.upsert(&frontend)?;
        frontend.proto = TCP;
        world.maps.upsert(&frontend)?;

        assert_eq!(ask_tcp(service)?, (proxy, service));
        let untranslated = world.node.pod("client")?.run(|| {
            let socket = udp_client("127.0.0.1:0");
            socket.connect(service).map_err(|error| error.raw_os_error())
        });
        // No route there: the call went out as it was.
        assert_eq!(untranslated, Err(Some(libc::ENETUNREACH)));
        Ok(())
    });
}

#[test]
fn delegated_and_cross_family_services_are_left_alone() {
    with("left-alone", options(), |world| {
        for (id, address, flags) in [
            (1, "10.244.0.1:80", ServiceFlags::LOOPBACK),
            (2, "10.244.0.1:81", ServiceFlags::NAT46X64),
        ] {
            let (real, backend) = (tcp_server(address), tcp_server("10.244.0.2:0"));
            world
                .maps
                .upsert(&Frontend::new(id, real, TCP, &[backend]).flags(flags))?;

            assert_eq!(ask_tcp(real)?.0, real);
        }
        Ok(())
    });
}

#[test]
fn pods_are_left_alone_in_host_only_mode() {
    let options = SocketOptions {
        host_only: true,
        ..options()
    };
    with("host-only", options, |world| {
        let service = at("10.96.0.1:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[udp_server("10.244.0.1:0")]))?;

        let pod = world.node.pod("client")?;
        let in_pod = pod.run(|| UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect(service)));
        assert_eq!(in_pod.unwrap_err().raw_os_error(), Some(libc::ENETUNREACH));
        udp_client("0.0.0.0:0").connect(service)?;
        Ok(())
    });
}

#[test]
fn pods_are_translated_by_default() {
    with("pods", options(), |world| {
        let pod = world.node.pod("client")?;
        let backend = pod.run(|| tcp_server("127.0.0.1:0"));
        let service = at("10.96.0.1:80");
        world.maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;

        assert_eq!(pod.run(|| ask_tcp(service))?, (backend, service));
        Ok(())
    });
}
