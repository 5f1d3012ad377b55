// SPDX-License-Identifier: Apache-2.0

//! Measures Skep against its targets.
//!
//! `lb-benchmark --services 50000 --maps bpf` measures services on their way from decoded watch events to the maps;
//! the other measurements are sub-commands. `make bench` runs all.

mod agent;
mod alloc;
mod allocation;
mod datapath;
mod endpoints;
mod etcd;
mod flip;
mod flows;
mod hives;
mod made_up;
mod maglev;
mod mesh;
mod objects;
mod packets;
mod pods;
mod policies;
mod programs;
mod report;
mod sockets;
mod throughput;
mod traffic;
mod usage;
mod world;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::report::Report;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures load-balancing and its parts.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    measurement: Option<Measurement>,
    #[command(flatten)]
    throughput: throughput::Options,
    /// Where to write the results as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// One endpoint of a service comes and goes.
    Flip(flip::Options),
    /// One Maglev lookup table.
    Maglev,
    /// Check, construct and start 10, 100 and 1,000 cells.
    Hive,
    /// connect() and sendto() through a ClusterIP.
    Sockets(sockets::Options),
    /// Packets in the programs at interfaces.
    Packets(packets::Options),
    /// Endpoints: time until their packets are handled, memory in the kernel.
    Endpoints(endpoints::Options),
    /// ADD and DEL of pods, restarts with them, their labels; a fleet seen by one agent.
    Pods(pods::Options),
    /// Policies, from objects to maps, and what they cost packets.
    Policies(policies::Options),
    /// Connections, requests and transfers through services, against routing and nftables.
    Traffic(traffic::Options),
    /// Garbage collection of connection tracking, and listing it.
    Flows(flows::Options),
    /// The agent against an API server on this machine.
    Agent(agent::Options),
    /// The agent with the etcd of a remote cluster.
    Mesh(mesh::Options),
    /// Identities allocated in etcd by several clients at once.
    Allocation(allocation::Options),
    /// Operator, clustermesh-apiserver and kvstoremesh, and the agent with many remote clusters.
    Programs(programs::Options),
    /// Serves the objects that `agent` needs; started by it.
    #[command(hide = true)]
    ApiServer(agent::ServerOptions),
    /// Puts results of several runs into one table and one file.
    Summary {
        /// Files written with --json.
        files: Vec<PathBuf>,
    },
}

/// Where entries end up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Maps {
    /// In memory.
    Fake,
    /// In the kernel, pinned on a private BPF file system. Needs root.
    Bpf,
}

fn main() -> anyhow::Result<()> {
    let options = CommandLine::parse();
    let mut report = Report::default();
    match options.measurement {
        None => throughput::run(&options.throughput, &mut report)?,
        Some(Measurement::Flip(options)) => flip::run(&options, &mut report)?,
        Some(Measurement::Maglev) => maglev::run(&mut report)?,
        Some(Measurement::Hive) => hives::run(&mut report)?,
        Some(Measurement::Sockets(options)) => sockets::run(&options, &mut report)?,
        Some(Measurement::Packets(options)) => packets::run(&options, &mut report)?,
        Some(Measurement::Endpoints(options)) => endpoints::run(&options, &mut report)?,
        Some(Measurement::Pods(options)) => pods::run(&options, &mut report)?,
        Some(Measurement::Policies(options)) => policies::run(&options, &mut report)?,
        Some(Measurement::Traffic(options)) => traffic::run(&options, &mut report)?,
        Some(Measurement::Flows(options)) => flows::run(&options, &mut report)?,
        Some(Measurement::Agent(options)) => agent::run(&options, &mut report)?,
        Some(Measurement::Mesh(options)) => mesh::run(&options, &mut report)?,
        Some(Measurement::Allocation(options)) => allocation::run(&options, &mut report)?,
        Some(Measurement::Programs(options)) => programs::run(&options, &mut report)?,
        Some(Measurement::ApiServer(options)) => return agent::serve(&options),
        Some(Measurement::Summary { files }) => report.read(&files)?,
    }
    report.print();
    if let Some(file) = &options.json {
        report.write(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }
}
