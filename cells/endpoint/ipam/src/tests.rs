// SPDX-License-Identifier: Apache-2.0

use std::net::IpAddr;

use ipnet::IpNet;
use skep_base_settings::AddressFamilies;

use super::{allocator::Allocator, metrics::Recorder, *};

pub(crate) fn both() -> AddressFamilies {
    AddressFamilies {
        ipv4: true,
        ipv6: true,
    }
}

fn new(families: AddressFamilies) -> Ipam {
    Ipam::new(families, "default", None, Recorder::default())
}

/// Allocates from one network of each family.
pub(crate) fn ranges(networks: &[&str]) -> Ipam {
    let ipam = new(both());
    ipam.change(|state| {
        for network in networks {
            let network: IpNet = network.parse().unwrap();
            let range = Range::new(network, Ends::default());
            *state.allocator(Family::of(network.addr())) = Some(Allocator::Range(range));
        }
    });
    ipam.set_ready();
    ipam
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_excluded_address_is_allocated_to_nobody() {
    let ipam = ranges(&["10.0.0.0/31"]);
    ipam.exclude(ip("10.0.0.0"), "node-ip", "default");

    let given = ipam
        .allocate_ip(ip("10.0.0.0"), "shop/web", "default")
        .unwrap_err();
    let next = ipam.allocate(Family::V4, "shop/web", "").unwrap();
    let full = ipam.allocate(Family::V4, "shop/cart", "").unwrap_err();

    assert_eq!(given.to_string(), "IP 10.0.0.0 is excluded, owned by node-ip");
    assert_eq!(next.ip, ip("10.0.0.1"));
    assert_eq!(full.to_string(), "range is full");
}

#[test]
fn a_disabled_family_allocates_nothing() {
    let ipam = new(AddressFamilies {
        ipv4: true,
        ipv6: false,
    });

    let disabled = ipam.allocate(Family::V6, "shop/web", "").unwrap_err();
    let starting = ipam.allocate(Family::V4, "shop/web", "").unwrap_err();

    assert_eq!(disabled.to_string(), "IPv6 allocation disabled");
    assert_eq!(
        starting.to_string(),
        "IPAM is not ready: the node has no IPv4 pod CIDR"
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_without_an_endpoint_expires_and_one_with_an_endpoint_does_not() {
    let ipam = ranges(&["10.0.0.0/24", "fd00::/64"]);
    let used = ipam.allocate(Family::V4, "shop/web", "").unwrap();
    let unused = ipam.allocate(Family::V6, "shop/web", "").unwrap();
    let uuid = ipam.start_expiration(&used).unwrap();
    ipam.start_expiration(&unused).unwrap();

    let errors = [
        ipam.start_expiration(&used).unwrap_err(),
        ipam.stop_expiration(used.ip, "default", "1").unwrap_err(),
        ipam.stop_expiration(ip("10.0.0.99"), "default", "1").unwrap_err(),
    ];
    ipam.stop_expiration(used.ip, "default", &uuid.to_string())
        .unwrap();
    tokio::time::timeout(EXPIRATION * 2, ipam.expire_all())
        .await
        .unwrap_err();

    assert_eq!(
        errors.map(|error| error.to_string()),
        [
            "expiration timer already registered",
            "UUID mismatch, not stopping expiration timer",
            "no expiration timer registered",
        ]
    );
    assert_eq!(ipam.addresses(Family::V6), []);
    assert_eq!(ipam.addresses(Family::V4)[0].ip, used.ip);
    assert_eq!(
        ipam.status(),
        "IPv4: 1/254 allocated from 10.0.0.0/24, IPv6: 0/18446744073709551614 allocated from fd00::/64"
    );
}
