// SPDX-License-Identifier: Apache-2.0

//! `skep health`: the connectivity between nodes, and its part of `skep status`.

use std::{env, path::Path, time::Duration};

use clap::Subcommand;
use hive_script::text::TabWriter;
use serde_json::Value;
use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::{
    ConnectivityStatus, HealthResponse, HealthStatusResponse, HostStatus, NodeHealthStatus, PathStatus,
};

use crate::{
    agent,
    failure::{Failure, fatal},
    print::{self, Format},
    status,
};

/// Most nodes in `skep status`.
const ROWS: usize = 10;

#[derive(Debug, Subcommand)]
pub(crate) enum HealthCommand {
    /// Show the connectivity to all nodes.
    #[command(alias = "connectivity")]
    Status {
        /// Show the results of each address.
        #[arg(long)]
        verbose: bool,
        /// Without effect.
        #[arg(long, hide = true)]
        succinct: bool,
        /// Probe first; the agent returns its last results all the same.
        #[arg(long, hide = true)]
        probe: bool,
    },
    /// Show the health of the local node.
    #[command(aliases = ["inspect", "show"])]
    Get,
    /// Check that the prober answers.
    Ping,
}

/// The health API: where `CILIUM_HEALTH_SOCK` says, or beside the socket of the agent. A socket of another name that is
/// not there, or has none beside it, is that of the health API itself.
pub(crate) fn client(host: &str) -> Result<Client, ClientError> {
    let path = Path::new(host.strip_prefix("unix://").unwrap_or(host));
    let beside = path.with_file_name("health.sock");
    let is_agent = path.file_name().is_some_and(|name| name == "cilium.sock");
    if !is_agent && (!beside.exists() || !path.exists()) {
        return Client::new(host);
    }
    match env::var("CILIUM_HEALTH_SOCK") {
        Ok(socket) => Client::new(&socket),
        Err(_) => Ok(Client::at(&beside)),
    }
}

pub(crate) fn run(
    host: &str,
    command: &HealthCommand,
    format: Format,
) -> Result<String, Box<dyn std::error::Error>> {
    let client = client(host)?;
    // The texts of Cilium's command end with a newline of their own.
    let failed = |what: &str, error: agent::ApiError| fatal(format!("{what}: {error}\n"));
    Ok(match command {
        HealthCommand::Ping => {
            let answer: Result<Value, _> = agent::get(&client, &agent::HEALTH_OF_NODE, "");
            answer.map_err(|error| failed("Cannot ping", error))?;
            "OK\n".to_owned()
        }
        HealthCommand::Get => {
            let answer: Value = agent::get(&client, &agent::HEALTH_OF_NODE, "")
                .map_err(|error| failed("Cannot get health for local instance", error))?;
            match format {
                Format::Text => status::of_node(&serde_json::from_value::<HealthResponse>(answer)?),
                _ => print::api(&answer, "HealthResponse", format),
            }
        }
        HealthCommand::Status { verbose, probe, .. } => {
            let answer: Value = match probe {
                true => agent::put(&client, &agent::PROBE_NODES)
                    .map_err(|error| failed("Cannot get status/probe", error))?,
                false => agent::get(&client, &agent::HEALTH_OF_NODES, "")
                    .map_err(|error| failed("Cannot get status", error))?,
            };
            match format {
                Format::Text => {
                    let mut table = TabWriter::new();
                    write(&mut table, &serde_json::from_value(answer)?, Nodes::All, *verbose);
                    table.finish()
                }
                _ => print::api(&answer, "HealthStatusResponse", format),
            }
        }
    })
}

/// The last results of all nodes; none if the prober does not answer.
pub(crate) fn results(host: &str, timeout: Duration) -> Option<HealthStatusResponse> {
    let client = client(host).ok()?.with_timeout(timeout);
    agent::get(&client, &agent::HEALTH_OF_NODES, "").ok()
}

/// Nodes to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nodes {
    All,
    /// Those that are not reached, not more than some.
    Unhealthy,
}

pub(crate) fn write(table: &mut TabWriter, found: &HealthStatusResponse, nodes: Nodes, verbose: bool) {
    let local = found.local.as_ref().map_or("", |local| &local.name);
    let mut all: Vec<&NodeHealthStatus> = found.nodes.iter().collect();
    all.sort_by_key(|node| (node.name != local, &node.name));
    let unhealthy = all.iter().filter(|node| !is_healthy(node)).count();
    table.row([
        "Cluster health:".to_owned(),
        format!("{}/{} reachable", all.len() - unhealthy, all.len()),
        format!("({})", found.timestamp),
        format!("(Probe interval: {})", found.probe_interval),
    ]);
    table.row(["Name", "IP", "Node", "Endpoints"]);
    let limit = match nodes {
        Nodes::All => all.len(),
        Nodes::Unhealthy => {
            all.retain(|node| !is_healthy(node));
            ROWS
        }
    };
    for node in all.iter().take(limit) {
        let mark = if node.name == local { " (localhost)" } else { "" };
        let name = format!("  {}{mark}", node.name);
        match verbose {
            true => details(table, &name, node),
            false => table.row([
                name,
                addresses(node),
                reachable(node.host.as_ref()),
                reachable(node.health_endpoint.as_ref()),
            ]),
        }
    }
    if all.len() > limit {
        table.write("  ...\n");
    }
}

fn paths(host: Option<&HostStatus>) -> impl Iterator<Item = &PathStatus> {
    host.into_iter()
        .flat_map(|host| host.primary_address.iter().chain(&host.secondary_addresses))
}

fn results_of(path: &PathStatus) -> impl Iterator<Item = &ConnectivityStatus> {
    path.icmp.iter().chain(&path.http)
}

fn is_healthy(node: &NodeHealthStatus) -> bool {
    paths(node.host.as_ref())
        .chain(paths(node.health_endpoint.as_ref()))
        .flat_map(results_of)
        .all(|result| result.status.is_empty())
}

fn addresses(node: &NodeHealthStatus) -> String {
    let all: Vec<&str> = paths(node.host.as_ref()).map(|path| path.ip.as_str()).collect();
    match all.as_slice() {
        [] | [""] => "Unavailable".to_owned(),
        all => all.join(","),
    }
}

/// `<reachable>/<paths>`, and the number of paths that were not probed yet.
fn reachable(host: Option<&HostStatus>) -> String {
    let (mut total, mut healthy, mut unknown) = (0, 0, 0);
    for path in paths(host) {
        total += 1;
        match (&path.icmp, &path.http) {
            (None, None) => unknown += 1,
            _ if results_of(path).all(|result| result.status.is_empty()) => healthy += 1,
            _ => {}
        }
    }
    match unknown {
        0 => format!("{healthy}/{total}"),
        _ => format!("{healthy}/{total} ({unknown} unknown)"),
    }
}

fn details(table: &mut TabWriter, name: &str, node: &NodeHealthStatus) {
    table.write(&format!("{name}:\n"));
    for (what, host) in [
        ("Host", node.host.as_ref()),
        ("Endpoint", node.health_endpoint.as_ref()),
    ] {
        let Some(host) = host else {
            table.write(&format!("    {what} connectivity:\tnil\n"));
            continue;
        };
        for (kind, path) in host
            .primary_address
            .iter()
            .map(|path| ("", path))
            .chain(host.secondary_addresses.iter().map(|path| ("Secondary ", path)))
        {
            table.write(&format!("    {kind}{what} connectivity to {}:\n", path.ip));
            for (protocol, result) in [("ICMP to stack", &path.icmp), ("HTTP to agent", &path.http)] {
                if let Some(result) = result {
                    let (text, time) = (outcome(result), &result.last_probed);
                    table.write(&format!("      {protocol}:\t{text}\t(Last probed: {time})\n"));
                }
            }
        }
    }
}

fn outcome(result: &ConnectivityStatus) -> String {
    match result.status.as_str() {
        "" => format!("OK, RTT={}", skep_duration::format_duration_nanos(result.latency)),
        error => error.to_owned(),
    }
}

/// The agent cannot be asked for its status.
pub(crate) fn unreachable(error: &agent::ApiError, is_brief: bool) -> Failure {
    Failure::Bare(match is_brief {
        true => "cilium: daemon unreachable".to_owned(),
        false => error.to_string(),
    })
}
