// SPDX-License-Identifier: Apache-2.0

//! Shell commands `policy/mapstate/...`: what the policy maps of endpoints should hold, and which policies that is from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use async_trait::async_trait;
use hive::{Cell, Members};
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec};
use serde_json::{Value, json};
use skep_endpoint::Endpoint;
use skep_policy_model::{Direction, MapState, Protocol, map_state::MapRow};
use skep_policy_repository::Repository;
use statedb::{Db, Table};

hive::catalogue!(cell);

pub(crate) fn cell() -> Cell {
    Cell::module("policy-map-states", "Shell commands for desired policy maps").provide(commands)
}

fn commands(db: Db, endpoints: Table<Endpoint>, repository: Repository) -> Members<CommandHandle> {
    let world = Arc::new(World {
        db,
        endpoints,
        repository,
    });
    let format = || Flag::string("format", "table", "Output format: table or json").short('f');
    let entries = Spec::new(
        "policy/mapstate/entries",
        "Show the desired policy maps of endpoints",
    )
    .args("[endpoint...]")
    .flag(format());
    let top = Spec::new(
        "policy/mapstate/topk",
        "Show the policies with most entries in the maps of endpoints",
    )
    .flag(Flag::string("number", "10", "Number of policies").short('n'))
    .flag(Flag::bool("cumulative", "Sum over all endpoints").short('c'))
    .flag(format());
    let of = |spec, is_top| {
        Arc::new(MapStateCommand {
            spec,
            is_top,
            world: world.clone(),
        }) as CommandHandle
    };
    Members(vec![of(entries, false), of(top, true)])
}

struct World {
    db: Db,
    endpoints: Table<Endpoint>,
    repository: Repository,
}

struct MapStateCommand {
    spec: Spec,
    is_top: bool,
    world: Arc<World>,
}

/// An endpoint: id, namespace and name of its pod.
type Named = (u16, String, String);

#[async_trait]
impl Command for MapStateCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, _: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let is_json = match inv.string("format") {
            "table" => false,
            "json" => true,
            other => return Err(CommandError::new(format!("unknown format {other:?}"))),
        };
        if self.is_top {
            let number = inv.string("number");
            let number: usize = number
                .parse()
                .map_err(|_| CommandError::new(format!("{number:?} is not a number")))?;
            return Ok(self.world.top(number, inv.bool("cumulative"), is_json));
        }
        self.world.entries(inv.args(), is_json)
    }
}

impl World {
    fn endpoints(&self) -> Vec<Named> {
        let snapshot = self.db.read();
        let rows = self.endpoints.all(&snapshot);
        rows.map(|row| (row.id, row.spec.namespace.clone(), row.spec.pod.clone()))
            .collect()
    }

    fn entries(&self, only: &[String], is_json: bool) -> Result<Outcome, CommandError> {
        let ids: Result<BTreeSet<u16>, _> = only.iter().map(|text| text.parse()).collect();
        let ids = ids.map_err(|_| CommandError::new("an endpoint is a number"))?;
        let (mut text, mut values) = (String::new(), Vec::new());
        for (id, namespace, name) in self.endpoints() {
            if !ids.is_empty() && !ids.contains(&id) {
                continue;
            }
            let rows = self.repository.with(|policies| policies.map_of(id).map(rows));
            let Some(rows) = rows else { continue };
            if is_json {
                values.push(json!({ "ID": id, "Namespace": namespace, "Name": name,
                    "Entries": rows.iter().map(object).collect::<Vec<_>>() }));
                continue;
            }
            let count = rows.len();
            // A `String` takes all.
            _ = writeln!(
                text,
                "ID: {id}\tNamespace: {namespace}\tName: {name}\tEntries:{count}"
            );
            text.push_str(&table(&HEADER, &rows));
        }
        Ok(Outcome::stdout(match is_json {
            true => format!("{:#}\n", Value::from(values)),
            false => text,
        }))
    }

    fn top(&self, number: usize, is_cumulative: bool, is_json: bool) -> Outcome {
        let mut counts: BTreeMap<(u16, String), usize> = BTreeMap::new();
        for (id, ..) in self.endpoints() {
            let origins = self
                .repository
                .with(|policies| policies.map_of(id).map(policies_of));
            for origin in origins.into_iter().flatten() {
                let id = if is_cumulative { 0 } else { id };
                *counts.entry((id, origin)).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.truncate(number);
        if is_json {
            let values = counts
                .into_iter()
                .map(|((id, policy), count)| match is_cumulative {
                    true => json!({ "Policy": policy, "Entries": count }),
                    false => json!({ "Endpoint": id, "Policy": policy, "Entries": count }),
                });
            return Outcome::stdout(format!("{:#}\n", Value::from_iter(values)));
        }
        let rows = counts
            .into_iter()
            .map(|((id, policy), count)| match is_cumulative {
                true => vec![policy, count.to_string()],
                false => vec![id.to_string(), policy, count.to_string()],
            });
        let rows: Vec<Vec<String>> = rows.collect();
        Outcome::stdout(match is_cumulative {
            true => table(&["Policy", "Entries"], &rows),
            false => table(&["Endpoint", "Policy", "Entries"], &rows),
        })
    }
}

const HEADER: [&str; 9] = [
    "Direction",
    "Identity",
    "Proto+Port",
    "Priority",
    "ListenerPrio",
    "Verdict",
    "ProxyPort",
    "Cookie",
    "Origins",
];

/// The policies behind each entry, once.
fn policies_of(map: &MapState) -> Vec<String> {
    map.rows().flat_map(|row| origins(&row)).collect()
}

/// `CiliumNetworkPolicy:ns/name`, of defaults nothing.
fn origins(row: &MapRow<'_>) -> BTreeSet<String> {
    let resources = row
        .entry
        .origins
        .iter()
        .filter_map(|origin| origin.resource.as_ref());
    let texts = resources.map(|resource| {
        let text = resource.as_str();
        let (kind, rest) = text.split_once('/').unwrap_or(("", text));
        let kind = match kind {
            "cnp" => "CiliumNetworkPolicy",
            "ccnp" => "CiliumClusterwideNetworkPolicy",
            "netpol" => "NetworkPolicy",
            "kcnp" => "ClusterNetworkPolicy",
            other => other,
        };
        format!("{kind}:{}", rest.trim_start_matches('/'))
    });
    texts.collect()
}

fn rows(map: &MapState) -> Vec<Vec<String>> {
    let rows = map.rows().map(|row| {
        let entry = row.entry;
        vec![
            match row.direction {
                Direction::Ingress => "Ingress",
                Direction::Egress => "Egress",
            }
            .to_owned(),
            row.identity.to_string(),
            port(&row),
            // Levels count down from the highest precedence.
            (0xff_ffff - (entry.precedence >> 8)).to_string(),
            (255 - (entry.precedence & 0xff)).to_string(),
            if entry.is_deny { "deny" } else { "allow" }.to_owned(),
            entry.proxy.as_ref().map_or(0, |proxy| proxy.port).to_string(),
            "0".to_owned(),
            origins(&row).into_iter().collect::<Vec<_>>().join(","),
        ]
    });
    rows.collect()
}

/// `*`, `TCP/80`, `TCP/80-87`, `TCP/0-65535`.
fn port(row: &MapRow<'_>) -> String {
    let key = row.key;
    if key.protocol == Protocol::ANY {
        return "*".to_owned();
    }
    let bits = u32::from(key.length()).saturating_sub(8);
    let last = key.port | u16::MAX.checked_shr(bits).unwrap_or_default();
    match key.port == last {
        true => format!("{}/{last}", key.protocol),
        false => format!("{}/{}-{last}", key.protocol, key.port),
    }
}

#[allow(clippy::ptr_arg, reason = "of a `Vec` of rows")]
fn object(row: &Vec<String>) -> Value {
    let fields = HEADER.into_iter().zip(row);
    Value::Object(
        fields
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect(),
    )
}

/// Columns of equal width.
fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([header[column].len()]).max().unwrap_or_default() + 3
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}
