// SPDX-License-Identifier: Apache-2.0

//! Sets of fields as `managedFields` writes them (`fieldsV1`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{Merge, Shape};

/// A set of paths into an object. Keys of the tree are `f:<name>`, `k:{<keys>}` and `v:<value>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The path to here is in the set.
    pub(crate) own: bool,
    pub(crate) below: BTreeMap<String, Fields>,
}

impl Fields {
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.below.values().all(Fields::is_empty)
    }

    pub(crate) fn leaf() -> Self {
        Fields {
            own: true,
            below: BTreeMap::new(),
        }
    }

    /// Reads the form of `fieldsV1`.
    pub(crate) fn from_json(value: &Value) -> Self {
        let mut fields = Fields::default();
        let Some(map) = value.as_object() else {
            return fields;
        };
        for (key, below) in map {
            if key == "." {
                fields.own = true;
                continue;
            }
            let mut child = Fields::from_json(below);
            if below.as_object().is_none_or(Map::is_empty) {
                child.own = true;
            }
            fields.below.insert(key.clone(), child);
        }
        fields
    }

    /// Writes the form of `fieldsV1`.
    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.own && !self.below.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (key, below) in &self.below {
            if !below.is_empty() {
                map.insert(key.clone(), below.to_json());
            }
        }
        Value::Object(map)
    }

    pub(crate) fn union(&mut self, other: &Fields) {
        self.own |= other.own;
        for (key, below) in &other.below {
            self.below.entry(key.clone()).or_default().union(below);
        }
    }

    pub(crate) fn subtract(&mut self, other: &Fields) {
        if other.own {
            self.own = false;
        }
        for (key, theirs) in &other.below {
            if let Some(ours) = self.below.get_mut(key) {
                ours.subtract(theirs);
                if ours.is_empty() {
                    self.below.remove(key);
                }
            }
        }
    }

    pub(crate) fn intersection(&self, other: &Fields) -> Fields {
        let below = self
            .below
            .iter()
            .filter_map(|(key, ours)| {
                let both = ours.intersection(other.below.get(key)?);
                (!both.is_empty()).then(|| (key.clone(), both))
            })
            .collect();
        Fields {
            own: self.own && other.own,
            below,
        }
    }

    /// Paths as conflict messages show them, such as `.spec.ports[port=80,protocol="TCP"].name`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(&mut String::new(), &mut paths);
        paths
    }

    fn collect(&self, path: &mut String, paths: &mut Vec<String>) {
        if self.own {
            paths.push(path.clone());
        }
        for (key, below) in &self.below {
            let length = path.len();
            if let Some(name) = key.strip_prefix("f:") {
                path.push('.');
                path.push_str(name);
            } else if let Some(keys) = key.strip_prefix("k:") {
                let keys: Value = serde_json::from_str(keys).unwrap_or_default();
                let parts: Vec<String> = keys
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(k, v)| format!("{k}={v}"))
                    .collect();
                path.push_str(&format!("[{}]", parts.join(",")));
            } else if let Some(value) = key.strip_prefix("v:") {
                path.push_str(&format!("[={value}]"));
            }
            below.collect(path, paths);
            path.truncate(length);
        }
    }

    /// The fields that `value` sets, as an applier owns them.
    pub(crate) fn of(shape: &Shape, value: &Value) -> Fields {
        let mut fields = Fields::default();
        match value {
            Value::Object(map) if !shape.is_atomic() => {
                if map.is_empty() {
                    fields.own = true;
                }
                for (key, value) in map {
                    fields
                        .below
                        .insert(format!("f:{key}"), Fields::of(&shape.child(key), value));
                }
            }
            Value::Array(items) if !shape.is_atomic() && !matches!(shape, Shape::Any) => {
                let (item_shape, rule) = shape.items();
                if items.is_empty() {
                    fields.own = true;
                }
                for item in items {
                    let mut below = match &rule {
                        Merge::Keys(_) => Fields::of(&item_shape, item),
                        _ => Fields::default(),
                    };
                    below.own = true;
                    fields.below.insert(item_key(&rule, item), below);
                }
            }
            _ => fields.own = true,
        }
        fields
    }

    /// All paths of `value`, inner nodes too, as an updater owns what it adds.
    fn whole(shape: &Shape, value: &Value) -> Fields {
        let mut fields = Fields::leaf();
        match value {
            Value::Object(map) if !shape.is_atomic() => {
                for (key, value) in map {
                    fields
                        .below
                        .insert(format!("f:{key}"), Fields::whole(&shape.child(key), value));
                }
            }
            Value::Array(items) if !shape.is_atomic() && !matches!(shape, Shape::Any) => {
                let (item_shape, rule) = shape.items();
                for item in items {
                    let below = match &rule {
                        Merge::Keys(_) => Fields::whole(&item_shape, item),
                        _ => Fields::leaf(),
                    };
                    fields.below.insert(item_key(&rule, item), below);
                }
            }
            _ => {}
        }
        fields
    }
}

/// The key of an item of a list in a tree of fields.
pub(crate) fn item_key(rule: &Merge, item: &Value) -> String {
    match rule {
        Merge::Keys(keys) => {
            let mut sorted: Vec<&String> = keys.iter().collect();
            sorted.sort();
            let map: Map<String, Value> = sorted
                .into_iter()
                .map(|key| {
                    let value = item.get(key).cloned().unwrap_or_else(|| default_of(key));
                    (key.clone(), value)
                })
                .collect();
            format!("k:{}", Value::Object(map))
        }
        _ => format!("v:{item}"),
    }
}

/// The value that a key of a list has when it is left out: protocols default to TCP.
fn default_of(key: &str) -> Value {
    if key == "protocol" {
        "TCP".into()
    } else {
        Value::Null
    }
}

/// How two versions of an object differ.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Paths that were added or have another value.
    pub(crate) changed: Fields,
    /// Paths that are gone.
    pub(crate) removed: Fields,
}

/// Compares two versions of an object.
pub(crate) fn compare(shape: &Shape, old: &Value, new: &Value) -> Difference {
    let mut difference = Difference::default();
    diff(shape, old, new, &mut difference.changed, &mut difference.removed);
    difference
}

fn diff(shape: &Shape, old: &Value, new: &Value, changed: &mut Fields, removed: &mut Fields) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) if !shape.is_atomic() => {
            for (key, new) in new {
                let below = shape.child(key);
                let name = format!("f:{key}");
                match old.get(key) {
                    Some(old) => descend(&below, old, new, name, changed, removed),
                    None => {
                        changed.below.insert(name, Fields::whole(&below, new));
                    }
                }
            }
            for (key, old) in old {
                if !new.contains_key(key) {
                    removed
                        .below
                        .insert(format!("f:{key}"), Fields::whole(&shape.child(key), old));
                }
            }
        }
        (Value::Array(old), Value::Array(new)) if !shape.is_atomic() && !matches!(shape, Shape::Any) => {
            let (item_shape, rule) = shape.items();
            let keyed = |items: &[Value]| -> BTreeMap<String, Value> {
                items
                    .iter()
                    .map(|item| (item_key(&rule, item), item.clone()))
                    .collect()
            };
            let (old, new) = (keyed(old), keyed(new));
            let whole = |value: &Value| match &rule {
                Merge::Keys(_) => Fields::whole(&item_shape, value),
                _ => Fields::leaf(),
            };
            for (key, new) in &new {
                match old.get(key) {
                    Some(old) => descend(&item_shape, old, new, key.clone(), changed, removed),
                    None => {
                        changed.below.insert(key.clone(), whole(new));
                    }
                }
            }
            for (key, old) in &old {
                if !new.contains_key(key) {
                    removed.below.insert(key.clone(), whole(old));
                }
            }
        }
        _ => changed.own = true,
    }
}

fn descend(shape: &Shape, old: &Value, new: &Value, key: String, changed: &mut Fields, removed: &mut Fields) {
    let (mut c, mut r) = (Fields::default(), Fields::default());
    diff(shape, old, new, &mut c, &mut r);
    if !c.is_empty() {
        changed.below.insert(key.clone(), c);
    }
    if !r.is_empty() {
        removed.below.insert(key, r);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SERVICE: Shape = Shape::Named("core.v1.Service");

    #[test]
    fn names_fields_as_managed_fields_does() {
        let fields = Fields::of(
            &SERVICE,
            &json!({
                "metadata": { "labels": { "a": "b" }, "finalizers": ["x"] },
                "spec": { "ports": [{ "port": 80, "targetPort": 8080 }], "externalIPs": ["1.1.1.1"] },
            }),
        );

        let expected = json!({
            "f:metadata": { "f:finalizers": { "v:\"x\"": {} }, "f:labels": { "f:a": {} } },
            "f:spec": {
                "f:externalIPs": {},
                "f:ports": {
                    "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:port": {}, "f:targetPort": {} },
                },
            },
        });
        assert_eq!(fields.to_json(), expected);
        assert_eq!(Fields::from_json(&expected), fields);
    }

    #[test]
    fn shows_paths() {
        let fields = Fields::of(
            &SERVICE,
            &json!({ "spec": { "ports": [{ "port": 80, "name": "a" }], "type": "x" } }),
        );

        assert_eq!(
            fields.paths(),
            [
                r#".spec.ports[port=80,protocol="TCP"]"#,
                r#".spec.ports[port=80,protocol="TCP"].name"#,
                r#".spec.ports[port=80,protocol="TCP"].port"#,
                ".spec.type",
            ]
        );
    }

    #[test]
    fn compares_versions() {
        let old = json!({ "spec": { "type": "A", "ports": [{ "port": 80 }], "clusterIP": "x" } });
        let new = json!({ "spec": { "type": "B", "ports": [{ "port": 80 }, { "port": 81 }] } });

        let difference = compare(&SERVICE, &old, &new);

        assert_eq!(
            difference.changed.to_json(),
            json!({ "f:spec": {
                "f:ports": { "k:{\"port\":81,\"protocol\":\"TCP\"}": { ".": {}, "f:port": {} } },
                "f:type": {},
            } })
        );
        assert_eq!(
            difference.removed.to_json(),
            json!({ "f:spec": { "f:clusterIP": {} } })
        );
    }

    #[test]
    fn sets_add_subtract_and_intersect() {
        let a = Fields::of(&SERVICE, &json!({ "spec": { "type": "x", "clusterIP": "y" } }));
        let b = Fields::of(&SERVICE, &json!({ "spec": { "type": "z" } }));

        assert_eq!(a.intersection(&b), b);
        let mut rest = a.clone();
        rest.subtract(&b);
        assert_eq!(rest.to_json(), json!({ "f:spec": { "f:clusterIP": {} } }));
        rest.union(&b);
        assert_eq!(rest, a);
    }
}
