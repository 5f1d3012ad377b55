// SPDX-License-Identifier: Apache-2.0

//! `skep prefilter`: networks whose packets XDP drops. The agent has no such list, and answers that it is disabled.

use std::error::Error;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use skep_base_api_client::Client;

use crate::{
    agent::{self, ApiError},
    failure::fatal,
    print::{self, Format},
};

#[derive(Debug, Subcommand)]
pub(crate) enum PrefilterCommand {
    /// List all networks.
    #[command(alias = "ls")]
    List,
    /// Add networks.
    Update(Networks),
    /// Delete networks.
    Delete(Networks),
}

#[derive(Debug, Args)]
pub(crate) struct Networks {
    /// Networks, comma-separated.
    #[arg(long, value_delimiter = ',')]
    cidr: Vec<String>,
    /// Revision of the list that is changed; default: any.
    #[arg(long, default_value_t = 0)]
    revision: i64,
}

pub(crate) fn run(
    agent: &Client,
    command: &PrefilterCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let failed = |error: ApiError| fatal(format!("Cannot {} CIDR list: {error}", command.action()));
    match command {
        PrefilterCommand::List => {
            let found: Value = agent::get(agent, &agent::GET_PREFILTER, "").map_err(failed)?;
            return Ok(print::value(&found, format));
        }
        PrefilterCommand::Update(networks) => {
            let body = json!({"revision": networks.revision, "deny": networks.cidr});
            agent::patch(agent, &agent::PATCH_PREFILTER, "", &body).map_err(failed)?;
        }
        // The agent does not look at them.
        PrefilterCommand::Delete(_) => {
            agent::delete(agent, &agent::DELETE_PREFILTER, "", &[]).map_err(failed)?;
        }
    }
    Ok(String::new())
}

impl PrefilterCommand {
    fn action(&self) -> &'static str {
        match self {
            Self::List => "get",
            Self::Update(_) => "update",
            Self::Delete(_) => "delete",
        }
    }
}
