// SPDX-License-Identifier: Apache-2.0

//! `skep config`: the agent's configuration, and changes of what can change while it runs.

use std::error::Error;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use skep_base_api_client::Client;

use crate::{
    agent,
    failure::{Failure, fatal, usage},
    options::{self, OptionError},
    print::{self, Format},
};

const POLICY: &str = "PolicyEnforcement";
const PAGES: &str = "MonitorNumPages";

/// `skep config`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ConfigOptions {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
    /// Changes, `option=value` each.
    changes: Vec<String>,
    /// Show read-only and read-write settings.
    #[arg(short, long)]
    all: bool,
    /// Show read-only settings.
    #[arg(short, long)]
    read_only: bool,
    /// List the options that can be changed.
    #[arg(long)]
    list_options: bool,
    /// Number of pages of the monitor's ring buffer.
    #[arg(short, long, value_name = "PAGES")]
    num_pages: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show the value of one setting.
    Get {
        /// Name of the setting.
        name: Option<String>,
    },
}

pub(crate) fn run(agent: &Client, command: &ConfigOptions, format: Format) -> Result<String, Box<dyn Error>> {
    if command.list_options {
        return Ok(options::DAEMON.list());
    }
    let name = match &command.command {
        Some(ConfigCommand::Get { name: None }) => {
            return Err(usage("config get", "Missing config name argument").into());
        }
        Some(ConfigCommand::Get { name }) => name.as_deref(),
        None => None,
    };
    let config = Configuration::read(agent)?;
    if let Some(name) = name {
        let value = config.find(name);
        let value = value.ok_or_else(|| fatal("Configuration does not exist"))?;
        return Ok(match format {
            Format::Text => format!("{}\n", text(&value)),
            _ => print::value(&value, format),
        });
    }
    if !command.changes.is_empty() || command.num_pages.is_some() {
        config.change(agent, &command.changes, command.num_pages)?;
        return Ok(String::new());
    }
    let (read_only, read_write) = (
        command.read_only || command.all,
        !command.read_only || command.all,
    );
    if format != Format::Text {
        let mut shown = Map::new();
        if read_only {
            shown.extend(config.read_only.clone());
        }
        if read_write {
            shown.extend(config.options.clone());
        }
        return Ok(print::api(&Value::Object(shown), "{?}", format));
    }
    let mut out = String::new();
    if read_only {
        out.push_str(&config.read_only_text());
    }
    if read_write {
        out.push_str(&config.read_write_text());
    }
    Ok(out)
}

/// `GET /v1/config`, as commands show it.
struct Configuration {
    /// Settings by the names of the agent.
    read_only: Map<String, Value>,
    kubernetes: Value,
    immutable: Value,
    options: Map<String, Value>,
    enforcement: Value,
    pages: Value,
}

impl Configuration {
    fn read(agent: &Client) -> Result<Self, Failure> {
        let mut answer: Value = agent::get(agent, &agent::GET_CONFIG, "")
            .map_err(|error| fatal(format!("Cannot get agent configuration: {error}")))?;
        let [mut status, mut spec] = ["status", "spec"].map(|part| answer[part].take());
        let mut realized = status["realized"].take();
        if realized.is_null() {
            realized = spec.take();
        }
        let object = |value: Value| match value {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        Ok(Self {
            read_only: object(status["daemonConfigurationMap"].take()),
            kubernetes: status["k8s-configuration"].take(),
            immutable: status["immutable"].take(),
            options: object(realized["options"].take()),
            enforcement: realized["policy-enforcement"].take(),
            pages: status["nodeMonitor"]["npages"].take(),
        })
    }

    /// The value of a setting: case and hyphens of its name do not count.
    fn find(&self, name: &str) -> Option<Value> {
        let plain = |name: &str| name.replace('-', "").to_lowercase();
        let wanted = plain(name);
        let within = |members: &Map<String, Value>| {
            let found = members.iter().find(|(name, _)| plain(name) == wanted);
            found.map(|(_, value)| value.clone())
        };
        let nested = || {
            let maps = self.read_only.values().filter_map(Value::as_object);
            maps.into_iter().find_map(within)
        };
        match wanted.as_str() {
            "policyenforcement" if !self.enforcement.is_null() => Some(self.enforcement.clone()),
            "monitornumpages" if !self.pages.is_null() => Some(self.pages.clone()),
            _ => within(&self.options)
                .or_else(|| within(&self.read_only))
                .or_else(nested),
        }
    }

    fn read_only_text(&self) -> String {
        let mut out = "#### Read-only configurations ####\n".to_owned();
        let mut settings: Vec<(&String, &Value)> = self.read_only.iter().collect();
        settings.sort_by_key(|(name, _)| *name);
        for (name, value) in settings {
            let Value::Object(members) = value else {
                out.push_str(&format!("{name:<34}: {}\n", text(value)));
                continue;
            };
            out.push_str(&format!("{name}\n"));
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            for (name, value) in members {
                let value = text(value);
                let value = match options::boolean(&value) {
                    Some(true) => "Enabled",
                    Some(false) => "Disabled",
                    None => &value,
                };
                out.push_str(&format!("\t{name:<26}: {value}\n"));
            }
        }
        if !self.kubernetes.is_null() {
            let kubernetes = text(&self.kubernetes);
            out.push_str(&format!("{:<34}: {kubernetes}\n", "k8s-configuration"));
        }
        out + &options::values(&self.immutable)
    }

    fn read_write_text(&self) -> String {
        let mut out = "##### Read-write configurations #####\n".to_owned();
        out.push_str(&options::values(&Value::Object(self.options.clone())));
        for (name, value) in [(PAGES, &self.pages), (POLICY, &self.enforcement)] {
            if !value.is_null() {
                out.push_str(&format!("{name:<34}: {}\n", text(value)));
            }
        }
        out
    }

    fn change(&self, agent: &Client, changes: &[String], pages: Option<u64>) -> Result<(), Failure> {
        let mut wanted = self.options.clone();
        let mut body = json!({});
        for change in changes {
            match change.split_once('=') {
                Some((name, value)) if name.eq_ignore_ascii_case(POLICY) => {
                    body["policy-enforcement"] = value.into();
                    continue;
                }
                _ => {}
            }
            let (name, value) = options::DAEMON.parse(change).map_err(|error| match error {
                OptionError::Format => fatal("Improper configuration format provided"),
                error => Failure::Printed(error.to_string()),
            })?;
            wanted.insert(name.to_owned(), value.into());
        }
        if let Some(pages) = pages.filter(|pages| self.pages != *pages) {
            wanted.insert(PAGES.to_owned(), pages.to_string().into());
        }
        body["options"] = Value::Object(wanted);
        agent::patch(agent, &agent::PATCH_CONFIG, "", &body)
            .map_err(|error| fatal(format!("Unable to change agent configuration: {error}\n")))
    }
}

/// A value as Go prints it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(text).collect();
            format!("[{}]", all.join(" "))
        }
        Value::Object(members) => {
            let mut members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{name}:{}", text(value)))
                .collect();
            members.sort();
            format!("map[{}]", members.join(" "))
        }
        value => value.to_string(),
    }
}
