// SPDX-License-Identifier: Apache-2.0

//! `skep fqdn`: names that endpoints looked up, from the agent's API.

use std::error::Error;

use clap::Subcommand;
use serde_json::Value;
use skep_base_api_client::Client;

use crate::{
    agent,
    failure::{Failure, fatal},
    print::{self, Format},
};

/// Commands of `skep fqdn`.
#[derive(Debug, Subcommand)]
pub(crate) enum FqdnCommand {
    /// The names that endpoints looked up.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show the names that policies select.
    Names,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List names with their addresses.
    #[command(alias = "ls")]
    List {
        /// Id of an endpoint.
        #[arg(short, long, default_value = "")]
        endpoint: String,
        /// Filter by a pattern of names.
        #[arg(short = 'p', long, default_value = "")]
        matchpattern: String,
        /// Filter by source: lookup or connection.
        #[arg(short, long, default_value = "")]
        source: String,
    },
    /// Delete names.
    Clean {
        /// Do not ask.
        #[arg(short, long)]
        force: bool,
        /// Filter by a pattern of names.
        #[arg(short = 'p', long, default_value = "")]
        matchpattern: String,
    },
}

pub(crate) fn run(agent: &Client, command: &FqdnCommand, format: Format) -> Result<String, Box<dyn Error>> {
    let failed = |error| fatal(format!("Error: {error}\n"));
    match command {
        FqdnCommand::Names => {
            let found: Value = agent::get(agent, &agent::GET_NAME_SELECTORS, "").map_err(failed)?;
            let format = match format {
                Format::Text => Format::Json,
                format => format,
            };
            Ok(print::api(&found, "?", format))
        }
        FqdnCommand::Cache(CacheCommand::List {
            endpoint,
            matchpattern,
            source,
        }) => {
            let found = names(agent, endpoint, matchpattern, source)?;
            Ok(match format {
                Format::Text => list(&found),
                _ => print::api(&found, "[DNSLookup]", format),
            })
        }
        FqdnCommand::Cache(CacheCommand::Clean { force, matchpattern }) => {
            if !force {
                let found = names(agent, "", matchpattern, "")?;
                let question = format!(
                    "Following cache entries are going to be deleted:\n{}Do you want to continue (y/N): ",
                    list(&found)
                );
                if !print::confirmed(&question)? {
                    return Ok(String::new());
                }
            }
            agent::delete(agent, &agent::DELETE_NAMES, "", &[("matchpattern", matchpattern)])
                .map_err(failed)?;
            Ok("FQDN proxy cache cleared\n".to_owned())
        }
    }
}

fn names(agent: &Client, endpoint: &str, pattern: &str, source: &str) -> Result<Value, Failure> {
    let query = [("matchpattern", pattern), ("source", source)];
    let found = match endpoint {
        "" => agent::query(agent, &agent::LIST_NAMES, "", &query),
        endpoint => agent::query(agent, &agent::LIST_ENDPOINT_NAMES, endpoint, &query),
    };
    match found {
        Err(error) if error.status() == Some(404) => Ok(Value::Array(Vec::new())),
        found => found.map_err(|error| fatal(format!("Error: {error}\n"))),
    }
}

fn list(all: &Value) -> String {
    let mut table = print::Table::default();
    table.padded(["Endpoint", "Source", "FQDN", "TTL", "ExpirationTime", "IPs"]);
    for name in all.as_array().into_iter().flatten() {
        let text = |field| name[field].as_str().unwrap_or_default();
        let number = |field| name[field].as_i64().unwrap_or_default().to_string();
        table.padded([
            &*number("endpoint-id"),
            text("source"),
            text("fqdn"),
            &number("ttl"),
            text("expiration-time"),
            &agent::texts(&name["ips"]).join(","),
        ]);
    }
    table.finish()
}
