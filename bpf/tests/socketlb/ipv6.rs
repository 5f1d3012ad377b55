// SPDX-License-Identifier: Apache-2.0

//! Rules that the other tests prove for IPv4 hold for IPv6: its translation is code of its own.

use std::{collections::HashSet, net::UdpSocket};

use skep_bpf::{
    event::reason,
    lb::{BackendKey, Scope, Service6Key, ServiceFlags},
    load::SocketOptions,
    node::{IDENTITY_HOST, IDENTITY_REMOTE_NODE, IpcacheKey, IpcacheValue},
    testing::Frontend,
};

use crate::world::*;

const UNREACHABLE: Option<i32> = Some(libc::EHOSTUNREACH);

fn options() -> SocketOptions {
    SocketOptions {
        trace: false,
        ..SocketOptions::default()
    }
}

#[test]
fn internal_scope_serves_traffic_from_the_node() {
    with("six-scope", options(), |world| {
        let (outside, inside) = (tcp_server("[fd00::1]:0"), tcp_server("[fd00::2]:0"));
        let service = at("[fd10::1]:80");
        let frontend = Frontend::new(1, service, TCP, &[outside]).flags(ServiceFlags::TWO_SCOPES);
        world.maps.upsert(&frontend)?;
        assert!(
            ask_tcp(service).is_err(),
            "there is no entry of the internal scope"
        );

        world.maps.upsert(&Frontend {
            scope: Scope::Internal,
            id: 2,
            backends: vec![inside],
            ..frontend
        })?;

        assert_eq!(ask_tcp(service)?, (inside, service));
        Ok(())
    });
}

#[test]
fn missing_slots_and_backends_are_counted_and_inactive_ones_unused() {
    with("six-slots", options(), |world| {
        let (active, draining) = (tcp_server("[fd00::1]:0"), tcp_server("[fd00::2]:0"));
        let service = at("[fd10::1]:80");
        world
            .maps
            .upsert(&Frontend::new(1, service, TCP, &[active, draining]))?;
        let key = Service6Key::new("fd10::1".parse()?, 80, TCP, Scope::External);
        let mut master = world.maps.services6.lookup(&key)?.unwrap();
        (master.count, master.qcount) = (1, 1);
        world.maps.services6.update(&key, &master)?;
        for _ in 0..16 {
            assert_eq!(ask_tcp(service)?.0, active);
        }

        let id = world.maps.backend(active, TCP)?;
        world.maps.backends6.delete(&BackendKey::new(id))?;
        assert_eq!(ask_tcp(service).unwrap_err().raw_os_error(), UNREACHABLE);
        assert_eq!(world.counted(reason::LB_NO_BACKEND), 1);

        world.maps.services6.delete(&key.at(1))?;
        assert_eq!(ask_tcp(service).unwrap_err().raw_os_error(), UNREACHABLE);
        assert_eq!(world.counted(reason::LB_NO_BACKEND_SLOT), 1);
        Ok(())
    });
}

#[test]
fn services_without_backends_can_be_let_through() {
    let options = SocketOptions {
        reject_no_endpoints: false,
        ..options()
    };
    with("six-let-through", options, |world| {
        let server = tcp_server("[fd00::1]:80");
        world.maps.upsert(&Frontend::new(1, server, TCP, &[]))?;
        let (local, external) = (at("[fd00::1]:81"), at("[fd00::1]:82"));
        world
            .maps
            .upsert(&Frontend::new(2, local, TCP, &[]).flags(ServiceFlags::INT_LOCAL))?;
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::EXT_LOCAL;
        world
            .maps
            .upsert(&Frontend::new(3, external, TCP, &[]).flags(flags))?;

        assert_eq!(ask_tcp(server)?.0, server);
        for service in [local, external] {
            assert_eq!(ask_tcp(service).unwrap_err().raw_os_error(), UNREACHABLE);
        }
        Ok(())
    });
}

#[test]
fn services_of_others_are_left_alone() {
    with("six-left-alone", options(), |world| {
        for (id, address, flags, hosts) in [
            (1, "[fd00::1]:80", ServiceFlags::LOOPBACK, false),
            (2, "[fd00::1]:81", ServiceFlags::NAT46X64, false),
            (3, "[fd00::1]:82", ServiceFlags::EXTERNAL_IP, true),
            (4, "[fd00::1]:83", ServiceFlags::HOST_PORT, true),
        ] {
            let (real, backend) = (tcp_server(address), tcp_server("[fd00::2]:0"));
            world
                .maps
                .upsert(&Frontend::new(id, real, TCP, &[backend]).flags(flags))?;

            assert_eq!(ask_tcp(real)?.0, real, "{address}");
            world.maps.identify(real.ip(), IDENTITY_HOST)?;
            let expected = if hosts { backend } else { real };
            assert_eq!(ask_tcp(real)?.0, expected, "{address}, now the host's");
            world.maps.ipcache.delete(&IpcacheKey::host(real.ip()))?;
        }
        Ok(())
    });
}

#[test]
fn l7_services_go_to_the_proxy_from_the_host() {
    with("six-l7", options(), |world| {
        let proxy = tcp_server("[::1]:0");
        let service = at("[fd10::1]:80");
        let mut frontend = Frontend::new(1, service, TCP, &[]);
        frontend.l7_port = proxy.port();
        world.maps.upsert(&frontend)?;

        assert_eq!(ask_tcp(service)?, (proxy, service));
        Ok(())
    });
}

#[test]
fn pods_are_left_alone_in_host_only_mode() {
    let options = SocketOptions {
        host_only: true,
        ..options()
    };
    with("six-host-only", options, |world| {
        let service = at("[fd10::1]:53");
        world
            .maps
            .upsert(&Frontend::new(1, service, UDP, &[udp_server("[fd00::1]:0")]))?;

        let pod = world.node.pod("client")?;
        let in_pod = pod.run(|| UdpSocket::bind("[::]:0").and_then(|socket| socket.connect(service)));
        assert_eq!(in_pod.unwrap_err().raw_os_error(), Some(libc::ENETUNREACH));
        udp_client("[::]:0").connect(service)?;
        Ok(())
    });
}

#[test]
fn node_ports_and_host_ports_follow_the_same_addresses() {
    with("six-surrogates", options(), |world| {
        let backend = tcp_server("[fd00::1]:0");
        let surrogate = |id, port: u16, flags| {
            let address = std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
            Frontend::new(id, address, TCP, &[backend]).flags(flags)
        };
        world
            .maps
            .upsert(&surrogate(1, 30_080, ServiceFlags::NODE_PORT))?;
        world.maps.upsert(&surrogate(2, 8080, ServiceFlags::HOST_PORT))?;
        let loopback = ServiceFlags::HOST_PORT | ServiceFlags::LOOPBACK;
        world.maps.upsert(&surrogate(3, 8081, loopback))?;
        // Of the wrong kind for their ports.
        world
            .maps
            .upsert(&surrogate(4, 30_081, ServiceFlags::HOST_PORT))?;
        world.maps.upsert(&surrogate(5, 8082, ServiceFlags::NODE_PORT))?;
        let works = |address: &str, port: u16| ask_tcp(at(&format!("[{address}]:{port}"))).is_ok();

        for (port, expected) in [
            (30_080, true),
            (8080, true),
            (8081, true),
            (30_081, false),
            (8082, false),
        ] {
            assert_eq!(works("::1", port), expected, "loopback, {port}");
        }
        assert!(!works("fd00::2", 30_080));
        world.maps.identify(ip("fd00::2"), IDENTITY_HOST)?;
        for (port, expected) in [(30_080, true), (8080, true), (8081, false)] {
            assert_eq!(works("fd00::2", port), expected, "an address of the host, {port}");
        }
        world.maps.identify(ip("fd00::2"), IDENTITY_REMOTE_NODE)?;
        for (port, expected) in [(30_080, true), (8080, false)] {
            assert_eq!(works("fd00::2", port), expected, "another node, {port}");
        }
        let mut foreign = IpcacheValue::new(IDENTITY_REMOTE_NODE);
        foreign.flags = 1 << 3;
        world
            .maps
            .ipcache
            .update(&IpcacheKey::host(ip("fd00::2")), &foreign)?;
        assert!(!works("fd00::2", 30_080), "a node of another cluster");
        let refused = world.node.pod("client")?.run(|| ask_tcp(at("[::1]:30080")));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        Ok(())
    });
}

#[test]
fn affinity_ends_with_its_backend_and_its_time() {
    with("six-affinity", options(), |world| {
        let backends = [tcp_server("[fd00::1]:0"), tcp_server("[fd00::2]:0")];
        let service = at("[fd10::1]:80");
        let mut sticky = Frontend::new(7, service, TCP, &backends);
        sticky.affinity = 60;
        world.maps.upsert(&sticky)?;
        let backends_seen = |calls: usize| -> Result<HashSet<_>, std::io::Error> {
            (0..calls)
                .map(|_| ask_tcp(service).map(|(backend, _)| backend))
                .collect()
        };
        assert_eq!(backends_seen(24)?.len(), 1);
        let (key, mut seen) = world.maps.affinity6.entries()?[0];

        // Too long ago: chosen anew, which comes to the other one within some tries.
        let mut others = HashSet::new();
        for _ in 0..64 {
            seen.last_used = 1;
            world.maps.affinity6.update(&key, &seen)?;
            others.extend(backends_seen(1)?);
        }
        assert_eq!(others.len(), 2);

        // No longer one of the service's: chosen anew until that is the other one, which it then stays with.
        let (left, _) = ask_tcp(service)?;
        let id = world.maps.backend(left, TCP)?;
        world
            .maps
            .affinity_match
            .delete(&skep_bpf::lb::AffinityMatchKey::new(id, 7))?;
        backends_seen(64)?;
        assert_ne!(ask_tcp(service)?.0, left);
        Ok(())
    });
}

#[test]
fn proxies_may_bind_what_they_serve_and_pods_what_they_like() {
    with("six-bind", options(), |world| {
        let mut proxied = Frontend::new(1, at("[::]:30080"), TCP, &[]).flags(ServiceFlags::NODE_PORT);
        proxied.l7_port = 10_000;
        world.maps.upsert(&proxied)?;
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::LOOPBACK;
        world
            .maps
            .upsert(&Frontend::new(2, at("[fd00::1]:80"), TCP, &[]).flags(flags))?;
        world
            .maps
            .upsert(&Frontend::new(3, at("[fd00::1]:81"), TCP, &[]).flags(ServiceFlags::EXTERNAL_IP))?;
        world
            .maps
            .upsert(&Frontend::new(4, at("[::]:30081"), TCP, &[]).flags(ServiceFlags::NODE_PORT))?;
        let bind = |address: &str| {
            std::net::TcpListener::bind(at(address))
                .err()
                .and_then(|error| error.raw_os_error())
        };

        assert_eq!(bind("[::1]:30080"), None);
        assert_eq!(bind("[fd00::1]:80"), None);
        assert_eq!(bind("[fd00::1]:81"), Some(libc::EADDRINUSE));
        assert_eq!(bind("[::1]:30081"), Some(libc::EADDRINUSE));
        assert_eq!(world.node.pod("server")?.run(|| bind("[::1]:30081")), None);
        Ok(())
    });
}
