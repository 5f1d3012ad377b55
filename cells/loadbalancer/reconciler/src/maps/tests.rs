// SPDX-License-Identifier: Apache-2.0

//! What is written is read again as it was, in the maps in memory and in those in the kernel.

use std::sync::Arc;

use skep_bpf_maps::lb::{LbMapSizes, ServiceFlags, ServiceValue};
use skep_bpf_sys::testing::Node;
use skep_datapath_maps::transaction::{Deletions, Stage, StagedMap, Updates};
use skep_loadbalancer_model::types::L3n4Addr;

use super::{BackendValue, LoadBalancerMaps, key, text};

const TABLE: usize = 7;

fn sizes() -> LbMapSizes {
    LbMapSizes {
        maglev_table: TABLE as u32,
        reverse_sk: 16,
        ..LbMapSizes::uniform(4)
    }
}

/// Runs a test on maps in memory, and on maps in the kernel in a world of their own.
fn on_both(name: &str, test: impl Fn(&LoadBalancerMaps) + Sync) {
    test(&LoadBalancerMaps::in_memory(sizes()).unwrap());
    let in_kernel = Node::run(name, |node| {
        let maps = LoadBalancerMaps::open(&node.store(), sizes(), true, true)?;
        test(&maps);
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    in_kernel.unwrap();
}

fn address(text: &str) -> L3n4Addr {
    text.parse().unwrap()
}

fn backend(id: u32, at: &str) -> <Updates<super::Backends> as Stage>::Entry {
    let address = address(at);
    let (state, zone) = (0, 3);
    key::backend_entry(id, &BackendValue { address, state, zone })
}

fn range(id: u16, cidr: &str) -> key::SourceRangeKey {
    key::source_range(id, &cidr.parse().unwrap())
}

fn table(id: u16, ipv6: bool, backend: u32) -> <Updates<super::MaglevTables> as Stage>::Entry {
    key::maglev(id, ipv6).with(Arc::from([backend; TABLE]))
}

/// Owners of the entries that failed, which are numbered from 0, and why.
fn run<S: Stage>(map: &S::Map, entries: impl IntoIterator<Item = S::Entry>) -> Vec<(u32, String)> {
    let mut stage = S::default();
    for (owner, entry) in (0..).zip(entries) {
        stage.push(owner, entry);
    }
    let mut failures = Vec::new();
    stage.write(map, |owner, error| failures.push((owner, error.to_string())));
    failures
}

#[track_caller]
fn write<M: StagedMap>(map: &M, entries: impl IntoIterator<Item = <Updates<M> as Stage>::Entry>) {
    assert_eq!(run::<Updates<M>>(map, entries), []);
}

#[track_caller]
fn delete<M: StagedMap>(map: &M, keys: impl IntoIterator<Item = <Deletions<M> as Stage>::Entry>) {
    assert_eq!(run::<Deletions<M>>(map, keys), []);
}

#[track_caller]
fn assert_dump(maps: &LoadBalancerMaps, expected: &str) {
    assert_eq!(text::dump(maps).unwrap(), expected);
    assert_eq!(maps.count().unwrap(), expected.lines().count());
}

/// Entries of every kind and family.
fn fill(maps: &LoadBalancerMaps) {
    let flags = ServiceFlags::NODE_PORT.with(ServiceFlags::ROUTABLE, true);
    let service = |at: &str, slot, value| key::service(&address(at), slot).with(value);
    write(
        &maps.services,
        [
            service("10.1.0.1:80/TCP", 0, ServiceValue::master(1, 0, 258, flags)),
            service("10.1.0.1:80/TCP", 1, ServiceValue::slot(70_000, 258, flags)),
            service("[fd00::1]:53/UDP/i", 0, ServiceValue::master(0, 2, 3, flags)),
        ],
    );
    write(
        &maps.backends,
        [
            backend(70_000, "10.2.0.1:8080/TCP"),
            backend(2, "[fd00::2]:5353/UDP"),
        ],
    );
    let reverse = |id, at: &str| key::reverse_nat_entry(id, at.parse().unwrap());
    write(
        &maps.reverse_nat,
        [reverse(258, "10.1.0.1:80"), reverse(3, "[fd00::1]:53")],
    );
    write(&maps.affinity, [(key::affinity(258, 70_000), 0)]);
    // Only the bits of the network count.
    let ranges = [range(258, "192.0.2.77/24"), range(3, "fd00::77/64")];
    write(&maps.source_ranges, ranges.map(|key| key.with(0)));
    write(&maps.maglev, [table(258, false, 70_000), table(3, true, 2)]);
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
        let mut zones = Vec::new();
        maps.each_backend(|_, value| zones.push(value.zone)).unwrap();
        assert_eq!(zones, [3, 3]);
    });
}

#[test]
fn existing_entries_are_replaced() {
    on_both("lb-replace", |maps| {
        fill(maps);

        write(&maps.backends, [backend(2, "[fd00::9]:99/UDP")]);
        let reverse = key::reverse_nat_entry(3, "[fd00::9]:99".parse().unwrap());
        write(&maps.reverse_nat, [reverse]);
        write(&maps.maglev, [table(3, true, 9)]);

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
            let services = [
                ("10.9.9.9:80/TCP", 0),
                ("10.1.0.1:80/TCP", 1),
                ("10.1.0.1:80/TCP", 0),
                ("[fd00::1]:53/UDP", 0),
                ("[fd00::1]:53/UDP/i", 0),
            ];
            delete(
                &maps.services,
                services.map(|(at, slot)| key::service(&address(at), slot)),
            );
            let backends = [(1, false), (70_000, false), (2, true)];
            delete(&maps.backends, backends.map(|(id, ipv6)| key::backend(id, ipv6)));
            delete(
                &maps.reverse_nat,
                [key::reverse_nat(258, false), key::reverse_nat(3, true)],
            );
            delete(&maps.affinity, [key::affinity(258, 70_000)]);
            delete(
                &maps.source_ranges,
                [range(258, "192.0.2.1/24"), range(3, "fd00::/64")],
            );
            delete(&maps.maglev, [key::maglev(258, false), key::maglev(3, true)]);
        }

        assert_dump(maps, "");
    });
}

#[track_caller]
fn assert_full(failures: Vec<(u32, String)>, at: &[u32], name: &str) {
    let full = format!("map {name} is full (4 entries, see bpf-lb-");
    let owners: Vec<u32> = failures.iter().map(|(owner, _)| *owner).collect();
    assert_eq!(owners, at);
    assert!(
        failures.iter().all(|(_, text)| text.starts_with(&full)),
        "{failures:?}"
    );
}

#[test]
fn full_maps_refuse_new_entries_and_no_others() {
    on_both("lb-full", |maps| {
        let value = ServiceValue::master(0, 0, 1, ServiceFlags::empty());
        let key = |slot| key::service(&address("10.1.0.1:80/TCP"), slot);
        let mut keys: Vec<_> = (0..6).map(key).collect();
        // Between those that are too many: one that is there already, and one of the other family.
        keys.insert(5, key(0));
        keys.insert(6, key::service(&address("[fd00::1]:80/TCP"), 0));
        let entries = keys.iter().map(|key| key.with(value));
        assert_full(
            run::<Updates<super::Services>>(&maps.services, entries),
            &[4, 7],
            "cilium_lb4_services_v2",
        );

        let tables = (1..=5).map(|id| table(id, true, 1));
        assert_full(
            run::<Updates<super::MaglevTables>>(&maps.maglev, tables),
            &[4],
            "cilium_lb6_maglev",
        );

        let ranges = (1..=5).map(|id| range(id, "192.0.2.0/24").with(0));
        assert_full(
            run::<Updates<super::SourceRanges>>(&maps.source_ranges, ranges),
            &[4],
            "cilium_lb4_source_range",
        );

        // Room again.
        delete(&maps.services, [key(0)]);
        write(&maps.services, [key(4).with(value)]);
    });
}
