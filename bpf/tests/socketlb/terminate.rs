// SPDX-License-Identifier: Apache-2.0

//! Client sockets of backends that are gone.

use std::{
    io::Read,
    net::{SocketAddr, TcpStream},
};

use skep_bpf::{
    load::{DeadBackend, IterTerminator, SocketOptions},
    netns,
    testing::Frontend,
};

use crate::world::*;

fn dead(address: SocketAddr, proto: u8) -> DeadBackend {
    DeadBackend { address, proto }
}

fn load(world: &World<'_>) -> IterTerminator {
    IterTerminator::load(&world.store, SIZES, true, true).unwrap()
}

const ABORTED: Option<i32> = Some(libc::ECONNABORTED);

#[test]
fn udp_clients_of_a_dead_backend_are_told() {
    with("term-udp", SocketOptions::default(), |world| {
        let terminator = load(world);
        for (id, service, addresses, client) in [
            (1, "10.96.0.1:53", ["10.244.0.1:0", "10.244.0.2:0"], "0.0.0.0:0"),
            (2, "[fd10::1]:53", ["[fd00::1]:0", "[fd00::2]:0"], "[::]:0"),
        ] {
            let (service, backends) = (at(service), addresses.map(udp_server));
            world.maps.upsert(&Frontend::new(id, service, UDP, &backends))?;
            let clients: Vec<_> = (0..16)
                .map(|_| {
                    let socket = udp_client(client);
                    socket.connect(service).unwrap();
                    let backend = ask_connected(&socket).unwrap();
                    (socket, backend)
                })
                .collect();
            // Not through a service: not ours to judge.
            let direct = udp_client(client);
            direct.connect(backends[0])?;

            let mut expected: Vec<u64> = clients
                .iter()
                .filter(|(_, backend)| *backend == backends[0])
                .map(|(socket, _)| netns::socket_cookie(std::os::fd::AsFd::as_fd(socket)).unwrap())
                .collect();
            let mut destroyed = terminator.run(&[dead(backends[0], UDP)])?;
            destroyed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(destroyed, expected);
            for (socket, backend) in &clients {
                if *backend == backends[0] {
                    assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().raw_os_error(), ABORTED);
                } else {
                    assert_eq!(ask_connected(socket)?, *backend);
                }
            }
            assert_eq!(ask_connected(&direct)?, backends[0]);
        }
        Ok(())
    });
}

#[test]
fn tcp_clients_of_a_dead_backend_are_told() {
    with("term-tcp", SocketOptions::default(), |world| {
        let terminator = load(world);
        let service = at("10.96.0.1:80");
        let listener = std::net::TcpListener::bind(at("10.244.0.1:0"))?;
        let backend = listener.local_addr()?;
        world.maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;
        let mut mapped = TcpStream::connect(at("[::ffff:10.96.0.1]:80"))?;
        let mut plain = TcpStream::connect(service)?;

        assert_eq!(terminator.run(&[dead(backend, UDP)])?.len(), 0);
        assert_eq!(
            terminator
                .run(&[dead(backend, TCP), dead(at("10.244.0.9:1"), TCP)])?
                .len(),
            2
        );

        for stream in [&mut mapped, &mut plain] {
            assert_eq!(stream.read(&mut [0; 8]).unwrap_err().raw_os_error(), ABORTED);
        }
        Ok(())
    });
}

#[test]
fn each_network_namespace_is_walked_by_itself() {
    with("term-pod", SocketOptions::default(), |world| {
        let terminator = load(world);
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

        assert_eq!(client.recv(&mut [0; 8]).unwrap_err().raw_os_error(), ABORTED);
        Ok(())
    });
}
