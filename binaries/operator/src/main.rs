// SPDX-License-Identifier: Apache-2.0

//! `skep-operator`: the controllers of a cluster.

use std::process::ExitCode;

use hive::Program;

/// What unknown keys of the config directory are. The ConfigMap is that of the agents, too.
const UNKNOWN: (&str, &str) = ("CILIUM_CONFIG_UNKNOWN", "ignore");

fn main() -> ExitCode {
    skep_base_alloc::share_arena();
    hive::with_arguments(run)
}

fn run(args: Vec<String>, mut env: Vec<(String, String)>) -> u8 {
    let program = program();
    if let Some(code) = skep_operator::command(&args, &program) {
        return code;
    }
    if env.iter().all(|(name, _)| name != UNKNOWN.0) {
        env.push((UNKNOWN.0.to_owned(), UNKNOWN.1.to_owned()));
    }
    program.run_with(args, env)
}

fn program() -> Program {
    Program::new("skep-operator", skep_operator::cells())
        .about(
            "Runs the controllers of a cluster.\n\n\
             `skep-operator status clustermesh` and `metrics list` query a running operator, `skep-operator shell` runs a command in \
             it; `skep-operator troubleshoot clustermesh|kvstore` checks its connections, `skep-operator completion` prints the \
             completion script of a shell.",
        )
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        // Sockets are where Cilium has them.
        .path_name("cilium")
        .setup(skep_base_logging::start_logging)
}
