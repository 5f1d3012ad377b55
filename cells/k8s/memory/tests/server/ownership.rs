// SPDX-License-Identifier: Apache-2.0

//! Who owns which field: sequences of writes against a model, and the life of a manifest that moves from client-side
//! to server-side apply.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod kinds;
mod model;
mod patches;
mod paths;
mod property;
mod server;

use serde_json::{Value, json};
use skep_k8s_memory::testing::api_server;
use skep_k8s_memory::{ApiError, ApiServer, Gvr, Patch, Subresource, WriteOptions};

/// Name of the object under test.
const NAME: &str = "x";

/// A server and one object in it.
struct Space {
    api: ApiServer,
    gvr: Gvr,
}

impl Space {
    /// `definition`: that of the kind, if it is a custom one.
    fn new(gvr: &Gvr, definition: Option<&Value>) -> Self {
        let api = api_server();
        if let Some(definition) = definition {
            let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
            api.create(&definitions, "", definition.clone(), &by("test"))
                .unwrap();
        }
        Space {
            api,
            gvr: gvr.clone(),
        }
    }

    fn create(&self, manager: &str, object: &Value) -> Result<Value, ApiError> {
        let written = self
            .api
            .create(&self.gvr, "default", object.clone(), &by(manager))?;
        Ok((*written.object).clone())
    }

    fn put(&self, manager: &str, object: &Value) -> Result<Value, ApiError> {
        let (object, options) = (object.clone(), by(manager));
        let written = self
            .api
            .update(&self.gvr, "default", NAME, Subresource::None, object, &options)?;
        Ok((*written.object).clone())
    }

    fn patch(&self, manager: &str, patch: &Patch, force: bool) -> Result<Value, ApiError> {
        let options = WriteOptions { force, ..by(manager) };
        let written = self
            .api
            .patch(&self.gvr, "default", NAME, Subresource::None, patch, &options)?;
        Ok((*written.object).clone())
    }

    fn apply(&self, manager: &str, config: &Value, force: bool) -> Result<Value, ApiError> {
        self.patch(manager, &Patch::Apply(config.clone()), force)
    }

    fn live(&self) -> Value {
        (*self.api.get(&self.gvr, "default", NAME).unwrap()).clone()
    }

    /// What kubectl sends to make the fields of client-side apply its own: entries of `csa` that update become part
    /// of the one of `kubectl` that applies.
    fn migrate(&self, csa: &str) -> Result<Value, ApiError> {
        let live = self.live();
        let managers = live["metadata"]["managedFields"].as_array();
        let mut entries = managers.cloned().unwrap_or_default();
        let is = |entry: &Value, manager: &str, operation: &str| {
            entry["manager"] == manager && entry["operation"] == operation
        };
        let Some(at) = entries.iter().position(|entry| is(entry, csa, "Update")) else {
            return Ok(live);
        };
        let mut moved = entries.remove(at);
        match entries.iter_mut().find(|entry| is(entry, "kubectl", "Apply")) {
            Some(entry) => merge_fields(&mut entry["fieldsV1"], &moved["fieldsV1"]),
            None => {
                moved["manager"] = "kubectl".into();
                moved["operation"] = "Apply".into();
                entries.push(moved);
            }
        }
        let patch = json!([
            { "op": "replace", "path": "/metadata/managedFields", "value": entries },
            { "op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"] },
        ]);
        self.patch("kubectl", &Patch::Json(patch), false)
    }
}

/// Unites two sets in the form of `fieldsV1`; a path that leads on loses its place as a leaf to ".".
fn merge_fields(to: &mut Value, from: &Value) {
    let (to, from) = (to.as_object_mut().unwrap(), from.as_object().unwrap());
    let leaves = (to.is_empty(), from.is_empty());
    for (key, below) in from {
        match to.get_mut(key) {
            Some(known) => merge_fields(known, below),
            None => {
                to.insert(key.clone(), below.clone());
            }
        }
    }
    if leaves.0 != leaves.1 {
        to.insert(".".to_owned(), json!({}));
    }
}

fn by(manager: &str) -> WriteOptions {
    WriteOptions {
        field_manager: manager.to_owned(),
        ..WriteOptions::default()
    }
}
