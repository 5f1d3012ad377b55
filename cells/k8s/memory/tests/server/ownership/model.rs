// SPDX-License-Identifier: Apache-2.0

//! Field ownership as the Kubernetes documentation of server-side apply describes it, over flat sets of paths.
//!
//! Only the paths that the test writes, and what leads to them, are in it: not what the server adds itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::kinds::{Kind, Rule};
use super::paths::{Node, Path, flatten, names, set, shown};

/// Manager and operation.
pub(crate) type Owner = (String, &'static str);

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) object: BTreeMap<Path, Node>,
    pub(crate) sets: BTreeMap<Owner, BTreeSet<Path>>,
}

/// The part of an object that the model knows.
pub(crate) fn seen(kind: &Kind, object: &Value) -> BTreeMap<Path, Node> {
    let mut nodes = flatten(kind, object);
    nodes.retain(|path, _| is_seen(kind, path));
    nodes
}

/// The part of the managed fields of an object that the model knows.
pub(crate) fn seen_sets(kind: &Kind, object: &Value) -> BTreeMap<Owner, BTreeSet<Path>> {
    let mut sets = BTreeMap::new();
    for entry in object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let mut paths = set(&entry["fieldsV1"]);
        paths.retain(|path| is_seen(kind, path));
        let operation = if entry["operation"] == "Apply" {
            "Apply"
        } else {
            "Update"
        };
        let owner = (entry["manager"].as_str().unwrap().to_owned(), operation);
        assert!(
            sets.insert(owner, paths).is_none(),
            "two entries of {}",
            entry["manager"]
        );
    }
    sets.retain(|_, paths: &mut BTreeSet<Path>| !paths.is_empty());
    sets
}

fn is_seen(kind: &Kind, path: &Path) -> bool {
    // Structs of every object, that no manager owns as such.
    let standard = match path.as_slice() {
        [one] => one == "f:metadata" || (!kind.is_custom() && (one == "f:spec" || one == "f:status")),
        _ => false,
    };
    !standard && kind.spots.iter().any(|spot| spot.path.starts_with(path))
}

impl Model {
    /// A create, an update or a patch of any kind that leaves `after`: the manager owns what changed, none owns what
    /// is gone.
    pub(crate) fn update(&mut self, manager: &str, after: BTreeMap<Path, Node>) {
        let changed: BTreeSet<Path> = after
            .iter()
            .filter(|(path, node)| self.object.get(*path) != Some(node))
            .map(|(path, _)| path.clone())
            .collect();
        for set in self.sets.values_mut() {
            set.retain(|path| !changed.contains(path) && after.contains_key(path));
        }
        let own = self.sets.entry((manager.to_owned(), "Update")).or_default();
        own.extend(changed);
        self.object = after;
        self.tidy();
    }

    /// An apply of what `config` holds. The error is all conflicts.
    pub(crate) fn apply(
        &mut self,
        kind: &Kind,
        manager: &str,
        config: &BTreeMap<Path, Node>,
        force: bool,
    ) -> Result<(), BTreeSet<String>> {
        self.before_first_apply(kind);
        let me: Owner = (manager.to_owned(), "Apply");
        let is_entry = |path: &Path| {
            let (_, parent) = path.split_last().unwrap();
            path.last().unwrap().starts_with("f:") && kind.has_entries(&names(parent))
        };
        let wanted: BTreeSet<Path> = config
            .iter()
            .filter(|(path, node)| match node {
                Node::Leaf(_) | Node::Item => true,
                Node::Map | Node::List => is_entry(path) || kind.is_untyped(&names(path)),
            })
            .map(|(path, _)| path.clone())
            .collect();

        // Values that differ and have other owners.
        let differs = |path: &&Path| self.object.get(*path) != config.get(*path);
        let contested: BTreeSet<Path> = wanted.iter().filter(differs).cloned().collect();
        let mut conflicts = BTreeSet::new();
        for (_, set) in self.sets.iter_mut().filter(|(owner, _)| **owner != me) {
            if force {
                set.retain(|path| !contested.contains(path));
            } else {
                let taken = set.intersection(&contested);
                conflicts.extend(taken.map(|path| shown(path)));
            }
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        self.object
            .extend(config.iter().map(|(path, node)| (path.clone(), node.clone())));

        // What the manager applied last and does not apply now goes unless another owns it.
        let last = self.sets.remove(&me).unwrap_or_default();
        let mut kept = wanted.clone();
        kept.extend(self.sets.values().flatten().cloned());
        let has_parts = |object: &BTreeMap<Path, Node>, path: &Path| {
            object
                .keys()
                .any(|other| other.len() > path.len() && other.starts_with(path))
        };
        let full: Vec<Path> = self
            .object
            .keys()
            .filter(|path| has_parts(&self.object, path))
            .cloned()
            .collect();
        for path in self.object.keys().cloned().collect::<Vec<_>>() {
            let by_parts = path.last().unwrap().starts_with("f:") && !is_entry(&path);
            let is_in = |set: &BTreeSet<Path>| {
                set.contains(&path) || (by_parts && set.iter().any(|other| other.starts_with(&path)))
            };
            // Every configuration has the base.
            if is_in(&last) && !is_in(&kept) && !kind.in_base(&path) {
                self.object.retain(|other, _| !other.starts_with(&path));
            }
        }
        // Built-in types have no empty maps and lists.
        for path in full {
            let built_in = !kind.is_custom() || path[0] == "f:metadata";
            let optional = kind.is_map(&names(&path)) || !matches!(kind.rule(&names(&path)), Rule::Granular);
            let is_item = !path.last().unwrap().starts_with("f:");
            if built_in && optional && !is_item && !kind.in_base(&path) && !has_parts(&self.object, &path) {
                self.object.remove(&path);
            }
        }
        for set in self.sets.values_mut() {
            set.retain(|path| self.object.contains_key(path));
        }
        self.sets.insert(me, wanted);
        self.tidy();
        Ok(())
    }

    /// The first apply to an object without managers finds what it has in the hands of `before-first-apply`. Objects
    /// whose base is owned always have a manager. Of others nobody owns the maps and lists that an update emptied.
    fn before_first_apply(&mut self, kind: &Kind) {
        if self.sets.is_empty() && !kind.base_is_owned() {
            let is_empty = |path: &Path| {
                let mut others = self.object.keys();
                !others.any(|other| other.len() > path.len() && other.starts_with(path))
            };
            let emptied = self
                .object
                .keys()
                .filter(|path| is_empty(path))
                .cloned()
                .collect();
            self.sets
                .insert(("before-first-apply".to_owned(), "Update"), emptied);
        }
    }

    /// kubectl takes over what client-side apply owns.
    pub(crate) fn migrate(&mut self, csa: &str) {
        let moved = self.sets.remove(&(csa.to_owned(), "Update")).unwrap_or_default();
        self.sets
            .entry(("kubectl".to_owned(), "Apply"))
            .or_default()
            .extend(moved);
        self.tidy();
    }

    fn tidy(&mut self) {
        self.sets.retain(|_, set| !set.is_empty());
    }
}
