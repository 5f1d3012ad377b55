// SPDX-License-Identifier: Apache-2.0

//! Server-side apply, and who owns which field.

use serde_json::{Map, Value, json};

use super::fields::{Fields, compare, item_key};
use crate::error::ApiError;
use crate::object;
use crate::schema::{Merge, Shape};

/// Who writes.
#[derive(Clone, Debug)]
pub(crate) struct Manager<'a> {
    pub(crate) name: &'a str,
    pub(crate) api_version: &'a str,
    pub(crate) subresource: &'a str,
}

#[derive(Clone, Debug)]
struct Entry {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: Value,
    fields: Fields,
}

fn read(object: &Value) -> Vec<Entry> {
    object::items(object, &["metadata", "managedFields"])
        .iter()
        .map(|entry| Entry {
            manager: object::text(entry, &["manager"]).to_owned(),
            operation: object::text(entry, &["operation"]).to_owned(),
            api_version: object::text(entry, &["apiVersion"]).to_owned(),
            subresource: object::text(entry, &["subresource"]).to_owned(),
            time: entry.get("time").cloned().unwrap_or_default(),
            fields: entry.get("fieldsV1").map(Fields::from_json).unwrap_or_default(),
        })
        .collect()
}

fn write(object: &mut Value, entries: Vec<Entry>) {
    let entries: Vec<Value> = entries
        .into_iter()
        .filter(|e| !e.fields.is_empty())
        .map(|e| {
            let mut entry = json!({
                "manager": e.manager,
                "operation": e.operation,
                "apiVersion": e.api_version,
                "time": e.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": e.fields.to_json(),
            });
            if !e.subresource.is_empty() {
                entry["subresource"] = e.subresource.into();
            }
            entry
        })
        .collect();
    let metadata = object::metadata_mut(object);
    metadata.shift_remove("managedFields");
    if !entries.is_empty() {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

/// Without the parts that nobody owns.
fn stripped(object: &Value) -> Value {
    let mut copy = object.clone();
    if let Some(map) = copy.as_object_mut() {
        map.shift_remove("apiVersion");
        map.shift_remove("kind");
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            for key in [
                "name",
                "namespace",
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "selfLink",
                "uid",
                "generation",
                "managedFields",
                "resourceVersion",
            ] {
                metadata.shift_remove(key);
            }
            if metadata.is_empty() {
                map.shift_remove("metadata");
            }
        }
    }
    copy
}

/// Notes in `new` that `manager` changed it from `old` by a plain write.
pub(crate) fn note_update(shape: &Shape, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
    // A client may drop all owners on purpose with a list of one empty entry or an empty list.
    let sent = object::at(new, &["metadata", "managedFields"]).and_then(Value::as_array);
    let reset =
        sent.is_some_and(|m| m.is_empty() || m.iter().all(|e| e.as_object().is_some_and(Map::is_empty)));
    let mut entries = match old {
        Some(old) if !reset => read(old),
        _ => Vec::new(),
    };
    let empty = json!({});
    let before = old.map_or_else(|| empty.clone(), stripped);
    let after = stripped(new);
    let difference = compare(shape, &before, &after);
    if difference.changed.is_empty() && difference.removed.is_empty() {
        write(new, entries);
        return;
    }
    let ours = |e: &Entry| {
        e.manager == manager.name && e.operation == "Update" && e.subresource == manager.subresource
    };
    for entry in entries.iter_mut() {
        if !ours(entry) {
            entry.fields.subtract(&difference.changed);
        }
        entry.fields.subtract(&difference.removed);
    }
    let mut fields = match entries.iter().position(ours) {
        Some(at) => entries.remove(at).fields,
        None => Fields::default(),
    };
    fields.union(&difference.changed);
    entries.push(Entry {
        manager: manager.name.to_owned(),
        operation: "Update".to_owned(),
        api_version: manager.api_version.to_owned(),
        subresource: manager.subresource.to_owned(),
        time: object::now().into(),
        fields,
    });
    write(new, entries);
}

/// Applies `config` to `live`, which may be nothing yet. Gives the new object.
pub(crate) fn apply(
    shape: &Shape,
    live: Option<&Value>,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Value, ApiError> {
    if object::at(config, &["metadata", "managedFields"]).is_some_and(|m| !m.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let empty = json!({});
    let live_value = live.unwrap_or(&empty);
    let wanted = stripped(config);
    let wanted_fields = Fields::of(shape, &wanted);
    let mut entries = read(live_value);
    let mut result = merge(shape, live_value, config);

    let difference = compare(shape, &stripped(live_value), &stripped(&result));
    let ours = |e: &Entry| {
        e.manager == manager.name && e.operation == "Apply" && e.subresource == manager.subresource
    };
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|e| !ours(e)) {
        let taken = entry
            .fields
            .intersection(&difference.changed)
            .intersection(&wanted_fields);
        if taken.is_empty() {
            continue;
        }
        if force {
            entry.fields.subtract(&taken);
        } else {
            let mut owner = format!("{:?}", entry.manager);
            if !entry.subresource.is_empty() {
                owner.push_str(&format!(" with subresource {:?}", entry.subresource));
            }
            if entry.operation == "Update" {
                owner.push_str(&format!(" using {}", entry.api_version));
            }
            conflicts.extend(taken.paths().into_iter().map(|path| (owner.clone(), path)));
        }
    }
    if !conflicts.is_empty() {
        return Err(ApiError::apply_conflict(&conflicts));
    }

    // What this manager applied before and does not want any more goes, unless someone else wants it.
    let before = entries.iter().position(ours).map(|at| entries.remove(at));
    let (mut time, mut unchanged) = (Value::Null, false);
    if let Some(before) = before {
        let mut dropped = before.fields.clone();
        dropped.subtract(&wanted_fields);
        for entry in &entries {
            dropped.subtract(&entry.fields);
        }
        remove(shape, &mut result, &dropped);
        unchanged = before.fields == wanted_fields;
        time = before.time;
    }
    entries.push(Entry {
        manager: manager.name.to_owned(),
        operation: "Apply".to_owned(),
        api_version: manager.api_version.to_owned(),
        subresource: manager.subresource.to_owned(),
        time: if unchanged { time } else { object::now().into() },
        fields: wanted_fields,
    });
    write(&mut result, entries);
    Ok(result)
}

fn merge(shape: &Shape, live: &Value, config: &Value) -> Value {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if !shape.is_atomic() => {
            let mut merged = live.clone();
            for (key, value) in config {
                let below = shape.child(key);
                let value = match live.get(key) {
                    Some(old) => merge(&below, old, value),
                    None => value.clone(),
                };
                merged.insert(key.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(live), Value::Array(config)) if !shape.is_atomic() && !matches!(shape, Shape::Any) => {
            let (item_shape, rule) = shape.items();
            let mut merged = live.clone();
            for item in config {
                let key = item_key(&rule, item);
                match merged.iter().position(|m| item_key(&rule, m) == key) {
                    Some(at) => merged[at] = merge(&item_shape, &merged[at], item),
                    None => merged.push(item.clone()),
                }
            }
            Value::Array(merged)
        }
        _ => config.clone(),
    }
}

/// Removes the paths of `fields` from `value`; containers that they leave empty go too.
fn remove(shape: &Shape, value: &mut Value, fields: &Fields) {
    match value {
        Value::Object(map) => {
            for (key, below) in &fields.below {
                let Some(name) = key.strip_prefix("f:") else {
                    continue;
                };
                let Some(child) = map.get_mut(name) else { continue };
                let had_content = !is_bare(child);
                remove(&shape.child(name), child, below);
                if (below.own && below.below.is_empty()) || (had_content && is_bare(child)) {
                    map.shift_remove(name);
                }
            }
        }
        Value::Array(items) => {
            let (item_shape, rule) = shape.items();
            for (key, below) in &fields.below {
                let Some(at) = items.iter().position(|item| item_key(&rule, item) == *key) else {
                    continue;
                };
                let whole = match &rule {
                    Merge::Keys(_) => below.own,
                    _ => true,
                };
                if whole {
                    items.remove(at);
                } else {
                    remove(&item_shape, &mut items[at], below);
                }
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Shape = Shape::Named("core.v1.Service");

    fn by(name: &str) -> Manager<'_> {
        Manager {
            name,
            api_version: "v1",
            subresource: "",
        }
    }

    fn without_owners(mut object: Value) -> Value {
        object::metadata_mut(&mut object).shift_remove("managedFields");
        if object["metadata"].as_object().unwrap().is_empty() {
            object.as_object_mut().unwrap().shift_remove("metadata");
        }
        object
    }

    #[test]
    fn removes_what_is_not_applied_any_more() {
        let first = apply(
            &SERVICE,
            None,
            &json!({ "spec": { "ports": [{ "port": 80 }, { "port": 81 }], "type": "NodePort" } }),
            &by("a"),
            false,
        )
        .unwrap();

        let second = apply(
            &SERVICE,
            Some(&first),
            &json!({ "spec": { "ports": [{ "port": 81 }] } }),
            &by("a"),
            false,
        )
        .unwrap();

        assert_eq!(
            without_owners(second),
            json!({ "spec": { "ports": [{ "port": 81 }] } })
        );
    }

    #[test]
    fn keeps_what_others_own() {
        let a = apply(
            &SERVICE,
            None,
            &json!({ "spec": { "type": "NodePort" } }),
            &by("a"),
            false,
        )
        .unwrap();
        let ab = apply(
            &SERVICE,
            Some(&a),
            &json!({ "spec": { "type": "NodePort", "clusterIP": "x" } }),
            &by("b"),
            false,
        )
        .unwrap();

        let b = apply(&SERVICE, Some(&ab), &json!({ "spec": {} }), &by("a"), false).unwrap();

        assert_eq!(
            without_owners(b),
            json!({ "spec": { "type": "NodePort", "clusterIP": "x" } })
        );
    }

    #[test]
    fn conflicts_unless_forced() {
        let mut live = json!({ "spec": { "type": "NodePort" } });
        note_update(&SERVICE, None, &mut live, &by("kubectl-edit"));
        let config = json!({ "spec": { "type": "ClusterIP" } });

        let error = apply(&SERVICE, Some(&live), &config, &by("a"), false).unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .spec.type"
        );

        let forced = apply(&SERVICE, Some(&live), &config, &by("a"), true).unwrap();
        let owners = object::items(&forced, &["metadata", "managedFields"]);
        // The former owner still holds `.spec` itself.
        let owner = owners.iter().find(|o| o["manager"] == "a").unwrap();
        assert_eq!(owner["fieldsV1"], json!({ "f:spec": { "f:type": {} } }));
        assert!(
            !owners
                .iter()
                .any(|o| o["manager"] == "kubectl-edit" && o["fieldsV1"]["f:spec"].get("f:type").is_some())
        );
    }

    #[test]
    fn updates_take_ownership() {
        let applied = apply(
            &SERVICE,
            None,
            &json!({ "spec": { "type": "NodePort" } }),
            &by("a"),
            false,
        )
        .unwrap();
        let mut updated = applied.clone();
        updated["spec"]["type"] = "LoadBalancer".into();

        note_update(&SERVICE, Some(&applied), &mut updated, &by("b"));

        let owners = object::items(&updated, &["metadata", "managedFields"]);
        assert_eq!(owners.len(), 1);
        assert_eq!(
            (&owners[0]["manager"], &owners[0]["operation"]),
            (&json!("b"), &json!("Update"))
        );
    }
}
