// SPDX-License-Identifier: Apache-2.0

//! Commands in a running program, over its shell socket.

use std::path::PathBuf;

use clap::Args;
use skep_shell::{Remote, RemoteError};

/// Which shell, and the command.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Shell socket of the program.
    #[arg(
        long,
        env = "CILIUM_SHELL_SOCK_PATH",
        default_value = "/var/run/cilium/shell.sock"
    )]
    pub shell_sock_path: PathBuf,
    /// Command and arguments, or a command line as one argument; default: a prompt.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Runs a command in the shell of `program`, or opens a prompt. Returns whether it succeeded; what it prints is printed.
///
/// # Errors
///
/// When it cannot be run. The error of a command itself is printed.
pub fn run(options: &Options, program: &'static str) -> Result<(String, bool), RemoteError> {
    let is_done = Remote::new(program, &options.shell_sock_path).run(&options.words)?;
    Ok((String::new(), is_done))
}
