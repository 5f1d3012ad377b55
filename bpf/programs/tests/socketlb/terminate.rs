// SPDX-License-Identifier: Apache-2.0

//! Client sockets of backends that are gone.

use std::{
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
};

use skep_base_net::netns;
use skep_bpf_maps::testing::Frontend;
use skep_bpf_programs::{DeadBackend, IterTerminator, LoadError, NodeOptions};

use crate::world::*;

fn dead(address: SocketAddr, proto: u8) -> DeadBackend {
    DeadBackend { address, proto }
}

/// The iterators. None before Linux 6.5, which does not let programs destroy sockets: there, loading them fails for
/// that reason and no other.
fn load(world: &World<'_>) -> Option<IterTerminator> {
    match IterTerminator::load(&world.store, SIZES, true, true) {
        Ok(terminator) => Some(terminator),
        Err(LoadError::Load { log, .. }) if kernel() < (6, 5) && log.contains("bpf_sock_destroy") => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Major and minor version of the running kernel.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

const ABORTED: Option<i32> = Some(libc::ECONNABORTED);

#[test]
fn udp_clients_of_a_dead_backend_are_told() {
    with_each("term-udp", &NodeOptions::default(), |world, family| {
        let Some(terminator) = load(world) else {
            return Ok(());
        };
        let (service, backends) = (family.service(1, 53), family.udp_servers(2));
        world.maps.upsert(&Frontend::new(1, service, UDP, &backends))?;
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let socket = family.udp_client();
                socket.connect(service).unwrap();
                let backend = ask_connected(&socket).unwrap();
                (socket, backend)
            })
            .collect();
        // Not through a service: not ours to judge.
        let direct = family.udp_client();
        direct.connect(backends[0])?;

        let mut expected: Vec<u64> = clients
            .iter()
            .filter(|(_, backend)| *backend == backends[0])
            .map(|(socket, _)| netns::socket_cookie(socket.as_fd()).unwrap())
            .collect();
        let mut destroyed = terminator.run(&[dead(backends[0], UDP)])?;
        destroyed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(destroyed, expected);
        for (socket, backend) in &clients {
            if *backend == backends[0] {
                assert_eq!(refusal(socket.recv(&mut [0; 8])), ABORTED);
            } else {
                assert_eq!(ask_connected(socket)?, *backend);
            }
        }
        assert_eq!(ask_connected(&direct)?, backends[0]);
        Ok(())
    });
}

#[test]
fn tcp_clients_of_a_dead_backend_are_told() {
    with_each("term-tcp", &NodeOptions::default(), |world, family| {
        let Some(terminator) = load(world) else {
            return Ok(());
        };
        let service = family.service(1, 80);
        let listener = TcpListener::bind(family.node(1, 0))?;
        let backend = listener.local_addr()?;
        world.maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;
        let clients: Vec<TcpStream> = spellings(service)
            .into_iter()
            .map(TcpStream::connect)
            .collect::<Result<_, _>>()?;

        assert_eq!(terminator.run(&[dead(backend, UDP)])?.len(), 0);
        let destroyed = terminator.run(&[dead(backend, TCP), dead(family.node(9, 1), TCP)])?;
        assert_eq!(destroyed.len(), clients.len());

        for mut client in clients {
            assert_eq!(refusal(client.read(&mut [0; 8])), ABORTED);
        }
        Ok(())
    });
}

#[test]
fn each_network_namespace_is_walked_by_itself() {
    with("term-pod", NodeOptions::default(), |world| {
        let Some(terminator) = load(world) else {
            return Ok(());
        };
        let service = at("10.96.0.1:53");
        let pod = world.node.pod("client")?;
        let backend = pod.run(|| udp_server("127.0.0.1:0"));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;
        let client = pod.run(|| {
            let socket = udp_client("127.0.0.1:0");
            socket.connect(service).map(|()| socket)
        })?;

        assert_eq!(terminator.run(&[dead(backend, UDP)])?.len(), 0);
        assert_eq!(
            netns::inside(pod.path(), || terminator.run(&[dead(backend, UDP)]))??.len(),
            1
        );

        assert_eq!(refusal(client.recv(&mut [0; 8])), ABORTED);
        Ok(())
    });
}

#[test]
fn ipv6_sockets_with_mapped_addresses_are_clients_of_ipv4_backends() {
    with("term-mapped", NodeOptions::default(), |world| {
        let Some(terminator) = load(world) else {
            return Ok(());
        };
        let backend = udp_server("10.244.0.1:0");
        world
            .maps
            .upsert(&Frontend::new(1, at("10.96.0.1:53"), UDP, &[backend]))?;
        let mapped = udp_client("[::]:0");
        mapped.connect(at("[::ffff:10.96.0.1]:53"))?;
        assert_eq!(ask_connected(&mapped)?, backend);

        // The program for IPv6 backends is none of its business.
        assert!(terminator.run(&[dead(at("[fd00::1]:53"), UDP)])?.is_empty());
        assert_eq!(ask_connected(&mapped)?, backend);
        assert_eq!(terminator.run(&[dead(backend, UDP)])?.len(), 1);

        assert_eq!(refusal(mapped.recv(&mut [0; 8])), ABORTED);
        Ok(())
    });
}

#[test]
fn programs_have_the_names_that_tracing_tools_know() {
    with("term-names", NodeOptions::default(), |world| {
        let terminator = load(world);

        let output = std::process::Command::new("bpftool")
            .args(["--json", "prog", "list"])
            .output()?;
        let all: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let names: std::collections::BTreeSet<&str> = all
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|program| program["name"].as_str())
            .collect();

        let iterators = [
            "cil_sock_udp_destroy_v4",
            "cil_sock_udp_destroy_v6",
            "cil_sock_tcp_destroy_v4",
            "cil_sock_tcp_destroy_v6",
        ];
        let others = ["cil_sock4_connect", "cil_sock6_post_bind", "cil_sock_release"];
        for name in iterators
            .into_iter()
            .filter(|_| terminator.is_some())
            .chain(others)
        {
            // The kernel keeps 15 characters; bpftool completes them from BTF.
            assert!(names.contains(name), "no {name} in {names:?}");
        }
        Ok(())
    });
}
