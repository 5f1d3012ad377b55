// SPDX-License-Identifier: Apache-2.0

//! Time to build one lookup table, with equal and with very unequal weights.

use skep_loadbalancer_maglev::TableSize;
use skep_loadbalancer_maglev::bench::{even, fastest, lopsided};

fn main() {
    println!(
        "{:>8} {:>9} {:>12} {:>12}",
        "entries", "backends", "even", "lopsided"
    );
    for size in [251, 16381, 131_071] {
        let size = TableSize::try_from(size).expect("a supported size");
        for count in [10, 100, 1000] {
            let [even, lopsided] = [even, lopsided].map(|weight| fastest(size, count, weight, 20));
            println!("{:>8} {count:>9} {even:>12.3?} {lopsided:>12.3?}", size.get());
        }
    }
}
