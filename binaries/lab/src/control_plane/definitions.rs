// SPDX-License-Identifier: Apache-2.0

//! Definitions of Cilium's kinds, with the schemas of `schemas.txt`. A kind that is not in there takes any object.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use skep_k8s_apiserver::Registry;

/// The group whose kinds the lab defines.
const GROUP: &str = "cilium.io";
const SCHEMAS: &str = include_str!("schemas.txt");

/// Definitions of Cilium's kinds.
pub(super) fn all() -> Vec<Value> {
    let schemas = schemas(SCHEMAS);
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let kinds = Registry::with_extensions().all();
    let kinds = kinds.iter().filter(|kind| kind.gvr.group == GROUP);
    kinds
        .map(|kind| {
            let resource = kind.gvr.resource.as_str();
            let schema = schemas.get(resource).unwrap_or(&any);
            let mut version = json!({
                "name": kind.gvr.version.as_str(), "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema },
            });
            if kind.has_status {
                version["subresources"] = json!({ "status": {} });
            }
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{resource}.{GROUP}") },
                "spec": {
                    "group": GROUP,
                    "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
                    "names": {
                        "plural": resource, "singular": kind.singular.as_str(), "kind": kind.kind.as_str(),
                        "listKind": kind.list_kind.as_str(),
                        "shortNames": kind.short_names.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
                        "categories": kind.categories.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
                    },
                    "versions": [version],
                },
            })
        })
        .collect()
}

/// What earlier lines have named.
#[derive(Default)]
struct Known<'a> {
    patterns: HashMap<&'a str, &'a str>,
    shapes: HashMap<&'a str, Value>,
    kinds: HashMap<&'a str, Value>,
}

/// What the lines that follow add fields to.
enum Open<'a> {
    Shape(&'a str, Value),
    Kind(&'a str, Value),
}

/// Reads the schemas by resource.
///
/// # Panics
/// At a line that does not follow the notation: the text is part of the program, and a test reads it.
fn schemas(text: &str) -> HashMap<&str, Value> {
    let mut known = Known::default();
    // What the lines that follow are about.
    let mut open = None;
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (head, description) = line.split_once("  # ").unwrap_or((line, ""));
        let (first, rest) = head.split_once(' ').unwrap_or((head, ""));
        let rest = rest.trim();
        match first {
            "pattern" => {
                let (name, pattern) = rest.split_once(' ').expect("a pattern has a name");
                known.patterns.insert(name, pattern.trim());
            }
            "shape" => {
                known.close(open.take());
                let (name, constraints) = rest.split_once(' ').expect("a shape has a type");
                open = Some(Open::Shape(name, known.value(constraints).0));
            }
            "kind" => {
                known.close(open.take());
                open = Some(Open::Kind(rest, root()));
            }
            path => {
                let (Open::Shape(_, schema) | Open::Kind(_, schema)) =
                    open.as_mut().expect("a field belongs to a shape or a kind");
                known.add(schema, path.trim_start_matches('.'), rest, description);
            }
        }
    }
    known.close(open);
    known.kinds
}

/// What all kinds have.
fn root() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({ "type": "object", "properties": {
        "apiVersion": text("Version of the schema of this representation of an object."),
        "kind": text("Kind of the object."),
        "metadata": { "type": "object" },
    } })
}

impl<'a> Known<'a> {
    fn close(&mut self, open: Option<Open<'a>>) {
        match open {
            Some(Open::Shape(name, schema)) => drop(self.shapes.insert(name, schema)),
            Some(Open::Kind(name, schema)) => drop(self.kinds.insert(name, schema)),
            None => {}
        }
    }

    /// Adds a field to a schema that has its parents.
    fn add(&self, schema: &mut Value, path: &str, constraints: &str, description: &str) {
        let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
        let mut parent = schema;
        for segment in parents.split('.').filter(|segment| !segment.is_empty()) {
            let (name, holder) = named(segment);
            parent = &mut parent["properties"][name];
            if let Some(holder) = holder {
                parent = &mut parent[holder];
            }
        }
        let (field, is_required) = last
            .strip_suffix('*')
            .map_or((last, false), |field| (field, true));
        let (name, holder) = named(field);
        let (value, list) = self.value(constraints);
        let mut field = match holder {
            None => value,
            Some("items") => {
                let mut field = json!({ "type": "array", "items": value });
                merge(&mut field, list);
                field
            }
            Some(holder) => json!({ "type": "object", holder: value }),
        };
        if !description.is_empty() {
            field["description"] = description.into();
        }
        parent["properties"][name] = field;
        if is_required {
            match parent["required"].as_array_mut() {
                Some(required) => required.push(name.into()),
                None => parent["required"] = json!([name]),
            }
        }
    }

    /// The schema of a value, and what is said about the list that it is in.
    fn value(&self, constraints: &str) -> (Value, Value) {
        let (mut schema, mut list) = (json!({}), json!({}));
        let mut of_characters = false;
        for word in words(constraints) {
            if let Some(shape) = self.shapes.get(word) {
                merge(&mut schema, shape.clone());
            } else if let Some(pattern) = self.patterns.get(word) {
                schema["pattern"] = (*pattern).into();
            } else if word == "len" {
                of_characters = true;
            } else if let Some(kinds) = inside(word, "{", "}") {
                schema["enum"] = json!(kinds.split('|').collect::<Vec<_>>());
            } else if let Some(value) = word.strip_prefix('=') {
                schema["default"] = json_of(value);
            } else if let Some(what) = inside(word, "A(", ")") {
                list_of(&mut list, what);
            } else if let Some(fields) = inside(word, "oneOf(", ")") {
                schema["oneOf"] = alternatives(fields);
            } else if let Some(fields) = inside(word, "anyOf(", ")") {
                schema["anyOf"] = alternatives(fields);
            } else if let Some((low, high)) = word.split_once("..") {
                let names = match of_characters {
                    true => ["minLength", "maxLength"],
                    false => ["minimum", "maximum"],
                };
                bounds(&mut schema, names, low, high);
            } else {
                merge(&mut schema, type_of(word));
            }
        }
        (schema, list)
    }
}

/// Name of a field, and where the schema of its values is.
fn named(segment: &str) -> (&str, Option<&'static str>) {
    let segment = segment.trim_end_matches('*');
    if let Some(name) = segment.strip_suffix("[]") {
        return (name, Some("items"));
    }
    segment
        .strip_suffix("{}")
        .map_or((segment, None), |name| (name, Some("additionalProperties")))
}

/// The constraints, one by one: blanks inside parentheses belong to them.
fn words(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|c: char| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        c == ' ' && depth == 0
    })
    .filter(|word| !word.is_empty())
    .collect()
}

fn inside<'a>(word: &'a str, open: &str, close: &str) -> Option<&'a str> {
    word.strip_prefix(open)?.strip_suffix(close)
}

fn merge(into: &mut Value, from: Value) {
    let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) else {
        return;
    };
    into.extend(from);
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("defaults are JSON")
}

fn bounds(schema: &mut Value, names: [&str; 2], low: &str, high: &str) {
    for (name, bound) in names.into_iter().zip([low, high]) {
        if !bound.is_empty() {
            schema[name] = json_of(bound);
        }
    }
}

fn list_of(list: &mut Value, what: &str) {
    for part in what.split(',').map(str::trim) {
        if let Some(key) = part.strip_prefix("map:") {
            list["x-kubernetes-list-type"] = "map".into();
            list["x-kubernetes-list-map-keys"] = json!([key]);
        } else if let Some((low, high)) = part.split_once("..") {
            bounds(list, ["minItems", "maxItems"], low, high);
        } else if let Some(value) = part.strip_prefix('=') {
            list["default"] = json_of(value);
        } else {
            list["x-kubernetes-list-type"] = part.into();
        }
    }
}

fn alternatives(fields: &str) -> Value {
    let fields = fields
        .split(',')
        .map(|field| json!({ "required": [field.trim()] }));
    Value::Array(fields.collect())
}

fn type_of(word: &str) -> Value {
    let (name, format) = word.split_once(':').unwrap_or((word, ""));
    let mut schema = Map::new();
    match name {
        "str" => drop(schema.insert("type".into(), "string".into())),
        "int" => drop(schema.insert("type".into(), "integer".into())),
        "int32" | "int64" => {
            schema.insert("type".into(), "integer".into());
            schema.insert("format".into(), name.into());
        }
        "bool" => drop(schema.insert("type".into(), "boolean".into())),
        "obj" => drop(schema.insert("type".into(), "object".into())),
        "int|str" => drop(schema.insert("x-kubernetes-int-or-string".into(), true.into())),
        "keep-unknown" => drop(schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into())),
        "map-type=atomic" => drop(schema.insert("x-kubernetes-map-type".into(), "atomic".into())),
        other => panic!("`{other}` is no constraint"),
    }
    if !format.is_empty() {
        schema.insert("format".into(), format.into());
    }
    Value::Object(schema)
}

#[cfg(test)]
mod tests {
    use skep_k8s_apiserver::{ApiServer, Gvr, Manner, Rows, Settings, Subresource, Tracker, WriteOptions};
    use statedb::Db;

    use super::*;

    fn server() -> ApiServer {
        let tracker = Tracker::new(Rows::new(&Db::new()).unwrap(), 100, false);
        let api = ApiServer::new(tracker, Registry::builtin(), Manner::Real(Settings::default()));
        let kind = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        for definition in all() {
            let name = definition["metadata"]["name"].clone();
            if let Err(error) = api.create(&kind, "", definition, &WriteOptions::default()) {
                panic!("{name}: {error}");
            }
        }
        api
    }

    #[test]
    fn defines_each_of_ciliums_kinds_once() {
        let definitions = all();
        let names: std::collections::HashSet<&str> = definitions
            .iter()
            .filter_map(|d| d["metadata"]["name"].as_str())
            .collect();

        assert_eq!(names.len(), definitions.len());
        assert!(names.contains("ciliumlocalredirectpolicies.cilium.io"));
        for resource in schemas(SCHEMAS).keys() {
            assert!(
                names.contains(format!("{resource}.{GROUP}").as_str()),
                "{resource}"
            );
        }
    }

    #[test]
    fn reads_the_notation() {
        let text = "pattern P-A  ^a b$\n\
            shape S  obj map-type=atomic\n.n*  int 1..9 =3  # A number\n\
            kind things\n\
            spec*  obj oneOf(a , b)\n\
            spec.a[]  S A(map:n, 1..2)\n\
            spec.b{}  str:cidr len ..5 P-A {x|y}\n";

        let spec = &schemas(text)["things"]["properties"]["spec"];

        assert_eq!(
            spec["oneOf"],
            json!([{ "required": ["a"] }, { "required": ["b"] }])
        );
        assert_eq!(
            spec["properties"]["a"],
            json!({
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
                "minItems": 1, "maxItems": 2,
                "items": {
                    "type": "object", "x-kubernetes-map-type": "atomic", "required": ["n"],
                    "properties": { "n": {
                        "type": "integer", "minimum": 1, "maximum": 9, "default": 3, "description": "A number",
                    } },
                },
            })
        );
        assert_eq!(
            spec["properties"]["b"]["additionalProperties"],
            json!({ "type": "string", "format": "cidr", "maxLength": 5, "pattern": "^a b$", "enum": ["x", "y"] })
        );
    }

    #[test]
    fn objects_of_ciliums_kinds_are_checked() {
        let api = server();
        let policies = Gvr::new("cilium.io", "v2", "ciliumlocalredirectpolicies");
        let policy = |port: Value, matcher: Value| {
            json!({
                "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy", "metadata": { "name": "p" },
                "spec": {
                    "redirectFrontend": matcher,
                    "redirectBackend": {
                        "localEndpointSelector": { "matchLabels": { "app": "dns" } },
                        "toPorts": [{ "port": port, "protocol": "UDP" }],
                    },
                },
            })
        };
        let address = json!({ "addressMatcher": {
            "ip": "169.254.20.10", "toPorts": [{ "port": "53", "protocol": "UDP" }] } });
        let options = WriteOptions::default();
        let create = |object: Value| api.create(&policies, "default", object, &options);

        for (object, reason) in [
            (policy(json!(53), address.clone()), "must be of type string"),
            (policy("53".into(), json!({})), "spec.redirectFrontend"),
            (
                policy(
                    "53".into(),
                    json!({ "addressMatcher": { "ip": "x", "toPorts": [] } }),
                ),
                "addressMatcher.ip",
            ),
        ] {
            let error = create(object).map(drop).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let made = create(policy("53".into(), address)).unwrap().object;
        assert_eq!(made["spec"]["skipRedirectFromBackend"], false);

        let rules = Gvr::new("cilium.io", "v2", "ciliumnetworkpolicies");
        let rule = |spec: Value| json!({ "metadata": { "name": "r" }, "spec": spec });
        let error = api.create(
            &rules,
            "default",
            rule(json!({ "endpointSelector": 3, "ingress": [] })),
            &options,
        );
        assert!(error.is_err());
        let allow = json!({ "endpointSelector": {}, "ingress": [{ "fromEntities": ["host"] }] });
        api.create(&rules, "default", rule(allow), &options).unwrap();

        let nodes = Gvr::new("cilium.io", "v2", "ciliumnodes");
        let node = json!({ "metadata": { "name": "n" }, "spec": { "ipam": { "pool": { "10.0.0.1": {} } } } });
        api.create(&nodes, "", node, &options).unwrap();
        let status = json!({ "metadata": { "name": "n" }, "status": { "ipam": { "used": 3 } } });
        let refused = api.update(&nodes, "", "n", Subresource::Status, status, &options);
        assert!(refused.is_err());
    }
}
