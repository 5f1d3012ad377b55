// SPDX-License-Identifier: Apache-2.0

//! Garbage collection of flows: the iterators in the kernel, and batch operations, do the same on the same maps.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use skep_bpf_maps::{
    MapSizes,
    collect::{BatchCollector, Collected, FlowCollector, FlowMap, NatCount, Purged, Removal},
    conntrack::{CT_ANY_MAX, CT_TCP_MAX, CT_TCP4, CtEntry, CtKey4, entry_flags},
    nat::{NAT_MAX, NAT4, NAT6, NatEntry4, NatKey4},
};
use skep_bpf_programs::FlowIterators;
use skep_bpf_sys::{Map, MapStore, RawMap as _, clock::kernel_seconds, testing::Node};
use zerocopy::{FromZeros as _, IntoBytes as _, network_endian::U16};

type Error = Box<dyn std::error::Error + Send + Sync>;

type Content = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

const SIZE: u32 = 65_536;

fn sizes() -> MapSizes {
    MapSizes::default()
        .with(CT_TCP_MAX, SIZE)
        .with(CT_ANY_MAX, SIZE)
        .with(NAT_MAX, SIZE)
}

fn specs() -> Vec<skep_bpf_sys::RawSpec> {
    let flows = FlowMap::ALL.map(|map| map.family());
    let all = flows.into_iter().chain([&NAT4.family, &NAT6.family]);
    all.map(|family| family.spec(&sizes())).collect()
}

/// Seconds on the clock of the maps.
fn seconds() -> u64 {
    kernel_seconds().unwrap()
}

fn batch(store: &MapStore) -> BatchCollector {
    BatchCollector::open(store, Box::new(|| Ok(seconds()))).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Entries of random flows, many of which have to do with each other. `now` is on the clock of the maps.
fn random_content(random: &mut Random, entries: u64, now: u64) -> Content {
    let mut content = Content::new();
    for n in 0..entries {
        let is_ipv6 = random.below(3) == 0;
        let address = |random: &mut Random| {
            let last = random.below(200) as u8;
            let mut bytes = vec![10; if is_ipv6 { 16 } else { 4 }];
            if let Some(byte) = bytes.last_mut() {
                *byte = last;
            }
            bytes
        };
        let proto = [6, 6, 17, 1][random.below(4) as usize];
        let port = |random: &mut Random| (random.below(60) as u16).to_be_bytes();
        let (client, server) = (address(random), address(random));
        let (sport, dport) = (port(random), port(random));
        let key = |flags: u8, one: &[u8], other: &[u8], ports: [[u8; 2]; 2]| {
            [one, other, &ports[0], &ports[1], &[proto, flags]].concat()
        };
        let mut entry = CtEntry::new_zeroed();
        entry.lifetime = if random.below(2) == 0 {
            1
        } else {
            now as u32 + 1000
        };
        if random.below(8) == 0 {
            entry.flags |= entry_flags::DSR;
        }
        let map = match (is_ipv6, proto == 6) {
            (false, true) => FlowMap::Tcp4,
            (false, false) => FlowMap::Any4,
            (true, true) => FlowMap::Tcp6,
            (true, false) => FlowMap::Any6,
        };
        let nat = if is_ipv6 {
            NAT6.family.name
        } else {
            NAT4.family.name
        };
        let flags = [0, 0, 0, 1, 2, 4][random.below(6) as usize];
        // A third has no conntrack entry.
        if n % 3 != 0 {
            let flow = key(flags, &client, &server, [dport, sport]);
            content.insert((map.family().name, flow), entry.as_bytes().to_vec());
        }
        let translated = |address: &[u8], port: [u8; 2], created: u64| {
            let mut value = [0; 56];
            value[..8].copy_from_slice(&created.to_ne_bytes());
            value[32..][..address.len()].copy_from_slice(address);
            value[32 + address.len()..][..2].copy_from_slice(&port);
            value[..if is_ipv6 { 56 } else { 40 }].to_vec()
        };
        let created = [0, 1, now + 100][random.below(3) as usize];
        let (source, port) = (address(random), port(random));
        let kind = random.below(5);
        if kind < 3 {
            let forward = key(0, &server, &client, [dport, sport]);
            content.insert((nat, forward), translated(&source, port, created));
        }
        if kind > 0 {
            let answers = key(1, &source, &server, [port, dport]);
            content.insert((nat, answers), translated(&client, sport, created));
        }
        if kind == 4 {
            let dsr = key(0, &client, &server, [sport, dport]);
            content.insert((nat, dsr), translated(&source, port, created));
        }
    }
    content
}

fn read(store: &MapStore) -> Result<Content, Error> {
    let mut content = Content::new();
    for spec in specs() {
        store.open_raw(spec.name)?.walk(&mut |key, value| {
            content.insert((spec.name, key.to_vec()), value.to_vec());
        })?;
    }
    Ok(content)
}

/// What a collector does with maps of this content, and what it leaves.
#[derive(Debug, PartialEq)]
struct Outcome {
    collected: Vec<Collected>,
    purged: Vec<Purged>,
    content: Content,
}

fn outcome(
    content: &Content,
    removal: &Removal,
    collector: impl Fn(&Arc<MapStore>) -> Box<dyn FlowCollector> + Send + Sync,
) -> Outcome {
    let done = Node::run("collect", |node| {
        let store = node.store();
        for spec in specs() {
            let map = store.provide(&spec)?;
            for ((_, key), value) in content.iter().filter(|((name, _), _)| *name == spec.name) {
                assert!(map.update(key, value).is_empty());
            }
        }
        assert_eq!(read(&store)?.len(), content.len(), "nothing was evicted");
        let collector = collector(&store);
        let collected = FlowMap::ALL.map(|map| collector.collect(map, removal));
        for (is_ipv6, family) in [(false, &NAT4.family), (true, &NAT6.family)] {
            let mut entries = 0;
            store.open_raw(family.name)?.walk(&mut |_, _| entries += 1)?;
            assert_eq!(collector.walk_nat(is_ipv6)?, entries);
            // Linux 6.6 counts.
            assert_eq!(collector.count_nat(is_ipv6).unwrap_or(entries), entries);
            assert_eq!(collector.max_nat_entries(is_ipv6), Some(SIZE));
        }
        let purged = [false, true].map(|is_ipv6| collector.purge(is_ipv6));
        Ok::<_, Error>(Outcome {
            collected: collected.into_iter().collect::<Result<_, _>>()?,
            purged: purged.into_iter().collect::<Result<_, _>>()?,
            content: read(&store)?,
        })
    });
    done.unwrap()
}

#[test]
fn both_collectors_do_the_same_on_random_maps() {
    for (seed, entries) in [(1, 10), (2, 300), (3, 3_000), (4, 20_000)] {
        let content = random_content(&mut Random(seed), entries, seconds());
        let addresses: BTreeSet<IpAddr> = [
            Ipv4Addr::new(10, 10, 10, 7).into(),
            Ipv4Addr::new(10, 10, 10, 9).into(),
            IpAddr::from([10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 7]),
        ]
        .into();
        for removal in [Removal::Ended, Removal::Addresses(addresses), Removal::All] {
            let case = format!("seed {seed}, {removal:?}");
            let kernel = outcome(&content, &removal, |store| {
                Box::new(FlowIterators::load(store, false).unwrap())
            });
            let batches = outcome(&content, &removal, |store| Box::new(batch(store)));

            assert_eq!(kernel.collected, batches.collected, "{case}");
            assert_eq!(kernel.purged, batches.purged, "{case}");
            assert!(kernel.content == batches.content, "{case}: other entries remain");
            let deleted: u64 = kernel.collected.iter().map(|map| map.deleted).sum();
            assert!(entries < 100 || deleted > 0, "{case}: {kernel:?}");
            let tracked = |name: &&str| FlowMap::ALL.iter().any(|map| map.family().name == *name);
            let remaining = kernel.content.iter();
            let remaining = remaining.filter(|((name, _), _)| tracked(name));
            for ((_, key), value) in remaining {
                assert!(removal != Removal::All, "{case}: {key:?}");
                assert_ne!(value[32..36], 1_u32.to_ne_bytes(), "{case}: {key:?} has ended");
            }
        }
    }
}

fn flow() -> CtKey4 {
    CtKey4 {
        daddr: [10, 0, 1, 1],
        saddr: [203, 0, 113, 5],
        dport: U16::new(443),
        sport: U16::new(40_000),
        proto: 6,
        flags: 0,
    }
}

fn ending(lifetime: u64) -> CtEntry {
    CtEntry {
        lifetime: lifetime as u32,
        ..CtEntry::new_zeroed()
    }
}

fn forward() -> (NatKey4, NatEntry4) {
    let key = NatKey4 {
        daddr: [203, 0, 113, 5],
        saddr: [10, 0, 1, 1],
        dport: U16::new(443),
        sport: U16::new(40_000),
        proto: 6,
        flags: 0,
    };
    let entry = NatEntry4 {
        address: [192, 168, 5, 11],
        port: U16::new(50_000),
        ..NatEntry4::new_zeroed()
    };
    (key, entry)
}

fn answers() -> (NatKey4, NatEntry4) {
    let key = NatKey4 {
        daddr: [192, 168, 5, 11],
        saddr: [203, 0, 113, 5],
        dport: U16::new(50_000),
        sport: U16::new(443),
        proto: 6,
        flags: 1,
    };
    let entry = NatEntry4 {
        address: [10, 0, 1, 1],
        port: U16::new(40_000),
        ..NatEntry4::new_zeroed()
    };
    (key, entry)
}

/// Runs `work` with each collector, on empty maps of IPv4.
fn with_both(
    work: impl Fn(&dyn FlowCollector, &Map<CtKey4, CtEntry>, &Map<NatKey4, NatEntry4>) -> Result<(), Error>
    + Send
    + Sync,
) {
    for is_kernel in [true, false] {
        let done = Node::run("flows", |node| {
            let store = node.store();
            let tracked = store.open_or_create(&CT_TCP4.spec(&sizes()))?;
            let nat = store.open_or_create(&NAT4.spec(&sizes()))?;
            let collector: Box<dyn FlowCollector> = if is_kernel {
                Box::new(FlowIterators::load(&store, false)?)
            } else {
                Box::new(batch(&store))
            };
            work(&*collector, &tracked, &nat)
        });
        done.unwrap();
    }
}

#[test]
fn translations_go_with_their_flow_and_not_before() {
    with_both(|collector, tracked, nat| {
        nat.update(&forward().0, &forward().1)?;
        nat.update(&answers().0, &answers().1)?;
        tracked.update(&flow(), &ending(seconds() + 2))?;

        let early = collector.collect(FlowMap::Tcp4, &Removal::Ended)?;
        assert_eq!((early.alive, early.deleted), (1, 0));
        let both = NatCount {
            forward: 1,
            reverse: 1,
        };
        assert_eq!(collector.purge(false)?.alive, both, "it is tracked");

        tracked.update(&flow(), &ending(seconds() - 2))?;
        let late = collector.collect(FlowMap::Tcp4, &Removal::Ended)?;
        assert_eq!((late.alive, late.deleted, late.nat_deleted), (0, 1, both));
        assert_eq!((tracked.entries()?.len(), nat.entries()?.len()), (0, 0));
        Ok(())
    });
}

#[test]
fn a_port_that_another_flow_took_over_stays_with_it() {
    with_both(|collector, tracked, nat| {
        tracked.update(&flow(), &ending(1))?;
        nat.update(&forward().0, &forward().1)?;
        let other = NatEntry4 {
            address: [10, 0, 1, 9],
            ..answers().1
        };
        nat.update(&answers().0, &other)?;

        let done = collector.collect(FlowMap::Tcp4, &Removal::Ended)?;

        assert_eq!((done.deleted, done.nat_deleted.reverse), (1, 0));
        assert_eq!(nat.entries()?, [(answers().0, other)]);
        Ok(())
    });
}

#[test]
fn translations_that_nothing_tracks_are_purged_unless_they_are_new() {
    with_both(|collector, _, nat| {
        nat.update(&forward().0, &forward().1)?;
        let new = NatEntry4 {
            created: seconds(),
            ..answers().1
        };
        nat.update(&answers().0, &new)?;

        let done = collector.purge(false)?;

        assert_eq!((done.deleted.forward, done.alive.reverse), (1, 1));
        assert_eq!(nat.keys()?, [answers().0]);
        Ok(())
    });
}

#[test]
fn maps_of_a_family_that_is_off_are_empty() {
    with_both(|collector, _, _| {
        for map in [FlowMap::Any4, FlowMap::Tcp6] {
            assert_eq!(collector.collect(map, &Removal::All)?, Collected::default());
            assert_eq!(collector.max_entries(map), None);
        }
        assert_eq!(collector.max_entries(FlowMap::Tcp4), Some(SIZE));
        assert_eq!(collector.purge(true)?, Purged::default());
        assert_eq!(
            (collector.max_nat_entries(true), collector.count_nat(true)),
            (None, None)
        );
        assert_eq!(collector.walk_nat(true)?, 0);
        Ok(())
    });
}

#[test]
fn the_kernel_is_not_held_for_a_pass_but_for_slices_of_it() {
    let done = Node::run("slices", |node| {
        let store = node.store();
        let tracked = store.open_or_create(&CT_TCP4.spec(&sizes()))?;
        let keys: Vec<CtKey4> = (0..50_000_u32)
            .map(|n| CtKey4 {
                daddr: n.to_be_bytes(),
                ..flow()
            })
            .collect();
        let entries: Vec<CtEntry> = (0..keys.len() as u64)
            .map(|n| ending(if n % 2 == 0 { 1 } else { seconds() + 1000 }))
            .collect();
        assert!(tracked.update_batch(&keys, &entries).is_empty());
        let there = tracked.entries()?;
        let ended = there.iter().filter(|(_, entry)| entry.lifetime == 1).count();
        let iterators = FlowIterators::load(&store, false)?;
        // Linux 6.6 counts.
        let count = iterators.count(FlowMap::Tcp4);
        assert!(count.is_none_or(|count| count == there.len() as u64), "{count:?}");
        assert_eq!(iterators.count(FlowMap::Any4), None, "it is not there");

        let done = iterators.collect(FlowMap::Tcp4, &Removal::Ended)?;

        // Where a slice ends, none is passed over.
        assert_eq!(done.deleted as usize, ended);
        assert_eq!(done.alive as usize, there.len() - ended);
        assert!(tracked.entries()?.iter().all(|(_, entry)| entry.lifetime > 1));
        assert!(iterators.last_pass().slices > 3, "{:?}", iterators.last_pass());
        Ok::<_, Error>(())
    });
    done.unwrap();
}

#[test]
fn empty_maps_are_not_walked_where_the_kernel_counts_entries() {
    let done = Node::run("empty", |node| {
        let store = node.store();
        let tracked = store.open_or_create(&CT_TCP4.spec(&sizes()))?;
        let nat = store.open_or_create(&NAT4.spec(&sizes()))?;
        let iterators = FlowIterators::load(&store, false)?;
        let walks = iterators.count(FlowMap::Tcp4).is_none();
        let has_walked = || iterators.last_pass().slices > 0;

        iterators.collect(FlowMap::Tcp4, &Removal::Ended)?;
        iterators.purge(false)?;
        assert_eq!(has_walked(), walks);
        iterators.collect(FlowMap::Tcp4, &Removal::All)?;
        assert!(has_walked(), "removal of all entries always walks");

        tracked.update(&flow(), &ending(1))?;
        let (key, value) = forward();
        nat.update(&key, &value)?;
        assert_eq!(iterators.collect(FlowMap::Tcp4, &Removal::Ended)?.deleted, 1);
        nat.update(&key, &value)?;
        assert_eq!(iterators.purge(false)?.deleted.total(), 1);
        Ok::<_, Error>(())
    });
    done.unwrap();
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn entries_of_live_flows_stay_while_others_come_and_go() {
    let key = |kind: u8, n: u32| CtKey4 {
        daddr: n.to_be_bytes(),
        sport: U16::new(kind.into()),
        ..flow()
    };
    let done = Node::run("churn", |node| {
        let store = node.store();
        let tracked = store.open_or_create(&CT_TCP4.spec(&sizes()))?;
        let living: Vec<CtKey4> = (0..2_000).map(|n| key(0, n)).collect();
        let alive = ending(seconds() + 1000);
        assert!(
            tracked
                .update_batch(&living, &vec![alive; living.len()])
                .is_empty()
        );
        let iterators = FlowIterators::load(&store, false)?;
        let is_over = AtomicBool::new(false);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(5);
                while !is_over.load(Ordering::Relaxed) {
                    let flood: Vec<CtKey4> = (0..500).map(|_| key(1, random.below(20_000) as u32)).collect();
                    let lifetime = if random.below(2) == 0 { 1 } else { seconds() + 1000 };
                    tracked.update_batch(&flood, &vec![ending(lifetime); flood.len()]);
                }
            });
            // Also if this thread panics.
            let _stop = Stop(&is_over);
            let mut deleted = 0;
            for _ in 0..40 {
                deleted += iterators.collect(FlowMap::Tcp4, &Removal::Ended).unwrap().deleted;
                for flow in &living {
                    assert_eq!(tracked.lookup(flow).unwrap(), Some(alive), "{flow:?}");
                }
            }
            assert!(deleted > 0);
        });
        Ok::<_, Error>(())
    });
    done.unwrap();
}

#[test]
fn both_collectors_read_the_clock_of_programs_in_a_time_namespace() {
    let output = Command::new("unshare")
        .args(["--time", "--fork", "--monotonic", "1000000"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "translations_go_with_their_flow_and_not_before"])
        .output()
        .unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn iterators_know_when_a_map_was_replaced() {
    let done = Node::run("replaced", |node| {
        let store = node.store();
        store.open_or_create(&CT_TCP4.spec(&sizes()))?;
        let iterators = FlowIterators::load(&store, false)?;
        assert!(iterators.is_current(&store));

        store.unpin(CT_TCP4.family.name)?;
        assert!(!iterators.is_current(&store));
        MapStore::new(node.bpf_root()).open_or_create(&CT_TCP4.spec(&sizes()))?;
        assert!(!iterators.is_current(&store));
        Ok::<_, Error>(())
    });
    done.unwrap();
}

#[test]
fn a_clock_that_cannot_be_read_is_named() {
    let done = Node::run("clock", |node| {
        let store = node.store();
        store.open_or_create(&CT_TCP4.spec(&sizes()))?;
        let broken = BatchCollector::open(&store, Box::new(|| Err(io::Error::other("no clock"))))?;

        let error = broken.collect(FlowMap::Tcp4, &Removal::Ended).unwrap_err();

        assert!(error.to_string().contains("cilium_ct4_global"), "{error}");
        broken.collect(FlowMap::Tcp4, &Removal::All)?;
        Ok::<_, Error>(())
    });
    done.unwrap();
}
