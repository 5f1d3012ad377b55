// SPDX-License-Identifier: Apache-2.0

//! Longest-prefix matches against a look at every network.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use proptest::prelude::*;

use crate::{Db, Index, RwTable};

type Net = (u32, IpNet);
const ID: Index<Net, u32> = Index::new("id", |net, keys| keys.add(&net.0));
const NET: Index<Net, IpNet> = Index::new("net", |net, keys| keys.add(&net.1));

/// Addresses that lie close to each other, of both families.
fn addr() -> impl Strategy<Value = IpAddr> {
    let byte = || prop_oneof![Just(0u8), Just(1), Just(128), Just(255)];
    prop_oneof![
        [byte(), byte(), byte(), byte()].prop_map(IpAddr::from),
        ([byte(), byte(), byte()], byte()).prop_map(|([a, b, c], d)| {
            let mut octets = [0; 16];
            (octets[0], octets[1], octets[7], octets[15]) = (a, b, c, d);
            IpAddr::from(octets)
        }),
    ]
}

fn net() -> impl Strategy<Value = IpNet> {
    (addr(), 0u8..=128).prop_map(|(addr, bits)| {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        IpNet::new(addr, bits % (most + 1)).unwrap().trunc()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn longest_prefix_is_the_longest_of_all(
        nets in proptest::collection::vec(net(), 0..120),
        addrs in proptest::collection::vec(addr(), 20),
        outer in net(),
    ) {
        let db = Db::new();
        let shared = RwTable::builder("shared").primary(ID).index(NET).build_plain(&db).unwrap();
        let unique = RwTable::builder("unique").primary(NET).build_plain(&db).unwrap();
        let mut txn = db.write(&[&shared, &unique]);
        let mut last = BTreeMap::new();
        for (id, net) in (0..).zip(&nets) {
            shared.insert(&mut txn, (id, *net)).unwrap();
            unique.insert(&mut txn, (id, *net)).unwrap();
            last.insert(*net, id);
        }
        let snapshot = txn.commit();

        for addr in addrs {
            let want = nets.iter().filter(|net| net.contains(&addr)).max_by_key(|net| net.prefix_len());
            let first = want.map(|want| (nets.iter().position(|net| net == want).unwrap() as u32, *want));
            let found = shared.longest_prefix(&snapshot, NET, addr);
            prop_assert_eq!(found.map(|found| **found), first, "{}", addr);
            let found = unique.longest_prefix(&snapshot, NET, addr);
            prop_assert_eq!(found.map(|found| **found), want.map(|want| (last[want], *want)), "{}", addr);
        }
        let mut inside: Vec<IpNet> = nets.iter().copied().filter(|net| outer.contains(net)).collect();
        let mut found: Vec<IpNet> = shared.networks_within(&snapshot, NET, outer).map(|net| net.1).collect();
        inside.sort();
        found.sort();
        prop_assert_eq!(found, inside);
    }
}
