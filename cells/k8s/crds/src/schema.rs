// SPDX-License-Identifier: Apache-2.0

//! Structural schemas out of Rust types.
//!
//! `schemars` makes a JSON Schema, in which absent fields are nulls and words are constants; an API server takes a
//! part of OpenAPI only. [`of`] brings one into the form of the other:
//!
//! - fields that may be absent are not nullable: they are just not required;
//! - words are an `enum`;
//! - formats that the API does not have, titles and defaults of Rust are dropped. Defaults of the API are written as
//!   `extend("x-default" = …)`;
//! - `extend("x-items" = {…})` goes into the schema of the items of a list or the values of a map.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Formats that are part of the API. Others are what Rust calls its integers.
const FORMATS: [&str; 6] = ["cidr", "date-time", "idn-hostname", "int32", "int64", "ipv4"];

/// The structural schema of objects of type `T`, without `apiVersion` and `kind` if it is a kind.
pub fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    structural(&mut schema);
    schema
}

/// The structural schema of whole objects of the kind `T`.
pub fn of_kind<T: JsonSchema>(metadata_is_required: bool) -> Value {
    let mut schema = of::<T>();
    let map = fields_of(&mut schema);
    let mut properties = Map::new();
    let text = |description: &str| json!({ "description": description, "type": "string" });
    properties.insert("apiVersion".to_owned(), text("Group and version of the kind."));
    properties.insert("kind".to_owned(), text("Name of the kind."));
    properties.insert("metadata".to_owned(), json!({ "type": "object" }));
    if let Some(Value::Object(own)) = map.remove("properties") {
        properties.extend(own.into_iter().filter(|(name, _)| name != "metadata"));
    }
    let mut required: Vec<Value> = map
        .remove("required")
        .and_then(|names| names.as_array().cloned())
        .unwrap_or_default();
    required.retain(|name| name != "metadata");
    if metadata_is_required {
        required.insert(0, "metadata".into());
    }
    map.insert("properties".to_owned(), properties.into());
    if !required.is_empty() {
        map.insert("required".to_owned(), required.into());
    }
    schema
}

fn fields_of(schema: &mut Value) -> &mut Map<String, Value> {
    schema.as_object_mut().expect("schemas of structs are objects")
}

/// Brings a schema and all below it into the form of the API.
fn structural(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for key in ["$schema", "title", "default", "$defs"] {
        map.shift_remove(key);
    }
    without_null(map);
    words(map);
    if let Some(format) = map.get("format").and_then(Value::as_str)
        && !FORMATS.contains(&format)
    {
        map.shift_remove("format");
    }
    if let Some(default) = map.shift_remove("x-default") {
        map.insert("default".to_owned(), default);
    }
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.sort_keys();
        properties.values_mut().for_each(structural);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(key) {
            structural(below);
        }
    }
    if let Some(Value::Object(constraints)) = map.shift_remove("x-items") {
        let key = if map.contains_key("items") {
            "items"
        } else {
            "additionalProperties"
        };
        if let Some(Value::Object(items)) = map.get_mut(key) {
            items.extend(constraints);
        }
    }
}

/// Makes `T` out of "`T` or null".
fn without_null(map: &mut Map<String, Value>) {
    let is_null = |schema: &Value| schema.get("type").and_then(Value::as_str) == Some("null");
    if let Some(Value::Array(branches)) = map.get("anyOf")
        && branches.iter().any(is_null)
    {
        let inner = branches.iter().find(|branch| !is_null(branch)).cloned();
        map.shift_remove("anyOf");
        if let Some(Value::Object(inner)) = inner {
            // What the field says is nearer than what the type says.
            for (key, value) in inner {
                map.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(types)) = map.get("type") {
        let only = types.iter().find(|name| *name != "null").cloned();
        map.insert("type".to_owned(), only.unwrap_or_default());
    }
    if let Some(Value::Array(words)) = map.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
}

/// Makes an `enum` out of constants.
fn words(map: &mut Map<String, Value>) {
    let Some(Value::Array(branches)) = map.get("oneOf") else {
        return;
    };
    let mut found = Vec::new();
    for branch in branches {
        match (branch.get("const"), branch.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => found.push(word.clone()),
            (None, Some(words)) => found.extend(words.iter().cloned()),
            (None, None) if branch.get("type") == Some(&json!("null")) => {}
            (None, None) => return,
        }
    }
    map.shift_remove("oneOf");
    map.insert("type".to_owned(), "string".into());
    map.insert("enum".to_owned(), found.into());
}

/// The schema at a path such as `spec.peers[].name`.
///
/// # Panics
///
/// If there is none: edits of schemas name fields that they have.
pub(crate) fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Map<String, Value> {
    let mut found = schema;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        found = &mut found["properties"][name];
        if is_list {
            found = &mut found["items"];
        }
    }
    match found {
        Value::Object(map) => map,
        _ => panic!("the schema has no field {path}"),
    }
}

/// An object about which the schema says nothing more.
pub(crate) struct AnyObject;

impl JsonSchema for AnyObject {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AnyObject".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "object" })
    }
}

/// An object whose fields are kept although the schema does not name them.
pub(crate) struct AnyFields;

impl JsonSchema for AnyFields {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AnyFields".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}
