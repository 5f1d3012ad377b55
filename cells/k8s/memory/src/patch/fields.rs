// SPDX-License-Identifier: Apache-2.0

//! Sets of fields as `managedFields` writes them (`fieldsV1`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A set of paths into an object. Keys of the tree are `f:<name>`, `k:{<keys>}` and `v:<value>`.
///
/// No node below the root is empty: a key leads to at least one path of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The path to here is in the set.
    pub(crate) own: bool,
    below: BTreeMap<String, Fields>,
}

impl Fields {
    pub(crate) fn is_empty(&self) -> bool {
        !self.own && self.below.is_empty()
    }

    pub(crate) fn leaf() -> Self {
        Fields {
            own: true,
            below: BTreeMap::new(),
        }
    }

    /// Keys and sets below this path.
    pub(crate) fn below(&self) -> impl Iterator<Item = (&str, &Fields)> {
        self.below.iter().map(|(key, fields)| (key.as_str(), fields))
    }

    /// The set below `key`, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<&Fields> {
        self.below.get(key)
    }

    /// True if `path` is in the set.
    pub(crate) fn contains(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(self, |fields, key| fields.get(key));
        found.is_some_and(|fields| fields.own)
    }

    /// Adds a set below `key`.
    pub(crate) fn insert(&mut self, key: String, fields: Fields) {
        if !fields.is_empty() {
            self.below.entry(key).or_default().union(&fields);
        }
    }

    /// Removes the set below `key`.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Fields> {
        self.below.remove(key)
    }

    /// Changes the set below `key`, if there is one.
    pub(crate) fn edit(&mut self, key: &str, change: impl FnOnce(&mut Fields)) {
        if let Some(mut fields) = self.below.remove(key) {
            change(&mut fields);
            self.insert(key.to_owned(), fields);
        }
    }

    /// Reads the form of `fieldsV1`; `None` if it is malformed. Keys of an unknown kind are left out, as they may come
    /// from a later version of Kubernetes.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let mut fields = Fields::default();
        for (key, below) in value.as_object()? {
            if key == "." {
                fields.own = true;
                continue;
            }
            let Some(key) = canonical(key)? else { continue };
            let mut child = Fields::from_json(below)?;
            child.own |= below.as_object().is_some_and(Map::is_empty);
            fields.insert(key, child);
        }
        Some(fields)
    }

    /// Writes the form of `fieldsV1`.
    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.own && !self.below.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (key, below) in &self.below {
            map.insert(key.clone(), below.to_json());
        }
        Value::Object(map)
    }

    /// Adds the paths of `other`.
    pub(crate) fn union(&mut self, other: &Fields) {
        self.own |= other.own;
        for (key, theirs) in &other.below {
            self.below.entry(key.clone()).or_default().union(theirs);
        }
    }

    /// Removes the paths of `other`; those below them stay.
    pub(crate) fn subtract(&mut self, other: &Fields) {
        self.own &= !other.own;
        for (key, theirs) in &other.below {
            self.edit(key, |ours| ours.subtract(theirs));
        }
    }

    /// Removes the paths of `other` and all below them: for values that are gone.
    pub(crate) fn subtract_trees(&mut self, other: &Fields) {
        for (key, theirs) in &other.below {
            if theirs.own {
                self.below.remove(key);
            } else {
                self.edit(key, |ours| ours.subtract_trees(theirs));
            }
        }
    }

    /// The paths that are in both.
    pub(crate) fn intersection(&self, other: &Fields) -> Fields {
        let mut both = Fields {
            own: self.own && other.own,
            below: BTreeMap::new(),
        };
        for (key, ours) in &self.below {
            if let Some(theirs) = other.below.get(key) {
                both.insert(key.clone(), ours.intersection(theirs));
            }
        }
        both
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
            path.push_str(&shown(key));
            below.collect(path, paths);
            path.truncate(length);
        }
    }
}

/// How messages show one key of a path.
pub(super) fn shown(key: &str) -> String {
    if let Some(name) = key.strip_prefix("f:") {
        return format!(".{name}");
    }
    if let Some(keys) = key.strip_prefix("k:") {
        let keys: Value = serde_json::from_str(keys).unwrap_or_default();
        let parts: Vec<String> = keys
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        return format!("[{}]", parts.join(","));
    }
    format!("[={}]", key.strip_prefix("v:").unwrap_or(key))
}

/// The key of an item with the key fields `keys`.
pub(super) fn keyed(keys: Map<String, Value>) -> String {
    let mut keys: Vec<(String, Value)> = keys.into_iter().collect();
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    format!("k:{}", Value::Object(keys.into_iter().collect()))
}

/// Brings a key of `fieldsV1` to the form that this server writes. `None`: malformed; `Some(None)`: of an unknown kind.
fn canonical(key: &str) -> Option<Option<String>> {
    Some(match key.split_at_checked(2) {
        Some(("f:", _)) => Some(key.to_owned()),
        Some(("k:", keys)) => Some(keyed(serde_json::from_str(keys).ok()?)),
        Some(("v:", value)) => {
            let value: Value = serde_json::from_str(value).ok()?;
            Some(format!("v:{value}"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::from_json(&value).unwrap()
    }

    #[test]
    fn reads_and_writes_fields_v1() {
        let json = json!({
            "f:metadata": { "f:labels": { ".": {}, "f:a": {} } },
            "f:spec": { "f:ports": { "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:port": {} } } },
        });
        assert_eq!(fields(json.clone()).to_json(), json);

        let unordered =
            json!({ "f:a": { "k:{\"b\": 1, \"a\":2}": {} }, "f:b": { "v: \"x\"": {} }, "x:later": {} });
        let ordered = json!({ "f:a": { "k:{\"a\":2,\"b\":1}": {} }, "f:b": { "v:\"x\"": {} } });
        assert_eq!(fields(unordered).to_json(), ordered);

        for malformed in [
            json!("x"),
            json!({ "f:a": 1 }),
            json!({ "k:{": {} }),
            json!({ "v:x": {} }),
        ] {
            assert_eq!(Fields::from_json(&malformed), None, "{malformed}");
        }
    }

    #[test]
    fn shows_paths() {
        let fields = fields(json!({
            "f:spec": {
                "f:ports": { "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:name": {} } },
                "f:set": { "v:\"x\"": {} },
            },
        }));

        assert_eq!(
            fields.paths(),
            [
                r#".spec.ports[port=80,protocol="TCP"]"#,
                r#".spec.ports[port=80,protocol="TCP"].name"#,
                r#".spec.set[="x"]"#,
            ]
        );
    }
}
