// SPDX-License-Identifier: Apache-2.0

//! `skep service`: services from the agent's API.

use std::{error::Error, fmt::Write};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_base_api_client::Client;
use skep_base_api_types::{BackendAddress, FrontendAddress, ServiceSpec};

use crate::{
    agent,
    failure::{Failure, fatal, usage},
    print::{self, Format},
};

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// List all services.
    #[command(alias = "ls")]
    List {
        /// Mark preferred backends.
        #[arg(long)]
        clustermesh_affinity: bool,
    },
    /// Show one service.
    Get {
        /// Id.
        id: Option<String>,
    },
}

/// What is read of a [`Service`](skep_base_api_types::Service) for a table: the status repeats the specification.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Specified {
    pub(crate) spec: ServiceSpec,
}

pub(crate) fn run(
    agent: &Client,
    command: &ServiceCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let id = match command {
        ServiceCommand::List { .. } => None,
        ServiceCommand::Get { id: None } => return Err(usage("service get", "Missing service id").into()),
        ServiceCommand::Get { id: Some(id) } => {
            let number = id.parse::<u64>();
            let number = number.map_err(|_| fatal(format!("unable to parse service id {id:?}")))?;
            Some(number)
        }
    };
    let mut found: Vec<Value> = agent::get(agent, &agent::LIST_SERVICES, "")
        .map_err(|error| Failure::Bare(format!("Cannot get services list: {error}")))?;
    if let Some(id) = id {
        found.retain(|service| service["spec"]["id"] == id);
        if found.is_empty() {
            return Err(fatal(format!("no service has the id {id}")).into());
        }
    }
    let found = Value::Array(found);
    Ok(match format {
        Format::Text => {
            let affinity = matches!(
                command,
                ServiceCommand::List {
                    clustermesh_affinity: true
                }
            );
            list(serde_json::from_value(found)?, affinity)
        }
        _ => print::api(&found, "[Service]", format),
    })
}

/// Services in columns, sorted by id; one line a backend. `affinity` marks backends that the service prefers.
pub(crate) fn list(mut services: Vec<Specified>, affinity: bool) -> String {
    services.sort_by_key(|service| service.spec.id);
    let mut table = print::Table::default();
    table.padded(["ID", "Frontend", "Service Type", "Backend"]);
    for Specified { spec } in &services {
        let remote = if spec.flags.cluster.is_empty() {
            ""
        } else {
            " (Remote)"
        };
        let id = spec.id.to_string();
        let frontend = frontend(&spec.frontend_address);
        let kind = format!("{}{remote}", spec.flags.kind);
        let mut head = [id.as_str(), &frontend, &kind];
        if spec.backend_addresses.is_empty() {
            let [id, frontend, kind] = head;
            table.padded([id, frontend, kind, ""]);
        }
        let mut line = String::new();
        for (number, backend) in (1_usize..).zip(&spec.backend_addresses) {
            let state = match backend.state.as_str() {
                // Without an id the datapath does not have the service, or not yet.
                _ if spec.id == 0 => "not in use",
                "" => "active",
                state => state,
            };
            let preferred = if affinity && backend.preferred {
                " (preferred)"
            } else {
                ""
            };
            line.clear();
            // Writing to a string does not fail.
            let _ = write!(line, "{number} => ");
            address(&mut line, &backend.ip, backend.port, &backend.protocol);
            let _ = write!(line, " ({state}){preferred}");
            let [id, frontend, kind] = std::mem::take(&mut head);
            table.padded([id, frontend, kind, &line]);
        }
    }
    table.finish()
}

/// `ip:port/PROTOCOL`, with `/i` for the internal scope.
pub(crate) fn frontend(at: &FrontendAddress) -> String {
    let mut text = String::new();
    address(&mut text, &at.ip, at.port, &at.protocol);
    if at.scope == "internal" {
        text.push_str("/i");
    }
    text
}

/// `ip:port`.
pub(crate) fn backend(at: &BackendAddress) -> String {
    let mut text = String::new();
    endpoint(&mut text, &at.ip, at.port);
    text
}

fn endpoint(out: &mut String, ip: &str, port: u16) {
    let (open, close) = if ip.contains(':') { ("[", "]") } else { ("", "") };
    let _ = write!(out, "{open}{ip}{close}:{port}");
}

fn address(out: &mut String, ip: &str, port: u16, protocol: &str) {
    endpoint(out, ip, port);
    out.push('/');
    out.push_str(if protocol.is_empty() { "TCP" } else { protocol });
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn services() -> Vec<Specified> {
        from_value(json!([
            {"spec": {"id": 3, "frontend-address": {"ip": "fd00::1", "port": 80, "protocol": "TCP", "scope": "internal"},
                "flags": {"type": "NodePort"}}},
            {"spec": {"id": 2, "frontend-address": {"ip": "10.96.0.10", "port": 53, "protocol": "UDP", "scope": "external"},
                "backend-addresses": [
                    {"ip": "10.0.1.5", "port": 53, "protocol": "UDP", "state": "active"},
                    {"ip": "10.0.2.8", "port": 53, "protocol": "UDP", "state": "terminating"}],
                "flags": {"type": "ClusterIP"}}, "status": {"realized": {"id": 9}}},
        ]))
        .unwrap()
    }

    #[test]
    fn lists_by_id_with_a_line_for_each_backend() {
        let expected = [
            "ID   Frontend             Service Type   Backend",
            "2    10.96.0.10:53/UDP    ClusterIP      1 => 10.0.1.5:53/UDP (active)",
            "                                         2 => 10.0.2.8:53/UDP (terminating)",
            "3    [fd00::1]:80/TCP/i   NodePort",
            "",
        ];
        let text = list(services(), false);
        let lines: Vec<&str> = text.split('\n').map(str::trim_end).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn backends_of_a_service_that_the_datapath_does_not_have_are_not_in_use() {
        let services: Vec<Specified> = from_value(json!([{"spec": {
            "frontend-address": {"ip": "10.96.0.1", "port": 80},
            "backend-addresses": [{"ip": "10.0.1.5", "port": 80, "state": "active"}],
            "flags": {"type": "ClusterIP"}}}]))
        .unwrap();
        let text = list(services, false);
        assert!(text.contains("1 => 10.0.1.5:80/TCP (not in use) "), "{text}");
    }

    #[test]
    fn preferred_backends_are_marked_if_asked_for() {
        let services: Vec<Specified> = from_value(json!([{"spec": {"id": 1,
            "frontend-address": {"ip": "10.96.0.1", "port": 80},
            "backend-addresses": [{"ip": "10.0.1.5", "port": 80, "preferred": true}, {"ip": "10.0.1.6", "port": 80}],
            "flags": {"type": "ClusterIP", "cluster": "west"}}}]))
        .unwrap();
        let text = list(services.clone(), true);
        assert!(text.contains("ClusterIP (Remote)"), "{text}");
        assert!(
            text.contains("1 => 10.0.1.5:80/TCP (active) (preferred) "),
            "{text}"
        );
        assert!(text.contains("2 => 10.0.1.6:80/TCP (active) "), "{text}");
        assert!(!list(services, false).contains("preferred"));
    }
}
