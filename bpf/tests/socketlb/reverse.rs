// SPDX-License-Identifier: Apache-2.0

//! Ways back: what recvmsg and getpeername show, stale entries, entries of closed sockets.

use std::net::TcpStream;

use skep_bpf::{event::reason, load::SocketOptions, testing::Frontend};

use crate::world::*;

#[test]
fn stale_entries_are_dropped_and_counted() {
    with("stale", SocketOptions::default(), |world| {
        for (id, service, backend) in [
            (1, "10.96.0.1:80", "10.244.0.1:0"),
            (2, "[fd10::1]:80", "[fd00::1]:0"),
        ] {
            let (service, backend) = (at(service), tcp_server(backend));
            let frontend = Frontend::new(id, service, TCP, &[backend]);
            world.maps.upsert(&frontend)?;
            let stale = world.counted(reason::LB_REVERSE_STALE);

            let stream = TcpStream::connect(service)?;
            assert_eq!(stream.peer_addr()?, service);
            world.maps.delete(&frontend)?;
            assert_eq!(stream.peer_addr()?, backend);
            assert_eq!(world.counted(reason::LB_REVERSE_STALE), stale + 1);

            // The entry is gone: the service coming back does not bring it back.
            world.maps.upsert(&frontend)?;
            assert_eq!(stream.peer_addr()?, backend);
            assert_eq!(world.counted(reason::LB_REVERSE_STALE), stale + 1);
        }
        assert!(world.maps.reverse_sk4.entries()?.is_empty());
        assert!(world.maps.reverse_sk6.entries()?.is_empty());
        Ok(())
    });
}

#[test]
fn an_address_that_became_another_service_is_stale() {
    with("stale-id", SocketOptions::default(), |world| {
        let (service, backend) = (at("10.96.0.1:80"), tcp_server("10.244.0.1:0"));
        world.maps.upsert(&Frontend::new(1, service, TCP, &[backend]))?;
        let stream = TcpStream::connect(service)?;

        world.maps.upsert(&Frontend::new(2, service, TCP, &[backend]))?;

        assert_eq!(stream.peer_addr()?, backend);
        assert_eq!(world.counted(reason::LB_REVERSE_STALE), 1);
        Ok(())
    });
}

#[test]
fn a_service_that_lost_its_backends_is_stale() {
    with("stale-empty", SocketOptions::default(), |world| {
        let (service, backend) = (at("10.96.0.1:53"), udp_server("10.244.0.1:0"));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;
        let socket = udp_client("0.0.0.0:0");
        socket.send_to(b"?", service)?;
        world.maps.upsert(&Frontend::new(1, service, UDP, &[]))?;

        let (_, from) = socket.recv_from(&mut [0; 64])?;

        assert_eq!(from, backend);
        assert_eq!(world.counted(reason::LB_REVERSE_STALE), 1);
        Ok(())
    });
}

#[test]
fn answers_of_strangers_keep_their_address() {
    with("stranger", SocketOptions::default(), |world| {
        let (service, backend) = (at("10.96.0.1:53"), udp_server("10.244.0.1:0"));
        let stranger = udp_server("10.244.0.2:0");
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;
        let socket = udp_client("0.0.0.0:0");

        assert_eq!(ask_udp(&socket, service)?, (backend, service));
        assert_eq!(ask_udp(&socket, stranger)?, (stranger, stranger));
        // A socket of its own sees the backend as what it is.
        assert_eq!(ask_udp(&udp_client("0.0.0.0:0"), backend)?, (backend, backend));
        Ok(())
    });
}

#[test]
fn one_socket_may_talk_to_two_services_on_one_backend() {
    with("two-services", SocketOptions::default(), |world| {
        let backend = udp_server("10.244.0.1:0");
        let services = [at("10.96.0.1:53"), at("10.96.0.2:53")];
        for (id, service) in (1..).zip(services) {
            world.maps.upsert(&Frontend::new(id, service, UDP, &[backend]))?;
        }
        let socket = udp_client("0.0.0.0:0");

        for service in services.into_iter().chain(services) {
            assert_eq!(ask_udp(&socket, service)?, (backend, service));
        }
        assert_eq!(world.maps.reverse_sk4.entries()?.len(), 1);
        Ok(())
    });
}

#[test]
fn closed_sockets_leave_no_entry() {
    with("release", SocketOptions::default(), |world| {
        for (id, service, backend, asked) in [
            (1, "10.96.0.1:80", "10.244.0.1:0", "10.96.0.1:80"),
            (2, "[fd10::1]:80", "[fd00::1]:0", "[fd10::1]:80"),
            (3, "10.96.0.3:80", "10.244.0.1:0", "[::ffff:10.96.0.3]:80"),
        ] {
            let released = world.counted(reason::LB_REVERSE_DELETE);
            world
                .maps
                .upsert(&Frontend::new(id, at(service), TCP, &[tcp_server(backend)]))?;
            world
                .maps
                .upsert(&Frontend::new(id + 10, at(service), UDP, &[udp_server(backend)]))?;

            let stream = TcpStream::connect(at(asked)).unwrap();
            let socket = udp_client(if asked.starts_with('[') {
                "[::]:0"
            } else {
                "0.0.0.0:0"
            });
            socket.connect(at(asked)).unwrap();
            let entries = || -> Result<usize, skep_bpf::MapError> {
                Ok(world.maps.reverse_sk4.entries()?.len() + world.maps.reverse_sk6.entries()?.len())
            };
            assert_eq!(entries()?, 2, "{asked}");
            drop((stream, socket));

            assert_eq!(entries()?, 0, "{asked}");
            assert_eq!(world.counted(reason::LB_REVERSE_DELETE), released + 2);
        }
        Ok(())
    });
}
