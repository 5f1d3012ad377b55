// SPDX-License-Identifier: Apache-2.0

//! Tables for people: what `kubectl get` shows.

mod path;
mod rows;

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_k8s_memory::{Kind, object};

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    name: String,
    ty: &'static str,
    format: &'static str,
    description: String,
    /// 0 = always shown, 1 = shown on request (`-o wide`).
    priority: i64,
    path: Option<String>,
}

/// What of each object goes with its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    #[default]
    Metadata,
    Object,
}

fn column(name: &str, priority: i64) -> Column {
    let (ty, format) = match name {
        "Data" | "Desired" | "Current" | "Up-to-date" | "Available" | "Value" | "Secrets" => ("integer", ""),
        "Name" => ("string", "name"),
        _ => ("string", ""),
    };
    Column {
        name: name.to_owned(),
        ty,
        format,
        description: String::new(),
        priority,
        path: None,
    }
}

/// The columns of a kind.
pub(crate) fn columns(kind: &Kind) -> Vec<Column> {
    let mut columns = vec![column("Name", 0)];
    if let Some(custom) = &kind.custom {
        for definition in &custom.columns {
            let ty = match object::text(definition, &["type"]) {
                "integer" => "integer",
                "number" => "number",
                "boolean" => "boolean",
                "date" => "date",
                _ => "string",
            };
            columns.push(Column {
                name: object::text(definition, &["name"]).to_owned(),
                ty,
                format: "",
                description: object::text(definition, &["description"]).to_owned(),
                priority: object::at(definition, &["priority"])
                    .and_then(Value::as_i64)
                    .unwrap_or(0),
                path: Some(object::text(definition, &["jsonPath"]).to_owned()),
            });
        }
        if custom.columns.is_empty() {
            columns.push(column("Age", 0));
        }
        return columns;
    }
    let (names, wide) = rows::columns(kind);
    columns.extend(names.iter().map(|name| column(name, 0)));
    columns.extend(wide.iter().map(|name| column(name, 1)));
    columns
}

fn cells(kind: &Kind, columns: &[Column], object: &Value, now: Timestamp) -> Vec<Value> {
    let name = Value::from(object::name(object));
    let mut cells = vec![name];
    if kind.custom.is_some() {
        for column in &columns[1..] {
            cells.push(match &column.path {
                Some(path) => custom_cell(column, path, object, now),
                None => age(object, now).into(),
            });
        }
        return cells;
    }
    cells.extend(rows::cells(kind, object, now));
    cells
}

fn custom_cell(column: &Column, path: &str, object: &Value, now: Timestamp) -> Value {
    let found = path::find(path, object);
    let Some(first) = found.first() else {
        return Value::Null;
    };
    match column.ty {
        "date" => first.as_str().map_or(Value::Null, |text| since(text, now).into()),
        "integer" => first.as_i64().map_or(Value::Null, Into::into),
        "number" => {
            if first.is_number() {
                (*first).clone()
            } else {
                Value::Null
            }
        }
        "boolean" => first.as_bool().map_or(Value::Null, Into::into),
        _ => {
            let texts: Vec<String> = found
                .iter()
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                .collect();
            texts.join(" ").into()
        }
    }
}

/// Time since the object was created, as people write it.
fn age(object: &Value, now: Timestamp) -> String {
    since(object::text(object, &["metadata", "creationTimestamp"]), now)
}

fn since(text: &str, now: Timestamp) -> String {
    let Ok(time) = text.parse::<Timestamp>() else {
        return "<unknown>".to_owned();
    };
    hive_script::text::human_duration_nanos(i64::try_from((now - time).total_nanos()).unwrap_or(0))
}

trait TotalNanos {
    fn total_nanos(&self) -> i128;
}

impl TotalNanos for jiff::Span {
    fn total_nanos(&self) -> i128 {
        self.total(jiff::Unit::Nanosecond).map_or(0, |n| n as i128)
    }
}

/// A `Table` of objects. `metadata` is that of the list.
pub(crate) fn table(
    kind: &Kind,
    objects: &[&Value],
    metadata: Value,
    include: Include,
    version: &str,
    with_columns: bool,
) -> Value {
    let columns = columns(kind);
    let now = Timestamp::now();
    let definitions: Vec<Value> = columns
        .iter()
        .map(|c| {
            json!({
                "name": c.name, "type": c.ty, "format": c.format, "description": c.description, "priority": c.priority,
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells = cells(kind, &columns, object, now);
            match include {
                Include::Nothing => json!({ "cells": cells }),
                Include::Metadata => json!({ "cells": cells, "object": partial(object) }),
                Include::Object => json!({ "cells": cells, "object": object }),
            }
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": metadata,
        "columnDefinitions": if with_columns { Value::from(definitions) } else { Value::Null },
        "rows": rows,
    })
}

/// Only the metadata of an object.
pub(crate) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_k8s_memory::{Custom, Registry};

    #[track_caller]
    fn row(api_version: &str, kind: &str, object: Value) -> Vec<Value> {
        let kind = Registry::builtin().by_kind(api_version, kind).unwrap();
        let table = table(&kind, &[&object], json!({}), Include::Nothing, "v1", true);
        let definitions = table["columnDefinitions"].as_array().unwrap();
        let cells = table["rows"][0]["cells"].as_array().unwrap().clone();
        assert_eq!(definitions.len(), cells.len(), "{definitions:?} {cells:?}");
        cells
    }

    #[test]
    fn shows_services() {
        let service = json!({
            "metadata": { "name": "web" },
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.0.0.1", "selector": { "a": "b" },
                "ports": [{ "port": 80, "nodePort": 30080, "protocol": "TCP" }, { "port": 53, "protocol": "UDP" }],
            },
        });

        let cells = row("v1", "Service", service);

        assert_eq!(
            cells,
            [
                "web",
                "LoadBalancer",
                "10.0.0.1",
                "<pending>",
                "80:30080/TCP,53/UDP",
                "<unknown>",
                "a=b"
            ]
        );
    }

    #[test]
    fn every_kind_has_as_many_cells_as_columns() {
        for kind in Registry::builtin().all() {
            row(
                &kind.api_version(),
                &kind.kind,
                json!({ "metadata": { "name": "x" } }),
            );
        }
    }

    #[test]
    fn shows_custom_columns() {
        let mut kind = (*Registry::builtin().by_kind("v1", "ConfigMap").unwrap()).clone();
        kind.custom = Some(std::sync::Arc::new(Custom {
            columns: vec![
                json!({ "name": "Size", "type": "integer", "jsonPath": ".spec.size" }),
                json!({ "name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status" }),
            ],
            ..Custom::default()
        }));
        let object = json!({
            "metadata": { "name": "x" }, "spec": { "size": 3 },
            "status": { "conditions": [{ "type": "A", "status": "False" }, { "type": "Ready", "status": "True" }] },
        });

        let table = table(&kind, &[&object], json!({}), Include::Metadata, "v1", true);

        assert_eq!(table["rows"][0]["cells"], json!(["x", 3, "True"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    }
}
