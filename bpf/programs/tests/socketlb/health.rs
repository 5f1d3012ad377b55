// SPDX-License-Identifier: Apache-2.0

//! Sockets of a health checker: by their mark, they bind to the backend that they probe, and reach services untranslated.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, socket};
use skep_base_net::netns::socket_cookie;
use skep_bpf_maps::{
    lb::{Backend4, Backend6},
    testing::Frontend,
};
use skep_bpf_programs::{NodeOptions, PacketOptions};

use crate::world::*;

const PROBE: u32 = 0xd00;

fn options(health_probes: bool) -> NodeOptions {
    NodeOptions {
        packets: PacketOptions {
            health_probes,
            ..PacketOptions::default()
        },
        ..NodeOptions::default()
    }
}

/// A TCP socket with a mark, for the family of this address.
fn marked(address: SocketAddr, mark: u32) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let made = socket(family, SocketType::STREAM, None)?;
    // SAFETY: the kernel reads four bytes, which `mark` has.
    let result = unsafe {
        libc::setsockopt(
            made.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            std::ptr::from_ref(&mark).cast(),
            4,
        )
    };
    if result == 0 {
        Ok(made)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn mark_of(socket: &OwnedFd) -> io::Result<u32> {
    let (mut mark, mut length) = (0_u32, 4);
    // SAFETY: the kernel writes at most `length` bytes, which `mark` has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            std::ptr::from_mut(&mut mark).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(mark)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn bound(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let address = getsockname(socket)?;
    address.try_into().map_err(io::Error::from)
}

/// Address, port and protocol of the backend that a socket probes.
fn probed(
    world: &World<'_>,
    is_ipv4: bool,
    cookie: u64,
) -> Result<Option<(SocketAddr, u8)>, skep_bpf_sys::MapError> {
    Ok(if is_ipv4 {
        let found = world
            .store
            .open::<u64, Backend4>("cilium_lb4_health")?
            .lookup(&cookie)?;
        found.map(|backend| ((backend.addr(), backend.port.get()).into(), backend.proto))
    } else {
        let found = world
            .store
            .open::<u64, Backend6>("cilium_lb6_health")?
            .lookup(&cookie)?;
        found.map(|backend| ((backend.addr(), backend.port.get()).into(), backend.proto))
    })
}

#[test]
fn probes_bind_to_a_backend_and_connect_to_the_service_itself() {
    with_each("health", &options(true), |world, family| {
        let here = tcp_server(family.node(1, 0));
        let other = tcp_server(family.node(2, 0));
        world.maps.upsert(&Frontend::new(1, here, TCP, &[other]))?;
        let backend = family.node(200, 8080);

        for to in spellings(backend) {
            let probe = marked(to, PROBE)?;
            bind(&probe, &to)?;

            let at = bound(&probe)?;
            assert!(at.ip().to_canonical().is_unspecified(), "{at}");
            let cookie = socket_cookie(probe.as_fd())?;
            assert_eq!(
                probed(world, backend.is_ipv4(), cookie)?,
                Some((backend, TCP)),
                "{to}"
            );

            let service = spellings(here)
                .into_iter()
                .find(|service| service.is_ipv4() == to.is_ipv4());
            connect(&probe, &service.ok_or("no such spelling")?)?;
            assert_eq!(mark_of(&probe)?, 0, "packets have no mark");
            let peer = TcpStream::from(probe).peer_addr()?;
            assert_eq!((peer.ip().to_canonical(), peer.port()), (here.ip(), here.port()));
        }
        // Sockets without the mark are still translated.
        assert_eq!(ask_tcp(here)?.0, other);
        Ok(())
    });
}

#[test]
fn sockets_without_the_mark_and_without_the_option_bind_as_they_ask() {
    for (is_on, mark) in [(true, 0), (true, 0xd01), (false, PROBE)] {
        with_each("health-off", &options(is_on), |world, family| {
            let own = family.node(1, 0);
            let socket = marked(own, mark)?;
            bind(&socket, &own)?;
            assert_eq!(bound(&socket)?.ip(), own.ip());
            if is_on {
                let cookie = socket_cookie(socket.as_fd())?;
                assert_eq!(probed(world, own.is_ipv4(), cookie)?, None);
            } else {
                assert!(!world.store.path("cilium_lb4_health").exists());
                assert!(!world.store.path("cilium_lb6_health").exists());
            }
            Ok(())
        });
    }
}
