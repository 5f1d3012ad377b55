// SPDX-License-Identifier: Apache-2.0

//! Addresses whose use changes while a device has them.

use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, CacheInfo};

use super::*;
use crate::AddressState;

#[tokio::test]
async fn states_of_addresses_are_followed() {
    let (events, bench) = start_scripted().await;
    let set = |text: &str, state| {
        let mut address = address(text);
        address.own.state = state;
        events.send(DeviceEvent::Address(2, address)).unwrap();
    };
    events.send(DeviceEvent::Link(link(2, "eth0"))).unwrap();
    events.send(DeviceEvent::Route(route("::/0"))).unwrap();
    set("2001:db8::1", AddressState::Preferred);
    set("fd00::1", AddressState::Tentative);
    events.send(DeviceEvent::Synced).unwrap();
    let rows = async |expected: &[&str]| bench.rows("node-addresses", &[0, 1, 2, 3], expected).await;
    rows(&["2001:db8::1 false true *", "2001:db8::1 true true eth0"]).await;

    set("fd00::1", AddressState::Preferred);
    rows(&[
        "2001:db8::1 false true *",
        "2001:db8::1 false true eth0",
        "fd00::1 true false eth0",
    ])
    .await;

    set("2001:db8::1", AddressState::Deprecated);
    rows(&[
        "2001:db8::1 false false eth0",
        "fd00::1 false true *",
        "fd00::1 true true eth0",
    ])
    .await;

    set("2001:db8::1", AddressState::Duplicate);
    rows(&["fd00::1 false true *", "fd00::1 true true eth0"]).await;
}

#[tokio::test]
async fn an_address_in_two_networks_stays_until_the_last_is_gone() {
    let (events, bench) = start_scripted().await;
    let of = |network: &str| LinkAddress {
        network: network.parse().unwrap(),
        ..address("192.0.2.7")
    };
    events.send(DeviceEvent::Link(link(2, "eth0"))).unwrap();
    for network in ["192.0.2.0/24", "192.0.2.7/32"] {
        events.send(DeviceEvent::Address(2, of(network))).unwrap();
    }
    events.send(DeviceEvent::Synced).unwrap();
    bench.rows("devices", &[7], &["192.0.2.7"]).await;

    events
        .send(DeviceEvent::AddressGone(2, of("192.0.2.7/32")))
        .unwrap();
    events
        .send(DeviceEvent::Address(2, address("192.0.2.8")))
        .unwrap();
    bench.rows("devices", &[7], &["192.0.2.7, 192.0.2.8"]).await;
    events
        .send(DeviceEvent::AddressGone(2, of("192.0.2.0/24")))
        .unwrap();
    bench.rows("devices", &[7], &["192.0.2.8"]).await;
}

/// Seconds for which an address is valid in these tests.
const VALID: u32 = 600;

/// Adds an IPv6 address that is preferred for some seconds; without `flags` the kernel searches duplicates first.
async fn add_preferred(index: u32, addr: &str, seconds: u32, flags: AddressHeaderFlags) {
    let mut request = netlink().address().add(index, addr.parse().unwrap(), 64);
    let mut lifetime = CacheInfo::default();
    (lifetime.ifa_preferred, lifetime.ifa_valid) = (seconds, VALID);
    let message = request.message_mut();
    message.header.flags = flags;
    message.attributes.push(AddressAttribute::CacheInfo(lifetime));
    request.execute().await.unwrap();
}

#[test]
fn addresses_that_the_kernel_deprecates_or_finds_twice_are_no_sources() {
    in_namespace(|| async {
        let handle = netlink();
        let eth7 = add_cable(&handle, "eth7", "lxc7", "192.0.2.7").await;
        let lxc7 = index_of(&handle, "lxc7").await;
        add_default_route(&handle, eth7).await;
        let checked = AddressHeaderFlags::empty();
        let unchecked = AddressHeaderFlags::Nodad;
        // The other end of the cable defends its address.
        add_preferred(lxc7, "2001:db8::2", VALID, unchecked).await;
        add_preferred(eth7, "2001:db8::1", 0, unchecked).await;
        add_preferred(eth7, "2001:db8::2", VALID, checked).await;
        add_preferred(eth7, "2001:db8::3", 3, unchecked).await;
        add_preferred(eth7, "fd00::1", VALID, unchecked).await;
        let settings = Settings::new().flag("exclude-local-address", "192.0.2.0/24,fe80::/10");
        let bench = Bench::start(vec![cells::devices()], settings).await;
        let rows = async |expected: &[&str]| {
            bench.rows("node-addresses", &[0, 1, 2, 3], expected).await;
        };

        rows(&[
            "2001:db8::1 false false eth7",
            "2001:db8::3 false true *",
            "2001:db8::3 false true eth7",
            "fd00::1 true false eth7",
        ])
        .await;
        rows(&[
            "2001:db8::1 false false eth7",
            "2001:db8::3 false false eth7",
            "fd00::1 false true *",
            "fd00::1 true true eth7",
        ])
        .await;
        add_preferred(eth7, "2001:db8::4", VALID, checked).await;
        rows(&[
            "2001:db8::1 false false eth7",
            "2001:db8::3 false false eth7",
            "2001:db8::4 false true *",
            "2001:db8::4 false true eth7",
            "fd00::1 true false eth7",
        ])
        .await;
        bench.hive.stop().await.unwrap();
    });
}
