// SPDX-License-Identifier: Apache-2.0

//! The copy of a Secret.

use serde_json::{Map, Value, json};
use skep_k8s_types::ObjectKey;

/// Label of a copy: the namespace of the original.
pub const OWNER_NAMESPACE: &str = "secretsync.cilium.io/owning-secret-namespace";
/// Label of a copy: the name of the original.
pub const OWNER_NAME: &str = "secretsync.cilium.io/owning-secret-name";

/// Fields that a copy has of its original, beside metadata. Whether they are absent matters as well.
const FIELDS: [&str; 3] = ["type", "immutable", "data"];
/// Maps of the metadata that a copy has of its original.
const MAPS: [&str; 2] = ["labels", "annotations"];

/// What is to be done about a copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Create(Value),
    /// With the resource version of the copy that exists.
    Update(Value),
    /// The type of a Secret cannot be changed, nor anything of one that is immutable.
    Replace(Value),
    /// The name is that of a Secret that is no copy.
    Foreign,
}

/// Compares the copy of a Secret with what it should be.
pub(crate) fn compare(
    owner: &ObjectKey,
    original: &Value,
    namespace: &str,
    name: &str,
    copy: Option<&Value>,
) -> Change {
    let mut wanted = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name},
    });
    for field in FIELDS {
        if !original[field].is_null() {
            wanted[field] = original[field].clone();
        }
    }
    for map in MAPS {
        if let Some(entries) = original["metadata"][map]
            .as_object()
            .filter(|map| !map.is_empty())
        {
            wanted["metadata"][map] = entries.clone().into();
        }
    }
    wanted["metadata"]["labels"][OWNER_NAMESPACE] = (*owner.namespace).into();
    wanted["metadata"]["labels"][OWNER_NAME] = (*owner.name).into();
    let Some(copy) = copy else {
        return Change::Create(wanted);
    };
    if !is_copy(copy) {
        return Change::Foreign;
    }
    let is_same = FIELDS.iter().all(|field| copy[field] == wanted[field])
        && MAPS.iter().all(|map| entries(copy, map) == entries(&wanted, map));
    if is_same {
        return Change::None;
    }
    if copy["type"] != wanted["type"] || copy["immutable"] == json!(true) {
        return Change::Replace(wanted);
    }
    // Finalizers and owners are those of other controllers.
    for field in ["resourceVersion", "finalizers", "ownerReferences"] {
        if !copy["metadata"][field].is_null() {
            wanted["metadata"][field] = copy["metadata"][field].clone();
        }
    }
    Change::Update(wanted)
}

/// Whether a Secret is the copy of another.
pub(crate) fn is_copy(secret: &Value) -> bool {
    let labels = entries(secret, "labels");
    labels.is_some_and(|labels| labels.contains_key(OWNER_NAMESPACE) && labels.contains_key(OWNER_NAME))
}

fn entries<'a>(object: &'a Value, map: &str) -> Option<&'a Map<String, Value>> {
    let entries = object["metadata"][map].as_object();
    entries.filter(|entries| !entries.is_empty())
}
