// SPDX-License-Identifier: Apache-2.0

//! Objects of scripts: YAML 1.1, as Kubernetes reads it.
//!
//! The parser knows YAML 1.2, in which `0644`, `30_000` and `yes` are texts. What they are is seen by the field that
//! they stand in. The parser does not tell whether they were quoted; a quoted one is taken, too.

use hive_script::text::parse_int;
use serde::Deserialize;
use serde_json::Value;

use crate::schema::{Scalar, Shape};

/// The first document of a text; null if there is none.
pub(crate) fn first_document(text: &str) -> Result<Value, serde_norway::Error> {
    serde_norway::Deserializer::from_str(text)
        .next()
        .map_or(Ok(Value::Null), Value::deserialize)
}

/// Makes numbers and truth values of the texts that YAML 1.1 has for them.
pub(crate) fn resolve(shape: &Shape, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                resolve(&shape.child(key), value);
            }
        }
        Value::Array(items) => {
            let (item, _) = shape.items();
            items.iter_mut().for_each(|value| resolve(&item, value));
        }
        Value::String(text) => {
            let resolved = match shape {
                Shape::Scalar(Scalar::Integer | Scalar::Long) => whole_number(text).map(Value::from),
                Shape::Scalar(Scalar::Bool) => truth(text).map(Value::from),
                _ => None,
            };
            if let Some(resolved) = resolved {
                *value = resolved;
            }
        }
        _ => {}
    }
}

/// What YAML 1.2 takes for a text: octal digits behind a 0, or underscores between digits.
fn whole_number(text: &str) -> Option<i64> {
    let digits = text.trim_start_matches(['+', '-']);
    let is_old = digits.contains('_') || (digits.len() > 1 && digits.starts_with('0'));
    if is_old { parse_int(text).ok() } else { None }
}

fn truth(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::Registry;

    #[test]
    fn old_forms_are_resolved_by_the_field() {
        let registry = Registry::with_extensions();
        let pod = registry.by_kind("v1", "Pod").unwrap();
        let mut value = json!({"metadata": {"annotations": {"a": "yes"}}, "spec": {
            "hostNetwork": "yes", "shareProcessNamespace": "off", "priority": "1_000",
            "volumes": [{"name": "0644", "configMap": {"defaultMode": "0644"}}],
            "terminationGracePeriodSeconds": "30", "activeDeadlineSeconds": "0x",
        }});

        resolve(&pod.shape, &mut value);

        assert_eq!(
            value,
            json!({"metadata": {"annotations": {"a": "yes"}}, "spec": {
                "hostNetwork": true, "shareProcessNamespace": false, "priority": 1000,
                "volumes": [{"name": "0644", "configMap": {"defaultMode": 420}}],
                "terminationGracePeriodSeconds": "30", "activeDeadlineSeconds": "0x",
            }})
        );
    }

    #[test]
    fn only_the_first_document_counts() {
        assert_eq!(
            first_document("---\na: 1\n---\nb: 2\n---\n").unwrap(),
            json!({"a": 1})
        );
        assert_eq!(first_document("").unwrap(), Value::Null);
        assert!(first_document("a: b: c").is_err());
    }
}
