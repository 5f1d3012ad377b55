// SPDX-License-Identifier: Apache-2.0

//! Objects of the core group.

use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_memory::{ApiError, ApiServer, DeleteOptions, Gvr, ListOptions, WriteOptions};

pub(crate) fn core(resource: &str) -> Gvr {
    Gvr::new("", "v1", resource)
}

pub(crate) fn create(api: &ApiServer, resource: &str, object: Value) -> Result<Arc<Value>, ApiError> {
    let namespace = if matches!(resource, "namespaces" | "nodes") {
        ""
    } else {
        "default"
    };
    let made = api.create(&core(resource), namespace, object, &WriteOptions::default());
    made.map(|written| written.object)
}

pub(crate) fn delete(api: &ApiServer, resource: &str, name: &str) {
    let options = DeleteOptions {
        grace_seconds: Some(0),
        ..DeleteOptions::default()
    };
    api.delete(&core(resource), "default", name, &options).unwrap();
}

/// Names of the objects of a kind in a namespace.
pub(crate) fn names(api: &ApiServer, resource: &str, namespace: &str) -> Vec<String> {
    let list = api.list(&core(resource), Some(namespace), &ListOptions::default());
    let items = list.unwrap().items;
    let name = |object: &Arc<Value>| object["metadata"]["name"].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

pub(crate) fn pod(name: &str, spec: Value) -> Value {
    let mut pod =
        json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "web", "image": "i" }] } });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}
