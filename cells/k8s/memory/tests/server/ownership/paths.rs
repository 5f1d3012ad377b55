// SPDX-License-Identifier: Apache-2.0

//! Objects as flat sets of paths. A path is a list of keys as `fieldsV1` has them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::kinds::{Kind, Rule};

pub(crate) type Path = Vec<String>;

/// What is at a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Leaf(Value),
    /// A struct or a map.
    Map,
    List,
    /// An item of a list by key or of a set.
    Item,
}

/// Reads a path such as `f:spec f:ports k:{"port":80}`.
pub(crate) fn path(text: &str) -> Path {
    text.split(' ').map(str::to_owned).collect()
}

/// The names in a path: `spec.ports`.
pub(crate) fn names(path: &[String]) -> String {
    let names: Vec<&str> = path.iter().filter_map(|key| key.strip_prefix("f:")).collect();
    names.join(".")
}

/// As messages show it: `.spec.ports[port=80].name`.
pub(crate) fn shown(path: &[String]) -> String {
    path.iter()
        .map(|key| match key.split_at(2) {
            ("f:", name) => format!(".{name}"),
            ("k:", keys) => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap();
                let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("[{}]", keys.join(","))
            }
            (_, value) => format!("[={value}]"),
        })
        .collect()
}

/// All paths of `value` and what is there.
pub(crate) fn flatten(kind: &Kind, value: &Value) -> BTreeMap<Path, Node> {
    let mut found = BTreeMap::new();
    walk(kind, value, &mut Vec::new(), &mut found);
    found
}

fn walk(kind: &Kind, value: &Value, at: &mut Path, found: &mut BTreeMap<Path, Node>) {
    let mut below = |key: String, value: Option<&Value>, at: &mut Path, node: Option<Node>| {
        at.push(key);
        if let Some(node) = node {
            found.insert(at.clone(), node);
        }
        if let Some(value) = value {
            walk(kind, value, at, found);
        }
        at.pop();
    };
    let rule = kind.rule(&names(at));
    match (value, rule) {
        (Value::Object(map), _) => {
            for (name, value) in map {
                let mut next = at.clone();
                next.push(format!("f:{name}"));
                let (node, divides) = match (value, kind.rule(&names(&next))) {
                    (Value::Object(_), Rule::Granular) => (Node::Map, true),
                    (Value::Array(_), Rule::Keys(_) | Rule::Set) => (Node::List, true),
                    _ => (Node::Leaf(value.clone()), false),
                };
                below(format!("f:{name}"), divides.then_some(value), at, Some(node));
            }
        }
        (Value::Array(items), Rule::Keys(keys)) => {
            for item in items {
                below(item_key(keys, item), Some(item), at, Some(Node::Item));
            }
        }
        (Value::Array(items), Rule::Set) => {
            for item in items {
                below(format!("v:{item}"), None, at, Some(Node::Item));
            }
        }
        _ => {}
    }
}

pub(crate) fn item_key(keys: &[&str], item: &Value) -> String {
    let keys: BTreeMap<&str, &Value> = keys.iter().map(|key| (*key, &item[*key])).collect();
    format!("k:{}", json!(keys))
}

/// Sets the value at `path`; makes what leads there. An item is made of its keys and what `kind` says it needs.
pub(crate) fn put(kind: &Kind, mut value: &mut Value, path: &[String], leaf: &Value) {
    for (at, key) in path.iter().enumerate() {
        let next_is_item = path.get(at + 1).is_some_and(|next| !next.starts_with("f:"));
        let fresh = if next_is_item { json!([]) } else { json!({}) };
        value = match key.split_at(2) {
            ("f:", name) => {
                let map = value.as_object_mut().unwrap();
                map.entry(name).or_insert(fresh)
            }
            ("k:", keys) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap();
                let items = value.as_array_mut().unwrap();
                let is = |item: &Value| keys.iter().all(|(key, value)| item.get(key) == Some(value));
                let found = items.iter().position(is).unwrap_or_else(|| {
                    let mut item = Value::Object(keys.clone());
                    kind.complete(key, &mut item);
                    items.push(item);
                    items.len() - 1
                });
                &mut items[found]
            }
            (_, text) => {
                let item: Value = serde_json::from_str(text).unwrap();
                let items = value.as_array_mut().unwrap();
                if !items.contains(&item) {
                    items.push(item);
                }
                return;
            }
        };
    }
    if !path.last().unwrap().starts_with("k:") {
        *value = leaf.clone();
    }
}

/// Removes what is at `path`; with `tidy`, the map or list that it leaves empty too. True if it was there.
pub(crate) fn remove(value: &mut Value, path: &[String], tidy: bool) -> bool {
    let (key, rest) = path.split_first().unwrap();
    let child = match key.split_at(2) {
        ("f:", name) => value.get_mut(name),
        ("k:", keys) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap();
            let is = |item: &&mut Value| keys.iter().all(|(key, value)| item.get(key) == Some(value));
            value.as_array_mut().and_then(|items| items.iter_mut().find(is))
        }
        (_, text) => {
            let wanted: Value = serde_json::from_str(text).unwrap();
            value
                .as_array_mut()
                .and_then(|items| items.iter_mut().find(|item| **item == wanted))
        }
    };
    let Some(child) = child else { return false };
    let gone = if let Some(next) = rest.first() {
        if !remove(child, rest, tidy) {
            return false;
        }
        let bare =
            child.as_object().is_some_and(Map::is_empty) || child.as_array().is_some_and(Vec::is_empty);
        tidy && bare && !(next.starts_with("f:") && key.starts_with("k:"))
    } else {
        true
    };
    if gone {
        let child = child.clone();
        match value {
            Value::Object(map) => {
                map.shift_remove(&key[2..]);
            }
            Value::Array(items) => items.retain(|item| *item != child),
            _ => unreachable!("it had a child"),
        }
    }
    true
}

/// The paths of a set in the form of `fieldsV1`.
pub(crate) fn set(fields: &Value) -> BTreeSet<Path> {
    fn read(fields: &Value, at: &mut Path, found: &mut BTreeSet<Path>) {
        let map = fields.as_object().unwrap();
        if map.is_empty() || map.contains_key(".") {
            found.insert(at.clone());
        }
        for (key, below) in map.iter().filter(|(key, _)| *key != ".") {
            at.push(key.clone());
            read(below, at, found);
            at.pop();
        }
    }
    let mut found = BTreeSet::new();
    read(fields, &mut Vec::new(), &mut found);
    found
}
