// SPDX-License-Identifier: Apache-2.0

//! `clustermesh-dbg`: why the clustermesh-apiserver cannot reach the etcd of its cluster.

use clap::{Parser, Subcommand};
use skep_clustermesh_cli::{line, troubleshoot};

use crate::PROGRAM;

/// The configuration that the chart mounts.
const ETCD_CONFIG: &str = "/var/lib/cilium/etcd-config.yaml";

/// Inspects the clustermesh-apiserver.
#[derive(Parser, Clone, Debug)]
pub(crate) struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Check the connection to etcd, step by step.
    Troubleshoot(troubleshoot::OwnOptions),
}

/// The sub-command: reads options from its arguments; returns the exit code.
pub(crate) fn command(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    match line::parse::<Line>(&format!("{PROGRAM} clustermesh-dbg"), args) {
        Ok(Line {
            command: Command::Troubleshoot(options),
        }) => line::report(PROGRAM, troubleshoot::own(&options, ETCD_CONFIG)),
        Err(code) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etcd_that_cannot_be_reached_is_a_failure() {
        let run = |words: &[&str]| command(words.iter().map(|word| (*word).to_owned()).collect(), Vec::new());
        assert_eq!(run(&["troubleshoot", "--etcd-config=/nonexistent"]), 1);
        assert_eq!(run(&["unknown"]), hive::exit::USAGE);
    }
}
