// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

const ROOT: &str = "spec.validation.openAPIV3Schema";

fn faults(schemas: &[Value]) -> Vec<String> {
    let version = |schema: &Value| json!({ "schema": { "openAPIV3Schema": schema } });
    let versions: Vec<Value> = schemas.iter().map(version).collect();
    let mut faults = Vec::new();
    check(&versions, &mut faults);
    faults
        .into_iter()
        .map(|fault| format!("{}: {}", fault.field, fault.detail))
        .collect()
}

#[test]
fn types_are_there_and_known() {
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": { "type": "objekt", "properties": { "a": {}, "b": { "x-kubernetes-int-or-string": true } } },
            "list": { "type": "array", "items": {} },
            "map": { "type": "object", "additionalProperties": { "description": "no type" } },
            "free": { "x-kubernetes-preserve-unknown-fields": true },
        },
    });

    assert_eq!(
        faults(&[schema]),
        [
            format!(
                "{ROOT}.properties[spec].type: Unsupported value: \"objekt\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
            ),
            format!(
                "{ROOT}.properties[spec].properties[a].type: Required value: must not be empty for specified object fields"
            ),
            format!(
                "{ROOT}.properties[list].items.type: Required value: must not be empty for specified array items"
            ),
            format!(
                "{ROOT}.properties[map].additionalProperties.type: Required value: must not be empty for specified object fields"
            ),
        ]
    );
}

#[test]
fn a_schema_makes_sense() {
    let item = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    for (field, expected) in [
        (
            json!({ "type": "array", "items": item, "x-kubernetes-list-type": "map" }),
            ".x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            json!({ "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] }),
            ".items.properties[name].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            json!({ "type": "string", "pattern": "(" }),
            ".pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: ",
        ),
        (
            json!({ "type": "object", "anyOf": [{ "type": "object" }] }),
            ".anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({ "type": "integer", "default": "x" }),
            ".default: Invalid value: \"string\": default in body must be of type integer: \"string\"",
        ),
        (
            json!({ "type": "object", "properties": {}, "x-kubernetes-validations": [{ "rule": "self.x" }] }),
            ".x-kubernetes-validations[0].rule: Invalid value: \"self.x\": compilation failed: ERROR: <input>:1:",
        ),
    ] {
        let found = faults(&[json!({ "type": "object", "properties": { "f": field } })]);
        let expected = format!("{ROOT}.properties[f]{expected}");
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{field}: {found:?}"
        );
    }
    let fine = json!({
        "type": "object",
        "properties": {
            "port": { "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] },
            "one": { "type": "object", "properties": { "a": { "type": "string" } }, "oneOf": [{ "properties": { "a": {} }, "required": ["a"] }] },
            "size": { "type": "integer", "default": 3 },
        },
        "x-kubernetes-validations": [{ "rule": "self.size > 1" }],
    });
    assert_eq!(faults(&[fine]), Vec::<String>::new());
}

#[test]
fn rules_about_changes_need_items_with_a_name() {
    let list = |list: Value| {
        let mut schema = json!({ "type": "array", "items": {
            "type": "object", "required": ["name"], "properties": { "name": { "type": "string" } },
            "x-kubernetes-validations": [{ "rule": "self.name == oldSelf.name" }],
        } });
        schema
            .as_object_mut()
            .unwrap()
            .extend(list.as_object().unwrap().clone());
        json!({ "type": "object", "properties": { "l": schema } })
    };

    let found = faults(&[list(json!({}))]);
    assert!(
        found.len() == 1 && found[0].contains("oldSelf cannot be used"),
        "{found:?}"
    );
    let map = json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] });
    assert_eq!(faults(&[list(map)]), Vec::<String>::new());
}
