// SPDX-License-Identifier: Apache-2.0

//! Building a lookup table.
//!
//! Needs memory for the table and a few words a backend: a permutation is an arithmetic progression, so it is
//! walked, never stored.

use crate::murmur::murmur3_x64_128;
use skep_base_settings::{HashSeed, TableSize};
use std::fmt::{Display, Write as _};

/// Marks a slot that is not taken yet. Never remains in a finished table.
const FREE: u32 = u32::MAX;

/// A backend that a table spreads packets to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend<A> {
    /// What the table holds: the key of the backend map.
    pub id: u32,
    /// Share of the table, in proportion to the other backends.
    pub weight: u16,
    /// `<ip>:<port>/<PROTO>` as every node prints it, IPv6 in brackets, with `@<cluster>` after the address of a
    /// remote cluster. Decides the place in the table, together with the seed.
    pub address: A,
}

/// Builds lookup tables of one size from one seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Maglev {
    size: TableSize,
    seed: HashSeed,
}

hive::value!(Maglev);

/// How far a backend got with its permutation and its share.
struct Turn {
    id: u32,
    weight: u16,
    /// Next slot it would like.
    position: u32,
    /// Distance to the slot it would like after that.
    skip: u32,
    /// Weight sums it has used up; a float because it starts at a fraction of its own weight.
    used: f64,
}

impl Maglev {
    /// Builder for tables of `size` entries.
    pub fn new(size: TableSize, seed: HashSeed) -> Self {
        Self { size, seed }
    }

    /// Number of entries of every table.
    pub fn table_size(&self) -> TableSize {
        self.size
    }

    /// The seed, for the packet hash.
    pub fn seed(&self) -> HashSeed {
        self.seed
    }

    /// Builds the table: `table_size` backend ids. Empty without backends.
    ///
    /// The order of `backends` does not matter. Weights count only if their average is at least two; an
    /// average of one or none at all means equal shares.
    pub fn lookup_table<A: Display>(&self, backends: impl IntoIterator<Item = Backend<A>>) -> Vec<u32> {
        let mut turns = self.turns(backends);
        if turns.is_empty() {
            return Vec::new();
        }
        let count = turns.len();
        let sum: u64 = turns.iter().map(|turn| u64::from(turn.weight)).sum();
        let weighted = sum / count as u64 > 1;
        if weighted {
            for turn in &mut turns {
                turn.used = f64::from(turn.weight) / count as f64;
            }
        }
        // The round in which a backend may take a slot again. Apart from the rest: with unequal weights the
        // scan for the next one whose turn it is dominates.
        let mut ready: Vec<u32> = turns
            .iter()
            .map(|turn| if weighted { turn.ready() } else { 0 })
            .collect();

        let size = self.size.get();
        let mut table = vec![FREE; size as usize];
        let mut first = 0;
        for round in 0..size {
            let mut i = first;
            while round < ready[i] {
                i = if i + 1 == count { 0 } else { i + 1 };
            }
            let turn = &mut turns[i];
            if weighted {
                turn.used += sum as f64;
                ready[i] = turn.ready();
            }
            turn.take(&mut table);
            first = if first + 1 == count { 0 } else { first + 1 };
        }
        table
    }

    /// Backends in the order of their hash texts, each at the start of its permutation.
    fn turns<A: Display>(&self, backends: impl IntoIterator<Item = Backend<A>>) -> Vec<Turn> {
        // All texts in one buffer: one allocation that grows, instead of one a backend.
        let mut texts = String::new();
        let mut order: Vec<(usize, usize, u32, u16)> = Vec::new();
        for backend in backends {
            let start = texts.len();
            // The state is constant, and part of the text: it must never change, or nodes disagree.
            write!(texts, "[{},State:active]", backend.address).expect("writing to a string succeeds");
            order.push((start, texts.len(), backend.id, backend.weight));
        }
        order.sort_by(|a, b| texts[a.0..a.1].cmp(&texts[b.0..b.1]));

        let size = u64::from(self.size.get());
        let turn = |&(start, end, id, weight): &(usize, usize, u32, u16)| {
            let (h1, h2) = murmur3_x64_128(&texts.as_bytes()[start..end], self.seed.murmur);
            let (position, skip) = ((h1 % size) as u32, (h2 % (size - 1) + 1) as u32);
            Turn {
                id,
                weight,
                position,
                skip,
                used: 0.0,
            }
        };
        order.iter().map(turn).collect()
    }
}

impl Turn {
    /// First round `n` with `(n + 1) * weight >= trunc(used)`.
    fn ready(&self) -> u32 {
        match (self.used as u64, u64::from(self.weight)) {
            (0, _) => 0,
            (_, 0) => u32::MAX,
            (used, weight) => u32::try_from(used.div_ceil(weight) - 1).unwrap_or(u32::MAX),
        }
    }

    /// Takes the next free slot of its permutation. There is one: the caller makes as many rounds as slots, and
    /// a permutation of a prime size visits them all.
    fn take(&mut self, table: &mut [u32]) {
        let size = table.len() as u32;
        loop {
            let slot = &mut table[self.position as usize];
            self.position += self.skip;
            if self.position >= size {
                self.position -= size;
            }
            if *slot == FREE {
                *slot = self.id;
                return;
            }
        }
    }
}
