// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

#[track_caller]
fn faults(schema: &Value, value: Value, old: Option<&Value>) -> Vec<String> {
    validate(&Patterns::of(schema), schema, &value, old)
        .into_iter()
        .map(|fault| format!("{}: {}", fault.field, fault.detail))
        .collect()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": { "type": "integer", "minimum": 1, "maximum": 10 },
                "share": { "type": "number", "minimum": 0, "exclusiveMinimum": true, "multipleOf": 0.5 },
                "color": { "type": "string", "enum": ["red", "blue"] },
                "name": { "type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-zä]+$" },
                "net": { "type": "string", "format": "cidr" },
                "names": { "type": "array", "minItems": 1, "maxItems": 2, "items": { "type": "string" } },
                "labels": { "type": "object", "maxProperties": 1, "additionalProperties": { "type": "string" } },
                "port": { "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }], "pattern": "^[a-z]+$" },
                "one": {
                    "type": "object",
                    "oneOf": [{ "required": ["a"] }, { "required": ["b"] }],
                    "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } },
                },
                "any": {
                    "type": "object",
                    "anyOf": [{ "required": ["a"] }, { "required": ["b"] }],
                    "not": { "required": ["c"] },
                    "properties": { "a": { "type": "integer" }, "b": { "type": "integer" }, "c": { "type": "integer" } },
                },
            },
        } },
    })
}

#[test]
fn words_faults_as_an_api_server() {
    let cases = [
        (json!({}), vec!["spec: Required value"]),
        (json!({ "spec": {} }), vec!["spec.size: Required value"]),
        (
            json!({ "spec": { "size": "x" } }),
            vec![
                "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
            ],
        ),
        (
            json!({ "spec": { "size": 11 } }),
            vec!["spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"],
        ),
        (
            json!({ "spec": { "size": 1, "share": 0 } }),
            vec!["spec.share: Invalid value: 0: spec.share in body should be greater than 0"],
        ),
        (
            json!({ "spec": { "size": 1, "color": "green" } }),
            vec!["spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\""],
        ),
        (
            json!({ "spec": { "size": 1, "name": "abcd" } }),
            vec!["spec.name: Too long: may not be more than 3 bytes"],
        ),
        (
            json!({ "spec": { "size": 1, "name": "a1" } }),
            vec!["spec.name: Invalid value: \"a1\": spec.name in body should match '^[a-zä]+$'"],
        ),
        (
            json!({ "spec": { "size": 1, "net": "10.0.0.1" } }),
            vec![
                "spec.net: Invalid value: \"10.0.0.1\": spec.net in body must be of type cidr: \"10.0.0.1\"",
            ],
        ),
        (
            json!({ "spec": { "size": 1, "names": ["a", "b", "c"] } }),
            vec!["spec.names: Too many: 3: must have at most 2 items"],
        ),
        (
            json!({ "spec": { "size": 1, "port": true } }),
            vec![
                "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
            ],
        ),
        (
            json!({ "spec": { "size": 1, "one": {} } }),
            vec![
                "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found none valid",
                "spec.one.a: Required value",
            ],
        ),
        (
            json!({ "spec": { "size": 1, "any": { "c": 1 } } }),
            vec![
                "<nil>: Invalid value: \"\": \"spec.any\" must validate at least one schema (anyOf)",
                "spec.any.a: Required value",
                "<nil>: Invalid value: \"\": \"spec.any\" must not validate the schema (not)",
            ],
        ),
    ];
    for (object, expected) in cases {
        assert_eq!(faults(&schema(), object.clone(), None), expected, "{object}");
    }
}

#[test]
fn accepts_what_fits() {
    let fine = json!({ "spec": {
        "size": 3.0, "port": 999_999, "share": 1.5, "color": "red", "name": "äb", "net": "10.0.0.1/8", "names": ["a"],
        "one": { "b": 1 }, "any": { "a": 1, "b": 2 },
    } });

    assert_eq!(faults(&schema(), fine, None), Vec::<String>::new());
}

#[test]
fn what_has_not_changed_is_not_judged_again() {
    let old = json!({ "spec": { "size": 99, "color": "red" } });

    assert_eq!(
        faults(
            &schema(),
            json!({ "spec": { "size": 99, "color": "blue" } }),
            Some(&old)
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        faults(
            &schema(),
            json!({ "spec": { "size": 98, "color": "red" } }),
            Some(&old)
        )
        .len(),
        1
    );
}
