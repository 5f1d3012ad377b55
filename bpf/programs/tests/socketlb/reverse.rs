// SPDX-License-Identifier: Apache-2.0

//! Ways back: what recvmsg and getpeername show, stale entries, entries of closed sockets.

use std::net::TcpStream;

use skep_bpf_maps::{event::reason, testing::Frontend};
use skep_bpf_programs::NodeOptions;

use crate::world::*;

#[test]
fn stale_entries_are_dropped_and_counted() {
    with_each("stale", &NodeOptions::default(), |world, family| {
        let (service, backend) = (family.service(1, 80), tcp_server(family.node(1, 0)));
        let frontend = Frontend::new(1, service, TCP, &[backend]);
        world.maps.upsert(&frontend)?;

        let stream = TcpStream::connect(service)?;
        assert_eq!(stream.peer_addr()?, service);
        world.maps.delete(&frontend)?;
        assert_eq!(stream.peer_addr()?, backend);
        assert_eq!(world.counted(reason::LB_REVERSE_STALE), 1);

        // The entry is gone: the service coming back does not bring it back.
        world.maps.upsert(&frontend)?;
        assert_eq!(stream.peer_addr()?, backend);
        assert_eq!(world.counted(reason::LB_REVERSE_STALE), 1);
        assert_eq!(world.ways_back()?, 0);
        Ok(())
    });
}

#[test]
fn an_address_that_became_another_service_is_stale() {
    with_each("stale-id", &NodeOptions::default(), |world, family| {
        let (service, backend) = (family.service(1, 80), tcp_server(family.node(1, 0)));
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
    with_each("stale-empty", &NodeOptions::default(), |world, family| {
        let (service, backend) = (family.service(1, 53), udp_server(family.node(1, 0)));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;
        let socket = family.udp_client();
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
    with_each("stranger", &NodeOptions::default(), |world, family| {
        let (service, backend) = (family.service(1, 53), udp_server(family.node(1, 0)));
        let stranger = udp_server(family.node(2, 0));
        world.maps.upsert(&Frontend::new(1, service, UDP, &[backend]))?;
        let socket = family.udp_client();

        assert_eq!(ask_udp(&socket, service)?, (backend, service));
        assert_eq!(ask_udp(&socket, stranger)?, (stranger, stranger));
        // A socket of its own sees the backend as what it is.
        assert_eq!(ask_udp(&family.udp_client(), backend)?, (backend, backend));
        Ok(())
    });
}

#[test]
fn one_socket_may_talk_to_two_services_on_one_backend() {
    with_each("two-services", &NodeOptions::default(), |world, family| {
        let backend = udp_server(family.node(1, 0));
        let services = [family.service(1, 53), family.service(2, 53)];
        for (id, service) in (1..).zip(services) {
            world.maps.upsert(&Frontend::new(id, service, UDP, &[backend]))?;
        }
        let socket = family.udp_client();

        for service in services.into_iter().chain(services) {
            assert_eq!(ask_udp(&socket, service)?, (backend, service));
        }
        assert_eq!(world.ways_back()?, 1);
        Ok(())
    });
}

#[test]
fn closed_sockets_leave_no_entry() {
    closed_sockets_leave_none("release", false);
}

#[test]
fn closed_sockets_of_the_node_leave_no_entry_in_host_only_mode() {
    closed_sockets_leave_none("release-host", true);
}

fn closed_sockets_leave_none(name: &str, host_only: bool) {
    let options = NodeOptions {
        host_only,
        ..NodeOptions::default()
    };
    with_each(name, &options, |world, family| {
        let service = family.service(1, 80);
        let (stream, datagram) = (tcp_server(family.node(1, 0)), udp_server(family.node(1, 0)));
        world.maps.upsert(&Frontend::new(1, service, TCP, &[stream]))?;
        world.maps.upsert(&Frontend::new(2, service, UDP, &[datagram]))?;

        for asked in spellings(service) {
            let released = world.counted(reason::LB_REVERSE_DELETE);
            let stream = TcpStream::connect(asked)?;
            let any = if asked.is_ipv4() { Family::V4 } else { Family::V6 };
            let socket = any.udp_client();
            socket.connect(asked)?;
            assert_eq!(world.ways_back()?, 2, "{asked}");
            drop((stream, socket));

            assert_eq!(world.ways_back()?, 0, "{asked}");
            assert_eq!(world.counted(reason::LB_REVERSE_DELETE), released + 2, "{asked}");
        }
        Ok(())
    });
}
