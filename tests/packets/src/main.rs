// SPDX-License-Identifier: Apache-2.0

//! Runs recorded packets: `run-packets [--facts FILE] FILE...`.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use run_packets::{Error, FlowTable, Outcome, run_file_with};

/// Runs recorded packets through the programs, and compares what they do with what was recorded.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// What the node was like, in place of the file of this name, or of the first, that each file names. The other
    /// files are looked for beside the scenarios, then here.
    #[arg(long, value_name = "FILE")]
    facts: Vec<PathBuf>,
    /// Only scenarios whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Say what differs as it is meant to, too.
    #[arg(long)]
    explain: bool,
    /// Flow table of the programs.
    #[arg(long, value_enum, default_value_t = FlowTable::Off)]
    flow_table: FlowTable,
    /// Scenarios.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut passed, mut failed, mut different) = (0, 0, 0);
    for file in &arguments.files {
        let reports = match run_file_with(file, &arguments.facts, &arguments.only, arguments.flow_table) {
            Ok(reports) => reports,
            // `*.json` of a folder has both.
            Err(Error::FactsAlone { .. }) => continue,
            Err(error) => {
                println!("FAIL {}: {}", file.display(), error.with_causes());
                failed += 1;
                continue;
            }
        };
        for report in reports {
            println!("{report}");
            match report.outcome {
                Outcome::Passed | Outcome::NotCompared => passed += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::Different { lines, .. } => {
                    different += 1;
                    if arguments.explain {
                        println!("    {}", lines.join("\n    "));
                    }
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {different} different");
    ExitCode::from(u8::from(failed > 0))
}
