// SPDX-License-Identifier: Apache-2.0

//! Bind protection: sockets may not take the ports of services.

use std::net::{TcpListener, UdpSocket};

use skep_bpf::{lb::ServiceFlags, load::SocketOptions, node::IDENTITY_HOST, testing::Frontend};

use crate::world::*;

const IN_USE: Option<i32> = Some(libc::EADDRINUSE);

fn bind(address: &str) -> Option<i32> {
    TcpListener::bind(at(address))
        .err()
        .and_then(|error| error.raw_os_error())
}

#[test]
fn ports_of_services_cannot_be_bound_on_the_host() {
    with("bind", SocketOptions::default(), |world| {
        let nobody = [at("10.244.0.9:80")];
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:30080"), TCP, &nobody).flags(ServiceFlags::NODE_PORT))?;
        world
            .maps
            .upsert(&Frontend::new(2, at("[::]:30081"), TCP, &[]).flags(ServiceFlags::NODE_PORT))?;
        world
            .maps
            .upsert(&Frontend::new(3, at("10.244.0.1:80"), TCP, &nobody).flags(ServiceFlags::EXTERNAL_IP))?;
        world.maps.upsert(
            &Frontend::new(4, at("10.244.0.2:80"), TCP, &nobody).flags(ServiceFlags::LOAD_BALANCER),
        )?;
        world
            .maps
            .upsert(&Frontend::new(5, at("10.244.0.3:80"), TCP, &nobody))?;
        world.maps.identify(ip("10.244.0.3"), IDENTITY_HOST)?;

        for taken in [
            "0.0.0.0:30080",
            "127.0.0.1:30080",
            "10.244.0.3:30080",
            "[::ffff:127.0.0.1]:30080",
            "[::]:30081",
            "[::1]:30081",
            "10.244.0.1:80",
            "10.244.0.2:80",
        ] {
            assert_eq!(bind(taken), IN_USE, "{taken}");
        }
        // ClusterIP, other ports, addresses that are not known as the host's, other protocols.
        for free in [
            "10.244.0.3:80",
            "0.0.0.0:30082",
            "10.244.0.4:30080",
            "127.0.0.1:0",
        ] {
            assert_eq!(bind(free), None, "{free}");
        }
        UdpSocket::bind(at("0.0.0.0:30080"))?;
        Ok(())
    });
}

#[test]
fn pods_may_bind_what_they_like() {
    with("bind-pod", SocketOptions::default(), |world| {
        world
            .maps
            .upsert(&Frontend::new(1, at("0.0.0.0:30080"), TCP, &[]).flags(ServiceFlags::NODE_PORT))?;

        assert_eq!(bind("0.0.0.0:30080"), IN_USE);
        assert_eq!(world.node.pod("server")?.run(|| bind("0.0.0.0:30080")), None);
        Ok(())
    });
}

#[test]
fn proxies_may_bind_the_services_they_serve() {
    with("bind-proxy", SocketOptions::default(), |world| {
        let mut proxied = Frontend::new(1, at("0.0.0.0:30080"), TCP, &[]).flags(ServiceFlags::NODE_PORT);
        proxied.l7_port = 10_000;
        world.maps.upsert(&proxied)?;
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::LOOPBACK;
        world
            .maps
            .upsert(&Frontend::new(2, at("10.244.0.1:80"), TCP, &[]).flags(flags))?;

        assert_eq!(bind("0.0.0.0:30080"), None);
        assert_eq!(bind("10.244.0.1:80"), None);
        Ok(())
    });
}
