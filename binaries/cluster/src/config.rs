// SPDX-License-Identifier: Apache-2.0

//! `config`: ConfigMap `cilium-config`.

use std::error::Error;

use clap::{ArgAction, Args, Subcommand};
use serde_json::{Value, json};

use crate::{access::Access, failure, install};

/// `config`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print all settings.
    View,
    /// Change a setting, and restart agents and operators.
    Set {
        /// Name.
        key: String,
        /// Value.
        value: String,
        #[command(flatten)]
        restart: Restart,
    },
    /// Remove a setting, and restart agents and operators.
    Delete {
        /// Name.
        key: String,
        #[command(flatten)]
        restart: Restart,
    },
}

/// Whether pods are restarted.
#[derive(Debug, Clone, Args)]
pub(crate) struct Restart {
    /// Restart agents and operators.
    #[arg(short, long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
        action = ArgAction::Set)]
    restart: bool,
}

/// Runs `config`.
pub(crate) async fn run(access: &Access, command: &ConfigCommand) -> Result<(), Box<dyn Error>> {
    let (key, value, restart) = match command {
        ConfigCommand::View => {
            let settings = access.settings().await?;
            let Some(data) = settings.0["data"].as_object() else {
                return Err(missing(access));
            };
            let width = data.keys().map(String::len).max().unwrap_or_default() + 4;
            let mut lines: Vec<String> = data
                .iter()
                .map(|(key, value)| format!("{key:width$}{}", value.as_str().unwrap_or_default()))
                .collect();
            lines.sort();
            println!("{}", lines.join("\n"));
            return Ok(());
        }
        ConfigCommand::Set { key, value, restart } => (key, json!(value), restart.restart),
        ConfigCommand::Delete { key, restart } => (key, Value::Null, restart.restart),
    };
    if access.settings().await?.0.is_null() {
        return Err(missing(access));
    }
    match &value {
        Value::Null => println!("✨ Removing {key} from ConfigMap cilium-config..."),
        value => println!(
            "✨ Patching ConfigMap cilium-config with {key}={}...",
            value.as_str().unwrap_or_default()
        ),
    }
    let path = access.core("configmaps/cilium-config");
    access.merge(&path, &json!({ "data": { key: value } })).await?;
    if restart {
        install::restart(access).await?;
    }
    Ok(())
}

fn missing(access: &Access) -> Box<dyn Error> {
    failure(format!(
        "Unable to find ConfigMap cilium-config in namespace {}: is Skep installed there?",
        access.namespace()
    ))
}
