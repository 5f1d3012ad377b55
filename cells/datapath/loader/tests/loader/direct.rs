// SPDX-License-Identifier: Apache-2.0

//! Direct server return between two nodes: the backend sees the client's address, and the client gets its answers from
//! the service's.

use std::os::fd::OwnedFd;

use skep_bpf_maps::{
    MapSizes,
    endpoint::{Device, LxcKey, LxcValue, lxc_flags},
    lb::{LbMapSizes, ServiceFlags},
    testing::Frontend,
};
use skep_bpf_programs::{DirectReturn, DsrDispatch, NodeOptions, Packets};
use skep_bpf_sys::{MapStore, filter::Filters, link::InterfaceHook};

use crate::{traffic::*, world::*};

/// Service, backend on the other node, addresses of the client.
const FAMILIES: [(&str, &str, [&str; 2]); 2] = [
    (
        "203.0.113.5:443",
        "198.51.100.2:8080",
        ["192.0.2.9", "192.0.2.20"],
    ),
    (
        "[2001:db8:5::5]:443",
        "[2001:db8:1::2]:8080",
        ["2001:db8::9", "2001:db8::20"],
    ),
];

/// Connects the other node to this one by `eth1`; it reaches clients through this one, and clients services.
fn connect(world: &World) -> Outcome {
    world.add_interface("eth1", "198.51.100.1/24", "2001:db8:1::1/64")?;
    ip(&format!("link set p-eth1 netns {}", world.other.path().display()))?;
    world.other.run(|| {
        ip("link set p-eth1 name eth0")?;
        ip("link set eth0 up")?;
        ip("addr add 198.51.100.2/24 dev eth0")?;
        ip("addr add 2001:db8:1::2/64 dev eth0 nodad")?;
        ip("route add default via 198.51.100.1")?;
        ip("-6 route add default via 2001:db8:1::1")?;
        Outcome::Ok(())
    })?;
    world.client.run(|| {
        ip("route add default via 192.0.2.1")?;
        ip("-6 route add default via 2001:db8::1")?;
        Ok(())
    })
}

/// Attaches the programs on the other node, which knows its own addresses.
fn attach_there(world: &World) -> Outcome<Vec<OwnedFd>> {
    let root = world.root.join("other");
    world.other.run(|| {
        let store = MapStore::new(&root);
        let mut options = NodeOptions::default();
        options.packets.dsr = Some(DirectReturn {
            dispatch: DsrDispatch::IpOption,
            all_services: true,
            icmp_errors: false,
        });
        let programs = Packets::load(&store, MapSizes::from(LbMapSizes::uniform(64)), &options)?;
        let index = skep_bpf_sys::link::interface_index("eth0")?;
        let device = Device {
            mac: [2, 0, 0, 0, 0, 2],
            ..Device::default()
        };
        store
            .open::<u32, Device>("skep_devices")?
            .update(&index, &device)?;
        let addresses = store.open::<LxcKey, LxcValue>("cilium_lxc")?;
        for (_, backend, _) in FAMILIES {
            let value = LxcValue {
                flags: lxc_flags::HOST,
                ..LxcValue::default()
            };
            addresses.update(&LxcKey::new(address(backend).ip()), &value)?;
        }
        let filters = Filters::new("eth0")?;
        let mut kept = Vec::new();
        for (program, hook) in [
            ("cil_from_netdev", InterfaceHook::Ingress),
            ("cil_to_netdev", InterfaceHook::Egress),
        ] {
            let loaded = programs.program(program).unwrap();
            filters.attach(program, loaded, hook, 1)?;
            kept.push(loaded.try_clone_to_owned()?);
        }
        Ok(kept)
    })
}

#[test]
fn backends_on_other_nodes_see_and_answer_clients() {
    run("dsr", async |world: World| {
        connect(&world)?;
        let _programs = attach_there(&world)?;
        serve_at(&world.other, [FAMILIES[0].1, FAMILIES[1].1]);
        for flags in [
            &[REPLACEMENT, PACKETS, "--bpf-lb-mode=dsr"][..],
            &[
                REPLACEMENT,
                PACKETS,
                "--bpf-lb-mode=dsr",
                "--bpf-lb-acceleration=testing-only",
            ],
        ] {
            let agent = world.attached(flags).await?;
            let maps = maps(&agent)?;
            for (id, (service, backend, _)) in (1..).zip(FAMILIES) {
                for (id, proto) in [(id, TCP), (id + 10, UDP)] {
                    let frontend = Frontend::new(id, address(service), proto, &[address(backend)]);
                    let frontend = frontend.flags(ServiceFlags::LOAD_BALANCER | ServiceFlags::ROUTABLE);
                    provide(&agent, &maps, &frontend)?;
                }
            }
            for (service, _, client) in FAMILIES {
                let (tcp, udp) = world
                    .client
                    .run(|| (ask_tcp(address(service)), ask_udp(address(service))));
                for seen in [tcp.unwrap(), udp.unwrap()] {
                    assert!(client.contains(&&*seen), "{service} with {flags:?}: {seen}");
                }
            }
            agent.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn hybrid_translates_what_is_not_tcp() {
    run("hybrid", async |world: World| {
        connect(&world)?;
        let _programs = attach_there(&world)?;
        serve_at(&world.other, [FAMILIES[0].1, FAMILIES[1].1]);
        let agent = world
            .attached(&[REPLACEMENT, PACKETS, "--bpf-lb-mode=hybrid"])
            .await?;
        let maps = maps(&agent)?;
        let (service, backend, client) = FAMILIES[0];
        let flags = ServiceFlags::LOAD_BALANCER | ServiceFlags::ROUTABLE;
        for (id, proto, flags) in [(1, TCP, flags | ServiceFlags::FORWARD_DSR), (2, UDP, flags)] {
            let frontend = Frontend::new(id, address(service), proto, &[address(backend)]);
            provide(&agent, &maps, &frontend.flags(flags))?;
        }

        let (tcp, udp) = world
            .client
            .run(|| (ask_tcp(address(service)), ask_udp(address(service))));

        let seen = tcp.unwrap();
        assert!(client.contains(&&*seen), "{seen}");
        let seen = udp.unwrap();
        assert!(
            ["192.0.2.1", "198.51.100.1"].contains(&seen.as_str()),
            "the node's address: {seen}"
        );
        agent.stop().await
    });
}
