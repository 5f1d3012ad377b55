// SPDX-License-Identifier: Apache-2.0

//! Values of rules: objects as their schema describes them.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use skep_k8s_memory::object;

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
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
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
