// SPDX-License-Identifier: Apache-2.0

//! `skep-agent`: makes Kubernetes services reachable from every process of a node.

use std::process::ExitCode;

use hive::{Program, config::UnknownKeys};

fn main() -> ExitCode {
    Program::new("skep-agent", skep_agent::cells())
        .about("Makes Kubernetes services reachable from every process of a node, through eBPF.")
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        // A ConfigMap written for Cilium holds keys of features that are not there; it mounts unchanged.
        .unknown_keys(UnknownKeys::Warn)
        .setup(skep_agent::start_logging)
        .main()
}
