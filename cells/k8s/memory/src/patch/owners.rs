// SPDX-License-Identifier: Apache-2.0

//! The managers of an object and their fields: `metadata.managedFields`.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::typed::{Difference, compare, fit, whole};
use crate::object;
use crate::schema::Shape;

/// Fields of `metadata` that no manager owns.
const UNOWNED: [&str; 10] = [
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:deletionTimestamp",
    "f:deletionGracePeriodSeconds",
    "f:selfLink",
    "f:uid",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];

/// Name of the manager of all that an object had before its first apply, if it had no managers.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// How a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// Who writes, and to which part of an object.
#[derive(Clone, Debug)]
pub(crate) struct Manager<'a> {
    pub(crate) name: &'a str,
    pub(crate) api_version: &'a str,
    /// Empty: the object itself.
    pub(crate) subresource: &'a str,
    /// The status can only be written through its subresource.
    pub(crate) status_apart: bool,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) operation: Operation,
    pub(super) time: Value,
    pub(super) manager: String,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) fields: Fields,
}

impl Entry {
    /// `None` if the entry is invalid.
    fn from_json(entry: &Value) -> Option<Self> {
        let operation = match object::text(entry, &["operation"]) {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if object::text(entry, &["fieldsType"]) != "FieldsV1" {
            return None;
        }
        Some(Entry {
            operation,
            time: entry.get("time").cloned().unwrap_or_default(),
            manager: object::text(entry, &["manager"]).to_owned(),
            api_version: object::text(entry, &["apiVersion"]).to_owned(),
            subresource: object::text(entry, &["subresource"]).to_owned(),
            fields: Fields::from_json(entry.get("fieldsV1").unwrap_or(&json!({})))?,
        })
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": self.operation.name(),
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if !self.subresource.is_empty() {
            entry["subresource"] = self.subresource.as_str().into();
        }
        entry
    }

    /// Whether it is that of `manager`. Appliers have one entry for all versions of an API.
    fn is_of(&self, manager: &Manager<'_>, operation: Operation) -> bool {
        self.manager == manager.name
            && self.operation == operation
            && self.subresource == manager.subresource
            && (operation == Operation::Apply || self.api_version == manager.api_version)
    }

    /// How conflicts name it.
    pub(super) fn shown(&self) -> String {
        let mut owner = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            owner.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            owner.push_str(&format!(" using {}", self.api_version));
        }
        owner
    }
}

/// The managers of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Owners(pub(super) Vec<Entry>);

impl Owners {
    /// Those that `list`, a value of `managedFields`, names; `None` if an entry is invalid.
    fn from_json(shape: &Shape, list: &[Value]) -> Option<Self> {
        let mut entries = list.iter().map(Entry::from_json).collect::<Option<Vec<_>>>()?;
        entries.iter_mut().for_each(|entry| fit(shape, &mut entry.fields));
        Some(Owners(entries))
    }

    /// The managers of a stored object.
    pub(super) fn of(shape: &Shape, object: &Value) -> Self {
        let list = object::items(object, &["metadata", "managedFields"]);
        Owners::from_json(shape, list).unwrap_or_default()
    }

    /// The managers that a write starts from. Clients may set `managedFields`: a list of one empty entry drops all
    /// managers. A list that is missing, empty or invalid changes nothing, so clients that do not know the field keep
    /// it; neither does a write to a subresource.
    fn sent(shape: &Shape, old: Option<&Value>, new: &Value, manager: &Manager<'_>) -> Self {
        let live = || old.map(|old| Owners::of(shape, old)).unwrap_or_default();
        if !manager.subresource.is_empty() {
            return live();
        }
        match object::items(new, &["metadata", "managedFields"]) {
            [] => live(),
            [entry] if entry.as_object().is_some_and(Map::is_empty) => Owners::default(),
            list => Owners::from_json(shape, list).unwrap_or_else(live),
        }
    }

    /// Takes out the entry of `manager`.
    pub(super) fn take(&mut self, manager: &Manager<'_>, operation: Operation) -> Option<Entry> {
        let at = self.0.iter().position(|entry| entry.is_of(manager, operation))?;
        Some(self.0.remove(at))
    }

    /// Adds the entry of `manager`.
    pub(super) fn add(&mut self, manager: &Manager<'_>, operation: Operation, fields: Fields, time: Value) {
        self.0.push(Entry {
            operation,
            time,
            manager: manager.name.to_owned(),
            api_version: manager.api_version.to_owned(),
            subresource: manager.subresource.to_owned(),
            fields,
        });
    }

    /// Adds a manager that owns what `live` has, if it has no managers.
    pub(super) fn before_first_apply(&mut self, shape: &Shape, live: &Value, manager: &Manager<'_>) {
        if self.0.is_empty() {
            let first = Manager {
                name: BEFORE_FIRST_APPLY,
                subresource: "",
                ..manager.clone()
            };
            let fields = owned(shape, whole(shape, live), &first);
            self.add(&first, Operation::Update, fields, object::now().into());
        }
    }

    /// Writes them to `object`, without those that own nothing.
    pub(super) fn write(mut self, object: &mut Value) {
        self.0.retain(|entry| !entry.fields.is_empty());
        self.0.sort_by_cached_key(|entry| {
            let time = entry.time.as_str().unwrap_or_default().to_owned();
            let names = (
                entry.manager.clone(),
                entry.api_version.clone(),
                entry.subresource.clone(),
            );
            (entry.operation, time, names)
        });
        let metadata = object::metadata_mut(object);
        metadata.shift_remove("managedFields");
        if !self.0.is_empty() {
            let entries = self.0.iter().map(Entry::to_json).collect();
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }
}

/// The part of `fields` that `manager` can own.
pub(super) fn owned(shape: &Shape, mut fields: Fields, manager: &Manager<'_>) -> Fields {
    fields.own = false;
    let keys: Vec<String> = fields.below().map(|(key, _)| key.to_owned()).collect();
    for key in keys {
        let is_status = key == "f:status";
        let apart = match manager.subresource {
            "status" => !is_status,
            "" => is_status && manager.status_apart,
            _ => false,
        };
        if apart || key == "f:apiVersion" || key == "f:kind" {
            fields.remove(&key);
        } else if key == "f:metadata" {
            fields.edit(&key, |metadata| {
                metadata.own = false;
                for name in UNOWNED {
                    metadata.remove(name);
                }
            });
        } else if matches!(shape, Shape::Named(_)) && shape.child(&key[2..]).object().is_some() {
            // Spec and status of built-in types are always there.
            fields.edit(&key, |part| part.own = false);
        }
    }
    fields
}

/// How two versions of an object differ in what `manager` can own.
pub(super) fn changes(shape: &Shape, old: Option<&Value>, new: &Value, manager: &Manager<'_>) -> Difference {
    let empty = json!({ "metadata": {} });
    let difference = compare(shape, old.unwrap_or(&empty), new);
    Difference {
        changed: owned(shape, difference.changed, manager),
        removed: owned(shape, difference.removed, manager),
    }
}

/// A plain write: what a client asked for, before the server adds what it decides itself.
pub(crate) struct Update {
    owners: Owners,
    asked: Fields,
}

impl Update {
    /// Compares what is stored with what was sent, defaults filled in.
    pub(super) fn new(shape: &Shape, old: Option<&Value>, sent: &Value, manager: &Manager<'_>) -> Self {
        Update {
            owners: Owners::sent(shape, old, sent, manager),
            asked: changes(shape, old, sent, manager).changed,
        }
    }

    /// Notes the owners in the object that will be stored. The manager owns what it asked for and what changed; what
    /// is gone belongs to none.
    pub(super) fn finish(self, shape: &Shape, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
        let mut owners = self.owners;
        let difference = changes(shape, old, new, manager);
        let changed = difference.changed.intersection(&self.asked);
        let before = owners.take(manager, Operation::Update);
        for entry in &mut owners.0 {
            entry.fields.subtract(&changed);
            entry.fields.subtract_trees(&difference.removed);
        }
        let had = before
            .as_ref()
            .map(|entry| entry.fields.clone())
            .unwrap_or_default();
        let mut fields = had.clone();
        fields.subtract_trees(&difference.removed);
        fields.union(&changed);
        let time = match before {
            Some(before) if changed.is_empty() && fields == had => before.time,
            _ => object::now().into(),
        };
        owners.add(manager, Operation::Update, fields, time);
        owners.write(new);
    }
}
