// SPDX-License-Identifier: Apache-2.0

//! Custom resource definitions, and the kinds that they define.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ApiServer;
use super::schema::{SchemaCompiler, add_object_fields, has_defaults};
use crate::gvr::Gvr;
use crate::kinds::{Custom, Kind, Scale};
use crate::object;
use crate::schema::Shape;
use crate::tracker::Transaction;

pub(super) const GROUP: &str = "apiextensions.k8s.io";
pub(super) const RESOURCE: &str = "customresourcedefinitions";

pub(super) fn definitions() -> Gvr {
    Gvr::new(GROUP, "v1", RESOURCE)
}

/// Fills in what a definition may leave out, and its status: its names are accepted and it is established at once,
/// unless another of `all` definitions of the group has one of its names.
pub(super) fn establish(all: &[Arc<Value>], old: Option<&Value>, definition: &mut Value) {
    let kind = object::text(definition, &["spec", "names", "kind"]).to_owned();
    let spec = object::map_mut(definition, "spec");
    spec.entry("conversion")
        .or_insert_with(|| json!({ "strategy": "None" }));
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        if !names.contains_key("singular") {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if !names.contains_key("listKind") {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    let storage = storage_version(definition).to_owned();
    let mut stored: Vec<Value> = old
        .map(|old| object::items(old, &["status", "storedVersions"]).to_vec())
        .unwrap_or_default();
    if !storage.is_empty() && !stored.contains(&storage.as_str().into()) {
        stored.push(storage.into());
    }
    let accepted = |old: Option<&Value>| {
        old.and_then(|old| object::at(old, &["status", "acceptedNames"]))
            .cloned()
    };
    let was_established = old.is_some_and(is_established);
    let (names, conditions) = match conflict(all, definition) {
        None => (
            object::at(definition, &["spec", "names"]).cloned(),
            [
                condition(old, "NamesAccepted", true, "NoConflicts", "no conflicts found"),
                condition(
                    old,
                    "Established",
                    true,
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                ),
            ],
        ),
        Some((reason, name)) => {
            let message = format!("{name:?} is already in use");
            let established = if was_established {
                condition(
                    old,
                    "Established",
                    true,
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                )
            } else {
                condition(
                    old,
                    "Established",
                    false,
                    "NotAccepted",
                    "not all names are accepted",
                )
            };
            (
                accepted(old),
                [
                    condition(old, "NamesAccepted", false, reason, &message),
                    established,
                ],
            )
        }
    };
    let names = names.unwrap_or_else(|| json!({ "plural": "", "kind": "" }));
    let status = json!({ "conditions": conditions, "acceptedNames": names, "storedVersions": stored });
    if let Some(map) = definition.as_object_mut() {
        map.insert("status".to_owned(), status);
    }
}

/// A condition; the time of its last change is that of `old` if its status is still the same.
fn condition(old: Option<&Value>, kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    let status = if holds { "True" } else { "False" };
    let conditions = old.map_or(&[][..], |old| object::items(old, &["status", "conditions"]));
    let before = conditions
        .iter()
        .find(|condition| condition["type"] == kind && condition["status"] == status);
    let since = before.map_or_else(object::now, |before| {
        object::text(before, &["lastTransitionTime"]).to_owned()
    });
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since })
}

/// Whether a definition is in force.
fn is_established(definition: &Value) -> bool {
    object::items(definition, &["status", "conditions"])
        .iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// The first name that another definition of the group has, and what sort of name it is.
fn conflict(all: &[Arc<Value>], definition: &Value) -> Option<(&'static str, String)> {
    let group = object::text(definition, &["spec", "group"]);
    let others: Vec<&Value> = all
        .iter()
        .map(|other| &**other)
        .filter(|other| object::name(other) != object::name(definition))
        .filter(|other| object::text(other, &["spec", "group"]) == group)
        .filter_map(|other| object::at(other, &["status", "acceptedNames"]))
        .collect();
    let has_resource = |name: &str| {
        others.iter().any(|names| {
            names["plural"] == name
                || names["singular"] == name
                || object::items(names, &["shortNames"])
                    .iter()
                    .any(|short| short == name)
        })
    };
    let has_kind = |name: &str| {
        others
            .iter()
            .any(|names| names["kind"] == name || names["listKind"] == name)
    };
    let name = |key: &str| object::text(definition, &["spec", "names", key]);
    let taken = |reason: &'static str, name: &str, is_taken: &dyn Fn(&str) -> bool| {
        (!name.is_empty() && is_taken(name)).then(|| (reason, name.to_owned()))
    };
    let short_names = object::items(definition, &["spec", "names", "shortNames"]);
    taken("PluralConflict", name("plural"), &has_resource)
        .or_else(|| taken("SingularConflict", name("singular"), &has_resource))
        .or_else(|| {
            let mut short_names = short_names.iter().filter_map(Value::as_str);
            short_names.find_map(|short| taken("ShortNamesConflict", short, &has_resource))
        })
        .or_else(|| taken("KindConflict", name("kind"), &has_kind))
        .or_else(|| taken("ListKindConflict", name("listKind"), &has_kind))
}

/// Warns of what a definition says and this server does not do.
pub(super) fn unheeded(kind: &Kind, definition: &Value) -> Vec<String> {
    let is_definition = (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) == (GROUP, RESOURCE);
    if !is_definition || object::text(definition, &["spec", "conversion", "strategy"]) != "Webhook" {
        return Vec::new();
    }
    vec!["spec.conversion: this server calls no webhooks, versions are not converted".to_owned()]
}

fn storage_version(definition: &Value) -> &str {
    object::items(definition, &["spec", "versions"])
        .iter()
        .find(|v| v.get("storage").and_then(Value::as_bool) == Some(true))
        .map_or("", |v| object::text(v, &["name"]))
}

/// The kinds that a definition makes, one for each version that is served; none if it is not established.
pub(super) fn kinds(definition: &Value, compiler: Option<&dyn SchemaCompiler>) -> Vec<Kind> {
    if !is_established(definition) {
        return Vec::new();
    }
    let names = |key: &str| object::text(definition, &["spec", "names", key]);
    let list = |key: &str| {
        object::items(definition, &["spec", "names", key])
            .iter()
            .filter_map(|v| v.as_str().map(Into::into))
            .collect()
    };
    let storage = storage_version(definition);
    object::items(definition, &["spec", "versions"])
        .iter()
        .filter(|v| v.get("served").and_then(Value::as_bool) == Some(true))
        .map(|version| {
            let mut schema = object::at(version, &["schema", "openAPIV3Schema"])
                .cloned()
                .unwrap_or_default();
            add_object_fields(&mut schema);
            let subresource = |name: &str| object::at(version, &["subresources", name]);
            let paths = |field: &str| object::text(version, &["subresources", "scale", field]).to_owned();
            Kind {
                gvr: Gvr::new(
                    object::text(definition, &["spec", "group"]),
                    object::text(version, &["name"]),
                    names("plural"),
                ),
                kind: names("kind").into(),
                singular: names("singular").into(),
                list_kind: names("listKind").into(),
                namespaced: object::text(definition, &["spec", "scope"]) == "Namespaced",
                short_names: list("shortNames"),
                categories: list("categories"),
                has_status: subresource("status").is_some(),
                scale: subresource("scale").map(|_| Scale {
                    spec_replicas: paths("specReplicasPath"),
                    status_replicas: paths("statusReplicasPath"),
                    selector: paths("labelSelectorPath"),
                }),
                counts_generations: true,
                in_slim_domain: true,
                in_core_domain: false,
                storage_version: storage.into(),
                shape: Shape::of_openapi(&schema),
                custom: Some(Arc::new(Custom {
                    columns: object::items(version, &["additionalPrinterColumns"]).to_vec(),
                    selectable_fields: object::items(version, &["selectableFields"])
                        .iter()
                        .map(|f| object::text(f, &["jsonPath"]).to_owned())
                        .collect(),
                    has_defaults: has_defaults(&schema),
                    validator: compiler.map(|compiler| compiler.compile(&schema)),
                    schema,
                })),
            }
        })
        .collect()
}

impl ApiServer {
    /// Establishes the definitions that a deleted one was in the way of.
    pub(super) fn establish_others(&self, tx: &mut Transaction<'_>, kind: &Kind) {
        let all = tx.list(self.domain(kind), &kind.stored(), None);
        for waiting in all.iter().filter(|definition| !is_established(definition)) {
            let mut definition = (**waiting).clone();
            establish(&all, Some(waiting), &mut definition);
            if is_established(&definition) {
                let stored = tx.put(self.domain(kind), kind, definition);
                self.define(&stored);
            }
        }
    }

    /// Serves what a definition defines from now on.
    pub(super) fn define(&self, definition: &Value) {
        let group = object::text(definition, &["spec", "group"]);
        let plural = object::text(definition, &["spec", "names", "plural"]);
        self.registry().remove(group, plural);
        for kind in kinds(definition, self.schemas()) {
            self.registry().insert(kind);
        }
    }
}
