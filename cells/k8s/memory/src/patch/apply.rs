// SPDX-License-Identifier: Apache-2.0

//! Server-side apply, and who owns which field after a write.

use serde_json::{Value, json};

use super::fields::Fields;
use super::merge::{merge, prune};
pub(crate) use super::owners::Manager;
use super::owners::{Entry, Operation, Owners, Update, changes, owned};
use super::typed::applied;
use crate::error::ApiError;
use crate::object;
use crate::schema::Shape;

/// What client-side apply keeps in an annotation: the last applied configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manager that may take over what client-side apply owns.
const KUBECTL: &str = "kubectl";

/// The owners that a write leaves, from the time it was sent until the server has decided all that it decides.
pub(crate) enum Ownership {
    Update(Update),
    Apply(Apply),
}

impl Ownership {
    /// Of a plain write of `sent`.
    pub(crate) fn update(shape: &Shape, old: Option<&Value>, sent: &Value, manager: &Manager<'_>) -> Self {
        Ownership::Update(Update::new(shape, old, sent, manager))
    }

    /// Notes the owners in the object that will be stored.
    pub(crate) fn finish(self, shape: &Shape, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
        match self {
            Ownership::Update(update) => update.finish(shape, old, new, manager),
            Ownership::Apply(apply) => apply.finish(shape, old, new, manager),
        }
    }
}

/// What an apply leaves to be noted.
pub(crate) struct Apply {
    /// All but the manager.
    others: Owners,
    before: Option<Entry>,
    wanted: Fields,
}

impl Apply {
    fn finish(self, shape: &Shape, old: Option<&Value>, new: &mut Value, manager: &Manager<'_>) {
        let mut owners = self.others;
        let difference = changes(shape, old, new, manager);
        for entry in &mut owners.0 {
            entry.fields.subtract_trees(&difference.removed);
        }
        let time = match self.before {
            Some(before) if before.fields == self.wanted && difference.is_empty() => before.time,
            _ => object::now().into(),
        };
        owners.add(manager, Operation::Apply, self.wanted, time);
        owners.write(new);
    }
}

/// Applies `config` to `live`, which may be nothing yet. Returns the new object and its owners.
pub(crate) fn apply(
    shape: &Shape,
    live: Option<&Value>,
    config: &Value,
    manager: &Manager<'_>,
    force: bool,
) -> Result<(Value, Ownership), ApiError> {
    if object::at(config, &["metadata", "managedFields"]).is_some_and(|m| !m.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let wanted = applied(shape, config)
        .map_err(|why| ApiError::bad_request(format!("failed to create typed patch object: {why}")))?;
    let wanted = owned(shape, wanted, manager);
    let mut others = Owners::default();
    if let Some(live) = live {
        others = Owners::of(shape, live);
        others.before_first_apply(shape, live, manager);
    }
    let before = others.take(manager, Operation::Apply);

    let empty = json!({});
    let mut new = merge(shape, live.unwrap_or(&empty), config);
    let difference = changes(shape, live, &new, manager);
    // Values that differ, and those that a value of another kind replaces.
    let mut touched = difference.changed.intersection(&wanted);
    touched.union(&difference.removed);
    let client_side = match live {
        Some(live) if manager.name == KUBECTL => last_applied(shape, live),
        _ => Fields::default(),
    };
    let mut conflicts = Vec::new();
    for entry in &mut others.0 {
        let mut taken = entry.fields.intersection(&touched);
        if !force {
            let mut refused = taken.clone();
            if is_client_side_apply(entry) {
                refused.subtract(&client_side);
            }
            conflicts.extend(refused.paths().into_iter().map(|path| (entry.shown(), path)));
            taken.subtract(&refused);
        }
        entry.fields.subtract(&taken);
    }
    if !conflicts.is_empty() {
        return Err(ApiError::apply_conflict(&conflicts));
    }

    if let Some(before) = &before {
        let mut kept = wanted.clone();
        others.0.iter().for_each(|entry| kept.union(&entry.fields));
        kept.insert("f:metadata".to_owned(), Fields::leaf());
        prune(shape, &mut new, &before.fields, &kept);
    }
    if manager.name == KUBECTL {
        keep_last_applied(&mut new, config);
    }
    let apply = Apply {
        others,
        before,
        wanted,
    };
    Ok((new, Ownership::Apply(apply)))
}

/// Whether the entry is that of a client-side apply: it wrote the annotation with the last applied configuration.
fn is_client_side_apply(entry: &Entry) -> bool {
    let path = ["f:metadata", "f:annotations", &format!("f:{LAST_APPLIED}")];
    entry.operation == Operation::Update && entry.fields.contains(&path)
}

/// Keeps the last applied configuration up to date where client-side apply left one, so that it can go on later.
fn keep_last_applied(new: &mut Value, config: &Value) {
    let kept = new
        .pointer_mut("/metadata/annotations")
        .and_then(|a| a.get_mut(LAST_APPLIED));
    if let Some(kept) = kept {
        let mut config = config.clone();
        if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
            annotations.shift_remove(LAST_APPLIED);
        }
        *kept = format!("{config}\n").into();
    }
}

/// The fields that client-side apply manages.
fn last_applied(shape: &Shape, live: &Value) -> Fields {
    let text = object::text(live, &["metadata", "annotations", LAST_APPLIED]);
    let config: Value = serde_json::from_str(text).unwrap_or_default();
    if config.is_object() {
        applied(shape, &config).unwrap_or_default()
    } else {
        Fields::default()
    }
}

#[cfg(test)]
mod tests;
