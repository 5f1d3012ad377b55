// SPDX-License-Identifier: Apache-2.0

//! What calls cost through a ClusterIP.

use clap::Args;
use skep_bpf_programs::testing::LatencyBench;

use crate::report::{Report, Row};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rounds to take the median of.
    #[arg(long, default_value_t = 60)]
    rounds: u32,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    for services in [10, 10_000] {
        let bench = LatencyBench {
            services,
            calls: 2_000,
            rounds: options.rounds,
            trace: true,
        };
        let found = bench.run().map_err(anyhow::Error::from_boxed)?;
        for (name, cost) in [
            ("TCP connect()", found.tcp),
            ("UDP connect()", found.connect),
            ("UDP sendto()", found.send),
        ] {
            let case = format!("{name}, {services} services");
            report.add(Row::cost(
                format!("{case}: direct"),
                cost.bare.as_nanos() as f64,
                "ns",
            ));
            report.add(
                Row::cost(format!("{case}: more by ClusterIP"), cost.extra() as f64, "ns").target(1000.0),
            );
        }
    }
    Ok(())
}
