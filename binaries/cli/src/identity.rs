// SPDX-License-Identifier: Apache-2.0

//! `skep identity`: security identities from the agent's API.

use std::error::Error;

use clap::Subcommand;
use serde_json::Value;
use skep_base_api_client::Client;
use skep_base_api_types::{Identity, IdentityEndpoints};

use crate::{
    agent,
    failure::{fatal, usage},
    print::{self, Format},
};

/// Commands of `skep identity`.
#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// List all identities.
    #[command(alias = "ls")]
    List {
        /// Show only identities of local endpoints, with reference counts.
        #[arg(long, conflicts_with = "labels")]
        endpoints: bool,
        /// Filter by labels, `source:key=value` each: exact match.
        labels: Vec<String>,
    },
    /// Show one identity, by id or labels.
    #[command(aliases = ["inspect", "show"])]
    Get {
        /// Id of the identity.
        #[arg(conflicts_with = "label")]
        id: Option<String>,
        /// Label of the identity, `source:key=value`; repeat for all labels.
        #[arg(long, value_delimiter = ',')]
        label: Vec<String>,
    },
}

/// Runs a command.
pub(crate) fn run(
    agent: &Client,
    command: &IdentityCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let found: Value = match command {
        IdentityCommand::List { endpoints: true, .. } => {
            let all: Value = agent::get(agent, &agent::LIST_IDENTITY_ENDPOINTS, "")
                .map_err(|error| fatal(format!("Cannot get identity for endpoints: {error}\n")))?;
            return Ok(match format {
                Format::Text => with_endpoints(&serde_json::from_value::<Vec<_>>(all)?),
                _ => print::api(&all, "[IdentityEndpoints]", format),
            });
        }
        IdentityCommand::List { labels, .. } => {
            let found = match labels.as_slice() {
                [] => agent::get(agent, &agent::LIST_IDENTITIES, ""),
                labels => agent::find(agent, &agent::LIST_IDENTITIES, &labels),
            };
            found.map_err(|error| {
                let labels = labels.join(" ");
                fatal(format!(
                    "Cannot get identities for given labels [{labels}]. err: {error}\n"
                ))
            })?
        }
        IdentityCommand::Get { id: Some(id), .. } if !id.is_empty() => {
            let found: Value = agent::get(agent, &agent::GET_IDENTITY, id)
                .map_err(|error| fatal(format!("Cannot get identity for given ID {id}: {error}\n")))?;
            Value::Array(vec![found])
        }
        IdentityCommand::Get { label, .. } if label.is_empty() => {
            return Err(usage("identity get", "Invalid identity ID").into());
        }
        IdentityCommand::Get { label, .. } => {
            agent::find(agent, &agent::LIST_IDENTITIES, &label).map_err(|error| {
                let labels = label.join(" ");
                fatal(format!("Cannot get identity for labels [{labels}]: {error}\n"))
            })?
        }
    };
    Ok(match format {
        Format::Text => list(&serde_json::from_value::<Vec<_>>(found)?),
        _ => print::api(&found, "[Identity]", format),
    })
}

/// Labels in a column, sorted; there is a line for an identity without any.
fn lines(labels: &[String]) -> Vec<&str> {
    let mut lines: Vec<&str> = labels.iter().map(String::as_str).collect();
    lines.sort_unstable();
    if lines.is_empty() {
        lines.push("");
    }
    lines
}

/// Identities in columns, sorted by number; a line for each label.
fn list(identities: &[Identity]) -> String {
    let mut identities: Vec<&Identity> = identities.iter().collect();
    identities.sort_by_key(|identity| identity.id);
    let mut table = print::Table::new(["ID", "LABELS"]);
    for identity in identities {
        let mut id = identity.id.to_string();
        for label in lines(&identity.labels) {
            table.row([&*id, label]);
            id.clear();
        }
    }
    table.finish()
}

/// As [`list`], with the number of endpoints.
fn with_endpoints(all: &[IdentityEndpoints]) -> String {
    let mut all: Vec<&IdentityEndpoints> = all.iter().collect();
    all.sort_by_key(|counted| counted.identity.id);
    let mut table = print::Table::new(["ID", "LABELS", "REFCOUNT"]);
    for IdentityEndpoints { identity, ref_count } in all {
        let (mut id, count) = (identity.id.to_string(), ref_count.to_string());
        for label in lines(&identity.labels) {
            match id.as_str() {
                "" => table.row(["", label, ""]),
                id => table.padded([id, label, &*count]),
            }
            id.clear();
        }
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn identities_are_listed_by_number_with_a_line_for_each_label() {
        let identities: Vec<Identity> = from_value(json!([
            {"id": 52310, "labels": ["k8s:io.kubernetes.pod.namespace=shop", "k8s:app=cart"]},
            {"id": 1, "labels": ["reserved:host"]},
            {"id": 300, "labels": []},
        ]))
        .unwrap();

        assert_eq!(
            list(&identities),
            "ID      LABELS\n\
             1       reserved:host\n\
             300     \n\
             52310   k8s:app=cart\n        k8s:io.kubernetes.pod.namespace=shop\n"
        );
    }
}
