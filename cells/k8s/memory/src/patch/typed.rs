// SPDX-License-Identifier: Apache-2.0

//! Values divided into fields with owners of their own, by their shape: the fields of a value, the difference of two.
//!
//! Structs and maps divide into their fields and entries, lists by key and sets into their items. Single values, and
//! structs, maps and lists that are atomic, do not divide: they are one field. What has no schema divides as
//! Kubernetes deduces it: maps do, lists do not.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{Fields, keyed, shown};
use crate::schema::{List, Merge, Scalar, Shape};

/// What a value divides into.
pub(super) enum Parts<'a> {
    /// Fields of a struct, or entries of a map.
    Fields(&'a Map<String, Value>),
    /// Items of a list by key or of a set.
    Items(&'a List, &'a [Value]),
    /// Nothing: it is one field.
    Whole,
}

pub(super) fn parts<'a>(shape: &'a Shape, value: &'a Value) -> Parts<'a> {
    match (shape, value) {
        _ if shape.is_atomic() => Parts::Whole,
        (Shape::List(list), Value::Array(items)) => Parts::Items(list, items),
        (Shape::List(_) | Shape::Scalar(_), _) => Parts::Whole,
        (_, Value::Object(map)) => Parts::Fields(map),
        _ => Parts::Whole,
    }
}

static SINGLE: Shape = Shape::Scalar(Scalar::Text);

/// The shape of the items as far as they divide: those of sets do not.
pub(super) fn item_shape(list: &List) -> &Shape {
    match list.merge {
        Merge::Keys(_) => &list.item,
        Merge::Atomic | Merge::Set => &SINGLE,
    }
}

/// The key of an item; `None` if it has none of the key fields.
pub(super) fn item_key(list: &List, item: &Value) -> Option<String> {
    let Merge::Keys(names) = &list.merge else {
        return Some(format!("v:{item}"));
    };
    item.as_object()?;
    let mut keys = Map::new();
    for name in names {
        let sent = item.get(name).filter(|value| !value.is_null()).cloned();
        if let Some(value) = sent.or_else(|| list.key_default(name)) {
            keys.insert(name.clone(), value);
        }
    }
    (!keys.is_empty()).then(|| keyed(keys))
}

/// Items by key. Stored lists may hold several items of one key; one without a key is its own.
fn by_key<'a>(list: &List, items: &'a [Value]) -> BTreeMap<String, Vec<&'a Value>> {
    let mut found: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in items {
        let key = item_key(list, item).unwrap_or_else(|| format!("v:{item}"));
        found.entry(key).or_default().push(item);
    }
    found
}

/// The fields that an applied configuration sets. The error names the list that cannot be merged.
pub(crate) fn applied(shape: &Shape, config: &Value) -> Result<Fields, String> {
    applied_at(shape, config, "")
}

fn applied_at(shape: &Shape, value: &Value, path: &str) -> Result<Fields, String> {
    let mut fields = Fields::default();
    match parts(shape, value) {
        Parts::Fields(map) => {
            fields.own = map.is_empty();
            for (name, value) in map {
                let mut below = applied_at(&shape.child(name), value, &format!("{path}.{name}"))?;
                // Entries of maps belong to who made them, fields of structs are there anyway.
                below.own |= !shape.has_field(name);
                fields.insert(format!("f:{name}"), below);
            }
        }
        Parts::Items(list, items) => {
            fields.own = items.is_empty();
            for item in items {
                let Some(key) = item_key(list, item) else {
                    return Err(format!("{path}: element {item} omits the keys of the list"));
                };
                if fields.get(&key).is_some() {
                    return Err(format!("{path}: duplicate entries for key {}", shown(&key)));
                }
                let place = format!("{path}{}", shown(&key));
                let mut below = applied_at(item_shape(list), item, &place)?;
                below.own = true;
                fields.insert(key, below);
            }
        }
        Parts::Whole => fields.own = true,
    }
    Ok(fields)
}

/// All paths of `value`, those of inner nodes too.
pub(crate) fn whole(shape: &Shape, value: &Value) -> Fields {
    let mut fields = Fields::leaf();
    match parts(shape, value) {
        Parts::Fields(map) => {
            for (name, value) in map {
                fields.insert(format!("f:{name}"), whole(&shape.child(name), value));
            }
        }
        Parts::Items(list, items) => {
            for (key, items) in by_key(list, items) {
                fields.insert(key, whole_items(list, &items));
            }
        }
        Parts::Whole => {}
    }
    fields
}

/// All paths of the items of one key. Several items of one key do not divide.
fn whole_items(list: &List, items: &[&Value]) -> Fields {
    match items {
        [item] => whole(item_shape(list), item),
        _ => Fields::leaf(),
    }
}

/// How two versions of an object differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Paths that were added or have another value.
    pub(crate) changed: Fields,
    /// Paths that are gone.
    pub(crate) removed: Fields,
}

impl Difference {
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    fn insert(&mut self, key: String, below: Difference) {
        self.changed.insert(key.clone(), below.changed);
        self.removed.insert(key, below.removed);
    }
}

/// Compares two versions of an object.
pub(crate) fn compare(shape: &Shape, old: &Value, new: &Value) -> Difference {
    let mut difference = Difference::default();
    if old == new {
        return difference;
    }
    match (parts(shape, old), parts(shape, new)) {
        (Parts::Fields(before), Parts::Fields(after)) => {
            for (name, new) in after {
                let below = shape.child(name);
                let key = format!("f:{name}");
                match before.get(name) {
                    Some(old) => difference.insert(key, compare(&below, old, new)),
                    None => difference.changed.insert(key, whole(&below, new)),
                }
            }
            for (name, old) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
                let gone = whole(&shape.child(name), old);
                difference.removed.insert(format!("f:{name}"), gone);
            }
        }
        (Parts::Items(list, before), Parts::Items(_, after)) => {
            let (before, after) = (by_key(list, before), by_key(list, after));
            for (key, new) in &after {
                match (before.get(key).map(Vec::as_slice), new.as_slice()) {
                    (None, new) => difference.changed.insert(key.clone(), whole_items(list, new)),
                    (Some([old]), [new]) => {
                        difference.insert(key.clone(), compare(item_shape(list), old, new));
                    }
                    (Some(old), new) if old == new => {}
                    (Some(_), _) => difference.changed.insert(key.clone(), Fields::leaf()),
                }
            }
            for (key, old) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
                difference.removed.insert(key.clone(), whole_items(list, old));
            }
        }
        // One of them is of another kind: the value changed, and what was below it is gone.
        _ => {
            difference.changed = whole(shape, new);
            difference.removed = whole(shape, old);
            difference.removed.subtract(&difference.changed);
        }
    }
    difference
}

/// Adapts a set that was noted by another schema: what is atomic by now belongs to those who own a part of it.
pub(crate) fn fit(shape: &Shape, fields: &mut Fields) {
    if fields.is_empty() {
        return;
    }
    if shape.is_atomic() {
        *fields = Fields::leaf();
        return;
    }
    let keys: Vec<String> = fields.below().map(|(key, _)| key.to_owned()).collect();
    for key in keys {
        match (key.strip_prefix("f:"), shape) {
            (Some(name), _) => fields.edit(&key, |below| fit(&shape.child(name), below)),
            (None, Shape::List(list)) => fields.edit(&key, |below| fit(item_shape(list), below)),
            (None, _) => {}
        }
    }
}
