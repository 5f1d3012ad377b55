// SPDX-License-Identifier: Apache-2.0

//! Values of rules: objects as their schema describes them.

use std::collections::HashMap;
use std::sync::Arc;

use cel::objects::OptionalValue;
use serde_json::Value;

use crate::object;

/// Words that are no names in expressions.
const KEYWORDS: [&str; 22] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
    "_",
];

/// The value of a rule's `self`. Fields that the schema does not name cannot be seen.
pub(super) fn of(schema: &Value, value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) if object::text(schema, &["type"]) != "number" => cel::Value::Int(whole),
            _ => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => string(object::text(schema, &["format"]), text),
        Value::Array(items) => {
            let below = schema.get("items").unwrap_or(&Value::Null);
            let items: Vec<cel::Value> = items.iter().map(|item| of(below, item)).collect();
            cel::Value::List(Arc::new(items))
        }
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let additional = schema
                .get("additionalProperties")
                .filter(|below| !below.is_boolean());
            let fields: HashMap<String, cel::Value> = map
                .iter()
                .filter_map(|(name, value)| {
                    match (properties.and_then(|known| known.get(name)), additional) {
                        (Some(below), _) => Some((escaped(name), of(below, value))),
                        (None, Some(below)) => Some((name.clone(), of(below, value))),
                        (None, None) => None,
                    }
                })
                .collect();
            fields.into()
        }
    }
}

fn string(format: &str, text: &str) -> cel::Value {
    match format {
        "date-time" | "datetime" => chrono::DateTime::parse_from_rfc3339(text)
            .ok()
            .map(cel::Value::Timestamp),
        "date" => chrono::DateTime::parse_from_rfc3339(&format!("{text}T00:00:00Z"))
            .ok()
            .map(cel::Value::Timestamp),
        "byte" => {
            use base64::Engine;
            let bytes = base64::engine::general_purpose::STANDARD.decode(text);
            bytes.ok().map(|bytes| cel::Value::Bytes(Arc::new(bytes)))
        }
        _ => None,
    }
    .unwrap_or_else(|| cel::Value::String(Arc::new(text.to_owned())))
}

/// The value of `oldSelf` in rules that say it is optional.
pub(super) fn optional(value: Option<cel::Value>) -> cel::Value {
    cel::Value::Opaque(Arc::new(match value {
        Some(value) => OptionalValue::of(value),
        None => OptionalValue::none(),
    }))
}

/// The name of a field in expressions.
pub(super) fn escaped(name: &str) -> String {
    if KEYWORDS.contains(&name) {
        return format!("__{name}__");
    }
    name.replace("__", "\u{0}")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
        .replace('\u{0}', "__underscores__")
}

/// The steps of a `fieldPath` such as `.spec['a.b']`; `None` if it is none.
fn steps(path: &str) -> Option<Vec<String>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("['") {
            let (name, after) = after.split_once("']")?;
            steps.push(name.to_owned());
            rest = after;
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return None;
            }
            steps.push(after[..end].to_owned());
            rest = &after[end..];
        }
    }
    Some(steps)
}

/// Whether a `fieldPath` leads to a field of the schema.
pub(super) fn has_path(schema: &Value, path: &str) -> bool {
    let Some(steps) = steps(path) else { return false };
    let found = steps.iter().try_fold(schema, |schema, step| {
        let below = schema
            .get("properties")
            .and_then(|properties| properties.get(step));
        below.or_else(|| {
            schema
                .get("additionalProperties")
                .filter(|below| below.is_object())
        })
    });
    found.is_some()
}

/// A `fieldPath` as errors show it.
pub(super) fn shown_path(path: &str) -> String {
    let steps = steps(path).unwrap_or_default();
    steps.iter().map(|step| format!(".{step}")).collect()
}
