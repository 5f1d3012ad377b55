// SPDX-License-Identifier: Apache-2.0

//! What a packet costs in the programs at interfaces: one call a packet, less what an empty program costs.

use std::path::PathBuf;

use clap::Args;
use run_packets::measure::{Cost, Load, count, measure, sizes};
use skep_bpf_programs::Calls;

use crate::report::{Report, Row};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Calls of each kind of packet.
    #[arg(long, default_value_t = 20_000)]
    calls: u32,
    /// Recorded packets, and the facts of their node.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../packets/testdata"))]
    recorded: PathBuf,
}

/// What Cilium's programs take for IPv4, in ns, a tenth of the calls less: first packet, established, reply.
const PEER: [(&str, [Option<u32>; 3]); 8] = [
    ("pod to pod of the node", [Some(2400), Some(1180), Some(870)]),
    (
        "pod to ClusterIP, backend on the node",
        [Some(2890), Some(1530), Some(1210)],
    ),
    (
        "pod to ClusterIP, backend elsewhere",
        [Some(2030), Some(1220), Some(1050)],
    ),
    (
        "NodePort at tc, backend elsewhere",
        [Some(2540), Some(1420), Some(1250)],
    ),
    (
        "NodePort at XDP, backend elsewhere",
        [Some(2260), Some(1120), Some(940)],
    ),
    ("to the node, no service, tc", [None, Some(330), None]),
    ("to the node, no service, XDP", [None, Some(210), None]),
    (
        "pod to the world, masquerade on the way out",
        [Some(1440), None, None],
    ),
];

/// Loads of the maps. The first is that of Cilium's figures, which do not depend on the number of services.
const LOADS: [Load; 4] = [
    load(1, 10_000),
    load(1, 1_000_000),
    load(10_000, 10_000),
    load(10_000, 1_000_000),
];

const fn load(services: u32, flows: u32) -> Load {
    Load { services, flows }
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for load in LOADS {
        run_with(options, load, report)?;
    }
    calls(options, report)?;
    programs(options, report)
}

/// What packets call, by programs with counters: no figure of time is from these.
fn calls(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for way in count(&options.recorded)? {
        let family = if way.is_ipv6 { "IPv6" } else { "IPv4" };
        let kinds = [
            ("first packet", Some(way.first)),
            ("established", way.established),
            ("reply", way.reply),
        ];
        for (kind, calls) in kinds {
            let Some(calls) = calls else { continue };
            for (what, number) in named(&calls) {
                let name = format!("{}, {family}, {kind}: {what}", way.name);
                report.add(Row::cost(name, number as f64, "calls"));
            }
        }
    }
    Ok(())
}

/// What was called at all.
fn named(calls: &Calls) -> impl Iterator<Item = (&'static str, u64)> {
    let all = [
        ("lookups in hash maps", calls.hash_lookups()),
        ("lookups of prefixes", calls.prefix_lookups()),
        ("lookups in arrays", calls.array_lookups()),
        ("updates of maps", calls.updates),
        ("lookups of routes", calls.routes),
        ("lookups of sockets", calls.sockets),
    ];
    all.into_iter().filter(|(_, number)| *number > 0)
}

/// How large the programs are.
fn programs(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for program in sizes(&options.recorded)? {
        let name = format!("{} {}", program.name, program.options);
        let size = program.size;
        for (what, number, unit) in [
            ("verified", size.verified, "instructions"),
            ("translated", size.translated, "bytes"),
            ("native code", size.native, "bytes"),
        ] {
            let name = format!("{}: {what}", name.trim_end());
            report.add(Row::cost(name, f64::from(number), unit));
        }
    }
    Ok(())
}

fn run_with(options: &Options, load: Load, report: &mut Report) -> anyhow::Result<()> {
    let suffix = if load == LOADS[0] {
        String::new()
    } else {
        format!(", {load}")
    };
    for costs in measure(&options.recorded, options.calls, load)? {
        let family = if costs.is_ipv6 { "IPv6" } else { "IPv4" };
        let known = PEER
            .iter()
            .find(|(name, _)| *name == costs.name && !costs.is_ipv6);
        let peers = known.map_or([None; 3], |(_, peers)| *peers);
        let kinds = [
            ("first packet", Some(costs.first)),
            ("established", costs.established),
            ("reply", costs.reply),
        ];
        for ((kind, cost), peer) in kinds.into_iter().zip(peers) {
            let Some(Cost { p10, p50 }) = cost else { continue };
            let name = format!("{}, {family}, {kind}{suffix}", costs.name);
            let peer = peer.map(f64::from);
            report.add(
                Row::cost(format!("{name}: p10"), p10 as f64, "ns")
                    .peer(peer)
                    .target(peer.map(|peer| peer / 2.0)),
            );
            report.add(Row::cost(format!("{name}: p50"), p50 as f64, "ns"));
        }
    }
    Ok(())
}
