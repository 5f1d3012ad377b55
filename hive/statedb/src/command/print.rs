// SPDX-License-Identifier: Apache-2.0

//! Rows as a table, as YAML and as JSON.

use hive_script::{
    CommandError, Invocation,
    text::{
        TabWriter, json,
        yaml::{self, Plain},
    },
};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::{AnyRow, AnyTable, BoxRow, row::BoxError};

/// Format of printed rows.
pub(super) enum Format {
    Table {
        header: Vec<String>,
        /// Positions of the columns among all.
        columns: Vec<usize>,
    },
    Yaml,
    Json,
}

impl Format {
    pub(super) fn of(table: &dyn AnyTable, inv: &Invocation) -> Result<Self, CommandError> {
        let columns = inv.list("columns");
        let other = match inv.string("format") {
            "table" => {
                return Ok(if columns.is_empty() {
                    Self::Table {
                        header: table.header().iter().map(|&name| name.to_owned()).collect(),
                        columns: (0..table.header().len()).collect(),
                    }
                } else {
                    Self::Table {
                        header: columns.to_vec(),
                        columns: positions(table, columns)?,
                    }
                });
            }
            "yaml" => Self::Yaml,
            "json" => Self::Json,
            other => {
                let text = format!("unknown format \"{other}\", expected table, yaml or json");
                return Err(CommandError::new(text));
            }
        };
        if !columns.is_empty() {
            return Err(CommandError::new(
                "--columns not supported with non-table formats",
            ));
        }
        Ok(other)
    }

    pub(super) fn print(&self, rows: &[BoxRow]) -> Result<String, CommandError> {
        match self {
            Self::Table { header, columns } => {
                let mut table = TabWriter::new();
                table.row(header.iter().cloned());
                for row in rows {
                    // As one text: a tab or newline in a cell ends it.
                    table.write(&(select(&**row, columns).join("\t") + "\n"));
                }
                Ok(table.finish())
            }
            Self::Yaml => {
                let documents: Result<Vec<String>, CommandError> =
                    rows.iter().map(|row| yaml_of(&**row)).collect();
                Ok(documents?.join("---\n"))
            }
            Self::Json => {
                let mut out = String::new();
                for row in rows {
                    let value = row.json().map_err(conversion)?;
                    out.push_str(&json::indented(&value).map_err(CommandError::new)?);
                    out.push('\n');
                }
                Ok(out)
            }
        }
    }
}

pub(super) fn conversion(err: BoxError) -> CommandError {
    CommandError::chain(&*err)
}

fn yaml_of(row: &dyn AnyRow) -> Result<String, CommandError> {
    let value = row.yaml().map_err(conversion)?;
    let times = Times {
        value: &value,
        field: "",
        row,
    };
    yaml::emit_v3(&times).map_err(CommandError::new)
}

/// Positions of named columns; names are not case-sensitive.
pub(super) fn positions<S: AsRef<str>>(
    table: &dyn AnyTable,
    names: &[S],
) -> Result<Vec<usize>, CommandError> {
    let header = table.header();
    let position = |name: &str| {
        let found = header.iter().position(|column| column.eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            CommandError::new(format_args!(
                "column \"{name}\" not part of [{}]",
                header.join(" ")
            ))
        })
    };
    names.iter().map(|name| position(name.as_ref())).collect()
}

/// Some cells of a row.
pub(super) fn select(row: &dyn AnyRow, columns: &[usize]) -> Vec<String> {
    let cells = row.cells();
    columns
        .iter()
        .map(|&at| cells.get(at).cloned().unwrap_or_default())
        .collect()
}

/// A JSON value in which texts that are times are times: YAML does not quote them.
struct Times<'a> {
    value: &'a Value,
    /// Where it stands; the elements of a list stand where the list does.
    field: &'a str,
    row: &'a dyn AnyRow,
}

impl Serialize for Times<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let inner = |field, value| Times {
            value,
            field,
            row: self.row,
        };
        match self.value {
            Value::Array(items) => serializer.collect_seq(items.iter().map(|item| inner(self.field, item))),
            Value::Object(map) => {
                serializer.collect_map(map.iter().map(|(key, value)| (key, inner(key, value))))
            }
            Value::String(text) if is_time(text) && self.row.is_yaml_time(self.field) => {
                Plain(text).serialize(serializer)
            }
            other => other.serialize(serializer),
        }
    }
}

/// Returns whether `text` is an RFC 3339 time.
fn is_time(text: &str) -> bool {
    let shape = text.len() >= 20 && text.as_bytes()[4] == b'-' && text.as_bytes()[10] == b'T';
    shape && text.parse::<jiff::Timestamp>().is_ok()
}
