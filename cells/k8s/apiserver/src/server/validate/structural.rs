// SPDX-License-Identifier: Apache-2.0

//! Schemas of definitions: every value has a type, and one that there is.

use serde_json::Value;

use crate::error::Fault;
use crate::object;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Why a schema may not be without a type: where it stands.
#[derive(Clone, Copy)]
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
        if agree {
            check_at(found, Place::Root, "spec.validation.openAPIV3Schema", faults);
            return;
        }
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        check_at(found, Place::Root, &path, faults);
    }
}

fn check_at(schema: &Value, place: Place, path: &str, faults: &mut Vec<Fault>) {
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
        known if TYPES.contains(&known) => {}
        other => faults.push(Fault::not_supported(field(), &other.into(), &TYPES)),
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, schema) in properties.into_iter().flatten() {
        let path = format!("{path}.properties[{name}]");
        check_at(schema, Place::Field, &path, faults);
    }
    if let Some(schema) = schema.get("additionalProperties").filter(|s| s.is_object()) {
        check_at(
            schema,
            Place::Field,
            &format!("{path}.additionalProperties"),
            faults,
        );
    }
    if let Some(schema) = schema.get("items").filter(|s| s.is_object()) {
        check_at(schema, Place::Item, &format!("{path}.items"), faults);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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

        let root = "spec.validation.openAPIV3Schema";
        assert_eq!(
            faults(&[schema]),
            [
                format!(
                    "{root}.properties[spec].type: Unsupported value: \"objekt\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
                ),
                format!(
                    "{root}.properties[spec].properties[a].type: Required value: must not be empty for specified object fields"
                ),
                format!(
                    "{root}.properties[list].items.type: Required value: must not be empty for specified array items"
                ),
                format!(
                    "{root}.properties[map].additionalProperties.type: Required value: must not be empty for specified object fields"
                ),
            ]
        );
    }

    #[test]
    fn schemas_that_differ_are_named_by_version() {
        assert_eq!(
            faults(&[json!({ "type": "object" }), json!({})]),
            ["spec.versions[1].schema.openAPIV3Schema.type: Required value: must not be empty at the root"]
        );
    }
}
