// SPDX-License-Identifier: Apache-2.0

//! `skep endpoint`: endpoints from the agent's API.

use std::error::Error;

use clap::Subcommand;
use serde_json::{Value, json};
use skep_base_api_client::Client;
use skep_identity::Reserved;

use crate::{
    agent::{self, texts},
    failure::{Failure, fatal, usage},
    options,
    print::{self, Format},
};

/// Commands of `skep endpoint`. An endpoint is named by its id, or as `container-id:<id>`, `pod-name:<namespace>/<name>`,
/// `cep-name:<namespace>/<name>`, `cni-attachment-id:<container>:<interface>`, `ipv4:<address>`, `ipv6:<address>`.
#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// List all endpoints.
    #[command(alias = "ls")]
    List {
        /// Omit the header.
        #[arg(long)]
        no_headers: bool,
    },
    /// Show endpoints, by id or labels.
    #[command(aliases = ["inspect", "show"])]
    Get {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
        /// Labels, `source:key=value` each, comma-separated.
        #[arg(short, long, value_delimiter = ',')]
        labels: Vec<String>,
    },
    /// Show or change the options of an endpoint.
    Config {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
        /// Changes, `option=value` each.
        changes: Vec<String>,
        /// List the options that can be changed.
        #[arg(long)]
        list_options: bool,
    },
    /// Show the status log of an endpoint.
    Log {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
    },
    /// Show the health of an endpoint.
    Health {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
    },
    /// Show or change the labels of an endpoint.
    Labels {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
        /// Add labels, comma-separated.
        #[arg(short, long, value_delimiter = ',')]
        add: Vec<String>,
        /// Delete labels, comma-separated.
        #[arg(short, long, value_delimiter = ',')]
        delete: Vec<String>,
    },
    /// Delete an endpoint; its pod loses network connectivity.
    #[command(alias = "delete")]
    Disconnect {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
    },
    /// Regenerate an endpoint: its options are applied again.
    Regenerate {
        /// Id of the endpoint, or a prefixed name.
        id: Option<String>,
    },
}

const PREFIXES: [&str; 8] = [
    "cilium-local",
    "cilium-global",
    "cni-attachment-id",
    "container-id",
    "pod-name",
    "cep-name",
    "ipv4",
    "ipv6",
];

/// The id that names an endpoint.
fn checked<'a>(id: Option<&'a String>, command: &'static str) -> Result<&'a str, Failure> {
    let id = id.ok_or_else(|| usage(command, "Missing endpoint id argument"))?;
    let name = id.strip_prefix("reserved:").unwrap_or(id);
    let is_reserved = Reserved::ALL.iter().any(|reserved| reserved.name() == name);
    match id.split_once(':') {
        Some((prefix, _)) if !is_reserved && !PREFIXES.contains(&prefix) => Err(fatal(format!(
            "Cannot parse endpoint id {id:?}: unknown endpoint ID prefix {prefix:?}"
        ))),
        _ => Ok(id),
    }
}

pub(crate) fn run(
    agent: &Client,
    command: &EndpointCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    match command {
        EndpointCommand::List { no_headers } => {
            let mut all: Vec<Value> = agent::get(agent, &agent::LIST_ENDPOINTS, "")
                .map_err(|error| fatal(format!("cannot get endpoint list: {error}\n")))?;
            all.sort_by_key(|endpoint| endpoint["id"].as_u64());
            Ok(match format {
                Format::Text => list(&all, !no_headers),
                _ => print::api(&Value::Array(all), "[Endpoint]", format),
            })
        }
        EndpointCommand::Get { id, labels } => {
            let found = match (id, labels.as_slice()) {
                (Some(_), [_, ..]) => {
                    let text = "Cannot provide both endpoint ID and labels arguments concurrently";
                    return Err(usage("endpoint get", text).into());
                }
                (None, [_, ..]) => agent::find(agent, &agent::LIST_ENDPOINTS, labels).map_err(|error| {
                    let labels = labels.join(" ");
                    fatal(format!(
                        "Cannot get endpoints for given list of labels [{labels}]: {error}\n"
                    ))
                })?,
                (id, []) => {
                    let id = checked(id.as_ref(), "endpoint get")?;
                    let found: Value = agent::get(agent, &agent::GET_ENDPOINT, id)
                        .map_err(|error| fatal(format!("Cannot get endpoint {id}: {error}\n")))?;
                    Value::Array(vec![found])
                }
            };
            Ok(print::api(&found, "[Endpoint]", format))
        }
        EndpointCommand::Config {
            list_options: true, ..
        } => Ok(options::ENDPOINT.list()),
        EndpointCommand::Config { id, changes, .. } => {
            let id = checked(id.as_ref(), "endpoint config")?;
            config(agent, id, changes, format)
        }
        EndpointCommand::Log { id } => {
            let id = checked(id.as_ref(), "endpoint log")?;
            let log: Value = agent::get(agent, &agent::GET_ENDPOINT_LOG, id)
                .map_err(|error| fatal(format!("Cannot get endpoint log {id}: {error}\n")))?;
            Ok(match format {
                Format::Text => log_text(&log),
                _ => print::api(&log, "[EndpointStatusChange]", format),
            })
        }
        EndpointCommand::Health { id } => {
            let id = checked(id.as_ref(), "endpoint health")?;
            let health: Value = agent::get(agent, &agent::GET_ENDPOINT_HEALTH, id)
                .map_err(|error| fatal(format!("Cannot get endpoint healthz {id}: {error}\n")))?;
            Ok(match format {
                Format::Text => health_text(&health),
                _ => print::api(&health, "EndpointHealth", format),
            })
        }
        EndpointCommand::Labels { id, add, delete } => {
            let id = checked(id.as_ref(), "endpoint labels")?;
            labels(agent, id, add, delete, format)
        }
        EndpointCommand::Disconnect { id } => {
            let id = checked(id.as_ref(), "endpoint disconnect")?;
            agent::delete(agent, &agent::DELETE_ENDPOINT, id, &[])
                .map_err(|error| fatal(format!("Cannot disconnect endpoint {id}: {error}\n")))?;
            Ok(format!("Endpoint {id} successfully disconnected\n"))
        }
        EndpointCommand::Regenerate { id } => {
            let id = checked(id.as_ref(), "endpoint regenerate")?;
            let realized = realized(agent, id)?;
            let body = json!({ "options": realized["options"] });
            agent::patch(agent, &agent::PATCH_ENDPOINT_CONFIG, id, &body)
                .map_err(|error| fatal(format!("Cannot update endpoint {id}: {error}\n")))?;
            Ok(format!("Endpoint {id} regeneration triggered\n"))
        }
    }
}

fn configuration(agent: &Client, id: &str) -> Result<Value, Failure> {
    agent::get(agent, &agent::GET_ENDPOINT_CONFIG, id)
        .map_err(|error| fatal(format!("Cannot get configuration of endpoint {id}: {error}\n")))
}

fn realized(agent: &Client, id: &str) -> Result<Value, Failure> {
    let mut configuration = configuration(agent, id)?;
    Ok(configuration["realized"].take())
}

fn config(agent: &Client, id: &str, changes: &[String], format: Format) -> Result<String, Box<dyn Error>> {
    if changes.is_empty() {
        let found = configuration(agent, id)?;
        return Ok(match format {
            Format::Text => {
                let immutable = options::values(&found["immutable"]);
                immutable + &options::values(&found["realized"]["options"])
            }
            _ => print::api(&found, "EndpointConfigurationStatus", format),
        });
    }
    let mut wanted = realized(agent, id)?;
    if !wanted["options"].is_object() {
        wanted["options"] = json!({});
    }
    for change in changes {
        let (name, value) = options::ENDPOINT
            .parse(change)
            .map_err(|error| fatal(format!("Cannot parse option {change}: {error}")))?;
        wanted["options"][name] = value.into();
    }
    let body = json!({ "options": wanted["options"] });
    agent::patch(agent, &agent::PATCH_ENDPOINT_CONFIG, id, &body)
        .map_err(|error| fatal(format!("Cannot update endpoint {id}: {error}\n")))?;
    Ok(format!("Endpoint {id} configuration updated successfully\n"))
}

fn labels(
    agent: &Client,
    id: &str,
    add: &[String],
    delete: &[String],
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let current = || -> Result<Value, Failure> {
        agent::get(agent, &agent::GET_ENDPOINT_LABELS, id)
            .map_err(|error| fatal(format!("Cannot get endpoint labels: {error}")))
    };
    if !add.is_empty() || !delete.is_empty() {
        let mut user = texts(&current()?["spec"]["user"]);
        user.retain(|label| !delete.contains(label) && !add.contains(label));
        user.extend(add.iter().filter(|label| !delete.contains(label)).cloned());
        agent::patch(agent, &agent::PATCH_ENDPOINT_LABELS, id, &json!({ "user": user }))
            .map_err(|error| fatal(format!("Cannot modifying labels {error}")))?;
    }
    let found = current()?;
    if format != Format::Text {
        return Ok(print::api(&found, "LabelConfiguration", format));
    }
    let mut table = print::Table::default();
    for (list, state) in [("security-relevant", "Enabled"), ("disabled", "Disabled")] {
        let mut labels = texts(&found["status"][list]);
        labels.sort();
        for label in labels {
            table.row([&*label, state]);
        }
    }
    Ok(table.finish())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn log_text(log: &Value) -> String {
    let mut table = print::Table::new(["Timestamp", "Status", "State", "Message"]);
    for entry in log.as_array().into_iter().flatten() {
        let cell = |name| text(&entry[name]);
        table.row([cell("timestamp"), cell("code"), cell("state"), cell("message")]);
    }
    table.finish()
}

fn health_text(health: &Value) -> String {
    format!(
        "Overall Health:   {}\nBPF Health:       {}\nPolicy Health:    {}\nConnected:        {}\n",
        text(&health["overallHealth"]),
        text(&health["bpf"]),
        text(&health["policy"]),
        if health["connected"] == true { "yes" } else { "no" },
    )
}

/// How a policy is enforced in a direction.
fn enforcement(policy: &Value, direction: &str) -> &'static str {
    match policy["realized"]["policy-enabled"].as_str() {
        None => "Unknown",
        Some("both") => "Enabled",
        Some("audit-both") => "Disabled (Audit)",
        Some(enabled) => match enabled.strip_prefix("audit-") {
            Some(audited) if audited == direction => "Disabled (Audit)",
            None if enabled == direction => "Enabled",
            _ => "Disabled",
        },
    }
}

/// The address of a family.
fn address<'a>(networking: &'a Value, family: &str) -> &'a str {
    match networking["addressing"].as_array().map(Vec::as_slice) {
        None if networking.is_null() => "Unknown",
        None | Some([]) => "No address",
        Some([first, ..]) => text(&first[family]),
    }
}

/// Endpoints in columns; a line for each label.
fn list(all: &[Value], has_titles: bool) -> String {
    let mut table = print::Table::default();
    if has_titles {
        table.padded([
            "ENDPOINT",
            "POLICY (ingress)",
            "POLICY (egress)",
            "IDENTITY",
            "LABELS (source:key[=value])",
            "IPv6",
            "IPv4",
            "STATUS",
        ]);
        table.padded(["", "ENFORCEMENT", "ENFORCEMENT", "", "", "", ""]);
    }
    for endpoint in all {
        let status = &endpoint["status"];
        let identity = status["identity"]["id"].as_u64();
        let identity = identity.map_or_else(|| "<no label id>".to_owned(), |id| id.to_string());
        let mut labels = texts(&status["labels"]["security-relevant"]);
        labels.sort();
        let first = labels.first().map_or("no labels", String::as_str);
        let id = endpoint["id"].as_u64().unwrap_or_default().to_string();
        table.padded([
            &*id,
            enforcement(&status["policy"], "ingress"),
            enforcement(&status["policy"], "egress"),
            &identity,
            first,
            address(&status["networking"], "ipv6"),
            address(&status["networking"], "ipv4"),
            status["state"].as_str().unwrap_or("Unknown"),
        ]);
        for label in labels.iter().skip(1) {
            table.padded(["", "", "", "", label, "", "", ""]);
        }
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_endpoint_lacks_is_named() {
        let all = [
            json!({"id": 417, "status": {"networking": {"addressing": []}}}),
            json!({"id": 7, "status": {"state": "ready", "policy": {"realized": {"policy-enabled": "audit-ingress"}}}}),
        ];

        let text = list(&all, false);

        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| {
                line.split("   ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            rows,
            [
                [
                    "417",
                    "Unknown",
                    "Unknown",
                    "<no label id>",
                    "no labels",
                    "No address",
                    "No address",
                    "Unknown"
                ],
                [
                    "7",
                    "Disabled (Audit)",
                    "Disabled",
                    "<no label id>",
                    "no labels",
                    "Unknown",
                    "Unknown",
                    "ready"
                ],
            ]
        );
    }

    #[test]
    fn prefixes_of_names_are_checked() {
        let check = |id: &str| checked(Some(&id.to_owned()), "endpoint get").map(str::to_owned);
        for id in [
            "7",
            "abc",
            "pod-name:shop/cart-0",
            "ipv6:fd00::5",
            "reserved:host",
        ] {
            assert_eq!(check(id).unwrap(), id);
        }
        assert_eq!(
            check("container-name:x").unwrap_err().to_string(),
            "Cannot parse endpoint id \"container-name:x\": unknown endpoint ID prefix \"container-name\""
        );
    }
}
