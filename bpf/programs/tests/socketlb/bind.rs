// SPDX-License-Identifier: Apache-2.0

//! Bind protection: sockets may not take the ports of services.

use std::net::{SocketAddr, TcpListener, UdpSocket};

use skep_bpf_maps::{lb::ServiceFlags, node::IDENTITY_HOST, testing::Frontend};
use skep_bpf_programs::NodeOptions;

use crate::world::*;

const IN_USE: Option<i32> = Some(libc::EADDRINUSE);

fn bind(address: SocketAddr) -> Option<i32> {
    TcpListener::bind(address)
        .err()
        .and_then(|error| error.raw_os_error())
}

#[test]
fn ports_of_services_cannot_be_bound_on_the_host() {
    with_each("bind", &NodeOptions::default(), |world, family| {
        let nobody = [family.node(9, 80)];
        for (id, address, flags, backends) in [
            (
                1,
                family.unspecified(30_080),
                ServiceFlags::NODE_PORT,
                &nobody[..],
            ),
            (2, family.unspecified(30_081), ServiceFlags::NODE_PORT, &[]),
            (3, family.node(1, 80), ServiceFlags::EXTERNAL_IP, &nobody),
            (4, family.node(1, 81), ServiceFlags::EXTERNAL_IP, &[]),
            (5, family.node(2, 80), ServiceFlags::LOAD_BALANCER, &nobody),
            (6, family.node(3, 80), ServiceFlags::empty(), &nobody),
        ] {
            world
                .maps
                .upsert(&Frontend::new(id, address, TCP, backends).flags(flags))?;
        }
        world.maps.identify(family.node(3, 0).ip(), IDENTITY_HOST)?;

        for taken in [
            family.unspecified(30_080),
            family.loopback(30_080),
            family.node(3, 30_080),
            family.unspecified(30_081),
            family.loopback(30_081),
            family.node(1, 80),
            family.node(1, 81),
            family.node(2, 80),
        ]
        .into_iter()
        .flat_map(spellings)
        {
            assert_eq!(bind(taken), IN_USE, "{taken}");
        }
        // ClusterIP, other ports, addresses that are not known as the host's, other protocols.
        for free in [
            family.node(3, 80),
            family.unspecified(30_082),
            family.node(4, 30_080),
            family.loopback(0),
        ] {
            assert_eq!(bind(free), None, "{free}");
        }
        UdpSocket::bind(family.unspecified(30_080))?;
        Ok(())
    });
}

#[test]
fn pods_may_bind_what_they_like() {
    with_each("bind-pod", &NodeOptions::default(), |world, family| {
        let surrogate = family.unspecified(30_080);
        world
            .maps
            .upsert(&Frontend::new(1, surrogate, TCP, &[]).flags(ServiceFlags::NODE_PORT))?;
        let pod = world.node.pod("server")?;

        for address in [surrogate, family.loopback(30_080)] {
            assert_eq!(bind(address), IN_USE, "{address}");
            assert_eq!(pod.run(|| bind(address)), None, "{address}");
        }
        Ok(())
    });
}

#[test]
fn proxies_may_bind_the_services_they_serve() {
    with_each("bind-proxy", &NodeOptions::default(), |world, family| {
        let (surrogate, delegated) = (family.unspecified(30_080), family.node(1, 80));
        let mut proxied = Frontend::new(1, surrogate, TCP, &[]).flags(ServiceFlags::NODE_PORT);
        proxied.l7_port = 10_000;
        world.maps.upsert(&proxied)?;
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::LOOPBACK;
        world
            .maps
            .upsert(&Frontend::new(2, delegated, TCP, &[]).flags(flags))?;

        for address in [surrogate, family.loopback(30_080), delegated] {
            assert_eq!(bind(address), None, "{address}");
        }
        Ok(())
    });
}
