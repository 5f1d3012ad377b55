// SPDX-License-Identifier: Apache-2.0

//! `skep bpf policy`: policy maps of endpoints, with the labels of identities that the agent knows.

use std::{collections::BTreeMap, error::Error};

use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;
use skep_base_api_client::Client;
use skep_bpf_maps::policy::{
    POLICY_STATS, PolicyEntry, PolicyKey, PolicyStats, PolicyStatsKey, endpoint_of_pin, policy_pin,
};
use skep_datapath_monitor_events::names;
use skep_identity::Reserved;

use crate::{
    agent,
    edit::{self, PolicyEdit},
    failure::{fatal, usage},
    maps::{MapsError, Pinned},
    print::{self, Format},
};

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the policies of all endpoints.
    #[command(alias = "ls")]
    List {
        /// Print numeric identities.
        #[arg(short, long)]
        numeric: bool,
    },
    /// Show the policy of an endpoint.
    Get {
        /// Id of the endpoint, or name or path of its map.
        #[arg(conflicts_with = "all")]
        endpoint: Option<String>,
        /// Show the policies of all endpoints.
        #[arg(long)]
        all: bool,
        /// Print numeric identities.
        #[arg(short, long)]
        numeric: bool,
    },
    /// Add an entry to the policy of an endpoint. The agent removes it at its next reconciliation.
    Add {
        #[command(flatten)]
        entry: PolicyEdit,
        /// Deny the traffic.
        #[arg(long)]
        deny: bool,
        /// Cookie of the entry.
        #[arg(long, default_value_t = 0)]
        cookie: u32,
    },
    /// Delete an entry from the policy of an endpoint. The agent adds it again at its next reconciliation.
    Delete(PolicyEdit),
}

/// Reads the id of an endpoint, or the name or path of its map.
pub(crate) fn endpoint(text: &str) -> Result<u16, String> {
    let name = text.rsplit('/').next().unwrap_or(text);
    name.parse()
        .ok()
        .or_else(|| endpoint_of_pin(name))
        .ok_or_else(|| "neither the id of an endpoint nor a map of a policy".to_owned())
}

/// The endpoint of an argument: a number, a map, or the name of a reserved identity of this node.
fn endpoint_of(agent: &Client, text: &str) -> Result<u16, Box<dyn Error>> {
    if let Ok(endpoint) = endpoint(text) {
        return Ok(endpoint);
    }
    let label = match text.contains(':') {
        true => text.to_owned(),
        false => format!("reserved:{text}"),
    };
    let invalid = || fatal(format!("Failed to parse endpointID {text:?}"));
    let found: Vec<Value> =
        agent::find(agent, &agent::LIST_ENDPOINTS, &[label.as_str()]).map_err(|_| invalid())?;
    let id = found.first().and_then(|endpoint| endpoint["id"].as_u64());
    Ok(id.and_then(|id| u16::try_from(id).ok()).ok_or_else(invalid)?)
}

/// An entry of a policy map, with Cilium's names.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Rule {
    proxy_port_network: u16,
    flags: u8,
    auth_requirement: u8,
    precedence: u32,
    cookie: u32,
    /// The highest number if nothing is counted.
    packets: u64,
    bytes: u64,
    key: RuleKey,
    #[serde(skip)]
    map: (PolicyKey, PolicyEntry),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct RuleKey {
    prefixlen: u32,
    identity: u32,
    traffic_direction: u8,
    nexthdr: u8,
    dest_port_network: u16,
}

/// The policy of an endpoint, among others.
#[derive(Debug, Serialize)]
struct Policy {
    #[serde(rename = "EndpointID")]
    endpoint: u16,
    #[serde(rename = "Path")]
    path: String,
    #[serde(rename = "Content")]
    rules: Vec<Rule>,
}

pub(crate) fn run(
    pinned: &Pinned,
    agent: &Client,
    command: &PolicyCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    match command {
        PolicyCommand::Get {
            endpoint: Some(endpoint),
            numeric,
            ..
        } => {
            let endpoint = endpoint_of(agent, endpoint)?;
            let rules = rules(pinned, endpoint).map_err(|error| match error {
                MapsError::NotPinned { .. } => {
                    fatal("Failed to open map: no such file or directory\n").into()
                }
                error => Box::<dyn Error>::from(error),
            })?;
            if format != Format::Text {
                return Ok(print::document(&rules, format)?);
            }
            Ok(Labels::of(agent, *numeric).table(&rules))
        }
        PolicyCommand::Get { all: false, .. } => {
            Err(usage("bpf policy get", "endpoint ID or map path required, or --all").into())
        }
        PolicyCommand::Add { entry, deny, cookie } => {
            edit::add_policy(pinned, entry, *deny, *cookie).map(|()| String::new())
        }
        PolicyCommand::Delete(entry) => edit::delete_policy(pinned, entry).map(|()| String::new()),
        PolicyCommand::List { numeric } | PolicyCommand::Get { numeric, .. } => {
            let labels = Labels::of(agent, *numeric || format != Format::Text);
            Ok(policies(pinned, &labels, format)?)
        }
    }
}

fn policies(pinned: &Pinned, labels: &Labels, format: Format) -> Result<String, MapsError> {
    let names = pinned.names()?;
    let policies = names
        .iter()
        .filter_map(|name| endpoint_of_pin(name))
        .map(|endpoint| {
            Ok(Policy {
                endpoint,
                path: pinned.path(&policy_pin(endpoint)),
                rules: rules(pinned, endpoint)?,
            })
        });
    let policies = policies.collect::<Result<Vec<_>, MapsError>>()?;
    if format != Format::Text {
        return Ok(print::document(&policies, format)?);
    }
    if policies.is_empty() {
        return Ok("no maps found\n".to_owned());
    }
    let texts = policies.iter().map(|policy| {
        let rules = labels.table(&policy.rules);
        format!(
            "Endpoint ID: {}\nPath: {}\n\n{rules}\n\n",
            policy.endpoint, policy.path
        )
    });
    Ok(texts.collect())
}

/// Entries of the policy of an endpoint: those that deny first, ingress before egress, then by identity.
fn rules(pinned: &Pinned, endpoint: u16) -> Result<Vec<Rule>, MapsError> {
    let mut entries = pinned
        .open::<PolicyKey, PolicyEntry>(&policy_pin(endpoint))?
        .entries()?;
    entries.sort_by_key(|(key, entry)| {
        let number = (key.identity, key.proto, key.port, key.prefix_len);
        (!entry.is_deny(), key.direction, number)
    });
    // Without the map (policy-accounting is off) nothing was counted.
    let stats = pinned.open_per_cpu::<PolicyStatsKey, PolicyStats>(POLICY_STATS.name);
    let stats = stats.ok();
    let counted = |key: &PolicyKey| {
        let values = stats.as_ref()?.lookup(&key.stats_key(endpoint)).ok()?;
        if values.is_empty() {
            return None;
        }
        let PolicyStats { packets, bytes } = PolicyStats::total(values);
        Some((packets, bytes))
    };
    let rule = |(key, entry): (PolicyKey, PolicyEntry)| {
        let (packets, bytes) = counted(&key).unwrap_or((u64::MAX, u64::MAX));
        Rule {
            // Cilium prints the number as it is in memory.
            proxy_port_network: u16::from_ne_bytes(entry.proxy_port.to_bytes()),
            flags: entry.flags,
            auth_requirement: entry.auth,
            precedence: entry.precedence,
            cookie: entry.cookie,
            packets,
            bytes,
            key: RuleKey {
                prefixlen: key.prefix_len,
                identity: key.identity,
                traffic_direction: key.direction,
                nexthdr: key.proto,
                dest_port_network: u16::from_ne_bytes(key.port.to_bytes()),
            },
            map: (key, entry),
        }
    };
    Ok(entries.into_iter().map(rule).collect())
}

/// Texts of identities.
enum Labels {
    Numeric,
    Known(BTreeMap<u32, Vec<String>>),
}

impl Labels {
    /// The labels that the agent knows; those of reserved identities without it.
    fn of(agent: &Client, is_numeric: bool) -> Self {
        if is_numeric {
            return Self::Numeric;
        }
        let reserved = Reserved::ALL.into_iter().map(|reserved| {
            let number = reserved.identity().get();
            (number, vec![format!("reserved:{}", reserved.name())])
        });
        let mut known: BTreeMap<u32, Vec<String>> = reserved.collect();
        let found = agent::get::<Vec<Value>>(agent, &agent::LIST_IDENTITIES, "");
        for identity in found.unwrap_or_default() {
            let number = identity["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            let labels = identity["labels"].as_array().into_iter().flatten();
            let mut labels: Vec<String> = labels
                .filter_map(|label| label.as_str().map(ToOwned::to_owned))
                .collect();
            labels.sort_unstable();
            if let Some(number) = number.filter(|_| !labels.is_empty()) {
                known.insert(number, labels);
            }
        }
        Self::Known(known)
    }

    /// Lines of an identity.
    fn lines(&self, number: u32) -> Vec<String> {
        match self {
            Self::Known(_) if number == 0 => vec!["ANY".to_owned()],
            Self::Known(known) => known.get(&number).cloned().unwrap_or_else(|| {
                eprintln!("Was impossible to retrieve label ID {number}: it is unknown to the agent");
                vec![number.to_string()]
            }),
            Self::Numeric => vec![number.to_string()],
        }
    }

    fn table(&self, rules: &[Rule]) -> String {
        if rules.is_empty() {
            return "Policy stats empty. Perhaps the policy enforcement is disabled?\n".to_owned();
        }
        let identities = match self {
            Self::Numeric => "IDENTITY",
            Self::Known(_) => "LABELS (source:key[=value])",
        };
        let titles = [
            "POLICY",
            "DIRECTION",
            identities,
            "PORT/PROTO",
            "PROXY PORT",
            "AUTH TYPE",
            "BYTES",
            "PACKETS",
            "PREFIX",
            "COOKIE",
        ];
        let counter = |counter: u64| match counter {
            u64::MAX => "-".to_owned(),
            counter => counter.to_string(),
        };
        let rows = rules.iter().flat_map(|rule| {
            let (key, entry) = &rule.map;
            let mut lines = self.lines(key.identity).into_iter();
            let first = vec![
                if entry.is_deny() { "Deny" } else { "Allow" }.to_owned(),
                key.direction_text().to_owned(),
                lines.next().unwrap_or_default(),
                key.port_text(),
                match entry.proxy_port.get() {
                    0 => "NONE".to_owned(),
                    port => port.to_string(),
                },
                names::auth_type(entry.auth_type()),
                counter(rule.bytes),
                counter(rule.packets),
                key.bits().to_string(),
                rule.cookie.to_string(),
            ];
            let more = lines.map(|line| {
                let mut row = vec![String::new(); titles.len()];
                row[2] = line;
                row
            });
            [first].into_iter().chain(more).collect::<Vec<_>>()
        });
        print::table(&titles, rows)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn rule(identity: u32) -> Rule {
        let key = PolicyKey {
            prefix_len: 64,
            identity,
            direction: 0,
            proto: 6,
            port: 8080.into(),
        };
        let entry = PolicyEntry {
            proxy_port: 0.into(),
            flags: 192,
            auth: 0,
            precedence: 1,
            cookie: 0,
        };
        Rule {
            proxy_port_network: 0,
            flags: 192,
            auth_requirement: 0,
            precedence: 1,
            cookie: 0,
            packets: u64::MAX,
            bytes: u64::MAX,
            key: RuleKey {
                prefixlen: 64,
                identity,
                traffic_direction: 0,
                nexthdr: 6,
                dest_port_network: 8080_u16.to_be(),
            },
            map: (key, entry),
        }
    }

    #[test]
    fn each_label_has_a_line_and_what_is_not_counted_a_hyphen() {
        let mut labels = Labels::of(&Client::at(Path::new("/nonexistent/agent.sock")), false);
        if let Labels::Known(known) = &mut labels {
            known.insert(7000, vec!["k8s:app=a".to_owned(), "k8s:zone=b".to_owned()]);
        }

        let text = labels.table(&[rule(1), rule(7000)]);

        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        assert_eq!(
            lines[1],
            "Allow Ingress reserved:host 8080/TCP NONE disabled - - 24 0"
        );
        assert_eq!(
            lines[2],
            "Allow Ingress k8s:app=a 8080/TCP NONE disabled - - 24 0"
        );
        assert_eq!(lines[3], "k8s:zone=b");
    }

    #[test]
    fn json_has_the_names_of_cilium() {
        let json = serde_json::to_value(rule(1)).unwrap();

        assert_eq!(json["Key"]["DestPortNetwork"], 36_895);
        assert_eq!(json["Packets"], u64::MAX);
        assert_eq!(json["AuthRequirement"], 0);
    }
}
