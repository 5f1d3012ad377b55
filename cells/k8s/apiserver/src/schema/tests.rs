// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use serde_json::json;
use skep_k8s_memory::testing::api_server_with;
use skep_k8s_memory::{ApiError, ApiServer, Gvr, Patch, Settings, Subresource, WriteOptions};

use super::*;

fn server() -> ApiServer {
    api_server_with(Settings {
        schemas: Some(Arc::new(OpenApiSchemas)),
        ..Settings::default()
    })
}

/// Defines boxes.
fn define(server: &ApiServer, schema: Value) -> Result<(), ApiError> {
    let definition = json!({
        "metadata": { "name": "boxes.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "boxes", "kind": "Box" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    });
    let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    server
        .create(&definitions, "", definition, &WriteOptions::default())
        .map(drop)
}

#[test]
fn rules_are_checked_when_objects_are_written() {
    let server = server();
    let schema = json!({ "type": "object", "properties": { "spec": {
        "type": "object",
        "properties": { "size": { "type": "integer", "maximum": 9 }, "name": { "type": "string", "maxLength": 3 } },
        "x-kubernetes-validations": [
            { "rule": "!has(self.size) || self.size >= 1", "message": "size is too small" },
            { "rule": "!has(oldSelf.size) || self.size >= oldSelf.size", "message": "size must not shrink" },
        ],
    } }, "x-kubernetes-validations": [{ "rule": "self.metadata.name != 'bad'" }] });
    define(&server, schema).unwrap();
    let boxes = Gvr::new("example.com", "v1", "boxes");
    let options = WriteOptions::default();
    let write = |name: &str, spec: Value| {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        server.create(&boxes, "default", object, &options).map(drop)
    };
    let refused = |name: &str, spec: Value| write(name, spec).unwrap_err().message;

    write("a", json!({ "size": 5 })).unwrap();
    assert_eq!(
        refused("b", json!({ "size": 0 })),
        "Box.example.com \"b\" is invalid: spec: Invalid value: \"object\": size is too small"
    );
    assert_eq!(
        refused("bad", json!({})),
        "Box.example.com \"bad\" is invalid: <nil>: Invalid value: \"object\": failed rule: self.metadata.name != 'bad'"
    );
    assert_eq!(
        refused("c", json!({ "name": "long" })),
        "Box.example.com \"c\" is invalid: [spec.name: Too long: may not be more than 3 bytes, <nil>: Invalid value: \"null\": \
         some validation rules were not checked because the object was invalid; correct the existing errors to complete \
         validation]"
    );
    let shrink = Patch::Merge(json!({ "spec": { "size": 4 } }));
    let patched = server.patch(&boxes, "default", "a", Subresource::None, &shrink, &options);
    assert!(patched.unwrap_err().message.ends_with("size must not shrink"));
}
