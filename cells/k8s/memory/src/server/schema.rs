// SPDX-License-Identifier: Apache-2.0

//! Custom resources by the schemas of their definitions: pruned and defaulted here, validated by a
//! [`SchemaCompiler`], if the server has one.

mod defaults;
mod prune;

use std::fmt;

use serde_json::{Value, json};

pub(crate) use defaults::{fill, has_defaults, lacks_defaults};
pub use prune::prune;

use crate::error::Fault;
use crate::object;

/// Checks the schemas of definitions, and compiles them.
pub trait SchemaCompiler: fmt::Debug + Send + Sync {
    /// Errors in the schemas of a definition's versions.
    fn check(&self, versions: &[Value]) -> Vec<Fault>;

    /// Compiles a schema without errors.
    fn compile(&self, schema: &Value) -> Box<dyn Validator>;
}

/// Validates custom resources of one version.
pub trait Validator: fmt::Debug + Send + Sync {
    /// Errors in an object. What is as in `old` is not validated again.
    fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Fault>;
}

/// Adds the fields of all objects to a schema.
pub fn add_object_fields(schema: &mut Value) {
    if !schema.is_object() {
        *schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    }
    if schema.get("properties").is_none() && schema.get("additionalProperties").is_some() {
        return;
    }
    let properties = object::map_mut(schema, "properties");
    properties
        .entry("apiVersion")
        .or_insert_with(|| json!({ "type": "string" }));
    properties
        .entry("kind")
        .or_insert_with(|| json!({ "type": "string" }));
    // Rules see two fields of the metadata.
    let seen = json!({ "name": { "type": "string" }, "generateName": { "type": "string" } });
    properties.insert(
        "metadata".to_owned(),
        json!({ "type": "object", "properties": seen, "x-kubernetes-preserve-unknown-fields": true }),
    );
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn says(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool) == Some(true)
}
