// SPDX-License-Identifier: Apache-2.0

//! `skep map`: what is pinned, how much is in it, and how many writes failed.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};

use crate::{
    maps::{Entry, MapsError, Pinned},
    print::{self, Format},
    shell,
};

/// Failed operations of the agent by map, as its metrics count them. They have names without this.
const PREFIX: &str = "cilium_";

/// One pinned map.
#[derive(Debug)]
struct Row {
    name: String,
    /// `None`: of a kind that skep cannot show.
    entries: Option<Vec<Entry>>,
    /// `None`: the agent is not there to tell.
    errors: Option<u64>,
}

/// All pinned maps; with `verbose`, with their entries. Works without the agent, except for the count of errors.
///
/// # Errors
/// When the maps cannot be read.
pub(crate) fn list(
    pinned: &Pinned,
    shell: &Path,
    verbose: bool,
    format: Format,
) -> Result<String, MapsError> {
    let errors = shell::ask(shell, "metrics --format=json cilium_bpf_map_ops_total")
        .ok()
        .map(|answer| failed_operations(&answer));
    let mut rows = Vec::new();
    for name in pinned.names()? {
        let entries = match pinned.entries(&name) {
            Ok(entries) => Some(entries),
            Err(MapsError::Unknown { .. }) => None,
            // Gone since the directory was read.
            Err(MapsError::NotPinned { .. }) => continue,
            Err(error) => return Err(error),
        };
        let errors = errors.as_ref().map(|errors| {
            let short = name.strip_prefix(PREFIX).unwrap_or(&name);
            errors.get(short).copied().unwrap_or_default()
        });
        rows.push(Row {
            name,
            entries,
            errors,
        });
    }
    Ok(match format {
        Format::Text if verbose => rows.iter().map(entries_of).collect::<Vec<_>>().join("\n"),
        Format::Text => text_of(&rows),
        _ => print::value(&document_of(&rows, verbose), format),
    })
}

/// Entries of one map. They were read from the kernel: their state is that they are there.
pub(crate) fn get(entries: &[Entry], format: Format) -> String {
    const TITLES: [&str; 4] = ["Key", "Value", "State", "Error"];
    if format != Format::Text {
        return print::entries(entries, ["", ""], format);
    }
    let rows = entries.iter().flat_map(|(key, values)| {
        values
            .iter()
            .map(|value| vec![key.clone(), value.clone(), "sync".to_owned(), String::new()])
    });
    print::table(&TITLES, rows)
}

/// Sums of failed operations by map, from the agent's metrics as JSON.
fn failed_operations(metrics: &str) -> BTreeMap<String, u64> {
    let all: Value = serde_json::from_str(metrics).unwrap_or_default();
    let mut errors = BTreeMap::new();
    for sample in all.as_array().into_iter().flatten() {
        let labels = &sample["labels"];
        if let (Some(map), Some("fail"), Some(value)) = (
            labels["map_name"].as_str(),
            labels["outcome"].as_str(),
            sample["value"].as_f64(),
        ) {
            *errors.entry(map.to_owned()).or_default() += value as u64;
        }
    }
    errors
}

fn text_of(rows: &[Row]) -> String {
    print::table(
        &["Name", "Num entries", "Num errors", "Cache enabled"],
        rows.iter().map(|row| {
            let entries = row.entries.as_ref();
            vec![
                row.name.clone(),
                entries.map_or_else(|| "unknown layout".to_owned(), |all| all.len().to_string()),
                row.errors
                    .map_or_else(|| "unknown".to_owned(), |count| count.to_string()),
                // What the kernel has is what is shown: there is no copy.
                "false".to_owned(),
            ]
        }),
    )
}

fn entries_of(row: &Row) -> String {
    let entries = match &row.entries {
        Some(entries) => get(entries, Format::Text),
        None => "unknown layout\n".to_owned(),
    };
    format!("## Map: {}\n{entries}", row.name)
}

fn document_of(rows: &[Row], verbose: bool) -> Value {
    let maps: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut map = json!({
                "name": row.name,
                "num-entries": row.entries.as_ref().map(Vec::len),
                "num-errors": row.errors,
                "cache-enabled": false,
            });
            if verbose {
                let entries = row.entries.iter().flatten();
                map["entries"] = entries
                    .map(|(key, values)| json!({"key": key, "value": values.join(" ")}))
                    .collect();
            }
            map
        })
        .collect();
    json!({ "maps": maps })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![
            Row {
                name: "cilium_lb4_services_v2".to_owned(),
                entries: Some(vec![("10.96.0.1:80/TCP (0)".to_owned(), vec!["0 1".to_owned()])]),
                errors: Some(3),
            },
            Row {
                name: "cilium_other".to_owned(),
                entries: None,
                errors: None,
            },
        ]
    }

    #[test]
    fn counts_stand_below_their_titles() {
        let expected = [
            "Name                     Num entries      Num errors   Cache enabled",
            "cilium_lb4_services_v2   1                3            false",
            "cilium_other             unknown layout   unknown      false",
            "",
        ];
        assert_eq!(text_of(&rows()), expected.join("\n"));
    }

    #[test]
    fn json_has_the_entries_only_if_asked_for() {
        let value = document_of(&rows(), false);
        assert_eq!(value["maps"][0]["num-errors"], 3);
        assert_eq!(value["maps"][1]["num-entries"], Value::Null);
        assert!(value["maps"][0].get("entries").is_none());
        let value = document_of(&rows(), true);
        assert_eq!(value["maps"][0]["entries"][0]["key"], "10.96.0.1:80/TCP (0)");
    }

    #[test]
    fn failures_are_added_up_by_map() {
        let metrics = r#"[
            {"name": "cilium_bpf_map_ops_total", "value": 2,
             "labels": {"map_name": "lb4_services_v2", "operation": "update", "outcome": "fail"}},
            {"name": "cilium_bpf_map_ops_total", "value": 1,
             "labels": {"map_name": "lb4_services_v2", "operation": "delete", "outcome": "fail"}},
            {"name": "cilium_bpf_map_ops_total", "value": 9,
             "labels": {"map_name": "lb4_services_v2", "operation": "update", "outcome": "success"}}]"#;
        assert_eq!(
            failed_operations(metrics),
            BTreeMap::from([("lb4_services_v2".to_owned(), 3)])
        );
        assert!(failed_operations("nothing").is_empty());
    }
}
