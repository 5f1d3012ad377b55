// SPDX-License-Identifier: Apache-2.0

//! Prints what a packet costs on each of its ways: `cargo run --release -p run-packets --example costs`.

use std::path::Path;

use run_packets::measure::{Cost, measure};

fn main() -> Result<(), run_packets::Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let text =
        |cost: Option<Cost>| cost.map_or_else(String::new, |cost| format!("{}/{}", cost.p10, cost.p50));
    println!(
        "{:52} {:>12} {:>12} {:>12}",
        "p10/p50 ns", "first", "established", "reply"
    );
    for costs in measure(&folder, 20_000)? {
        let family = if costs.is_ipv6 { "IPv6" } else { "IPv4" };
        println!(
            "{:52} {:>12} {:>12} {:>12}",
            format!("{family} {}", costs.name),
            text(Some(costs.first)),
            text(costs.established),
            text(costs.reply),
        );
    }
    Ok(())
}
