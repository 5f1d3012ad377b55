// SPDX-License-Identifier: Apache-2.0

//! What all objects have: name, labels, annotations, finalizers, owners.

use serde_json::{Value, json};

use crate::error::Fault;
use crate::kinds::Kind;
use crate::names;
use crate::object;
use crate::server::Propagation;

pub(super) fn check(kind: &Kind, old: Option<&Value>, new: &Value, faults: &mut Vec<Fault>) {
    let name = object::name(new);
    let problem = match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "namespaces" | "services") => names::label(name),
        ("rbac.authorization.k8s.io", _) => names::path_segment(name),
        _ => names::subdomain(name),
    };
    if let Some(problem) = problem {
        faults.push(Fault::invalid("metadata.name", &name.into(), &problem));
    }
    labels_and_annotations(new, faults);
    finalizers(new, faults);
    owners(new, faults);
    if let Some(old) = old {
        finalizers_of_terminating(old, new, faults);
    }
}

fn labels_and_annotations(new: &Value, faults: &mut Vec<Fault>) {
    for (key, value) in object::at(new, &["metadata", "labels"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if let Some(problem) = names::qualified_name(key) {
            faults.push(Fault::invalid("metadata.labels", &key.as_str().into(), &problem));
        }
        if let Some(problem) = value.as_str().and_then(names::label_value) {
            faults.push(Fault::invalid("metadata.labels", value, &problem));
        }
    }
    let annotations = object::at(new, &["metadata", "annotations"]).and_then(Value::as_object);
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        if let Some(problem) = names::qualified_name(&key.to_lowercase()) {
            faults.push(Fault::invalid(
                "metadata.annotations",
                &key.as_str().into(),
                &problem,
            ));
        }
    }
    if size > 256 * 1024 {
        faults.push(Fault {
            field: "metadata.annotations".to_owned(),
            reason: "FieldValueTooLong",
            detail: "Too long: may not be more than 262144 bytes".to_owned(),
        });
    }
}

fn finalizers(new: &Value, faults: &mut Vec<Fault>) {
    for finalizer in object::items(new, &["metadata", "finalizers"]) {
        let text = finalizer.as_str().unwrap_or_default();
        if let Some(problem) = names::qualified_name(text) {
            faults.push(Fault::invalid("metadata.finalizers", finalizer, &problem));
        }
    }
    let finalizers = object::items(new, &["metadata", "finalizers"]);
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has(Propagation::ORPHAN_FINALIZER) && has(Propagation::FOREGROUND_FINALIZER) {
        let detail = format!(
            "finalizer {} and {} cannot be both set",
            Propagation::ORPHAN_FINALIZER,
            Propagation::FOREGROUND_FINALIZER
        );
        faults.push(Fault::invalid("metadata.finalizers", &finalizers.into(), &detail));
    }
}

/// Whoever deletes an object must be able to wait for all that holds it.
fn finalizers_of_terminating(old: &Value, new: &Value, faults: &mut Vec<Fault>) {
    if !object::is_terminating(old) {
        return;
    }
    let before = object::items(old, &["metadata", "finalizers"]);
    let added: Vec<&str> = object::items(new, &["metadata", "finalizers"])
        .iter()
        .filter(|finalizer| !before.contains(finalizer))
        .filter_map(Value::as_str)
        .collect();
    if !added.is_empty() {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        );
        faults.push(Fault::forbidden("metadata.finalizers", &detail));
    }
}

fn owners(new: &Value, faults: &mut Vec<Fault>) {
    let owners = object::items(new, &["metadata", "ownerReferences"]);
    let controllers: Vec<&str> = owners
        .iter()
        .filter(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
        .map(|owner| object::text(owner, &["name"]))
        .collect();
    if let [first, second, ..] = controllers[..] {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        faults.push(Fault::invalid(
            "metadata.ownerReferences",
            &owners.into(),
            &detail,
        ));
    }
    for (index, owner) in owners.iter().enumerate() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if object::text(owner, &[key]).is_empty() {
                let field = format!("metadata.ownerReferences[{index}].{key}");
                faults.push(Fault::invalid(
                    field,
                    &json!(""),
                    &format!("{key} must not be empty"),
                ));
            }
        }
    }
}
