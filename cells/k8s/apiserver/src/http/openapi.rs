// SPDX-License-Identifier: Apache-2.0

//! OpenAPI documents: what `kubectl explain` shows, and by which `kubectl apply` knows that this server checks fields.
//!
//! Strategic merge patch is not listed among the patches: kubectl then computes such patches from the merge keys
//! that it has built in.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use skep_k8s_memory::schema::{Merge, Object, Scalar, Shape};
use skep_k8s_memory::{Kind, Registry, VERSION, api_version};

/// Where references lead.
const SCHEMAS: &str = "#/components/schemas/";

fn root_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

fn by_version(registry: &Registry) -> BTreeMap<(String, String), Vec<Arc<Kind>>> {
    let mut versions: BTreeMap<(String, String), Vec<Arc<Kind>>> = BTreeMap::new();
    for kind in registry.all() {
        let key = (kind.gvr.group.to_string(), kind.gvr.version.to_string());
        versions.entry(key).or_default().push(kind);
    }
    versions
}

/// `/openapi/v3`: where the documents are. The hash changes when the document does.
pub(super) fn index(registry: &Registry) -> Value {
    let paths: Map<String, Value> = by_version(registry)
        .iter()
        .map(|((group, version), kinds)| {
            let mut hasher = DefaultHasher::new();
            for kind in kinds {
                kind.gvr.hash(&mut hasher);
                if let Some(custom) = &kind.custom {
                    custom.schema.to_string().hash(&mut hasher);
                }
            }
            let path = root_path(group, version);
            let url = format!("/openapi/v3/{path}?hash={:X}", hasher.finish());
            (path, json!({ "serverRelativeURL": url }))
        })
        .collect();
    json!({ "paths": paths })
}

/// `/openapi/v3/<path>`: one group and version.
pub(super) fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let kinds = by_version(registry).remove(&(group.to_owned(), version.to_owned()))?;
    let mut schemas = BTreeMap::new();
    let mut paths = Map::new();
    for kind in &kinds {
        add_schema(kind, &mut schemas);
        add_paths(kind, &mut paths);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes", "version": VERSION },
        "paths": paths,
        "components": { "schemas": schemas },
    }))
}

fn gvk(kind: &Kind) -> Value {
    json!({ "group": kind.gvr.group.as_str(), "version": kind.gvr.version.as_str(), "kind": kind.kind.as_str() })
}

fn type_name(name: &str) -> String {
    if let Some(name) = name.strip_prefix("meta.") {
        format!("io.k8s.apimachinery.pkg.apis.meta.{name}")
    } else if let Some(name) = name.strip_prefix("apiextensions.") {
        format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{name}")
    } else if let Some(name) = name.strip_prefix("apiregistration.") {
        format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{name}")
    } else {
        format!("io.k8s.api.{name}")
    }
}

fn kind_name(kind: &Kind) -> String {
    match &kind.shape {
        Shape::Named(name) => type_name(name),
        _ => {
            let mut parts: Vec<&str> = kind.gvr.group.split('.').collect();
            parts.reverse();
            format!("{}.{}.{}", parts.join("."), kind.gvr.version, kind.kind)
        }
    }
}

fn add_schema(kind: &Kind, schemas: &mut BTreeMap<String, Value>) {
    let name = kind_name(kind);
    match (&kind.shape, &kind.custom) {
        (_, Some(custom)) => {
            let mut schema = custom.schema.clone();
            let meta = Shape::Named("meta.v1.ObjectMeta");
            if let Some(metadata) = schema.pointer_mut("/properties/metadata") {
                *metadata = json!({ "allOf": [reference(&meta, schemas)] });
            }
            schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
            schemas.insert(name, schema);
        }
        (shape @ Shape::Named(_), None) => {
            reference(shape, schemas);
            if let Some(schema) = schemas.get_mut(&name) {
                schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
            }
        }
        _ => {
            let schema = json!({ "type": "object", "x-kubernetes-group-version-kind": [gvk(kind)] });
            schemas.insert(name, schema);
        }
    }
}

/// The schema of a shape; named types are added to `schemas` and referred to.
fn reference(shape: &Shape, schemas: &mut BTreeMap<String, Value>) -> Value {
    match shape {
        Shape::Any => json!({ "type": "object" }),
        Shape::Scalar(scalar) => match scalar {
            Scalar::Text => json!({ "type": "string" }),
            Scalar::Integer => json!({ "type": "integer", "format": "int32" }),
            Scalar::Long => json!({ "type": "integer", "format": "int64" }),
            Scalar::Number => json!({ "type": "number", "format": "double" }),
            Scalar::Bool => json!({ "type": "boolean" }),
            Scalar::Time | Scalar::MicroTime => json!({ "type": "string", "format": "date-time" }),
            Scalar::Bytes => json!({ "type": "string", "format": "byte" }),
            Scalar::Quantity => json!({ "type": "string" }),
            Scalar::IntOrText => json!({ "type": "string", "format": "int-or-string" }),
        },
        Shape::Map(item, atomic) => {
            let item = reference(item, schemas);
            let mut schema = json!({ "type": "object", "additionalProperties": item });
            if *atomic {
                schema["x-kubernetes-map-type"] = "atomic".into();
            }
            schema
        }
        Shape::List(list) => {
            let mut schema = json!({ "type": "array", "items": reference(&list.item, schemas) });
            match &list.merge {
                Merge::Atomic => schema["x-kubernetes-list-type"] = "atomic".into(),
                Merge::Set => schema["x-kubernetes-list-type"] = "set".into(),
                Merge::Keys(keys) => {
                    schema["x-kubernetes-list-type"] = "map".into();
                    schema["x-kubernetes-list-map-keys"] = json!(keys);
                    schema["x-kubernetes-patch-merge-key"] = json!(keys.first());
                    schema["x-kubernetes-patch-strategy"] = "merge".into();
                }
            }
            schema
        }
        Shape::Object(object) => object_schema(object, schemas),
        Shape::Named(name) => {
            let full = type_name(name);
            if !schemas.contains_key(&full)
                && let Some(object) = shape.object()
            {
                // Types may contain themselves.
                schemas.insert(full.clone(), Value::Null);
                let schema = object_schema(&object, schemas);
                schemas.insert(full.clone(), schema);
            }
            json!({ "$ref": format!("{SCHEMAS}{full}") })
        }
    }
}

fn object_schema(object: &Object, schemas: &mut BTreeMap<String, Value>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in &object.fields {
        let mut schema = reference(&field.shape, schemas);
        if let Some(target) = schema.get("$ref").cloned() {
            // Neighbours of a reference are ignored, hence the wrapper.
            schema = json!({ "allOf": [{ "$ref": target }], "default": {} });
        }
        schema["description"] = field.description.as_str().into();
        if field.required {
            required.push(field.name.as_str());
        }
        properties.insert(field.name.clone(), schema);
    }
    let mut schema = json!({ "type": "object", "description": object.description, "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if object.atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    schema
}

/// Path of the objects of a kind.
fn collection(kind: &Kind) -> String {
    let root = root_path(&kind.gvr.group, &kind.gvr.version);
    if kind.namespaced {
        format!("/{root}/namespaces/{{namespace}}/{}", kind.gvr.resource)
    } else {
        format!("/{root}/{}", kind.gvr.resource)
    }
}

fn add_paths(kind: &Kind, paths: &mut Map<String, Value>) {
    let collection = collection(kind);
    let parameter = |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
    let schema = json!({ "$ref": format!("{SCHEMAS}{}", kind_name(kind)) });
    let operation = |action: &str, writes: bool| {
        let mut parameters = vec![parameter("pretty")];
        if writes {
            parameters.extend(["dryRun", "fieldManager", "fieldValidation"].map(parameter));
        }
        json!({
            "parameters": parameters,
            "responses": { "200": { "description": "OK", "content": { "application/json": { "schema": schema } } } },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk(kind),
        })
    };
    let mut patch = operation("patch", true);
    let any = json!({ "schema": { "type": "object" } });
    patch["requestBody"] = json!({
        "content": {
            "application/apply-patch+yaml": any,
            "application/json-patch+json": any,
            "application/merge-patch+json": any,
        },
        "required": true,
    });
    if super::discovery::is_review(kind) {
        paths.insert(collection, json!({ "post": operation("post", true) }));
        return;
    }
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", false),
            "put": operation("put", true),
            "patch": patch,
            "delete": operation("delete", false),
        }),
    );
    let mut lists = json!({ "get": operation("list", false), "post": operation("post", true) });
    lists["description"] = api_version(&kind.gvr.group, &kind.gvr.version).into();
    paths.insert(collection, lists);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_refer_only_to_what_they_have() {
        fn check(value: &Value, schemas: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                        let name = target.strip_prefix(SCHEMAS).unwrap();
                        assert!(schemas.get(name).is_some_and(Value::is_object), "{name}");
                    }
                    map.values().for_each(|v| check(v, schemas));
                }
                Value::Array(items) => items.iter().for_each(|v| check(v, schemas)),
                _ => {}
            }
        }
        let registry = Registry::builtin();
        for (group, version) in by_version(&registry).keys() {
            let document = document(&registry, group, version).unwrap();
            check(&document, &document["components"]["schemas"]);
        }
    }
}
