// SPDX-License-Identifier: Apache-2.0

//! Prints what calls cost through a ClusterIP and without. Run as root:
//! `cargo run --release -p skep-bpf-programs --features testing --example socket_latency`

use skep_bpf_programs::testing::LatencyBench;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    println!(
        "nanoseconds a call, median of rounds: bare = no programs, direct = programs attached, extra = service - bare"
    );
    println!(
        "{:>8} {:>5} {:<22} {:>7} {:>7} {:>7} {:>7}",
        "services", "trace", "call", "bare", "direct", "service", "extra"
    );
    for (services, trace) in [(10, true), (10_000, true), (10, false), (10_000, false)] {
        let found = LatencyBench {
            services,
            calls: 2_000,
            rounds: 60,
            trace,
        }
        .run()?;
        for (name, cost) in [
            ("udp connect", found.connect),
            ("udp sendto", found.send),
            ("udp socket+connect", found.udp),
            ("tcp connect", found.tcp),
        ] {
            println!(
                "{services:>8} {trace:>5} {name:<22} {:>7} {:>7} {:>7} {:>7}",
                cost.bare.as_nanos(),
                cost.direct.as_nanos(),
                cost.service.as_nanos(),
                cost.extra()
            );
        }
    }
    Ok(())
}
