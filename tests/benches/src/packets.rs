// SPDX-License-Identifier: Apache-2.0

//! What a packet costs in the programs at interfaces: one call a packet, less what an empty program costs.

use std::path::PathBuf;

use clap::Args;
use run_packets::measure::{Cost, Load, count, measure, measure_churn, sizes};
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

/// Targets for IPv4 with a flow table, in ns, of a tenth of the calls, where an empty program takes [`TARGET_IDLE`]: first packet,
/// established, reply.
const TARGETS: [(&str, [Option<u32>; 3]); 5] = [
    ("pod to pod of the node", [Some(920), Some(206), Some(157)]),
    (
        "pod to ClusterIP, backend on the node",
        [Some(1062), Some(247), Some(177)],
    ),
    (
        "pod to ClusterIP, backend elsewhere",
        [Some(845), Some(183), Some(144)],
    ),
    (
        "NodePort at tc, backend elsewhere",
        [Some(1096), Some(211), Some(171)],
    ),
    (
        "NodePort at XDP, backend elsewhere",
        [Some(1008), Some(179), Some(152)],
    ),
];
const TARGET_IDLE: f64 = 27.0;

/// Flows of the flow table where there is one.
const FLOW_TABLE: u32 = 262_144;

/// Loads of the maps. Targets are those of the first one with a flow table.
const LOADS: [Load; 6] = [
    load(1, 10_000, 0),
    load(1, 10_000, FLOW_TABLE),
    load(1, 1_000_000, 0),
    load(1, 1_000_000, FLOW_TABLE),
    load(10_000, 10_000, 0),
    load(10_000, 1_000_000, 0),
];

const fn load(services: u32, flows: u32, flow_table: u32) -> Load {
    Load {
        services,
        flows,
        flow_table,
    }
}

/// Invalidations of the flow table a second, and how long each rate is measured.
const CHURN: [u32; 5] = [0, 10, 100, 1000, 10_000];
const CHURN_SECONDS: u32 = 3;

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for load in LOADS {
        run_with(options, load, report)?;
    }
    for flow_table in [0, FLOW_TABLE] {
        calls(options, flow_table, report)?;
    }
    for (rate, mean) in measure_churn(&options.recorded, &CHURN, CHURN_SECONDS)? {
        let name = format!("established, flow table invalidated {rate} times a second: mean");
        report.add(Row::cost(name, mean, "ns"));
    }
    programs(options, report)
}

/// What packets call, by programs with counters: no figure of time is from these.
fn calls(options: &Options, flow_table: u32, report: &mut Report) -> anyhow::Result<()> {
    let suffix = if flow_table > 0 { ", flow table" } else { "" };
    for way in count(&options.recorded, flow_table)? {
        let family = if way.is_ipv6 { "IPv6" } else { "IPv4" };
        let kinds = [
            ("first packet", Some(way.first)),
            ("established", way.established),
            ("reply", way.reply),
        ];
        for (kind, calls) in kinds {
            let Some(calls) = calls else { continue };
            for (what, number) in named(&calls) {
                let name = format!("{}, {family}, {kind}{suffix}: {what}", way.name);
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
        let scale = costs.idle as f64 / TARGET_IDLE;
        let family = if costs.is_ipv6 { "IPv6" } else { "IPv4" };
        let known = TARGETS
            .iter()
            .find(|(name, _)| *name == costs.name && !costs.is_ipv6 && load == LOADS[1]);
        let targets = known.map_or([None; 3], |(_, targets)| *targets);
        let kinds = [
            ("first packet", Some(costs.first)),
            ("established", costs.established),
            ("reply", costs.reply),
        ];
        for ((kind, cost), target) in kinds.into_iter().zip(targets) {
            let Some(Cost { p10, p50 }) = cost else { continue };
            let name = format!("{}, {family}, {kind}{suffix}", costs.name);
            report.add(
                Row::cost(format!("{name}: p10"), p10 as f64, "ns")
                    .target(target.map(|target| f64::from(target) * scale)),
            );
            report.add(Row::cost(format!("{name}: p50"), p50 as f64, "ns"));
        }
        let name = format!("{}, {family}, empty program{suffix}", costs.name);
        report.add(Row::cost(format!("{name}: p10"), costs.idle as f64, "ns"));
    }
    Ok(())
}
