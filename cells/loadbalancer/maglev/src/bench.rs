// SPDX-License-Identifier: Apache-2.0

//! Measures how long one table takes, for `make bench`.

use crate::{Backend, HashSeed, Maglev, TableSize};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Backends of a benchmark: distinct IPv4 addresses, port 80, weights by `weight` of the index.
pub fn backends(count: u32, weight: impl Fn(u32) -> u16) -> Vec<Backend<String>> {
    let address = |i| format!("{}:80/TCP", Ipv4Addr::from_bits(0x0a00_0001 + i));
    (0..count)
        .map(|i| Backend {
            id: i + 1,
            weight: weight(i),
            address: address(i),
        })
        .collect()
}

/// The same weight for all.
pub fn even(_index: u32) -> u16 {
    100
}

/// One backend with the largest weight, all others with the smallest: the longest search for whose turn it is.
pub fn lopsided(index: u32) -> u16 {
    if index == 0 { u16::MAX } else { 1 }
}

/// Builds a table of `size` entries for `count` backends `runs` times; the fastest run.
pub fn fastest(size: TableSize, count: u32, weight: impl Fn(u32) -> u16, runs: u32) -> Duration {
    let maglev = Maglev::new(size, HashSeed::default());
    let backends = backends(count, weight);
    let run = |_| {
        let start = Instant::now();
        let borrowed = backends.iter().map(|b| Backend {
            id: b.id,
            weight: b.weight,
            address: &b.address,
        });
        black_box(maglev.lookup_table(borrowed));
        start.elapsed()
    };
    (0..runs.max(1)).map(run).min().unwrap_or_default()
}
