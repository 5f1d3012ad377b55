// SPDX-License-Identifier: Apache-2.0

//! `shell`: commands in a running `clustermesh` or `kvstoremesh`.

use clap::Parser;
use skep_clustermesh_cli::{line, shell};

use crate::PROGRAM;

/// Runs a command in a running server, or opens a prompt.
#[derive(Parser, Clone, Debug)]
pub(crate) struct Line {
    #[command(flatten)]
    options: shell::Options,
}

/// The sub-command: reads options from its arguments; returns the exit code.
pub(crate) fn command(args: Vec<String>, _: Vec<(String, String)>) -> u8 {
    match line::parse::<Line>(&format!("{PROGRAM} shell"), args) {
        Ok(Line { options }) => line::report(PROGRAM, shell::run(&options, "the server")),
        Err(code) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_run_is_a_failure() {
        let run = |words: &[&str]| command(words.iter().map(|word| (*word).to_owned()).collect(), Vec::new());

        assert_eq!(
            run(&[
                "--shell-sock-path=/nonexistent/shell.sock",
                "db/show",
                "--columns=Name"
            ]),
            1
        );
        assert_eq!(run(&["--help"]), 0);
    }
}
