// SPDX-License-Identifier: Apache-2.0

//! What an apply does to values: merges the configuration in, and prunes what the manager dropped.

use serde_json::Value;

use super::fields::Fields;
use super::typed::{Parts, item_key, item_shape, parts};
use crate::schema::{List, Merge, Shape};

/// Merges an applied configuration into the live value.
pub(super) fn merge(shape: &Shape, live: &Value, config: &Value) -> Value {
    match (parts(shape, live), parts(shape, config)) {
        (Parts::Fields(live), Parts::Fields(config)) => {
            let mut merged = live.clone();
            for (name, value) in config {
                let value = match live.get(name) {
                    Some(old) => merge(&shape.child(name), old, value),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Parts::Items(list, live), Parts::Items(_, config)) => Value::Array(merge_items(list, live, config)),
        _ => config.clone(),
    }
}

/// Merges lists. Applied items are in the order of the configuration; the others stay in front of those before which
/// they were.
fn merge_items(list: &List, live: &[Value], config: &[Value]) -> Vec<Value> {
    let key = |item: &Value| item_key(list, item);
    let applied: Vec<Option<String>> = config.iter().map(key).collect();
    let live: Vec<(Option<String>, &Value)> = live.iter().map(|item| (key(item), item)).collect();
    let others = |range: &[(Option<String>, &Value)]| -> Vec<Value> {
        let others = range.iter().filter(|(key, _)| !applied.contains(key));
        others.map(|(_, item)| (*item).clone()).collect()
    };
    let mut merged = Vec::new();
    let mut next = 0;
    for (item, key) in config.iter().zip(&applied) {
        let found: Vec<usize> = (0..live.len()).filter(|at| live[*at].0 == *key).collect();
        if let Some(first) = found.first().filter(|first| **first >= next) {
            merged.extend(others(&live[next..*first]));
            next = first + 1;
        }
        // Several live items of one key make way for the one that is applied.
        merged.push(match found[..] {
            [at] => merge(item_shape(list), live[at].1, item),
            _ => item.clone(),
        });
    }
    merged.extend(others(&live[next..]));
    merged
}

/// Removes what the manager applied `last`, and no set of `kept`, the fields of all others and its new ones, contains.
///
/// A field of a struct stays while a manager owns it or anything below it. An item of a list or an entry of a map goes,
/// with all below, when no manager owns the item itself. Fields below without an owner, such as defaults, go too.
pub(super) fn prune(shape: &Shape, value: &mut Value, last: &Fields, kept: &Fields) {
    if matches!(parts(shape, value), Parts::Whole) {
        return;
    }
    let nothing = Fields::default();
    match (shape, value) {
        (_, Value::Object(map)) => {
            for (key, was) in last.below() {
                let Some(name) = key.strip_prefix("f:") else {
                    continue;
                };
                let Some(child) = map.get_mut(name) else { continue };
                let still = kept.get(key).unwrap_or(&nothing);
                let below = shape.child(name);
                // Without a schema, a map may as well be a struct.
                let is_field = shape.has_field(name) || matches!(below, Shape::Any);
                let is_in = |fields: &Fields| fields.own || (is_field && !fields.is_empty());
                if is_in(was) && !is_in(still) {
                    map.shift_remove(name);
                    continue;
                }
                let was_bare = is_bare(child);
                prune(&below, child, was, still);
                // The structs of built-in types leave out empty maps and lists.
                let optional =
                    matches!(shape, Shape::Named(_)) && matches!(below, Shape::Map(..) | Shape::List(_));
                if optional && !was_bare && is_bare(child) {
                    map.shift_remove(name);
                }
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            items.retain_mut(|item| {
                let Some(key) = item_key(list, item) else {
                    return true;
                };
                let Some(was) = last.get(&key) else { return true };
                let mut still = kept.get(&key).cloned().unwrap_or_default();
                if was.own && !still.own {
                    return false;
                }
                // The keys of the item stay as long as the item.
                if let Merge::Keys(names) = &list.merge {
                    names
                        .iter()
                        .for_each(|name| still.insert(format!("f:{name}"), Fields::leaf()));
                }
                prune(item_shape(list), item, was, &still);
                true
            });
        }
        _ => {}
    }
}

fn is_bare(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
