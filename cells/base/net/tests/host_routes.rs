// SPDX-License-Identifier: Apache-2.0

//! Routes to single addresses by an interface, beside those of others.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{collections::BTreeSet, error::Error, net::IpAddr, process::Command};

use skep_base_net::host_route::{self, add_unreachable, remove_unreachable, unreachable_addresses};
use skep_bpf_sys::testing::Node;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn ip(arguments: &str) -> Outcome<String> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("ip {arguments}: {text}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a test on a node with the interfaces `lxc1` and `lxc2`, and hands it their indexes.
fn with_interfaces(name: &str, test: impl FnOnce(u32, u32) -> Outcome + Send) {
    let result = Node::run(name, |_| {
        for name in ["lxc1", "lxc2"] {
            ip(&format!("link add {name} type veth peer name p-{name}"))?;
            ip(&format!("link set p-{name} up"))?;
            ip(&format!("link set {name} up"))?;
        }
        let index = |name: &str| -> Outcome<u32> {
            let link = ip(&format!("-o link show {name}"))?;
            Ok(link.split(':').next().unwrap().parse()?)
        };
        test(index("lxc1")?, index("lxc2")?)
    });
    if let Err(error) = result {
        panic!("{error}: {:?}", error.source());
    }
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn listed(ifindex: u32) -> Outcome<Vec<IpAddr>> {
    Ok(host_route::list(ifindex)?.into_iter().collect())
}

#[test]
fn addresses_are_routed_to_the_interface_and_to_no_other() {
    with_interfaces("routes", |first, second| {
        let wanted = addresses(&["10.1.0.7", "fd00:1::7"]);

        assert!(host_route::set(first, &wanted)?);

        assert_eq!(listed(first)?, wanted);
        assert_eq!(listed(second)?, [] as [IpAddr; 0]);
        assert!(!host_route::set(first, &wanted)?, "nothing to do");
        let route = ip("route get 10.1.0.7")?;
        assert!(route.contains("dev lxc1"), "{route}");
        let route = ip("-d -4 route show 10.1.0.7")?;
        assert!(route.contains("proto kernel scope link"), "{route}");
        let route = ip("-6 route show fd00:1::7")?;
        assert!(
            route.starts_with("fd00:1::7 dev lxc1 proto kernel metric 1024"),
            "{route}"
        );

        // The pod moves.
        assert!(host_route::set(second, &wanted)?);
        assert_eq!((listed(first)?, listed(second)?), (vec![], wanted));

        let other = addresses(&["10.1.0.8"]);
        assert!(host_route::set(second, &other)?);
        assert_eq!(listed(second)?, other);
        assert!(host_route::set(second, &[])?);
        assert!(!host_route::set(second, &[])?);
        assert_eq!(listed(second)?, [] as [IpAddr; 0]);
        Ok(())
    });
}

#[test]
fn routes_of_others_stay() {
    with_interfaces("others", |first, _| {
        ip("addr add 192.0.2.1/24 dev lxc1")?;
        ip("addr add 192.0.2.9 peer 198.51.100.9/32 dev lxc1")?;
        ip("route add 10.2.0.1/32 dev lxc1")?;
        ip("route add 10.3.0.1/32 via 192.0.2.2 dev lxc1 proto kernel")?;
        ip("route add 10.4.0.0/24 dev lxc1 proto kernel")?;
        ip("route add 10.5.0.1/32 dev lxc1 proto kernel table 100")?;
        ip("route add fd00:2::1/128 dev lxc1 proto static")?;
        let before: BTreeSet<String> = ip("route show table all")?.lines().map(str::to_owned).collect();

        assert!(host_route::set(first, &addresses(&["10.1.0.7", "fd00:1::7"]))?);
        assert!(host_route::set(first, &[])?);

        let after: BTreeSet<String> = ip("route show table all")?.lines().map(str::to_owned).collect();
        assert_eq!(after, before);
        Ok(())
    });
}

#[test]
fn an_interface_that_is_gone_has_no_routes_and_gets_none() {
    with_interfaces("gone", |first, _| {
        host_route::set(first, &addresses(&["10.1.0.7"]))?;
        ip("link del lxc1")?;

        assert!(!host_route::set(first, &[])?);
        let error = host_route::set(first, &addresses(&["10.1.0.7"])).unwrap_err();
        assert_eq!(error.to_string(), "cannot add the route to 10.1.0.7/32");
        Ok(())
    });
}

fn unreachable() -> Outcome<Vec<IpAddr>> {
    Ok(unreachable_addresses()?.into_iter().collect())
}

#[test]
fn the_kernel_answers_for_unreachable_addresses() {
    with_interfaces("unreachable", |_, _| {
        let wanted = addresses(&["10.1.0.7", "fd00:1::7"]);
        ip("route add unreachable 10.1.0.8/32")?;
        ip("route add unreachable 10.1.1.0/24 proto kernel")?;

        for address in &wanted {
            assert!(add_unreachable(*address)?);
            assert!(!add_unreachable(*address)?, "nothing to do");
            let answer = ip(&format!("route get {address}")).unwrap_err().to_string();
            assert!(answer.contains("No route to host"), "{answer}");
        }

        assert_eq!(unreachable()?, wanted, "those of others are not listed");
        let routes = ip("-6 route show fd00:1::7")?;
        assert!(
            routes.starts_with("unreachable fd00:1::7 dev lo proto kernel"),
            "{routes}"
        );
        for address in &wanted {
            assert!(remove_unreachable(*address)?);
            assert!(!remove_unreachable(*address)?, "nothing to do");
        }
        assert_eq!(unreachable()?, [] as [IpAddr; 0]);
        assert!(
            !remove_unreachable("10.1.0.8".parse()?)?,
            "it has another protocol"
        );
        Ok(())
    });
}

#[test]
fn addresses_with_a_route_are_not_unreachable() {
    with_interfaces("reachable", |first, _| {
        let wanted = addresses(&["10.1.0.7", "fd00:1::7"]);
        host_route::set(first, &wanted)?;

        for address in &wanted {
            assert!(!add_unreachable(*address)?);
            assert!(!remove_unreachable(*address)?);
        }
        assert_eq!((listed(first)?, unreachable()?), (wanted.clone(), vec![]));

        host_route::set(first, &[])?;
        for address in &wanted {
            add_unreachable(*address)?;
        }
        // The next endpoint with the address has its route in any case.
        host_route::set(first, &wanted[..1])?;
        assert_eq!(
            (listed(first)?, unreachable()?),
            (vec![wanted[0]], vec![wanted[1]])
        );
        Ok(())
    });
}
