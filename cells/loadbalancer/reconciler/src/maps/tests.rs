// SPDX-License-Identifier: Apache-2.0

//! What every implementation of [`LbMaps`] holds to: the same tests for the maps in memory and for those in the
//! kernel, each of which runs in a world of its own.

use std::sync::Arc;

use skep_bpf_maps::lb::{LbMapSizes, ServiceFlags, ServiceValue};
use skep_bpf_sys::testing::Node;
use skep_loadbalancer_model::types::L3n4Addr;

use super::bpf::BpfMaps;
use super::fake::FakeMaps;
use super::{
    AffinityKey, BackendKey, BackendValue, Entries, Keys, LbMaps, MaglevKey, MapError, RevNatKey,
    RevNatValue, ServiceKey, SourceRangeKey, dump_all, text,
};

const TABLE: usize = 7;

fn sizes() -> LbMapSizes {
    LbMapSizes {
        maglev_table: TABLE as u32,
        reverse_sk: 16,
        ..LbMapSizes::uniform(4)
    }
}

/// Runs a test on both implementations.
fn on_both(name: &str, test: impl Fn(&dyn LbMaps) + Sync) {
    test(&FakeMaps::new(sizes()));
    let in_kernel = Node::run(name, |node| {
        let maps = BpfMaps::open(&node.store(), sizes(), true, true)?;
        test(&maps);
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    in_kernel.unwrap();
}

fn address(text: &str) -> L3n4Addr {
    text.parse().unwrap()
}

fn service(at: &str, slot: u16) -> ServiceKey {
    ServiceKey {
        address: address(at),
        slot,
    }
}

fn backend(id: u32, at: &str) -> (BackendKey, BackendValue) {
    let address = address(at);
    let ipv6 = address.is_ipv6();
    let value = BackendValue {
        address,
        state: 0,
        zone: 3,
    };
    (BackendKey { id, ipv6 }, value)
}

fn reverse(id: u16, at: &str) -> (RevNatKey, RevNatValue) {
    let address = address(at);
    let ipv6 = address.is_ipv6();
    (RevNatKey { id, ipv6 }, address.into())
}

fn range(id: u16, cidr: &str) -> SourceRangeKey {
    SourceRangeKey {
        id,
        cidr: cidr.parse().unwrap(),
    }
}

fn table(id: u16, ipv6: bool, backend: u32) -> (MaglevKey, Arc<[u32]>) {
    (MaglevKey { id, ipv6 }, [backend; TABLE].into())
}

#[track_caller]
fn assert_dump(maps: &dyn LbMaps, expected: &str) {
    assert_eq!(text::dump(&dump_all(maps).unwrap()), expected);
}

/// Entries of every kind and family.
fn fill(maps: &dyn LbMaps) {
    let flags = ServiceFlags::NODE_PORT.with(ServiceFlags::ROUTABLE, true);
    let failures = [
        maps.update(Entries::Services(&[
            (
                service("10.1.0.1:80/TCP", 0),
                ServiceValue::master(1, 0, 258, flags),
            ),
            (
                service("10.1.0.1:80/TCP", 1),
                ServiceValue::slot(70_000, 258, flags),
            ),
            (
                service("[fd00::1]:53/UDP/i", 0),
                ServiceValue::master(0, 2, 3, flags),
            ),
        ])),
        maps.update(Entries::Backends(&[
            backend(70_000, "10.2.0.1:8080/TCP"),
            backend(2, "[fd00::2]:5353/UDP"),
        ])),
        maps.update(Entries::ReverseNat(&[
            reverse(258, "10.1.0.1:80/TCP"),
            reverse(3, "[fd00::1]:53/UDP"),
        ])),
        maps.update(Entries::AffinityMatch(&[AffinityKey {
            id: 258,
            backend: 70_000,
        }])),
        // Only the bits of the network count.
        maps.update(Entries::SourceRange(&[
            range(258, "192.0.2.77/24"),
            range(3, "fd00::77/64"),
        ])),
        maps.update(Entries::Maglev(&[table(258, false, 70_000), table(3, true, 2)])),
    ];
    assert!(failures.iter().all(Vec::is_empty), "{failures:?}");
}

const FILLED: &str = "\
AFF: ID=258 BEID=70000
BE: ID=2 ADDR=[fd00::2]:5353/UDP STATE=active
BE: ID=70000 ADDR=10.2.0.1:8080/TCP STATE=active
MAGLEV: ID=258 INNER=[70000(7)]
MAGLEV: ID=3 INNER=[2(7)]
REV: ID=258 ADDR=10.1.0.1:80
REV: ID=3 ADDR=[fd00::1]:53
SRCRANGE: ID=258 CIDR=192.0.2.0/24
SRCRANGE: ID=3 CIDR=fd00::/64
SVC: ID=258 ADDR=10.1.0.1:80/TCP SLOT=0 LBALG=undef AFFTimeout=0 COUNT=1 QCOUNT=0 FLAGS=NodePort
SVC: ID=258 ADDR=10.1.0.1:80/TCP SLOT=1 BEID=70000 COUNT=0 QCOUNT=0 FLAGS=NodePort
SVC: ID=3 ADDR=[fd00::1]:53/UDP/i SLOT=0 LBALG=undef AFFTimeout=0 COUNT=0 QCOUNT=2 FLAGS=NodePort
";

#[test]
fn what_was_written_is_dumped() {
    on_both("lb-dump", |maps| {
        assert_dump(maps, "");

        fill(maps);

        assert_dump(maps, FILLED);
        let entries = dump_all(maps).unwrap();
        let zones = entries
            .iter()
            .filter(|entry| matches!(entry, super::MapEntry::Backend(_, value) if value.zone == 3));
        assert_eq!(zones.count(), 2);
    });
}

#[test]
fn existing_entries_are_replaced() {
    on_both("lb-replace", |maps| {
        fill(maps);

        maps.update(Entries::Backends(&[backend(2, "[fd00::9]:99/UDP")]));
        maps.update(Entries::ReverseNat(&[reverse(3, "[fd00::9]:99/UDP")]));
        maps.update(Entries::Maglev(&[table(3, true, 9)]));

        let expected = FILLED
            .replace("ID=2 ADDR=[fd00::2]:5353/UDP", "ID=2 ADDR=[fd00::9]:99/UDP")
            .replace("INNER=[2(7)]", "INNER=[9(7)]")
            .replace("ID=3 ADDR=[fd00::1]:53\n", "ID=3 ADDR=[fd00::9]:99\n");
        assert_dump(maps, &expected);
    });
}

#[test]
fn deleting_what_is_absent_is_success() {
    on_both("lb-delete", |maps| {
        fill(maps);

        for _ in 0..2 {
            let failures = [
                maps.delete(Keys::Services(&[
                    service("10.9.9.9:80/TCP", 0),
                    service("10.1.0.1:80/TCP", 1),
                    service("10.1.0.1:80/TCP", 0),
                    service("[fd00::1]:53/UDP", 0),
                    service("[fd00::1]:53/UDP/i", 0),
                ])),
                maps.delete(Keys::Backends(&[
                    backend(1, "10.2.0.1:8080/TCP").0,
                    backend(70_000, "10.2.0.1:8080/TCP").0,
                    backend(2, "[fd00::2]:5353/UDP").0,
                ])),
                maps.delete(Keys::ReverseNat(&[
                    reverse(258, "10.1.0.1:80/TCP").0,
                    reverse(3, "[fd00::1]:53/UDP").0,
                ])),
                maps.delete(Keys::AffinityMatch(&[AffinityKey {
                    id: 258,
                    backend: 70_000,
                }])),
                maps.delete(Keys::SourceRange(&[
                    range(258, "192.0.2.1/24"),
                    range(3, "fd00::/64"),
                ])),
                maps.delete(Keys::Maglev(&[table(258, false, 0).0, table(3, true, 0).0])),
            ];
            assert!(failures.iter().all(Vec::is_empty), "{failures:?}");
        }

        assert_dump(maps, "");
    });
}

#[track_caller]
fn assert_full(failures: &[(usize, MapError)], at: &[usize], name: &str) {
    let places: Vec<usize> = failures.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, at, "{failures:?}");
    for (_, error) in failures {
        assert_eq!(error.to_string(), format!("map {name} is full (4 entries)"));
    }
}

#[test]
fn full_maps_refuse_new_entries_and_no_others() {
    on_both("lb-full", |maps| {
        let value = ServiceValue::master(0, 0, 1, ServiceFlags::empty());
        let keys: Vec<ServiceKey> = (0..6).map(|slot| service("10.1.0.1:80/TCP", slot)).collect();
        let mut entries: Vec<_> = keys.iter().map(|key| (*key, value)).collect();
        // Between those that are too many: one that is there already, and one of the other family.
        entries.insert(5, (keys[0], value));
        entries.insert(6, (service("[fd00::1]:80/TCP", 0), value));
        assert_full(
            &maps.update(Entries::Services(&entries)),
            &[4, 7],
            "cilium_lb4_services_v2",
        );

        let tables: Vec<_> = (1..=5).map(|id| table(id, true, 1)).collect();
        assert_full(&maps.update(Entries::Maglev(&tables)), &[4], "cilium_lb6_maglev");

        let ranges: Vec<_> = (1..=5).map(|id| range(id, "192.0.2.0/24")).collect();
        assert_full(
            &maps.update(Entries::SourceRange(&ranges)),
            &[4],
            "cilium_lb4_source_range",
        );

        // Room again.
        assert!(maps.delete(Keys::Services(&keys[..1])).is_empty());
        assert!(maps.update(Entries::Services(&entries[4..5])).is_empty());
    });
}
