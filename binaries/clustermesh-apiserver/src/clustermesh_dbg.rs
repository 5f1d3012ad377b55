// SPDX-License-Identifier: Apache-2.0

//! `clustermesh-dbg`: why the clustermesh-apiserver cannot reach the etcd of its cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use skep_kvstore_etcd::troubleshoot::troubleshoot;

use crate::line;

/// Inspects the clustermesh-apiserver.
#[derive(Parser, Clone, Debug)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Check the connection to etcd, step by step.
    Troubleshoot(Options),
}

#[derive(Args, Clone, Debug)]
struct Options {
    /// Configuration of the etcd client.
    #[arg(long, default_value = "/var/lib/cilium/etcd-config.yaml")]
    etcd_config: PathBuf,
    /// How long each check may take.
    #[arg(long, default_value = "5s", value_parser = line::duration)]
    timeout: Duration,
}

/// The sub-command: reads options from its arguments; returns the exit code.
pub(crate) fn command(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    match line::parse::<Line>("clustermesh-dbg", args) {
        Ok(Line {
            command: Command::Troubleshoot(options),
        }) => line::report(run(&options)),
        Err(code) => code,
    }
}

/// Returns what was found, and whether all is well.
fn run(options: &Options) -> std::io::Result<(String, bool)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let findings = runtime.block_on(troubleshoot(&options.etcd_config, options.timeout));
    Ok((findings.text, findings.is_healthy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etcd_that_does_not_answer_and_a_missing_file_are_told() {
        let folder = tempfile::tempdir().expect("there is a folder");
        let file = folder.path().join("etcd-config.yaml");
        std::fs::write(&file, "endpoints: [\"http://127.0.0.1:1\"]").expect("it is written");
        let arguments = |path: &std::path::Path| {
            let path = path.to_string_lossy().into_owned();
            vec!["troubleshoot".to_owned(), "--etcd-config".to_owned(), path]
        };
        let Line {
            command: Command::Troubleshoot(options),
        } = line::parse("clustermesh-dbg", arguments(&file)).expect("they are options");

        let (text, is_healthy) = run(&options).expect("there are sockets");

        assert!(!is_healthy, "{text}");
        assert!(text.contains("- http://127.0.0.1:1\n"), "{text}");
        assert_eq!(command(arguments(&folder.path().join("none")), Vec::new()), 1);
        assert_eq!(command(vec!["unknown".to_owned()], Vec::new()), hive::exit::USAGE);
    }
}
