// SPDX-License-Identifier: Apache-2.0

//! Longest-prefix matches against a look at every network.

use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::prelude::*;

use crate::{
    Db, Index, KeyBuf, Obj, RwTable,
    networks::tests::{addr, net},
    state::Exchange,
};

type Net = (u32, IpNet);
const ID: Index<Net, u32> = Index::new("id", |net, keys| keys.add(&net.0));
const NET: Index<Net, IpNet> = Index::new("net", |net, keys| keys.add(&net.1));

/// What is done to the tables: objects, each with an id and one network of several.
#[derive(Debug, Clone)]
enum Op {
    Insert(u32, prop::sample::Index),
    Delete(u32, prop::sample::Index),
    Abort,
}

fn op() -> impl Strategy<Value = Op> {
    let net = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0u32..80, net()).prop_map(|(id, net)| Op::Insert(id, net)),
        3 => (0u32..80, net()).prop_map(|(id, net)| Op::Delete(id, net)),
        1 => Just(Op::Abort),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn longest_prefix_is_the_longest_of_all(
        nets in proptest::collection::vec(net(), 1..60),
        ops in proptest::collection::vec(op(), 0..150),
        addrs in proptest::collection::vec(addr(), 20),
        outer in net(),
    ) {
        let db = Db::new();
        let shared = RwTable::builder("shared").primary(ID).index(NET).build_plain(&db).unwrap();
        let unique = RwTable::builder("unique").primary(NET).build_plain(&db).unwrap();
        // Objects by id, and by network.
        let (mut by_id, mut by_net) = (BTreeMap::new(), BTreeMap::new());
        let mut txn = db.write(&[&shared, &unique]);
        for op in ops {
            match op {
                Op::Insert(id, net) => {
                    let net = *net.get(&nets);
                    shared.insert(&mut txn, (id, net)).unwrap();
                    unique.insert(&mut txn, (id, net)).unwrap();
                    by_id.insert(id, net);
                    by_net.insert(net, id);
                }
                Op::Delete(id, net) => {
                    let net = *net.get(&nets);
                    shared.delete(&mut txn, &(id, net)).unwrap();
                    unique.delete(&mut txn, &(id, net)).unwrap();
                    by_id.remove(&id);
                    by_net.remove(&net);
                }
                Op::Abort => {
                    txn.commit();
                    txn = db.write(&[&shared, &unique]);
                    shared.delete_all(&mut txn).unwrap();
                    unique.insert(&mut txn, (1000, "0.0.0.0/0".parse().unwrap())).unwrap();
                    txn.abort();
                    txn = db.write(&[&shared, &unique]);
                }
            }
        }
        let snapshot = txn.commit();

        for addr in addrs.into_iter().chain(nets.iter().map(IpNet::addr)) {
            let held = by_id.iter().map(|(id, net)| (*id, *net)).filter(|(_, net)| net.contains(&addr));
            let longest = held.clone().map(|(_, net)| net.prefix_len()).max();
            let want = held.clone().find(|(_, net)| Some(net.prefix_len()) == longest);
            let found = shared.longest_prefix(&snapshot, NET, addr);
            prop_assert_eq!(found.map(|found| **found), want, "{}", addr);
            let held = by_net.iter().filter(|(net, _)| net.contains(&addr));
            let want = held.max_by_key(|(net, _)| net.prefix_len()).map(|(net, id)| (*id, *net));
            let found = unique.longest_prefix(&snapshot, NET, addr);
            prop_assert_eq!(found.map(|found| **found), want, "{}", addr);
        }
        let mut inside: Vec<IpNet> = by_id.values().copied().filter(|net| outer.contains(net)).collect();
        let mut found: Vec<IpNet> = shared.networks_within(&snapshot, NET, outer).map(|net| net.1).collect();
        inside.sort();
        found.sort();
        prop_assert_eq!(found, inside);
    }
}

#[test]
fn longest_prefix_finds_what_a_reconciler_wrote() {
    let db = Db::new();
    let table = RwTable::builder("nets")
        .primary(ID)
        .index(NET)
        .build_plain(&db)
        .unwrap();
    let net: IpNet = "10.0.0.0/8".parse().unwrap();
    let mut txn = db.write(&[&table]);
    let old = table.insert_get(&mut txn, (1, net)).unwrap();
    let (slot, _) = table.numbered(&txn, KeyBuf::of(&1u32).as_bytes()).unwrap();

    let mut list = [Exchange {
        slot,
        revision: old.revision(),
        object: Some(Obj::new((1, net), 0)),
    }];
    table
        .exchange_all(&mut txn, &mut list, |exchange| exchange)
        .unwrap();
    let snapshot = txn.commit();

    let found = table.longest_prefix(&snapshot, NET, net.addr()).unwrap();
    assert!(found.same(table.get(&snapshot, ID.key(&1)).unwrap()) && !found.same(&old));
}
