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

/// Targets for IPv4, in ns, of a tenth of the calls: first packet, established, reply.
const TARGETS: [(&str, [Option<u32>; 3]); 8] = [
    ("pod to pod of the node", [Some(1200), Some(590), Some(435)]),
    (
        "pod to ClusterIP, backend on the node",
        [Some(1445), Some(765), Some(605)],
    ),
    (
        "pod to ClusterIP, backend elsewhere",
        [Some(1015), Some(610), Some(525)],
    ),
    (
        "NodePort at tc, backend elsewhere",
        [Some(1270), Some(710), Some(625)],
    ),
    (
        "NodePort at XDP, backend elsewhere",
        [Some(1130), Some(560), Some(470)],
    ),
    ("to the node, no service, tc", [None, Some(165), None]),
    ("to the node, no service, XDP", [None, Some(105), None]),
    (
        "pod to the world, masquerade on the way out",
        [Some(720), None, None],
    ),
];

/// Loads of the maps. Targets are those of the first one.
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
        let known = TARGETS
            .iter()
            .find(|(name, _)| *name == costs.name && !costs.is_ipv6);
        let targets = known.map_or([None; 3], |(_, targets)| *targets);
        let kinds = [
            ("first packet", Some(costs.first)),
            ("established", costs.established),
            ("reply", costs.reply),
        ];
        for ((kind, cost), target) in kinds.into_iter().zip(targets) {
            let Some(Cost { p10, p50 }) = cost else { continue };
            let name = format!("{}, {family}, {kind}{suffix}", costs.name);
            report.add(Row::cost(format!("{name}: p10"), p10 as f64, "ns").target(target.map(f64::from)));
            report.add(Row::cost(format!("{name}: p50"), p50 as f64, "ns"));
        }
    }
    Ok(())
}
