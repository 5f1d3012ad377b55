// SPDX-License-Identifier: Apache-2.0

//! The rule of local addresses, next hops, neighbours.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use skep_base_net::{
    Hop, LinkSpec, MarkRule, NetError, Netlink, Route,
    netns::Namespace,
    packet::AddressFamily,
    transparent::{ProxySocket, Transport},
};

/// Runs a test in a network namespace with interface `eth0`.
fn in_namespace(test: impl FnOnce(&Netlink, u32) -> Result<(), NetError> + Send) {
    let done = Namespace::new().unwrap().inside(|| {
        let net = Netlink::open()?;
        net.add_link(LinkSpec::veth("eth0", LinkSpec::new().name("peer0")))?;
        for name in ["peer0", "eth0"] {
            net.set_link(&net.link(name)?, LinkSpec::new().no_link_local().up())?;
        }
        let eth0 = net.link("eth0")?;
        net.add_address(&eth0, "192.0.2.1/24".parse().unwrap())?;
        test(&net, eth0.index)
    });
    done.unwrap().unwrap();
}

#[test]
fn the_rule_of_local_addresses_is_moved_once() {
    in_namespace(|net, _| {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            assert!(net.move_local_rule(family, 100)?);
            assert!(!net.move_local_rule(family, 100)?);
        }
        let addresses = net.addresses(&net.link("peer0")?)?;
        assert!(addresses.is_empty(), "{addresses:?}");
        // Local addresses are still found.
        let route = net.route_to("192.0.2.1".parse().unwrap())?.unwrap();
        assert_eq!(u8::from(route.kind), 2);
        Ok(())
    });
    let shown = Namespace::new()
        .unwrap()
        .inside(|| {
            Netlink::open()
                .unwrap()
                .move_local_rule(AddressFamily::Inet, 100)
                .unwrap();
            let output = std::process::Command::new("ip").arg("rule").output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        })
        .unwrap();
    assert!(shown.starts_with("100:\tfrom all lookup local"), "{shown}");
}

#[test]
fn a_route_is_looked_up_as_it_is_in_the_table() {
    in_namespace(|net, device| {
        let hops: Vec<Hop> = ["192.0.2.8", "192.0.2.9"]
            .map(|gateway| Hop {
                device: Some(device),
                gateway: Some(gateway.parse().unwrap()),
            })
            .into();
        net.add_route(&Route {
            hops: hops.clone(),
            ..Route::to("198.51.100.0/24".parse().unwrap())
        })?;

        let found = net
            .route_through("198.51.100.7".parse().unwrap(), device)?
            .unwrap();

        assert_eq!(found.destination, "198.51.100.0/24".parse().unwrap());
        assert_eq!(found.hops, hops);
        assert!(net.route_through("203.0.113.1".parse().unwrap(), device).is_err());
        Ok(())
    });
}

#[test]
fn packets_with_a_mark_are_routed_to_the_node() {
    in_namespace(|net, _| {
        net.set_link(&net.link("lo")?, LinkSpec::new().up())?;
        let rule = MarkRule {
            priority: 9,
            mark: 0x200,
            mask: 0xf00,
            table: 2004,
        };
        assert!(net.add_mark_rule(AddressFamily::Inet, &rule)?);
        assert!(!net.add_mark_rule(AddressFamily::Inet, &rule)?);
        Ok(())
    });
}

#[test]
fn sockets_of_proxies_have_addresses_that_are_not_the_nodes() {
    in_namespace(|net, _| {
        net.set_link(&net.link("lo")?, LinkSpec::new().up())?;
        for (address, is_ipv6) in [("198.51.100.1:53", false), ("[2001:db8::1]:53", true)] {
            for transport in [Transport::Udp, Transport::Tcp] {
                let socket = ProxySocket {
                    transport,
                    is_ipv6,
                    mark: 0xb00,
                    bind: address.parse().ok(),
                    is_listener: true,
                };
                assert!(socket.open().is_ok(), "{socket:?}");
            }
            let raw = ProxySocket {
                transport: Transport::RawUdp,
                is_ipv6,
                mark: 0xb00,
                bind: None,
                is_listener: false,
            };
            assert!(raw.open().is_ok());
        }
        Ok(())
    });
}
