// SPDX-License-Identifier: Apache-2.0

//! Objects against schemas, in the words of an API server.

use serde_json::{Map, Value};
use skep_k8s_memory::{Fault, object};

use super::formats::has_format;
use super::patterns::Patterns;
use super::{before, join, says};

/// Faults of an object by its schema. Values that are as in `old` are not checked again, so that an object that was fine
/// by an older schema can still be changed elsewhere.
pub(super) fn validate(
    patterns: &Patterns,
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
) -> Vec<Fault> {
    let mut walk = Walk {
        patterns,
        faults: Vec::new(),
    };
    walk.value(schema, value, old, "");
    walk.faults
}

struct Walk<'a> {
    patterns: &'a Patterns,
    faults: Vec<Fault>,
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

/// The path as it is shown.
fn shown(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

fn wrong_type(path: &str, got: &str, wanted: &str) -> Fault {
    Fault {
        reason: "FieldValueTypeInvalid",
        ..Fault::invalid(
            shown(path),
            &got.into(),
            &format!("{path} in body must be of type {wanted}: {got:?}"),
        )
    }
}

/// A fault of alternatives. It belongs to no field; the path is in its text.
fn alternatives(path: &str, detail: &str) -> Fault {
    Fault::invalid("<nil>", &"".into(), &format!("{path:?} must {detail}"))
}

fn plural(count: u64, thing: &str) -> String {
    if count == 1 {
        format!("{count} {thing}")
    } else {
        format!("{count} {thing}s")
    }
}

impl Walk<'_> {
    fn value(&mut self, schema: &Value, value: &Value, old: Option<&Value>, path: &str) {
        if old == Some(value) {
            return;
        }
        let wanted = object::text(schema, &["type"]);
        if value.is_null() {
            if !says(schema, "nullable") && !wanted.is_empty() {
                self.faults.push(wrong_type(path, "null", wanted));
            }
            return;
        }
        if says(schema, "x-kubernetes-int-or-string") {
            if !value.is_string() && !fits("integer", value) {
                self.faults
                    .push(wrong_type(path, type_name(value), "integer,string"));
                return;
            }
        } else if !wanted.is_empty() && !fits(wanted, value) {
            self.faults.push(wrong_type(path, type_name(value), wanted));
            return;
        }
        self.combined(schema, value, path);
        match value {
            Value::String(text) => self.text(schema, text, path),
            Value::Number(_) => self.number(schema, value, path),
            Value::Array(items) => self.list(schema, items, old, path),
            _ => {}
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let texts: Vec<String> = allowed
                .iter()
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                .collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.faults.push(Fault::not_supported(shown(path), value, &texts));
        }
        if let Value::Object(map) = value {
            self.map(schema, map, old, path);
        }
    }

    fn fail(&mut self, path: &str, value: &Value, detail: &str) {
        let detail = format!("{path} in body {detail}");
        self.faults.push(Fault::invalid(shown(path), value, &detail));
    }

    fn too_many(&mut self, path: &str, count: u64, most: u64) {
        self.faults.push(Fault {
            field: shown(path).to_owned(),
            reason: "FieldValueTooMany",
            detail: format!("Too many: {count}: must have at most {}", plural(most, "item")),
        });
    }

    fn text(&mut self, schema: &Value, text: &str, path: &str) {
        let value = Value::from(text);
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        // Characters, not bytes, whatever the text says.
        let length = text.chars().count() as u64;
        if let Some(most) = count("maxLength")
            && length > most
        {
            self.faults.push(Fault {
                field: shown(path).to_owned(),
                reason: "FieldValueTooLong",
                detail: format!("Too long: may not be more than {}", plural(most, "byte")),
            });
        }
        if let Some(least) = count("minLength")
            && length < least
        {
            self.fail(path, &value, &format!("should be at least {least} chars long"));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && !self.patterns.matches(pattern, text)
        {
            self.fail(path, &value, &format!("should match '{pattern}'"));
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str)
            && !has_format(format, text)
        {
            self.faults.push(Fault {
                reason: "FieldValueTypeInvalid",
                ..Fault::invalid(
                    shown(path),
                    &value,
                    &format!("{path} in body must be of type {format}: {text:?}"),
                )
            });
        }
    }

    fn number(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(number) = value.as_f64() else { return };
        let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
        if let Some(step) = limit("multipleOf")
            && step > 0.0
            && (number / step).fract() != 0.0
        {
            self.fail(path, value, &format!("should be a multiple of {step}"));
        }
        if let Some(most) = limit("maximum") {
            if says(schema, "exclusiveMaximum") && number >= most {
                self.fail(path, value, &format!("should be less than {most}"));
            } else if number > most {
                self.fail(path, value, &format!("should be less than or equal to {most}"));
            }
        }
        if let Some(least) = limit("minimum") {
            if says(schema, "exclusiveMinimum") && number <= least {
                self.fail(path, value, &format!("should be greater than {least}"));
            } else if number < least {
                self.fail(
                    path,
                    value,
                    &format!("should be greater than or equal to {least}"),
                );
            }
        }
    }

    fn list(&mut self, schema: &Value, items: &[Value], old: Option<&Value>, path: &str) {
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let length = items.len() as u64;
        if let Some(below) = schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                let old = before(schema, item, old);
                self.value(below, item, old, &format!("{path}[{index}]"));
            }
        }
        if let Some(least) = count("minItems")
            && length < least
        {
            self.fail(
                path,
                &length.into(),
                &format!("should have at least {least} items"),
            );
        }
        if let Some(most) = count("maxItems")
            && length > most
        {
            self.too_many(path, length, most);
        }
    }

    fn map(&mut self, schema: &Value, map: &Map<String, Value>, old: Option<&Value>, path: &str) {
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let length = map.len() as u64;
        if let Some(least) = count("minProperties")
            && length < least
        {
            self.fail(
                path,
                &length.into(),
                &format!("should have at least {least} properties"),
            );
        }
        if let Some(most) = count("maxProperties")
            && length > most
        {
            self.too_many(path, length, most);
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let additional = schema.get("additionalProperties").filter(|v| v.is_object());
        for (key, value) in map {
            if let Some(below) = properties.and_then(|p| p.get(key)).or(additional) {
                let old = old.and_then(|old| old.get(key));
                self.value(below, value, old, &join(path, key));
            }
        }
        for key in object::items(schema, &["required"])
            .iter()
            .filter_map(Value::as_str)
        {
            if !map.contains_key(key) {
                self.faults.push(Fault::required(join(path, key), ""));
            }
        }
    }

    /// `anyOf`, `oneOf`, `allOf`, `not`.
    fn combined(&mut self, schema: &Value, value: &Value, path: &str) {
        let patterns = self.patterns;
        let faults_of = |schema: &Value| {
            let mut walk = Walk {
                patterns,
                faults: Vec::new(),
            };
            walk.value(schema, value, None, path);
            walk.faults
        };
        let branches = |key: &str| -> Option<Vec<Vec<Fault>>> {
            Some(schema.get(key)?.as_array()?.iter().map(&faults_of).collect())
        };
        if let Some(any) = branches("anyOf")
            && !any.iter().any(Vec::is_empty)
        {
            self.faults
                .push(alternatives(path, "validate at least one schema (anyOf)"));
            self.faults.extend(any.into_iter().next().unwrap_or_default());
        }
        if let Some(one) = branches("oneOf") {
            let valid = one.iter().filter(|faults| faults.is_empty()).count();
            if valid != 1 {
                let found = match valid {
                    0 => "Found none valid".to_owned(),
                    more => format!("Found {more} valid alternatives"),
                };
                let detail = format!("validate one and only one schema (oneOf). {found}");
                self.faults.push(alternatives(path, &detail));
            }
            if valid == 0 {
                self.faults.extend(one.into_iter().next().unwrap_or_default());
            }
        }
        if let Some(all) = branches("allOf")
            && !all.iter().all(Vec::is_empty)
        {
            self.faults
                .push(alternatives(path, "validate all the schemas (allOf)"));
            self.faults.extend(all.into_iter().flatten());
        }
        if schema.get("not").is_some_and(|not| faults_of(not).is_empty()) {
            self.faults
                .push(alternatives(path, "not validate the schema (not)"));
        }
    }
}

#[cfg(test)]
mod tests;
