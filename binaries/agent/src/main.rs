// SPDX-License-Identifier: Apache-2.0

//! `skep-agent`: the node agent.

use std::{process::ExitCode, sync::Arc};

use hive::Program;
use skep_agent::Configuration;
use skep_base_settings::cilium::AGENT;

#[global_allocator]
static ALLOCATOR: skep_base_alloc::Allocator = skep_base_alloc::Allocator;

fn main() -> ExitCode {
    hive::with_arguments(|mut args, env| {
        if args.first().is_some_and(|arg| arg == "build-config") {
            args.remove(0);
            return skep_agent::build_config::program().run_with(args, env);
        }
        if args.starts_with(&["preflight".to_owned(), "validate-cnp".to_owned()]) {
            args.drain(..2);
            return skep_agent::preflight::program().run_with(args, env);
        }
        agent().run_with(args, env)
    })
}

fn agent() -> Program {
    let configuration = Arc::new(Configuration::default());
    let shown = configuration.clone();
    Program::new("skep-agent", skep_agent::cells(configuration))
        .about("Node agent: Kubernetes services, pod networking and cluster mesh in eBPF.")
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        // Sockets and files are where Cilium has them.
        .path_name("cilium")
        .tolerate_keys(skep_base_settings::cilium::keys_without_effect(AGENT))
        .setup(move |plan| {
            skep_agent::start_logging(plan);
            shown.fill(plan);
        })
}
