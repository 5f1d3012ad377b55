// SPDX-License-Identifier: Apache-2.0

//! Services on the addresses of nodes: NodePort and HostPort surrogates.

use skep_bpf_maps::{
    lb::ServiceFlags,
    node::{IDENTITY_HOST, IDENTITY_KUBE_APISERVER, IDENTITY_REMOTE_NODE, IpcacheKey, IpcacheValue},
    testing::Frontend,
};
use skep_bpf_programs::NodeOptions;

use crate::world::*;

const NODE: ServiceFlags = ServiceFlags::NODE_PORT;
const HOST: ServiceFlags = ServiceFlags::HOST_PORT;

/// A surrogate for the port of all node addresses, with one backend that answers.
fn serve(
    world: &World<'_>,
    family: Family,
    port: u16,
    flags: ServiceFlags,
) -> Result<std::net::SocketAddr, skep_bpf_sys::MapError> {
    let backend = tcp_server(family.node(1, 0));
    world
        .maps
        .upsert(&Frontend::new(port, family.unspecified(port), TCP, &[backend]).flags(flags))?;
    Ok(backend)
}

#[test]
fn node_port_works_on_loopback_and_node_addresses() {
    with_each("nodeport", &NodeOptions::default(), |world, family| {
        let backend = serve(world, family, 30_080, NODE)?;
        world.maps.identify(family.node(3, 0).ip(), IDENTITY_HOST)?;

        let mut services = vec![family.loopback(30_080), family.node(3, 30_080)];
        if family == Family::V4 {
            services.push(at("127.1.2.3:30080"));
        }
        for service in services.into_iter().flat_map(spellings) {
            assert_eq!(ask_tcp(service)?, (backend, service), "{service}");
        }
        Ok(())
    });
}

#[test]
fn node_port_works_on_addresses_of_other_nodes_of_this_cluster() {
    with_each("remote-node", &NodeOptions::default(), |world, family| {
        let backend = serve(world, family, 30_080, NODE)?;
        let service = family.node(3, 30_080);

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
    let options = NodeOptions {
        nodeport_range: (31_000, 31_100),
        ..NodeOptions::default()
    };
    with_each("range", &options, |world, family| {
        for (port, works) in [(30_999, false), (31_000, true), (31_100, true), (31_101, false)] {
            serve(world, family, port, NODE)?;
            assert_eq!(ask_tcp(family.loopback(port)).is_ok(), works, "{port}");
        }
        Ok(())
    });
}

#[test]
fn pods_have_a_loopback_of_their_own() {
    with_each("pod-loopback", &NodeOptions::default(), |world, family| {
        serve(world, family, 30_080, NODE)?;

        let from_pod = world.node.pod("client")?.run(|| ask_tcp(family.loopback(30_080)));

        assert_eq!(refusal(from_pod), Some(libc::ECONNREFUSED));
        Ok(())
    });
}

#[test]
fn host_port_works_outside_the_node_port_range() {
    with_each("hostport", &NodeOptions::default(), |world, family| {
        let backend = serve(world, family, 8080, HOST)?;
        // A HostPort in the range of NodePorts is none of ours, and the other way round.
        serve(world, family, 30_080, HOST)?;
        serve(world, family, 8081, NODE)?;
        world.maps.identify(family.node(3, 0).ip(), IDENTITY_HOST)?;
        world
            .maps
            .identify(family.node(4, 0).ip(), IDENTITY_REMOTE_NODE)?;

        for service in [family.loopback(8080), family.node(3, 8080)] {
            assert_eq!(ask_tcp(service)?.0, backend, "{service}");
        }
        for other in [
            family.node(4, 8080),
            family.loopback(30_080),
            family.loopback(8081),
        ] {
            assert!(ask_tcp(other).is_err(), "{other}");
        }
        Ok(())
    });
}

#[test]
fn loopback_host_port_is_for_loopback_only() {
    with_each("hostport-loopback", &NodeOptions::default(), |world, family| {
        let backend = serve(world, family, 8080, HOST | ServiceFlags::LOOPBACK)?;
        world.maps.identify(family.node(3, 0).ip(), IDENTITY_HOST)?;

        assert_eq!(ask_tcp(family.loopback(8080))?.0, backend);
        assert!(ask_tcp(family.node(3, 8080)).is_err());
        Ok(())
    });
}

#[test]
fn surrogates_can_be_switched_off() {
    let options = NodeOptions {
        nodeport: false,
        ..NodeOptions::default()
    };
    with_each("no-nodeport", &options, |world, family| {
        serve(world, family, 30_080, NODE)?;

        assert!(ask_tcp(family.loopback(30_080)).is_err());
        Ok(())
    });
}
