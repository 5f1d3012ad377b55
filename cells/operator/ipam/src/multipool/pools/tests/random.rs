// SPDX-License-Identifier: Apache-2.0

//! Networks of nodes never overlap, whatever becomes of pools.

use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Specifications of pools: networks of some overlap those of others.
const SPECS: [(&[&str], u8); 6] = [
    (&["10.0.0.0/28"], 30),
    (&["10.0.0.0/27"], 29),
    (&["10.0.0.8/29", "10.0.0.32/28"], 31),
    (&["10.0.0.16/28"], 28),
    (&["10.0.0.0/26"], 27),
    (&["10.0.1.0/29"], 30),
];

#[derive(Debug, Clone)]
enum Step {
    /// A pool is created or changed, or removed.
    Pool(usize, Option<usize>),
    /// A node asks a pool for addresses; whether the answer is written.
    Ask(usize, usize, u128, bool),
    Drop(usize, usize),
    /// Another one writes a network of a pool into the spec of a node.
    Write(usize, usize, usize),
    Gone(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let spec = prop::option::weighted(0.8, 0..SPECS.len());
    prop_oneof![
        4 => (0..3usize, spec).prop_map(|(pool, spec)| Step::Pool(pool, spec)),
        8 => (0..4usize, 0..3usize, 1..12u128, any::<bool>())
            .prop_map(|(node, pool, needed, is_written)| Step::Ask(node, pool, needed, is_written)),
        2 => (0..4usize, 0..4usize).prop_map(|(node, at)| Step::Drop(node, at)),
        1 => (0..4usize, 0..3usize, 0..SPECS.len()).prop_map(|(node, pool, spec)| Step::Write(node, pool, spec)),
        1 => (0..4usize).prop_map(Step::Gone),
        1 => Just(Step::Restart),
    ]
}

fn name(pool: usize) -> String {
    format!("p{pool}")
}

fn networks(allocated: &[Allocation]) -> Vec<IpNet> {
    let cidrs = allocated.iter().flat_map(|allocation| &allocation.cidrs);
    cidrs.map(|text| text.parse().unwrap()).collect()
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[derive(Default)]
struct Model {
    pools: MultiPool,
    specs: BTreeMap<usize, usize>,
    nodes: BTreeMap<String, Vec<Allocation>>,
}

impl Model {
    fn upsert(&mut self, pool: usize, spec: usize) {
        let (networks, mask_size) = SPECS[spec];
        // Some changes are refused.
        let _ = self.pools.upsert_pool(&name(pool), v4(networks, mask_size));
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Pool(pool, Some(spec)) => {
                self.specs.insert(pool, spec);
                self.upsert(pool, spec);
            }
            Step::Pool(pool, None) => {
                self.specs.remove(&pool);
                self.pools.remove_pool(&name(pool));
            }
            Step::Ask(node, pool, needed, is_written) => {
                let (node, pool) = (format!("n{node}"), name(pool));
                let spec = self.nodes.entry(node.clone()).or_default();
                let assigned = self.pools.assign(&node, spec, &[asks(&pool, needed, 0)]);
                if is_written {
                    *spec = assigned.allocated;
                }
                let full = RequestError::Full {
                    pool: pool.clone(),
                    family: Family::V4,
                };
                if assigned.errors.contains(&full) {
                    self.is_full(&pool)?;
                }
            }
            Step::Drop(node, at) => {
                let node = format!("n{node}");
                let spec = self.nodes.entry(node.clone()).or_default();
                if let Some(allocation) = spec.first_mut()
                    && at < allocation.cidrs.len()
                {
                    allocation.cidrs.remove(at);
                    self.pools.restore(&node, spec);
                }
            }
            Step::Write(node, pool, spec) => {
                let node = format!("n{node}");
                let spec = vec![has(&name(pool), SPECS[spec].0)];
                self.pools.restore(&node, &spec);
                self.nodes.insert(node, spec);
            }
            Step::Gone(node) => {
                let node = format!("n{node}");
                self.pools.remove(&node);
                self.nodes.remove(&node);
            }
            Step::Restart => {
                self.pools = MultiPool::default();
                for (pool, spec) in self.specs.clone() {
                    self.upsert(pool, spec);
                }
                for (node, spec) in &self.nodes {
                    self.pools.restore(node, spec);
                }
            }
        }
        self.is_disjoint()
    }

    fn held(&self) -> Vec<IpNet> {
        let nodes = self.nodes.keys().filter_map(|node| self.pools.allocated(node));
        nodes.flat_map(|allocated| networks(&allocated)).collect()
    }

    fn is_disjoint(&self) -> Result<(), TestCaseError> {
        let held = self.held();
        for (at, one) in held.iter().enumerate() {
            let other = held[..at].iter().find(|other| overlap(one, other));
            prop_assert!(other.is_none(), "{one} and {other:?}");
        }
        Ok(())
    }

    fn is_full(&self, pool: &str) -> Result<(), TestCaseError> {
        let held = self.held();
        for family in self.pools.pool(pool).unwrap().families.values() {
            let prefixes = family
                .networks
                .iter()
                .flat_map(|network| network.subnets(family.mask_size).unwrap());
            for prefix in prefixes {
                prop_assert!(held.iter().any(|held| overlap(held, &prefix)), "{prefix} is free");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn networks_of_nodes_never_overlap(steps in vec(step(), 1..40)) {
        let mut model = Model::default();
        for step in &steps {
            model.step(step)?;
        }

        // Once all nodes are written, what is in Kubernetes does not overlap either.
        for node in 0..4 {
            model.step(&Step::Ask(node, 0, 1, true))?;
        }
        let specs: Vec<IpNet> = model.nodes.values().flat_map(|spec| networks(spec)).collect();
        for (at, one) in specs.iter().enumerate() {
            prop_assert!(!specs[..at].iter().any(|other| overlap(one, other)), "{specs:?}");
        }
    }
}
