// SPDX-License-Identifier: Apache-2.0

//! `skep policy`: policies from the agent's API.

use std::{
    collections::BTreeMap,
    error::Error,
    io::Write as _,
    time::{Duration, Instant},
};

use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;
use skep_base_api_client::Client;

use crate::{
    agent,
    failure::{fatal, usage},
    print::{self, Format},
};

mod explain;
mod files;

/// Commands of `skep policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the policies of the agent with their numbers of rules.
    #[command(alias = "ls")]
    List,
    /// Validate the policies of files. Needs no agent.
    Validate(files::FileOptions),
    /// Compare the policies of files with those of the agent. Fails if they differ.
    Diff(files::FileOptions),
    /// Explain which rules decide about a packet.
    Explain(explain::ExplainOptions),
    /// Show the policy rules of the agent.
    Get {
        /// Ignored: all rules are shown.
        #[arg(hide = true)]
        labels: Vec<String>,
    },
    /// List the selectors of policies with their identities.
    Selectors {
        /// Show all labels of the policies.
        #[arg(short, long)]
        verbose: bool,
    },
    /// List the selectors of the subjects of policies.
    SubjectSelectors {
        /// Show all labels of the policies.
        #[arg(short, long)]
        verbose: bool,
    },
    /// Wait until all endpoints have a revision of the policy.
    Wait {
        /// Revision.
        revision: Option<String>,
        /// Seconds to wait for all endpoints.
        #[arg(long, default_value_t = 360)]
        max_wait_time: u64,
        /// Seconds to wait for endpoints whose regeneration fails.
        #[arg(long, default_value_t = 60)]
        fail_wait_time: u64,
        /// Seconds between two looks.
        #[arg(long, default_value_t = 1)]
        sleep_time: u64,
    },
}

pub(crate) fn run(agent: &Client, command: &PolicyCommand, format: Format) -> Result<String, Box<dyn Error>> {
    match command {
        PolicyCommand::List => list(agent, format),
        PolicyCommand::Validate(options) => files::validate(options, format),
        PolicyCommand::Diff(options) => files::diff(agent, options),
        PolicyCommand::Explain(options) => explain::run(agent, options, format),
        PolicyCommand::Get { .. } => {
            let found: Value = agent::get(agent, &agent::GET_POLICY, "")
                .map_err(|error| fatal(format!("Cannot get policy: {error}\n")))?;
            Ok(match format {
                Format::Text => {
                    let rules = found["policy"].as_str().unwrap_or_default();
                    let rules = if rules.is_empty() { "[]" } else { rules };
                    format!(
                        "{rules}\nRevision: {}\n",
                        found["revision"].as_i64().unwrap_or_default()
                    )
                }
                _ => print::api(&found, "Policy", format),
            })
        }
        PolicyCommand::Selectors { verbose } => selectors(agent, &agent::LIST_SELECTORS, *verbose, format),
        PolicyCommand::SubjectSelectors { verbose } => {
            selectors(agent, &agent::LIST_SUBJECT_SELECTORS, *verbose, format)
        }
        PolicyCommand::Wait {
            revision,
            max_wait_time,
            fail_wait_time,
            sleep_time,
        } => {
            let revision = revision.as_deref().map(str::parse::<i64>);
            let Some(Ok(revision)) = revision else {
                return Err(usage("policy wait", "invalid revision").into());
            };
            let [longest, longest_failed, pause] =
                [max_wait_time, fail_wait_time, sleep_time].map(|seconds| Duration::from_secs(*seconds));
            wait(agent, revision, longest, longest_failed, pause)
        }
    }
}

/// The rules of the agent.
fn rules(agent: &Client) -> Result<Vec<Value>, Box<dyn Error>> {
    let found: Value = agent::get(agent, &agent::GET_POLICY, "")
        .map_err(|error| fatal(format!("Cannot get policy: {error}\n")))?;
    let text = found["policy"].as_str().unwrap_or_default();
    Ok(match text {
        "" => Vec::new(),
        text => serde_json::from_str(text)?,
    })
}

/// Kind, namespace and name of the object of a rule.
type ObjectName = [String; 3];

fn object_name(rule: &Value) -> ObjectName {
    let value = |keys: &[&str]| {
        let labels = rule["Labels"].as_array().into_iter().flatten();
        let mut values = labels.filter(|label| keys.iter().any(|key| label["key"] == *key));
        let value = values.next().and_then(|label| label["value"].as_str());
        value.unwrap_or_default().to_owned()
    };
    [
        value(&["io.cilium.k8s.policy.derived-from", "policy-derived-from"]),
        value(&["io.cilium.k8s.policy.namespace"]),
        value(&["io.cilium.k8s.policy.name", "filename"]),
    ]
}

fn list(agent: &Client, format: Format) -> Result<String, Box<dyn Error>> {
    #[derive(Default, Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Numbers {
        ingress: usize,
        egress: usize,
        deny: usize,
    }
    let mut objects: BTreeMap<ObjectName, Numbers> = BTreeMap::new();
    for rule in rules(agent)? {
        let numbers = objects.entry(object_name(&rule)).or_default();
        match rule["Ingress"].as_bool() {
            Some(true) => numbers.ingress += 1,
            _ => numbers.egress += 1,
        }
        numbers.deny += usize::from(rule["Verdict"] == 1);
    }
    if format != Format::Text {
        let objects = objects.iter().map(|([kind, namespace, name], numbers)| {
            serde_json::json!({ "kind": kind, "namespace": namespace, "name": name, "rules": numbers })
        });
        return Ok(print::value(&objects.collect(), format));
    }
    let mut table = print::Table::new(["KIND", "NAMESPACE", "NAME", "INGRESS", "EGRESS", "DENY"]);
    for ([kind, namespace, name], numbers) in &objects {
        let [ingress, egress, deny] =
            [numbers.ingress, numbers.egress, numbers.deny].map(|number| number.to_string());
        table.padded([&**kind, namespace, name, &ingress, &egress, &deny]);
    }
    Ok(table.finish())
}

fn selectors(
    agent: &Client,
    operation: &agent::Operation,
    is_verbose: bool,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let found: Value =
        agent::get(agent, operation, "").map_err(|error| fatal(format!("Cannot get policy: {error}\n")))?;
    if format != Format::Text {
        return Ok(print::api(&found, "[SelectorIdentityMapping]", format));
    }
    let mut all: Vec<&Value> = found.as_array().into_iter().flatten().collect();
    all.sort_by_key(|mapping| mapping["selector"].as_str());
    let mut table = print::Table::new(["SELECTOR", "LABELS", "USERS", "IDENTITIES"]);
    for mapping in all {
        let policies = mapping["labels"].as_array().into_iter().flatten();
        let labels: Vec<String> = policies.map(|labels| policy_name(labels, is_verbose)).collect();
        let mut head = [
            mapping["selector"].as_str().unwrap_or_default().to_owned(),
            labels.join(", "),
            mapping["users"].as_i64().unwrap_or_default().to_string(),
        ];
        let identities = mapping["identities"].as_array().into_iter().flatten();
        let mut identities: Vec<String> = identities.map(Value::to_string).collect();
        if identities.is_empty() {
            identities.push(String::new());
        }
        for identity in identities {
            let [selector, labels, users] = std::mem::take(&mut head);
            table.padded([&*selector, &labels, &users, &identity]);
        }
    }
    Ok(table.finish())
}

/// `namespace/name` of a policy, or with `is_verbose` all labels.
fn policy_name(labels: &Value, is_verbose: bool) -> String {
    let labels = || labels.as_array().into_iter().flatten();
    let text = |label: &Value, field: &str| label[field].as_str().unwrap_or_default().to_owned();
    if is_verbose {
        let labels = labels().map(|label| {
            let (source, key, value) = (text(label, "source"), text(label, "key"), text(label, "value"));
            let value = if value.is_empty() {
                value
            } else {
                format!("={value}")
            };
            format!("{source}:{key}{value}")
        });
        return format!("[{}]", labels.collect::<Vec<_>>().join(" "));
    }
    let value = |key: &str| {
        let found = labels().find(|label| text(label, "key") == key);
        found.map(|label| text(label, "value")).unwrap_or_default()
    };
    let (namespace, name) = (
        value("io.cilium.k8s.policy.namespace"),
        value("io.cilium.k8s.policy.name"),
    );
    match namespace.as_str() {
        "" => name,
        namespace => format!("{namespace}/{name}"),
    }
}

/// Numbers of endpoints with the revision, of those that fail, and of all.
fn progress(agent: &Client, revision: i64) -> Result<[usize; 3], Box<dyn Error>> {
    let found: Value = agent::get(agent, &agent::LIST_ENDPOINTS, "")
        .map_err(|error| fatal(format!("cannot get endpoint list: {error}\n")))?;
    let mut counts = [0; 3];
    for endpoint in found.as_array().into_iter().flatten() {
        let status = &endpoint["status"];
        let realized = status["policy"]["realized"]["policy-revision"].as_i64();
        counts[2] += 1;
        match (status["state"].as_str(), realized) {
            (None | Some("not-ready"), _) => counts[1] += 1,
            _ if status["policy"].is_null() => counts[1] += 1,
            (Some("ready"), realized) if realized.unwrap_or_default() >= revision => counts[0] += 1,
            _ => {}
        }
    }
    Ok(counts)
}

fn wait(
    agent: &Client,
    revision: i64,
    longest: Duration,
    longest_failed: Duration,
    pause: Duration,
) -> Result<String, Box<dyn Error>> {
    let begun = Instant::now();
    let mut has_waited = false;
    loop {
        let [ready, failed, all] = progress(agent, revision)?;
        let waited = begun.elapsed();
        let seconds = skep_duration::format_duration(Duration::from_secs(waited.as_secs()));
        if ready == all {
            return Ok(if has_waited { "\n" } else { "" }.to_owned());
        }
        if failed > 0 && waited >= longest_failed {
            let text = format!("\n{failed} endpoints have failed regeneration after {seconds}\n");
            return Err(fatal(text).into());
        }
        if waited >= longest {
            let waiting = all - ready;
            let text = format!("\n{waiting} endpoints still not ready after {seconds} ({failed} failed)\n");
            return Err(fatal(text).into());
        }
        let blanks = " ".repeat(14);
        print!("\rWaiting for endpoints to run policy revision {revision}: {ready}/{all}{blanks}");
        std::io::stdout().flush()?;
        has_waited = true;
        std::thread::sleep(pause);
    }
}
