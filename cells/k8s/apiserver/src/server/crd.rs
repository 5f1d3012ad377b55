// SPDX-License-Identifier: Apache-2.0

//! Custom resource definitions: they make kinds; their schemas prune, default and validate objects.

use std::sync::Arc;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::ApiServer;
use crate::error::Fault;
use crate::gvr::Gvr;
use crate::kinds::{Custom, Kind, Scale};
use crate::object;
use crate::schema::Shape;

pub(super) const GROUP: &str = "apiextensions.k8s.io";
pub(super) const RESOURCE: &str = "customresourcedefinitions";

pub(super) fn definitions() -> Gvr {
    Gvr::new(GROUP, "v1", RESOURCE)
}

/// Fills in what a definition may leave out, and its status: names are accepted, it is established at once.
pub(super) fn establish(old: Option<&Value>, definition: &mut Value) {
    let kind = object::text(definition, &["spec", "names", "kind"]).to_owned();
    let spec = object::map_mut(definition, "spec");
    spec.entry("conversion")
        .or_insert_with(|| json!({ "strategy": "None" }));
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        if !names.contains_key("singular") {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if !names.contains_key("listKind") {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    let names = object::at(definition, &["spec", "names"])
        .cloned()
        .unwrap_or_default();
    let storage = storage_version(definition).to_owned();
    let mut stored: Vec<Value> = old
        .map(|old| object::items(old, &["status", "storedVersions"]).to_vec())
        .unwrap_or_default();
    if !storage.is_empty() && !stored.contains(&storage.as_str().into()) {
        stored.push(storage.into());
    }
    let since = old
        .and_then(|old| object::items(old, &["status", "conditions"]).first())
        .map_or_else(object::now, |condition| {
            object::text(condition, &["lastTransitionTime"]).to_owned()
        });
    let condition = |kind: &str, reason: &str, message: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since });
    let conditions = [
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition(
            "Established",
            "InitialNamesAccepted",
            "the initial names have been accepted",
        ),
    ];
    let status = json!({ "conditions": conditions, "acceptedNames": names, "storedVersions": stored });
    if let Some(map) = definition.as_object_mut() {
        map.insert("status".to_owned(), status);
    }
}

/// Warns of what a definition says and this server does not do.
pub(super) fn unheeded(kind: &Kind, definition: &Value) -> Vec<String> {
    if (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) != (GROUP, RESOURCE) {
        return Vec::new();
    }
    let versions = object::items(definition, &["spec", "versions"]);
    let mut warnings: Vec<String> = versions
        .iter()
        .enumerate()
        .filter(|(_, version)| has_rules(version))
        .map(|(index, _)| {
            format!("spec.versions[{index}].schema: x-kubernetes-validations are kept, but this server does not check them")
        })
        .collect();
    if object::text(definition, &["spec", "conversion", "strategy"]) == "Webhook" {
        warnings
            .push("spec.conversion: this server calls no webhooks, versions are not converted".to_owned());
    }
    warnings
}

fn has_rules(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("x-kubernetes-validations") || map.values().any(has_rules),
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}

fn storage_version(definition: &Value) -> &str {
    object::items(definition, &["spec", "versions"])
        .iter()
        .find(|v| v.get("storage").and_then(Value::as_bool) == Some(true))
        .map_or("", |v| object::text(v, &["name"]))
}

/// The kinds that a definition makes, one for each version that is served.
pub(super) fn kinds(definition: &Value) -> Vec<Kind> {
    let names = |key: &str| object::text(definition, &["spec", "names", key]);
    let list = |key: &str| {
        object::items(definition, &["spec", "names", key])
            .iter()
            .filter_map(|v| v.as_str().map(Into::into))
            .collect()
    };
    let storage = storage_version(definition);
    object::items(definition, &["spec", "versions"])
        .iter()
        .filter(|v| v.get("served").and_then(Value::as_bool) == Some(true))
        .map(|version| {
            let mut schema = object::at(version, &["schema", "openAPIV3Schema"])
                .cloned()
                .unwrap_or_default();
            with_object_fields(&mut schema);
            let subresource = |name: &str| object::at(version, &["subresources", name]);
            let paths = |field: &str| object::text(version, &["subresources", "scale", field]).to_owned();
            Kind {
                gvr: Gvr::new(
                    object::text(definition, &["spec", "group"]),
                    object::text(version, &["name"]),
                    names("plural"),
                ),
                kind: names("kind").into(),
                singular: names("singular").into(),
                list_kind: names("listKind").into(),
                namespaced: object::text(definition, &["spec", "scope"]) == "Namespaced",
                short_names: list("shortNames"),
                categories: list("categories"),
                has_status: subresource("status").is_some(),
                scale: subresource("scale").map(|_| Scale {
                    spec_replicas: paths("specReplicasPath"),
                    status_replicas: paths("statusReplicasPath"),
                    selector: paths("labelSelectorPath"),
                }),
                counts_generations: true,
                in_slim_domain: true,
                in_core_domain: false,
                storage_version: storage.into(),
                shape: Shape::of_openapi(&schema),
                custom: Some(Arc::new(Custom {
                    columns: object::items(version, &["additionalPrinterColumns"]).to_vec(),
                    selectable_fields: object::items(version, &["selectableFields"])
                        .iter()
                        .map(|f| object::text(f, &["jsonPath"]).to_owned())
                        .collect(),
                    schema,
                })),
            }
        })
        .collect()
}

/// Every object has these fields, whether the schema says so or not.
fn with_object_fields(schema: &mut Value) {
    if !schema.is_object() {
        *schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    }
    if schema.get("properties").is_none() && schema.get("additionalProperties").is_some() {
        return;
    }
    let properties = object::map_mut(schema, "properties");
    properties
        .entry("apiVersion")
        .or_insert_with(|| json!({ "type": "string" }));
    properties
        .entry("kind")
        .or_insert_with(|| json!({ "type": "string" }));
    properties.insert(
        "metadata".to_owned(),
        json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
    );
}

impl ApiServer {
    /// Serves what a definition defines from now on.
    pub(super) fn define(&self, definition: &Value) {
        let group = object::text(definition, &["spec", "group"]);
        let plural = object::text(definition, &["spec", "names", "plural"]);
        self.registry().remove(group, plural);
        for kind in kinds(definition) {
            self.registry().insert(kind);
        }
    }
}

fn keeps_unknown(schema: &Value) -> bool {
    schema
        .get("x-kubernetes-preserve-unknown-fields")
        .and_then(Value::as_bool)
        == Some(true)
}

/// Drops the fields that a schema does not know; gives their paths.
pub(super) fn prune(schema: &Value, value: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_at(schema, value, "", &mut unknown);
    unknown
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn prune_at(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    if schema
        .get("x-kubernetes-embedded-resource")
        .and_then(Value::as_bool)
        == Some(true)
        && keeps_unknown(schema)
    {
        return;
    }
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let additional = schema.get("additionalProperties");
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                let below = properties.and_then(|p| p.get(&key));
                match (below, additional) {
                    (Some(below), _) | (None, Some(below @ Value::Object(_))) => {
                        if let Some(child) = map.get_mut(&key) {
                            prune_at(below, child, &join(path, &key), unknown);
                        }
                    }
                    (None, Some(Value::Bool(true))) => {}
                    _ if keeps_unknown(schema) => {}
                    _ => {
                        unknown.push(join(path, &key));
                        map.shift_remove(&key);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                for (index, item) in items.iter_mut().enumerate() {
                    prune_at(below, item, &format!("{path}[{index}]"), unknown);
                }
            }
        }
        _ => {}
    }
}

/// Fills in the defaults of a schema.
pub(super) fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, below) in schema
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let nullable = below.get("nullable").and_then(Value::as_bool) == Some(true);
                if let Some(default) = below.get("default") {
                    let missing = match map.get(key) {
                        None => true,
                        Some(Value::Null) => !nullable,
                        Some(_) => false,
                    };
                    if missing {
                        map.insert(key.clone(), default.clone());
                    }
                } else if !nullable && map.get(key).is_some_and(Value::is_null) {
                    map.shift_remove(key);
                }
                if let Some(child) = map.get_mut(key) {
                    fill(below, child);
                }
            }
            if let Some(below @ Value::Object(_)) = schema.get("additionalProperties") {
                let known = schema.get("properties").and_then(Value::as_object);
                for (key, child) in map.iter_mut() {
                    if !known.is_some_and(|k| k.contains_key(key)) {
                        fill(below, child);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                for item in items {
                    fill(below, item);
                }
            }
        }
        _ => {}
    }
}

/// Faults of an object by its schema.
pub(super) fn validate(schema: &Value, value: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    validate_at(schema, value, "", &mut faults);
    faults
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn fits(wanted: &str, value: &Value) -> bool {
    match wanted {
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0),
        other => type_name(value) == other,
    }
}

fn validate_at(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    let shown_path = if path.is_empty() { "<nil>" } else { path };
    if value.is_null() {
        if schema.get("nullable").and_then(Value::as_bool) != Some(true) && schema.get("type").is_some() {
            faults.push(wrong_type(shown_path, value, object::text(schema, &["type"])));
        }
        return;
    }
    if schema.get("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
        if !value.is_string() && !fits("integer", value) {
            faults.push(wrong_type(shown_path, value, "integer,string"));
        }
        return;
    }
    if let Some(wanted) = schema.get("type").and_then(Value::as_str)
        && !fits(wanted, value)
    {
        faults.push(wrong_type(shown_path, value, wanted));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let texts: Vec<String> = allowed
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        faults.push(Fault::not_supported(shown_path, value, &texts));
    }
    bounds(schema, value, shown_path, faults);
    match value {
        Value::Object(map) => validate_map(schema, map, path, faults),
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    validate_at(below, item, &format!("{path}[{index}]"), faults);
                }
            }
            duplicates(schema, items, path, faults);
        }
        _ => {}
    }
    combined(schema, value, path, shown_path, faults);
}

fn wrong_type(path: &str, value: &Value, wanted: &str) -> Fault {
    let got = type_name(value);
    let mut fault = Fault::invalid(
        path,
        &got.into(),
        &format!("{path} in body must be of type {wanted}: {got:?}"),
    );
    fault.reason = "FieldValueTypeInvalid";
    fault
}

fn bounds(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    let mut fail =
        |detail: String| faults.push(Fault::invalid(path, value, &format!("{path} in body {detail}")));
    let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
    let count = |key: &str| schema.get(key).and_then(Value::as_u64);
    let exclusive = |key: &str| schema.get(key).and_then(Value::as_bool) == Some(true);
    if let Some(number) = value.as_f64() {
        if let Some(least) = limit("minimum")
            && (number < least || (exclusive("exclusiveMinimum") && number <= least))
        {
            fail(format!("should be greater than or equal to {least}"));
        }
        if let Some(most) = limit("maximum")
            && (number > most || (exclusive("exclusiveMaximum") && number >= most))
        {
            fail(format!("should be less than or equal to {most}"));
        }
        if let Some(step) = limit("multipleOf")
            && step > 0.0
            && (number / step).fract() != 0.0
        {
            fail(format!("should be a multiple of {step}"));
        }
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        if count("minLength").is_some_and(|least| length < least) {
            fail(format!(
                "should be at least {} chars long",
                count("minLength").unwrap_or(0)
            ));
        }
        if count("maxLength").is_some_and(|most| length > most) {
            fail(format!(
                "should be at most {} chars long",
                count("maxLength").unwrap_or(0)
            ));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && Regex::new(pattern).is_ok_and(|regex| !regex.is_match(text))
        {
            fail(format!("should match '{pattern}'"));
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str)
            && !has_format(format, text)
        {
            fail(format!("must be of type {format}: {text:?}"));
        }
    }
    let (least, most, length) = match value {
        Value::Array(items) => ("minItems", "maxItems", items.len() as u64),
        Value::Object(map) => ("minProperties", "maxProperties", map.len() as u64),
        _ => return,
    };
    let things = if value.is_array() { "items" } else { "properties" };
    if count(least).is_some_and(|least| length < least) {
        fail(format!(
            "should have at least {} {things}",
            count(least).unwrap_or(0)
        ));
    }
    if count(most).is_some_and(|most| length > most) {
        fail(format!(
            "should have at most {} {things}",
            count(most).unwrap_or(0)
        ));
    }
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "uuid" => uuid::Uuid::parse_str(text).is_ok(),
        _ => true,
    }
}

fn validate_map(schema: &Value, map: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) {
    for key in object::items(schema, &["required"])
        .iter()
        .filter_map(Value::as_str)
    {
        if !map.contains_key(key) {
            faults.push(Fault::required(join(path, key), ""));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let additional = schema.get("additionalProperties").filter(|v| v.is_object());
    for (key, value) in map {
        if let Some(below) = properties.and_then(|p| p.get(key)).or(additional) {
            validate_at(below, value, &join(path, key), faults);
        }
    }
}

fn duplicates(schema: &Value, items: &[Value], path: &str, faults: &mut Vec<Fault>) {
    let keys: Option<Vec<&str>> = match object::text(schema, &["x-kubernetes-list-type"]) {
        "set" => None,
        "map" => Some(
            object::items(schema, &["x-kubernetes-list-map-keys"])
                .iter()
                .filter_map(Value::as_str)
                .collect(),
        ),
        _ => return,
    };
    let mut seen = std::collections::HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let id = match &keys {
            None => item.clone(),
            Some(keys) => keys
                .iter()
                .map(|k| ((*k).to_owned(), item.get(*k).cloned().unwrap_or_default()))
                .collect::<Map<_, _>>()
                .into(),
        };
        if !seen.insert(id.to_string()) {
            faults.push(Fault::duplicate(format!("{path}[{index}]"), &id));
        }
    }
}

fn combined(schema: &Value, value: &Value, path: &str, shown: &str, faults: &mut Vec<Fault>) {
    let passes = |schema: &Value| {
        let mut found = Vec::new();
        validate_at(schema, value, path, &mut found);
        found.is_empty()
    };
    let mut fail =
        |detail: &str| faults.push(Fault::invalid(shown, value, &format!("{shown} in body {detail}")));
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if list("anyOf").is_some_and(|any| !any.iter().any(passes)) {
        fail("must validate at least one schema (anyOf)");
    }
    if list("oneOf").is_some_and(|one| one.iter().filter(|s| passes(s)).count() != 1) {
        fail("must validate one and only one schema (oneOf)");
    }
    if list("allOf").is_some_and(|all| !all.iter().all(passes)) {
        fail("must validate all the schemas (allOf)");
    }
    if schema.get("not").is_some_and(passes) {
        fail("must not validate the schema (not)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["spec"],
            "properties": { "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": { "type": "integer", "minimum": 1, "maximum": 10 },
                    "color": { "type": "string", "enum": ["red", "blue"], "default": "red" },
                    "names": { "type": "array", "maxItems": 2, "x-kubernetes-list-type": "set", "items": { "type": "string" } },
                    "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    "port": { "x-kubernetes-int-or-string": true },
                    "one": { "oneOf": [{ "required": ["a"] }, { "required": ["b"] }], "type": "object", "properties": { "a": {}, "b": {} } },
                },
            } },
        })
    }

    #[test]
    fn prunes_and_defaults() {
        let mut object = json!({ "spec": { "size": 1, "extra": 2, "free": { "x": 1 } } });

        assert_eq!(prune(&schema(), &mut object), ["spec.extra"]);
        fill(&schema(), &mut object);

        assert_eq!(
            object,
            json!({ "spec": { "size": 1, "free": { "x": 1 }, "color": "red" } })
        );
    }

    #[test]
    fn finds_faults() {
        let cases = [
            (json!({}), "spec: Required value"),
            (json!({ "spec": {} }), "spec.size: Required value"),
            (
                json!({ "spec": { "size": "x" } }),
                "spec.size in body must be of type integer",
            ),
            (
                json!({ "spec": { "size": 11 } }),
                "should be less than or equal to 10",
            ),
            (
                json!({ "spec": { "size": 1, "color": "green" } }),
                "supported values: \"red\", \"blue\"",
            ),
            (
                json!({ "spec": { "size": 1, "names": ["a", "a"] } }),
                "spec.names[1]: Duplicate value: \"a\"",
            ),
            (
                json!({ "spec": { "size": 1, "names": ["a", "b", "c"] } }),
                "should have at most 2 items",
            ),
            (json!({ "spec": { "size": 1, "port": true } }), "integer,string"),
            (
                json!({ "spec": { "size": 1, "one": { "a": 1, "b": 1 } } }),
                "one and only one",
            ),
        ];
        for (object, expected) in cases {
            let faults = validate(&schema(), &object);
            let text: Vec<String> = faults
                .iter()
                .map(|f| format!("{}: {}", f.field, f.detail))
                .collect();
            assert!(text.iter().any(|t| t.contains(expected)), "{object}: {text:?}");
        }
        assert_eq!(
            validate(&schema(), &json!({ "spec": { "size": 3, "port": "http" } })),
            []
        );
    }
}
