// SPDX-License-Identifier: Apache-2.0

//! Runs recordings of pods: `run-pods [FILE...]`.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use run_pods::{Error, Options, Outcome, recordings, run_file};

/// Runs recordings of pods against the CNI plugin and the agent, and compares results with the recorded ones.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Only scenarios whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print all differences.
    #[arg(long)]
    explain: bool,
    /// Recordings; those of the repository if none is named.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.files.is_empty() {
        arguments.files = recordings();
    }
    let options = Options {
        only: arguments.only,
        ..Options::default()
    };
    let (mut passed, mut failed, mut different) = (0, 0, 0);
    for file in &arguments.files {
        let reports = match run_file(file, &options) {
            Ok(reports) => reports,
            // `*.json` of a folder has data of other recordings, too.
            Err(Error::NoScenario { .. }) => continue,
            Err(error) => {
                println!("FAIL {}: {}", file.display(), error.with_causes());
                failed += 1;
                continue;
            }
        };
        for report in reports {
            println!("{report}");
            let lines = match report.outcome {
                Outcome::Passed => {
                    passed += 1;
                    continue;
                }
                Outcome::Failed(lines) => {
                    failed += 1;
                    lines
                }
                Outcome::Different { lines, .. } => {
                    different += 1;
                    lines
                }
            };
            if arguments.explain {
                println!("    {}", lines.join("\n    "));
            }
        }
    }
    println!("{passed} passed, {failed} failed, {different} different");
    ExitCode::from(u8::from(failed > 0))
}
