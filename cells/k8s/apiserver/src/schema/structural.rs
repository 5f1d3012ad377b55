// SPDX-License-Identifier: Apache-2.0

//! Schemas of definitions are structural: every value has one type, alternatives only add constraints. Lists, defaults,
//! patterns and rules make sense.

use serde_json::{Map, Value};
use skep_k8s_memory::{Fault, Validator as _, add_object_fields, object, prune};

use super::{Compiled, patterns, rules};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Fields that say what a value is, which alternatives must not.
const NOT_IN_ALTERNATIVES: [&str; 8] = [
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-preserve-unknown-fields",
];

/// Why a schema may not be without a type: where it stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    Field,
    Item,
}

/// Checks the schemas of all versions. Where they agree they are one, and the path names it once.
pub(super) fn check(versions: &[Value], faults: &mut Vec<Fault>) {
    let schema = |version| object::at(version, &["schema", "openAPIV3Schema"]);
    let agree = versions
        .windows(2)
        .all(|pair| schema(&pair[0]) == schema(&pair[1]));
    for (index, version) in versions.iter().enumerate() {
        let Some(found) = schema(version) else { continue };
        let path = match agree {
            true => "spec.validation.openAPIV3Schema".to_owned(),
            false => format!("spec.versions[{index}].schema.openAPIV3Schema"),
        };
        check_at(found, Place::Root, true, &path, faults);
        if agree {
            return;
        }
    }
}

/// `has_old`: values have one before when an object is updated.
fn check_at(schema: &Value, place: Place, has_old: bool, path: &str, faults: &mut Vec<Fault>) {
    let says = |key: &str| schema.get(key).and_then(Value::as_bool) == Some(true);
    type_of(schema, place, path, faults);
    let is_int_or_text = says("x-kubernetes-int-or-string");
    if is_int_or_text && schema.get("type").is_some() {
        let detail = "must be empty if x-kubernetes-int-or-string is true";
        faults.push(Fault::invalid(format!("{path}.type"), &schema["type"], detail));
    }
    if says("uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        faults.push(Fault::forbidden(format!("{path}.uniqueItems"), detail));
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_some_and(Value::is_object)
    {
        let detail = "additionalProperties and properties are mutual exclusive";
        faults.push(Fault::forbidden(format!("{path}.additionalProperties"), detail));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Err(error) = patterns::compile(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        faults.push(Fault::invalid(
            format!("{path}.pattern"),
            &pattern.into(),
            &detail,
        ));
    }
    list_type(schema, path, faults);
    alternatives(schema, is_int_or_text, path, faults);
    default(schema, place, path, faults);
    if place == Place::Root {
        // Rules of whole objects see what every object has.
        let mut whole = schema.clone();
        add_object_fields(&mut whole);
        rules::check(&whole, has_old, path, faults);
    } else {
        rules::check(schema, has_old, path, faults);
    }
    below(schema, has_old, path, faults);
}

fn below(schema: &Value, has_old: bool, path: &str, faults: &mut Vec<Fault>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, below) in properties.into_iter().flatten() {
        let path = format!("{path}.properties[{name}]");
        check_at(below, Place::Field, has_old, &path, faults);
    }
    if let Some(below) = schema.get("additionalProperties").filter(|s| s.is_object()) {
        let path = format!("{path}.additionalProperties");
        check_at(below, Place::Field, has_old, &path, faults);
    }
    match schema.get("items") {
        Some(below @ Value::Object(_)) => {
            let has_old = has_old && object::text(schema, &["x-kubernetes-list-type"]) == "map";
            check_at(below, Place::Item, has_old, &format!("{path}.items"), faults);
        }
        Some(Value::Array(_)) => {
            let detail = "items must be a schema object and not an array";
            faults.push(Fault::forbidden(format!("{path}.items"), detail));
        }
        None if object::text(schema, &["type"]) == "array" => {
            faults.push(Fault::required(format!("{path}.items"), "must be specified"));
        }
        _ => {}
    }
}

fn type_of(schema: &Value, place: Place, path: &str, faults: &mut Vec<Fault>) {
    let says = |key: &str| schema.get(key).and_then(Value::as_bool) == Some(true);
    let field = || format!("{path}.type");
    match object::text(schema, &["type"]) {
        "" => {
            let free = says("x-kubernetes-int-or-string") || says("x-kubernetes-preserve-unknown-fields");
            let detail = match place {
                Place::Root => "must not be empty at the root",
                _ if free => "",
                Place::Field => "must not be empty for specified object fields",
                Place::Item => "must not be empty for specified array items",
            };
            if !detail.is_empty() {
                faults.push(Fault::required(field(), detail));
            }
        }
        "object" => {}
        other if TYPES.contains(&other) => {
            if place == Place::Root {
                faults.push(Fault::invalid(
                    field(),
                    &other.into(),
                    "must be object at the root",
                ));
            }
        }
        other => faults.push(Fault::not_supported(field(), &other.into(), &TYPES)),
    }
}

/// A list that is a map has keys, and its items have them.
fn list_type(schema: &Value, path: &str, faults: &mut Vec<Fault>) {
    let list_type = object::text(schema, &["x-kubernetes-list-type"]);
    let keys = object::items(schema, &["x-kubernetes-list-map-keys"]);
    let keys_field = format!("{path}.x-kubernetes-list-map-keys");
    if !matches!(list_type, "" | "atomic" | "set" | "map") {
        let field = format!("{path}.x-kubernetes-list-type");
        faults.push(Fault::not_supported(
            field,
            &list_type.into(),
            &["atomic", "map", "set"],
        ));
    }
    if !list_type.is_empty() && object::text(schema, &["type"]) != "array" {
        let detail = "must be array if x-kubernetes-list-type is specified";
        let ty = schema.get("type").cloned().unwrap_or_else(|| "".into());
        faults.push(Fault::invalid(format!("{path}.type"), &ty, detail));
    }
    if list_type != "map" {
        if !keys.is_empty() {
            let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
            let field = format!("{path}.x-kubernetes-list-type");
            faults.push(Fault::invalid(field, &list_type.into(), detail));
        }
        return;
    }
    if keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        faults.push(Fault::required(keys_field, detail));
        return;
    }
    let items = schema.get("items").unwrap_or(&Value::Null);
    let required = object::items(items, &["required"]);
    for (index, key) in keys.iter().filter_map(Value::as_str).enumerate() {
        let Some(field) = object::at(items, &["properties", key]) else {
            let detail = "entries must all be names of item properties";
            faults.push(Fault::invalid(
                format!("{keys_field}[{index}]"),
                &key.into(),
                detail,
            ));
            continue;
        };
        if !required.iter().any(|name| name == key) && field.get("default").is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            faults.push(Fault::required(
                format!("{path}.items.properties[{key}].default"),
                detail,
            ));
        }
    }
}

/// Alternatives only add constraints to fields that the schema has.
fn alternatives(schema: &Value, is_int_or_text: bool, path: &str, faults: &mut Vec<Fault>) {
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in object::items(schema, &[key]).iter().enumerate() {
            let is_pair = is_int_or_text && key == "anyOf";
            alternative(schema, branch, is_pair, &format!("{path}.{key}[{index}]"), faults);
        }
    }
    if let Some(branch) = schema.get("not") {
        alternative(schema, branch, false, &format!("{path}.not"), faults);
    }
}

fn alternative(schema: &Value, branch: &Value, may_have_type: bool, path: &str, faults: &mut Vec<Fault>) {
    for key in NOT_IN_ALTERNATIVES {
        let is_said = branch.get(key).is_some_and(|value| *value != Value::Bool(false));
        if is_said && !(may_have_type && key == "type") {
            faults.push(Fault::forbidden(
                format!("{path}.{key}"),
                "must be empty to be structural",
            ));
        }
    }
    let properties = branch.get("properties").and_then(Value::as_object);
    for (name, below) in properties.into_iter().flatten() {
        let path = format!("{path}.properties[{name}]");
        match object::at(schema, &["properties", name]) {
            Some(schema) => alternative(schema, below, false, &path, faults),
            None => {
                let detail = format!("because it is defined in {path}");
                let field = path
                    .split_once(".properties")
                    .map_or(path.as_str(), |(root, _)| root);
                faults.push(Fault::required(format!("{field}.properties[{name}]"), &detail));
            }
        }
    }
    if let (Some(below), Some(schema)) = (branch.get("items"), schema.get("items")) {
        alternative(schema, below, false, &format!("{path}.items"), faults);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, below) in object::items(branch, &[key]).iter().enumerate() {
            alternative(
                schema,
                below,
                may_have_type,
                &format!("{path}.{key}[{index}]"),
                faults,
            );
        }
    }
    if let Some(below) = branch.get("not") {
        alternative(schema, below, false, &format!("{path}.not"), faults);
    }
}

/// A default fits its own schema, and has no field that the schema does not know.
fn default(schema: &Value, place: Place, path: &str, faults: &mut Vec<Fault>) {
    let Some(default) = schema.get("default") else {
        return;
    };
    let field = format!("{path}.default");
    if place == Place::Root {
        faults.push(Fault::forbidden(field, "must not be set at the root"));
        return;
    }
    let mut pruned = default.clone();
    if !prune(schema, &mut pruned).is_empty() {
        faults.push(Fault::invalid(field, default, "must not have unknown fields"));
        return;
    }
    let mut map = Map::new();
    map.insert("default".to_owned(), pruned);
    let around = serde_json::json!({ "properties": { "default": without_rules(schema) } });
    let value = Value::Object(map);
    for fault in Compiled::new(&around).validate(&value, None) {
        let below = fault.field.strip_prefix("default").unwrap_or_default();
        faults.push(Fault {
            field: format!("{field}{below}"),
            ..fault
        });
    }
}

/// The schema alone: its rules are checked where they stand.
fn without_rules(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        map.shift_remove("x-kubernetes-validations");
    }
    schema
}

#[cfg(test)]
mod tests;
