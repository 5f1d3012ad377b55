// SPDX-License-Identifier: Apache-2.0

//! Namespaces: which are shared with other clusters.

use skep_clustermesh_types::annotation::{GLOBAL_NAMESPACE, is_global_namespace};
use skep_k8s_controller::Store;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{Namespace, Str};

/// What a namespace means for what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamespaceState {
    /// It does not exist, or is being deleted: nothing is written.
    Absent,
    /// What is in it is not shared.
    Local,
    /// What is in it is shared.
    Global,
}

pub(crate) fn state(namespaces: &Store<Namespace>, name: &Str, default: bool) -> NamespaceState {
    let key = ObjectKey {
        name: name.clone(),
        ..ObjectKey::default()
    };
    match namespaces.get(&key) {
        Some(namespace) if namespace.metadata.deletion_timestamp.is_none() => {
            let value = namespace.metadata.annotations.get(GLOBAL_NAMESPACE);
            if is_global_namespace(value, default) {
                NamespaceState::Global
            } else {
                NamespaceState::Local
            }
        }
        _ => NamespaceState::Absent,
    }
}
