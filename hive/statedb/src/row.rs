// SPDX-License-Identifier: Apache-2.0

//! How objects are shown, compared and inserted by the `db` commands.

use std::error::Error as StdError;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// An error of any kind, for conversions from and to text.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// An object that can be printed as a line of a table, as JSON and as YAML, and parsed from YAML.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use statedb::{Row, row};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// #[serde(rename_all = "PascalCase")]
/// struct Route { destination: String, #[serde(default)] link_index: u32 }
///
/// impl Row for Route {
///     fn header() -> &'static [&'static str] { &["Destination", "LinkIndex"] }
///     fn cells(&self) -> Vec<String> { vec![self.destination.clone(), self.link_index.to_string()] }
///     fn to_json(&self) -> Result<serde_json::Value, row::BoxError> { row::to_json(self) }
/// }
///
/// let route = Route { destination: "10.0.0.0/8".into(), link_index: 7 };
/// assert_eq!(route.to_yaml().unwrap()["linkindex"], 7);
/// ```
pub trait Row: Send + Sync + Sized + 'static {
    /// Column names of the table.
    fn header() -> &'static [&'static str];

    /// One text per column.
    fn cells(&self) -> Vec<String>;

    /// Returns the object as JSON, field names as tools expect them.
    ///
    /// # Errors
    /// If the object has no JSON form, which is the default.
    fn to_json(&self) -> Result<Value, BoxError> {
        Err("objects of this table have no JSON form".into())
    }

    /// Appends the text of [`to_json`](Self::to_json). Override it, with [`write_json`], if there are many objects: the
    /// default makes a tree of values first.
    ///
    /// # Errors
    /// If the object has no JSON form. A part of the text may have been written then.
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), BoxError> {
        write_json(&self.to_json()?, out)
    }

    /// Returns the object as a YAML document tree. Default: the JSON form with lower-cased keys; override it if the
    /// object holds maps whose keys are data.
    ///
    /// # Errors
    /// If the object has no such form.
    fn to_yaml(&self) -> Result<Value, BoxError> {
        Ok(lower_case_keys(self.to_json()?))
    }

    /// Returns whether the YAML form has a time in `field`, by its name there, if its text looks like one. Any other
    /// text that looks like a time is quoted.
    fn is_yaml_time(field: &str) -> bool {
        let _ = field;
        true
    }

    /// Parses an object from a YAML document: unknown keys are ignored, missing ones are zero. An empty document
    /// is a zero object.
    ///
    /// # Errors
    /// If the text does not parse, or objects have no YAML form, which is the default.
    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        let _ = text;
        Err("objects of this table cannot be made from YAML".into())
    }

    /// Returns the type as shown by `db`, by default the Rust type.
    fn type_name() -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

/// [`Row::to_json`] for a serialisable type.
///
/// # Errors
/// If serialisation fails.
pub fn to_json<T: Serialize>(object: &T) -> Result<Value, BoxError> {
    Ok(serde_json::to_value(object)?)
}

/// [`Row::write_json`] for a serialisable type.
///
/// # Errors
/// If serialisation fails.
pub fn write_json<T: Serialize>(object: &T, out: &mut Vec<u8>) -> Result<(), BoxError> {
    Ok(serde_json::to_writer(out, object)?)
}

/// [`Row::from_yaml`] for a type that can be deserialised from lower-case keys. An empty document is read as `{}`, and
/// a key whose value is null as one that is missing. Without feature `script` the document must be JSON, which is YAML
/// too, so that a program without `db` commands needs no parser.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Route { #[serde(default)] device: String }
///
/// assert_eq!(statedb::row::from_yaml::<Route>(r#"{"device": "eth0"}"#).unwrap().device, "eth0");
/// assert_eq!(statedb::row::from_yaml::<Route>("# nothing").unwrap().device, "");
/// ```
///
/// # Errors
/// If the text does not parse.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, BoxError> {
    let blank = text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    let text = if blank { "{}" } else { text };
    #[cfg(feature = "script")]
    let parse = parse_yaml;
    #[cfg(not(feature = "script"))]
    let parse = parse_json;
    parse(text)
}

#[cfg(any(test, not(feature = "script")))]
fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T, BoxError> {
    fn drop_nulls(tree: &mut Value) {
        match tree {
            Value::Object(map) => {
                map.retain(|_, value| !value.is_null());
                map.values_mut().for_each(drop_nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(drop_nulls),
            _ => {}
        }
    }

    let mut tree: Value = serde_json::from_str(text)?;
    drop_nulls(&mut tree);
    Ok(serde_json::from_value(tree)?)
}

#[cfg(feature = "script")]
fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<T, BoxError> {
    let error = match serde_norway::from_str(text) {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    // Only now: on the way through a tree, texts that look like numbers become numbers.
    let Ok(mut tree) = serde_norway::from_str(text) else {
        return Err(error.into());
    };
    if !drop_nulls(&mut tree) {
        return Err(error.into());
    }
    Ok(serde_norway::from_value(tree)?)
}

/// Removes keys without a value from all mappings; returns whether there were any.
#[cfg(feature = "script")]
fn drop_nulls(tree: &mut serde_norway::Value) -> bool {
    match tree {
        serde_norway::Value::Mapping(map) => {
            let before = map.len();
            map.retain(|_, value| !value.is_null());
            let inner = map.values_mut().map(drop_nulls).fold(false, |any, one| any | one);
            inner || map.len() < before
        }
        serde_norway::Value::Sequence(items) => {
            items.iter_mut().map(drop_nulls).fold(false, |any, one| any | one)
        }
        _ => false,
    }
}

/// Lower-cases the keys of all mappings in `value`.
///
/// ```
/// use serde_json::json;
///
/// assert_eq!(statedb::row::lower_case_keys(json!({"ID": 1, "Tags": [{"A": "B"}]})), json!({"id": 1, "tags": [{"a": "B"}]}));
/// ```
pub fn lower_case_keys(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key.to_lowercase(), lower_case_keys(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(lower_case_keys).collect()),
        scalar => scalar,
    }
}

/// Conversions of one row type, with the type erased where it is not an argument.
pub(crate) struct RowFns<T> {
    pub(crate) header: &'static [&'static str],
    pub(crate) type_name: String,
    pub(crate) cells: fn(&T) -> Vec<String>,
    pub(crate) json: fn(&T) -> Result<Value, BoxError>,
    pub(crate) write_json: fn(&T, &mut Vec<u8>) -> Result<(), BoxError>,
    pub(crate) yaml: fn(&T) -> Result<Value, BoxError>,
    pub(crate) is_yaml_time: fn(&str) -> bool,
    pub(crate) from_yaml: fn(&str) -> Result<T, BoxError>,
}

impl<T: Row> RowFns<T> {
    pub(crate) fn of_row() -> Self {
        Self {
            header: T::header(),
            type_name: T::type_name(),
            cells: T::cells,
            json: T::to_json,
            write_json: T::write_json,
            yaml: T::to_yaml,
            is_yaml_time: T::is_yaml_time,
            from_yaml: T::from_yaml,
        }
    }
}

impl<T> RowFns<T> {
    /// For types without a [`Row`] form.
    pub(crate) fn opaque() -> Self {
        Self {
            header: &[],
            type_name: std::any::type_name::<T>().to_owned(),
            cells: |_| Vec::new(),
            json: |_| Err("objects of this table have no JSON form".into()),
            write_json: |_, _| Err("objects of this table have no JSON form".into()),
            yaml: |_| Err("objects of this table have no YAML form".into()),
            is_yaml_time: |_| true,
            from_yaml: |_| Err("objects of this table cannot be made from YAML".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Route {
        #[serde(default)]
        device: String,
        #[serde(default)]
        hops: Vec<Hop>,
    }

    #[derive(Deserialize)]
    struct Hop {
        #[serde(default)]
        metric: u32,
    }

    #[test]
    fn rows_are_read_from_json_without_a_yaml_parser() {
        let text = r#"{"device": "eth0", "hops": [{"metric": null}, {"metric": 7}]}"#;

        let route: Route = parse_json(text).unwrap();

        assert_eq!(route.device, "eth0");
        assert_eq!(
            route.hops.iter().map(|hop| hop.metric).collect::<Vec<_>>(),
            [0, 7]
        );
        assert!(parse_json::<Route>("device: eth0").is_err());
    }
}
