// SPDX-License-Identifier: Apache-2.0

//! Runs recorded network policies: `run-policy [FILE...]`.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use run_policy::{Error, Outcome, recorded_files, run_file};

/// Runs recorded network policies through the policy model, and compares what follows from them with what was recorded.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Only scenarios whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Say what differs as it is meant to, too, and which maps are equal in effect alone.
    #[arg(long)]
    explain: bool,
    /// Scenarios; without any those of this folder.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let files = match arguments.files.is_empty() {
        true => recorded_files(),
        false => Ok(arguments.files),
    };
    let files = match files {
        Ok(files) => files,
        Err(error) => {
            println!("FAIL {}", error.with_causes());
            return ExitCode::FAILURE;
        }
    };
    let (mut passed, mut failed, mut different) = (0, 0, 0);
    for file in &files {
        let reports = match run_file(file, &arguments.only) {
            Ok(reports) => reports,
            Err(error) => {
                println!("FAIL {}: {}", file.display(), Error::with_causes(&error));
                failed += 1;
                continue;
            }
        };
        for report in reports {
            println!("{report}");
            match &report.outcome {
                Outcome::Passed => passed += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::Different { lines, .. } => {
                    different += 1;
                    if arguments.explain {
                        println!("    {lines}");
                    }
                }
            }
            if arguments.explain {
                for note in &report.notes {
                    println!("    {note}");
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {different} different");
    ExitCode::from(u8::from(failed > 0))
}
