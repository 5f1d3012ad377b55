// SPDX-License-Identifier: Apache-2.0

//! `skep endpoint`: endpoints from the agent's API.

use std::error::Error;

use clap::Subcommand;
use skep_base_api_client::Client;
use skep_base_api_types::{Endpoint, EndpointHealth};

use crate::print::{self, Format};

/// What is done with endpoints. Each is named by its id, or as `container-id:<id>`, `pod-name:<namespace>/<name>`,
/// `ipv4:<address>`, `ipv6:<address>`.
#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// List all endpoints.
    #[command(alias = "ls")]
    List,
    /// Show one endpoint, as JSON.
    Get {
        /// Id of the endpoint, or a prefixed name.
        #[arg(value_parser = name)]
        id: String,
    },
    /// Show the health of one endpoint.
    Health {
        /// Id of the endpoint, or a prefixed name.
        #[arg(value_parser = name)]
        id: String,
    },
    /// Delete an endpoint; its pod loses network connectivity.
    #[command(alias = "disconnect")]
    Delete {
        /// Id of the endpoint, or a prefixed name.
        #[arg(value_parser = name)]
        id: String,
    },
}

/// A name as a part of a path.
fn name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/._-".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => Ok(text.replace('/', "%2F")),
        false => Err("no name of an endpoint".to_owned()),
    }
}

pub(crate) fn run(
    agent: &Client,
    command: &EndpointCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    match command {
        EndpointCommand::List => {
            let all: Vec<Endpoint> = agent.get("endpoint", &[])?;
            match format {
                Format::Text => Ok(list(&all)),
                _ => Ok(print::document(&all, format)?),
            }
        }
        EndpointCommand::Get { id } => {
            let found: Endpoint = agent.get(&format!("endpoint/{id}"), &[])?;
            Ok(print::document(&[found], format)?)
        }
        EndpointCommand::Health { id } => {
            let health: EndpointHealth = agent.get(&format!("endpoint/{id}/healthz"), &[])?;
            match format {
                Format::Text => Ok(health_text(&health)),
                _ => Ok(print::document(&health, format)?),
            }
        }
        EndpointCommand::Delete { id } => {
            let left = agent.delete(&format!("endpoint/{id}"))?;
            match left.trim() {
                "" => Ok(format!("Endpoint {} deleted\n", id.replace("%2F", "/"))),
                count => Err(format!("{count} endpoints were not deleted: see the agent's log").into()),
            }
        }
    }
}

fn health_text(health: &EndpointHealth) -> String {
    format!(
        "Overall Health:   {}\nBPF Health:       {}\nPolicy Health:    {}\nConnected:        {}\n",
        health.overall_health,
        health.bpf,
        health.policy,
        if health.connected { "yes" } else { "no" },
    )
}

/// Endpoints in columns, sorted by id; a line for each label.
fn list(all: &[Endpoint]) -> String {
    let mut all: Vec<&Endpoint> = all.iter().collect();
    all.sort_by_key(|endpoint| endpoint.id);
    let mut table = print::Table::new([
        "ENDPOINT",
        "POLICY (ingress)",
        "POLICY (egress)",
        "IDENTITY",
        "LABELS (source:key[=value])",
        "IPv6",
        "IPv4",
        "STATUS",
    ]);
    table.row(["", "ENFORCEMENT", "ENFORCEMENT", "", "", "", "", ""]);
    for endpoint in all {
        let status = &endpoint.status;
        let enforced = |direction| {
            let enabled = status.policy.realized.policy_enabled.as_str();
            if enabled == direction || enabled == "both" {
                "Enabled"
            } else {
                "Disabled"
            }
        };
        let address = status.networking.addressing.first().cloned().unwrap_or_default();
        let identity = status
            .identity
            .as_ref()
            .map_or_else(|| "<no label id>".to_owned(), |identity| identity.id.to_string());
        let labels = &status.labels.security_relevant;
        let first = labels.first().map_or("no labels", String::as_str);
        let id = endpoint.id.to_string();
        table.row([
            &*id,
            enforced("ingress"),
            enforced("egress"),
            &identity,
            first,
            &address.ipv6,
            &address.ipv4,
            &status.state,
        ]);
        for label in labels.iter().skip(1) {
            table.row(["", "", "", "", label, "", "", ""]);
        }
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn endpoints() -> Vec<Endpoint> {
        from_value(json!([
            {"id": 2191, "status": {
                "state": "ready", "identity": {"id": 52_310},
                "labels": {"security-relevant": ["k8s:app=cart", "k8s:io.kubernetes.pod.namespace=shop"]},
                "networking": {"addressing": [{"ipv4": "10.0.1.23"}]},
                "policy": {"realized": {"policy-enabled": "ingress"}}}},
            {"id": 417, "status": {
                "state": "waiting-for-identity", "networking": {"addressing": [{"ipv6": "fd00::5", "ipv4": "10.0.1.5"}]}}},
        ]))
        .unwrap()
    }

    #[test]
    fn lists_by_id_with_a_line_for_each_label() {
        let text = list(&endpoints());
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();

        assert_eq!(
            lines,
            [
                "ENDPOINT   POLICY (ingress)   POLICY (egress)   IDENTITY        LABELS (source:key[=value])            IPv6      IPv4        STATUS",
                "           ENFORCEMENT        ENFORCEMENT",
                "417        Disabled           Disabled          <no label id>   no labels                              fd00::5   10.0.1.5    waiting-for-identity",
                "2191       Enabled            Disabled          52310           k8s:app=cart                                     10.0.1.23   ready",
                "                                                                k8s:io.kubernetes.pod.namespace=shop",
            ]
        );
    }

    #[test]
    fn names_become_a_part_of_a_path() {
        assert_eq!(name("pod-name:shop/cart-0").unwrap(), "pod-name:shop%2Fcart-0");
        assert_eq!(name("ipv6:fd00::5").unwrap(), "ipv6:fd00::5");
        assert!(name("1?x").is_err());
        assert!(name("").is_err());
    }

    #[test]
    fn health_has_a_line_for_each_part() {
        let health = EndpointHealth {
            bpf: "OK".into(),
            policy: "OK".into(),
            connected: true,
            overall_health: "OK".into(),
        };

        assert_eq!(
            health_text(&health),
            "Overall Health:   OK\nBPF Health:       OK\nPolicy Health:    OK\nConnected:        yes\n"
        );
    }
}
