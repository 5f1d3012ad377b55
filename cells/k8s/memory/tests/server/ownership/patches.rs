// SPDX-License-Identifier: Apache-2.0

//! Patches that lead from one object to another.

use serde_json::{Map, Value, json};

use super::kinds::{Kind, Rule};
use super::paths::item_key;

pub(crate) fn merge(from: &Map<String, Value>, to: &Map<String, Value>) -> Value {
    let mut patch = Map::new();
    for (name, new) in to {
        match (from.get(name), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(name.clone(), merge(old, new));
            }
            _ => {
                patch.insert(name.clone(), new.clone());
            }
        }
    }
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

pub(crate) fn json(from: &Value, to: &Value) -> Value {
    let mut operations = Vec::new();
    diff(from, to, "", &mut operations);
    Value::Array(operations)
}

fn diff(from: &Value, to: &Value, at: &str, operations: &mut Vec<Value>) {
    let (Some(old), Some(new)) = (from.as_object(), to.as_object()) else {
        if from != to {
            operations.push(json!({ "op": "replace", "path": at, "value": to }));
        }
        return;
    };
    let place = |name: &str| format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
    for (name, new) in new {
        match old.get(name) {
            Some(old) => diff(old, new, &place(name), operations),
            None => operations.push(json!({ "op": "add", "path": place(name), "value": new })),
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        operations.push(json!({ "op": "remove", "path": place(name) }));
    }
}

pub(crate) fn strategic(kind: &Kind, from: &Map<String, Value>, to: &Map<String, Value>, at: &str) -> Value {
    let mut patch = Map::new();
    for (name, new) in to {
        let below = if at.is_empty() {
            name.clone()
        } else {
            format!("{at}.{name}")
        };
        match (from.get(name), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) if kind.rule(&below) == Rule::Atomic => {
                // A strategic patch merges maps, whoever owns them.
                patch.insert(name.clone(), merge(old, new));
            }
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(name.clone(), strategic(kind, old, new, &below));
            }
            (Some(Value::Array(old)), Value::Array(new)) => match kind.rule(&below) {
                Rule::Keys(keys) => {
                    patch.insert(name.clone(), items(kind, keys, old, new, &below).into());
                }
                Rule::Set => {
                    let gone: Vec<&Value> = old.iter().filter(|item| !new.contains(item)).collect();
                    patch.insert(format!("$deleteFromPrimitiveList/{name}"), json!(gone));
                    patch.insert(name.clone(), new.clone().into());
                }
                Rule::Atomic | Rule::Granular => {
                    patch.insert(name.clone(), new.clone().into());
                }
            },
            _ => {
                patch.insert(name.clone(), new.clone());
            }
        }
    }
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

fn items(kind: &Kind, keys: &[&str], old: &[Value], new: &[Value], at: &str) -> Vec<Value> {
    let find = |items: &[Value], item: &Value| {
        let key = item_key(keys, item);
        items.iter().find(|other| item_key(keys, other) == key).cloned()
    };
    let with_keys = |mut patch: Value, item: &Value| {
        keys.iter().for_each(|key| patch[*key] = item[*key].clone());
        patch
    };
    let mut patch = Vec::new();
    for item in new {
        match find(old, item) {
            Some(was) if was == *item => {}
            Some(was) => {
                let change = strategic(kind, was.as_object().unwrap(), item.as_object().unwrap(), at);
                patch.push(with_keys(change, item));
            }
            None => patch.push(item.clone()),
        }
    }
    for item in old.iter().filter(|item| find(new, item).is_none()) {
        patch.push(with_keys(json!({ "$patch": "delete" }), item));
    }
    patch
}
