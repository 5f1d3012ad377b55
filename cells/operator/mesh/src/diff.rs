// SPDX-License-Identifier: Apache-2.0

//! Differences of JSON values.

use serde_json::{Map, Value};

/// The merge patch (RFC 7386) from one object to another; `None` if they are equal.
pub(crate) fn merge_patch(current: &Value, desired: &Value) -> Option<Value> {
    if current == desired {
        return None;
    }
    let (Value::Object(current), Value::Object(desired)) = (current, desired) else {
        return Some(desired.clone());
    };
    let mut patch = Map::new();
    for (key, value) in desired {
        match current.get(key) {
            Some(old) => {
                if let Some(change) = merge_patch(old, value) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in current.keys().filter(|key| !desired.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_has_what_differs() {
        let current = json!({ "a": 1, "b": { "c": [1], "d": 2 }, "e": 3 });

        assert_eq!(merge_patch(&current, &current), None);
        assert_eq!(
            merge_patch(&current, &json!({ "a": 1, "b": { "c": [2], "d": 2 }, "f": {} })),
            Some(json!({ "b": { "c": [2] }, "e": null, "f": {} }))
        );
    }
}
