// SPDX-License-Identifier: Apache-2.0

//! Services on the addresses of nodes: NodePort and HostPort surrogates.

use skep_bpf::{
    lb::ServiceFlags,
    load::SocketOptions,
    node::{IDENTITY_HOST, IDENTITY_KUBE_APISERVER, IDENTITY_REMOTE_NODE, IpcacheKey, IpcacheValue},
    testing::Frontend,
};

use crate::world::*;

const NODE: ServiceFlags = ServiceFlags::NODE_PORT;
const HOST: ServiceFlags = ServiceFlags::HOST_PORT;

#[test]
fn node_port_works_on_loopback_and_node_addresses() {
    with("nodeport", SocketOptions::default(), |world| {
        let (four, six) = (tcp_server("10.244.0.1:0"), tcp_server("[fd00::1]:0"));
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:30080"), TCP, &[four]).flags(NODE))?;
        world
            .maps
            .upsert(&Frontend::new(2, at("[::]:30080"), TCP, &[six]).flags(NODE))?;
        world.maps.identify(ip("10.244.0.3"), IDENTITY_HOST)?;
        world.maps.identify(ip("fd00::2"), IDENTITY_HOST)?;

        for (service, backend) in [
            ("127.0.0.1:30080", four),
            ("127.1.2.3:30080", four),
            ("10.244.0.3:30080", four),
            ("[::ffff:10.244.0.3]:30080", four),
            ("[::1]:30080", six),
            ("[fd00::2]:30080", six),
        ] {
            assert_eq!(ask_tcp(at(service))?, (backend, at(service)), "{service}");
        }
        Ok(())
    });
}

#[test]
fn node_port_works_on_addresses_of_other_nodes_of_this_cluster() {
    with("remote-node", SocketOptions::default(), |world| {
        let backend = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:30080"), TCP, &[backend]).flags(NODE))?;
        let service = at("10.244.0.3:30080");

        assert!(ask_tcp(service).is_err());
        for identity in [IDENTITY_REMOTE_NODE, IDENTITY_KUBE_APISERVER, 0x0200_0007] {
            world.maps.identify(service.ip(), identity)?;
            assert_eq!(ask_tcp(service)?.0, backend, "{identity:#x}");
        }
        for identity in [2, 1234, 0x0100_0007] {
            world.maps.identify(service.ip(), identity)?;
            assert!(ask_tcp(service).is_err(), "{identity:#x}");
        }
        let mut foreign = IpcacheValue::new(IDENTITY_REMOTE_NODE);
        foreign.flags = 1 << 3;
        world
            .maps
            .ipcache
            .update(&IpcacheKey::host(service.ip()), &foreign)?;
        assert!(ask_tcp(service).is_err(), "node of another cluster");
        Ok(())
    });
}

#[test]
fn surrogates_are_found_only_by_ports_in_their_range() {
    let options = SocketOptions {
        nodeport_range: (31_000, 31_100),
        ..SocketOptions::default()
    };
    with("range", options, |world| {
        let backend = tcp_server("10.244.0.1:0");
        for (id, port) in [(1, 30_999), (2, 31_000), (3, 31_100), (4, 31_101)] {
            let surrogate = std::net::SocketAddr::from(([0, 0, 0, 0], port));
            world
                .maps
                .upsert(&Frontend::new(id, surrogate, TCP, &[backend]).flags(NODE))?;
        }

        for (port, works) in [(30_999, false), (31_000, true), (31_100, true), (31_101, false)] {
            let result = ask_tcp(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
            assert_eq!(result.is_ok(), works, "{port}");
        }
        Ok(())
    });
}

#[test]
fn pods_have_a_loopback_of_their_own() {
    with("pod-loopback", SocketOptions::default(), |world| {
        let backend = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:30080"), TCP, &[backend]).flags(NODE))?;

        let refused = world.node.pod("client")?.run(|| ask_tcp(at("127.0.0.1:30080")));

        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        Ok(())
    });
}

#[test]
fn host_port_works_outside_the_node_port_range() {
    with("hostport", SocketOptions::default(), |world| {
        let backend = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:8080"), TCP, &[backend]).flags(HOST))?;
        // A HostPort in the range of NodePorts is none of ours, and the other way round.
        world
            .maps
            .upsert(&Frontend::new(2, at("0.0.0.0:30080"), TCP, &[backend]).flags(HOST))?;
        world
            .maps
            .upsert(&Frontend::new(3, at("0.0.0.0:8081"), TCP, &[backend]).flags(NODE))?;
        world.maps.identify(ip("10.244.0.3"), IDENTITY_HOST)?;
        world.maps.identify(ip("10.244.0.4"), IDENTITY_REMOTE_NODE)?;

        assert_eq!(ask_tcp(at("127.0.0.1:8080"))?.0, backend);
        assert_eq!(ask_tcp(at("10.244.0.3:8080"))?.0, backend);
        for other in ["10.244.0.4:8080", "127.0.0.1:30080", "127.0.0.1:8081"] {
            assert!(ask_tcp(at(other)).is_err(), "{other}");
        }
        Ok(())
    });
}

#[test]
fn loopback_host_port_is_for_loopback_only() {
    with("hostport-loopback", SocketOptions::default(), |world| {
        let backend = tcp_server("10.244.0.1:0");
        let flags = HOST | ServiceFlags::LOOPBACK;
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:8080"), TCP, &[backend]).flags(flags))?;
        world.maps.identify(ip("10.244.0.3"), IDENTITY_HOST)?;

        assert_eq!(ask_tcp(at("127.0.0.1:8080"))?.0, backend);
        assert!(ask_tcp(at("10.244.0.3:8080")).is_err());
        Ok(())
    });
}

#[test]
fn host_port_on_an_address_that_is_not_the_hosts_is_left_alone() {
    with("hostport-foreign", SocketOptions::default(), |world| {
        let (real, backend) = (tcp_server("10.244.0.1:8080"), tcp_server("10.244.0.2:0"));
        world
            .maps
            .upsert(&Frontend::new(1, real, TCP, &[backend]).flags(HOST))?;

        assert_eq!(ask_tcp(real)?.0, real);
        world.maps.identify(real.ip(), IDENTITY_HOST)?;
        assert_eq!(ask_tcp(real)?.0, backend);
        Ok(())
    });
}

#[test]
fn surrogates_can_be_switched_off() {
    let options = SocketOptions {
        nodeport: false,
        ..SocketOptions::default()
    };
    with("no-nodeport", options, |world| {
        let backend = tcp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:30080"), TCP, &[backend]).flags(NODE))?;

        assert!(ask_tcp(at("127.0.0.1:30080")).is_err());
        Ok(())
    });
}
