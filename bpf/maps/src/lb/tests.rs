// SPDX-License-Identifier: Apache-2.0

use zerocopy::IntoBytes;

use super::*;
use crate::text::Text;

#[test]
fn service_ids_and_ports_are_in_network_order() {
    let key = Service4Key::new([10, 96, 0, 1].into(), 0x0102, 6, Scope::Internal).at(3);
    assert_eq!(key.as_bytes(), [10, 96, 0, 1, 1, 2, 3, 0, 6, 1, 0, 0]);

    let value = ServiceValue::master(2, 1, 0x0304, ServiceFlags::NODE_PORT | ServiceFlags::TWO_SCOPES);
    assert_eq!(value.as_bytes(), [0, 0, 0, 0, 2, 0, 3, 4, 2, 0x20, 1, 0]);

    assert_eq!(
        AffinityMatchKey::new(1, 0x0304).as_bytes(),
        [1, 0, 0, 0, 3, 4, 0, 0]
    );
    assert_eq!(MaglevKey::new(0x0304).as_bytes(), [3, 4]);
    assert_eq!(ReverseNatKey::new(0x0304).as_bytes(), [3, 4]);
    let range = SourceRange4Key::new(0x0304, [10, 0, 0, 0].into(), 8);
    assert_eq!(range.as_bytes(), [40, 0, 0, 0, 3, 4, 0, 0, 10, 0, 0, 0]);
    assert_eq!(range.cidr(), ([10, 0, 0, 0].into(), 8));
}

#[test]
fn master_entry_packs_affinity_and_algorithm() {
    let value = ServiceValue::master(1, 0, 1, ServiceFlags::AFFINITY)
        .with_affinity_timeout(10_800)
        .unwrap()
        .with_algorithm(2);

    assert_eq!((value.affinity_timeout(), value.algorithm()), (10_800, 2));
    assert_eq!(value.with_affinity_timeout(1 << 24), None);
}

#[test]
fn proxy_port_is_in_the_first_two_bytes() {
    let value = ServiceValue::master(0, 0, 1, ServiceFlags::L7_LOAD_BALANCER).with_l7_port(0x1234);

    assert_eq!(value.as_bytes()[..4], [0x12, 0x34, 0, 0]);
    assert_eq!(value.l7_port(), 0x1234);
}

#[test]
fn flags_have_the_texts_of_map_dumps() {
    let all = ServiceFlags::from_bits_retain;
    for (flags, text) in [
        (ServiceFlags::empty(), "ClusterIP, non-routable"),
        (all(0x41), "ExternalIPs"),
        (
            all(0x42 | 1 << 13 | 1 << 12),
            "NodePort, InternalLocal, two-scopes",
        ),
        (
            all(0x60 | 0x80 | 1 << 14),
            "LoadBalancer, check source-range, deny",
        ),
        (all(0x48 | 1 << 11), "HostPort, loopback"),
        (all(0x40 | 1 << 11), "ClusterIP, delegate-if-local"),
        (all(1 << 14), "ClusterIP, non-routable, quarantined"),
        (all(0x140), "LocalRedirect"),
        (all(0x40 | 1 << 10 | 1 << 9), "ClusterIP, 46x64, l7-load-balancer"),
        (all(0x52 | 1 << 15), "NodePort, sessionAffinity, dsr"),
    ] {
        assert_eq!(flags.to_string(), text);
    }
}

#[test]
fn reverse_socket_map_grows_with_memory() {
    assert_eq!(dynamic_reverse_sk(1 << 30, 0.0025), 65_536);
    assert_eq!(dynamic_reverse_sk(4 << 30, 0.0025), 132_560);
    assert_eq!(dynamic_reverse_sk(u64::MAX, 1.0), MAX_REVERSE_SK);
    assert_eq!(round_to_cpus(65_536, 12), 65_544);
    assert_eq!(round_to_cpus(u32::MAX, 12), u32::MAX);
}

#[test]
fn frontends_show_scope_slot_and_their_raw_entry() {
    let key = Service4Key::new([10, 96, 0, 10].into(), 53, 17, Scope::Internal).at(2);
    assert_eq!(key.text(), "10.96.0.10:53/UDP/i (2)");
    let wildcard = Service6Key::wildcard(std::net::Ipv6Addr::LOCALHOST);
    assert_eq!(wildcard.text(), "[::1]:0/ANY (0)");

    let value = ServiceValue::master(2, 1, 7, ServiceFlags::from_bits_retain(0x2142))
        .with_affinity_timeout(600)
        .unwrap();
    assert_eq!(value.text(), "600 2[1] (7) [0x42 0x21]");
}

#[test]
fn backends_show_address_zone_and_state() {
    assert_eq!(place_text("10.244.1.7", 6, 0), "TCP://10.244.1.7");
    let mut backend = Backend6::new("fd00::7".parse().unwrap(), 8080, 17);
    (backend.zone, backend.state) = (3, 1);
    assert_eq!(backend.text(), "UDP://fd00::7[3] (terminating)");
}
