// SPDX-License-Identifier: Apache-2.0

//! `skep identity`: security identities from the agent's API.

use std::error::Error;

use clap::Subcommand;
use skep_base_api_client::Client;
use skep_base_api_types::{Identity, IdentityEndpoints};

use crate::print::{self, Format};

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
    Get {
        /// Id of the identity.
        #[arg(required_unless_present = "label", conflicts_with = "label")]
        id: Option<u32>,
        /// Label of the identity, `source:key=value`; repeat for all labels.
        #[arg(long)]
        label: Vec<String>,
    },
}

/// Runs a command.
pub(crate) fn run(
    agent: &Client,
    command: &IdentityCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let identities: Vec<Identity> = match command {
        IdentityCommand::List { endpoints: true, .. } => {
            let all: Vec<IdentityEndpoints> = agent.get("identity/endpoints", &[])?;
            return match format {
                Format::Text => Ok(with_endpoints(&all)),
                _ => Ok(print::document(&all, format)?),
            };
        }
        IdentityCommand::List { labels, .. } if labels.is_empty() => agent.get("identity", &[])?,
        IdentityCommand::List { labels, .. } => agent.find("identity", labels)?,
        IdentityCommand::Get { id: Some(id), .. } => vec![agent.get(&format!("identity/{id}"), &[])?],
        IdentityCommand::Get { id: None, label } => agent.find("identity", label)?,
    };
    match format {
        Format::Text => Ok(list(&identities)),
        _ => Ok(print::document(&identities, format)?),
    }
}

/// Labels in a column; there is a line for an identity without any.
fn lines(labels: &[String]) -> impl Iterator<Item = &str> {
    let first = labels.first().map(String::as_str).unwrap_or_default();
    std::iter::once(first).chain(labels.iter().skip(1).map(String::as_str))
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
        let (mut id, mut count) = (identity.id.to_string(), ref_count.to_string());
        for label in lines(&identity.labels) {
            table.row([&*id, label, &*count]);
            id.clear();
            count.clear();
        }
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn trimmed(text: &str) -> Vec<&str> {
        text.lines().map(str::trim_end).collect()
    }

    #[test]
    fn identities_are_listed_by_number_with_a_line_for_each_label() {
        let identities: Vec<Identity> = from_value(json!([
            {"id": 52310, "labels": ["k8s:app=cart", "k8s:io.kubernetes.pod.namespace=shop"]},
            {"id": 1, "labels": ["reserved:host"]},
            {"id": 300, "labels": []},
        ]))
        .unwrap();

        assert_eq!(
            trimmed(&list(&identities)),
            [
                "ID      LABELS",
                "1       reserved:host",
                "300",
                "52310   k8s:app=cart",
                "        k8s:io.kubernetes.pod.namespace=shop",
            ]
        );
    }

    #[test]
    fn identities_of_endpoints_are_listed_with_how_many_have_them() {
        let all: Vec<IdentityEndpoints> = from_value(json!([
            {"identity": {"id": 52310, "labels": ["k8s:app=cart", "k8s:tier"]}, "refCount": 12},
            {"identity": {"id": 5, "labels": ["reserved:init"]}, "refCount": 1},
        ]))
        .unwrap();

        assert_eq!(
            trimmed(&with_endpoints(&all)),
            [
                "ID      LABELS          REFCOUNT",
                "5       reserved:init   1",
                "52310   k8s:app=cart    12",
                "        k8s:tier",
            ]
        );
    }
}
