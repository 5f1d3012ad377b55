// SPDX-License-Identifier: Apache-2.0

//! `skep encrypt`: the encryption between nodes.

use std::error::Error;

use clap::Subcommand;
use serde_json::Value;
use skep_base_api_client::Client;

use crate::{
    agent,
    failure::fatal,
    print::{self, Format},
};

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum EncryptCommand {
    /// Show the state of the encryption.
    Status,
    /// List the states of IPsec.
    DumpXfrm,
    /// Delete the states of IPsec.
    Flush,
}

pub(crate) fn run(agent: &Client, command: EncryptCommand, format: Format) -> Result<String, Box<dyn Error>> {
    match command {
        EncryptCommand::Status => encryption(agent, format),
        // This agent has no IPsec.
        EncryptCommand::DumpXfrm => Ok("null\n".to_owned()),
        EncryptCommand::Flush => {
            Err(fatal("no IPsec states: the agent encrypts by WireGuard or not at all").into())
        }
    }
}

fn encryption(agent: &Client, format: Format) -> Result<String, Box<dyn Error>> {
    let answer: Value = agent::get(agent, &agent::GET_HEALTH, "")
        .map_err(|error| fatal(format!("Cannot get daemon encryption status: {error}")))?;
    let found = &answer["encryption"];
    if format != Format::Text {
        return Ok(print::api(found, "?", format));
    }
    let mode = found["mode"].as_str().unwrap_or("Disabled");
    let mut out = format!("Encryption: {mode:<26}\n");
    for interface in found["wireguard"]["interfaces"].as_array().into_iter().flatten() {
        let text = |name: &str| interface[name].as_str().unwrap_or_default();
        out.push_str(&format!(
            "Interface: {}\n\tPublic key: {}\n\tNumber of peers: {}\n",
            text("name"),
            text("public-key"),
            interface["peer-count"].as_u64().unwrap_or_default()
        ));
    }
    Ok(out)
}
