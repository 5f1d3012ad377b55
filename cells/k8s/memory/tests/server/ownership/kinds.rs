// SPDX-License-Identifier: Apache-2.0

//! The kinds under test: what every object of them has, which fields the test writes, and how those divide.

use serde_json::{Value, json};
use skep_k8s_memory::Gvr;

use super::NAME;
use super::paths::{Path, flatten, path};

/// How maps and lists divide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    /// A map that divides into its entries, a struct, or a single value.
    Granular,
    Atomic,
    Set,
    Keys(&'static [&'static str]),
}

/// A field that the test writes.
#[derive(Debug)]
pub(crate) struct Spot {
    pub(crate) path: Path,
    pub(crate) values: Vec<Value>,
    /// Objects without it are invalid.
    pub(crate) needed: bool,
}

pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) gvr: Gvr,
    pub(crate) definition: Option<Value>,
    /// What every object and every configuration has.
    pub(crate) base: Value,
    pub(crate) spots: Vec<Spot>,
    rules: &'static [(&'static str, Rule)],
    /// Maps, as opposed to structs.
    maps: &'static [&'static str],
    /// Maps whose values are structs.
    entries: &'static [&'static str],
    /// A field without schema.
    untyped: Option<&'static str>,
    /// What items need besides their keys.
    items: Vec<(&'static str, Value)>,
}

impl Kind {
    pub(crate) fn is_custom(&self) -> bool {
        self.definition.is_some()
    }

    pub(crate) fn rule(&self, names: &str) -> Rule {
        let found = self.rules.iter().find(|(at, _)| *at == names);
        match found {
            Some((_, rule)) => *rule,
            None if names == "metadata.finalizers" => Rule::Set,
            None => Rule::Granular,
        }
    }

    pub(crate) fn is_map(&self, names: &str) -> bool {
        matches!(names, "metadata.labels" | "metadata.annotations") || self.maps.contains(&names)
    }

    pub(crate) fn has_entries(&self, names: &str) -> bool {
        self.entries.contains(&names)
    }

    pub(crate) fn is_untyped(&self, names: &str) -> bool {
        self.untyped
            .is_some_and(|untyped| names == untyped || names.starts_with(&format!("{untyped}.")))
    }

    pub(crate) fn complete(&self, key: &str, item: &mut Value) {
        for (_, more) in self.items.iter().filter(|(of, _)| *of == key) {
            for (name, value) in more.as_object().unwrap() {
                item[name] = value.clone();
            }
        }
    }

    /// True if the base has something that managers own, besides the name and the type of the object.
    pub(crate) fn base_is_owned(&self) -> bool {
        self.base.as_object().unwrap().len() > 3
    }

    /// True if every object has something below `path`.
    pub(crate) fn in_base(&self, path: &Path) -> bool {
        let base = flatten(self, &self.base);
        base.keys()
            .any(|other| other.len() > path.len() && other.starts_with(path))
    }
}

fn spot(at: &str, values: Value) -> Spot {
    Spot {
        path: path(at),
        values: values.as_array().unwrap().clone(),
        needed: false,
    }
}

fn needed(at: &str, values: Value) -> Spot {
    Spot {
        needed: true,
        ..spot(at, values)
    }
}

/// An item of which only that it is there is written.
fn item(at: &str) -> Spot {
    spot(at, json!([null]))
}

fn metadata() -> Vec<Spot> {
    vec![
        spot("f:metadata f:labels f:a", json!(["1", "2"])),
        spot("f:metadata f:labels f:b", json!(["1", "2"])),
        spot("f:metadata f:annotations f:note", json!(["x", "y"])),
        item("f:metadata f:finalizers v:\"example.com/a\""),
        item("f:metadata f:finalizers v:\"example.com/b\""),
    ]
}

fn plain(name: &'static str, gvr: Gvr, base: Value, spots: Vec<Spot>) -> Kind {
    let mut base = base;
    let api_version = skep_k8s_memory::api_version(&gvr.group, &gvr.version);
    base["apiVersion"] = api_version.into();
    base["kind"] = name.into();
    base["metadata"] = json!({ "name": NAME });
    Kind {
        name,
        gvr,
        definition: None,
        base,
        spots: metadata().into_iter().chain(spots).collect(),
        rules: &[],
        maps: &[],
        entries: &[],
        untyped: None,
        items: Vec::new(),
    }
}

const PORT_81: &str = "k:{\"port\":81,\"protocol\":\"TCP\"}";
const PORT_82: &str = "k:{\"port\":82,\"protocol\":\"TCP\"}";

fn service() -> Kind {
    let port = |key: &str, below: &str| format!("f:spec f:ports {key}{below}");
    let spots = vec![
        item(&port(PORT_81, "")),
        spot(&port(PORT_81, " f:appProtocol"), json!(["http", "grpc"])),
        spot(&port(PORT_82, " f:appProtocol"), json!(["http", "grpc"])),
        spot(
            "f:spec f:selector",
            json!([{ "app": "a" }, { "app": "b", "tier": "c" }]),
        ),
        spot(
            "f:spec f:externalIPs",
            json!([["192.0.2.1"], ["192.0.2.2", "192.0.2.1"]]),
        ),
        spot("f:spec f:publishNotReadyAddresses", json!([true, false])),
    ];
    let base = json!({ "spec": { "ports": [{ "name": "main", "port": 80, "protocol": "TCP" }] } });
    Kind {
        rules: &[
            ("spec.ports", Rule::Keys(&["port", "protocol"])),
            ("spec.selector", Rule::Atomic),
            ("spec.externalIPs", Rule::Atomic),
        ],
        items: vec![
            (PORT_81, json!({ "name": "p81" })),
            (PORT_82, json!({ "name": "p82" })),
        ],
        ..plain("Service", Gvr::new("", "v1", "services"), base, spots)
    }
}

const SIDECAR: &str = "k:{\"name\":\"s\"}";

fn deployment() -> Kind {
    let container =
        |below: &str| format!("f:spec f:template f:spec f:containers k:{{\"name\":\"c\"}} {below}");
    let spots = vec![
        needed("f:spec f:replicas", json!([1, 2])),
        spot("f:spec f:minReadySeconds", json!([5, 6])),
        spot(
            "f:spec f:template f:metadata f:annotations f:note",
            json!(["x", "y"]),
        ),
        spot(
            "f:spec f:template f:spec f:nodeSelector",
            json!([{ "a": "b" }, { "c": "d" }]),
        ),
        needed(&container("f:image"), json!(["x:1", "x:2"])),
        spot(&container("f:env k:{\"name\":\"A\"} f:value"), json!(["1", "2"])),
        spot(&container("f:env k:{\"name\":\"B\"} f:value"), json!(["1", "2"])),
        item(&container(
            "f:ports k:{\"containerPort\":81,\"protocol\":\"TCP\"}",
        )),
        spot(
            &format!("f:spec f:template f:spec f:containers {SIDECAR} f:workingDir"),
            json!(["/a", "/b"]),
        ),
    ];
    let template = json!({
        "metadata": { "labels": { "app": "x" } },
        "spec": { "containers": [{ "name": "c" }] },
    });
    let base = json!({ "spec": { "selector": { "matchLabels": { "app": "x" } }, "template": template } });
    Kind {
        rules: &[
            ("spec.selector", Rule::Atomic),
            ("spec.template.spec.nodeSelector", Rule::Atomic),
            ("spec.template.spec.containers", Rule::Keys(&["name"])),
            ("spec.template.spec.containers.env", Rule::Keys(&["name"])),
            (
                "spec.template.spec.containers.ports",
                Rule::Keys(&["containerPort", "protocol"]),
            ),
        ],
        maps: &["spec.template.metadata.annotations"],
        items: vec![(SIDECAR, json!({ "image": "side:1" }))],
        ..plain("Deployment", Gvr::new("apps", "v1", "deployments"), base, spots)
    }
}

fn definition(kind: &str, schema: Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": { "plural": plural, "kind": kind },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

const ITEM_A: &str = "k:{\"name\":\"a\",\"zone\":\"z\"}";
const ITEM_B: &str = "k:{\"name\":\"b\",\"zone\":\"z\"}";

fn custom() -> Kind {
    let text = json!({ "type": "string" });
    let texts = |kind: &str| json!({ "type": "array", "items": text, "x-kubernetes-list-type": kind });
    let pair = json!({ "type": "object", "properties": { "x": text, "y": text } });
    let item_schema = json!({ "type": "object", "required": ["name"], "properties": {
        "name": text, "zone": { "type": "string", "default": "z" }, "v": text, "w": text,
    } });
    let mut whole = pair.clone();
    whole["x-kubernetes-map-type"] = "atomic".into();
    let spec = json!({ "type": "object", "properties": {
        "base": text,
        "single": text,
        "map": { "type": "object", "additionalProperties": text },
        "pair": pair,
        "whole": whole,
        "entries": { "type": "object", "additionalProperties": pair },
        "set": texts("set"),
        "list": texts("atomic"),
        "items": {
            "type": "array",
            "items": item_schema,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "zone"],
        },
    } });
    let item_spot = |key: &str, below: &str| format!("f:spec f:items {key}{below}");
    let spots = vec![
        spot("f:spec f:single", json!(["1", "2"])),
        spot("f:spec f:map f:a", json!(["1", "2"])),
        spot("f:spec f:map f:b", json!(["1", "2"])),
        spot("f:spec f:pair f:x", json!(["1", "2"])),
        spot("f:spec f:pair f:y", json!(["1", "2"])),
        spot("f:spec f:whole", json!([{ "x": "1" }, { "y": "2" }])),
        spot("f:spec f:entries f:e f:x", json!(["1", "2"])),
        spot("f:spec f:entries f:e f:y", json!(["1", "2"])),
        item("f:spec f:set v:\"a\""),
        item("f:spec f:set v:\"b\""),
        spot("f:spec f:list", json!([["a"], ["b", "a"]])),
        item(&item_spot(ITEM_A, "")),
        spot(&item_spot(ITEM_A, " f:v"), json!(["1", "2"])),
        spot(&item_spot(ITEM_A, " f:w"), json!(["1", "2"])),
        spot(&item_spot(ITEM_B, " f:v"), json!(["1", "2"])),
    ];
    Kind {
        definition: Some(definition(
            "Typed",
            json!({ "type": "object", "properties": { "spec": spec } }),
        )),
        rules: &[
            ("spec.whole", Rule::Atomic),
            ("spec.list", Rule::Atomic),
            ("spec.set", Rule::Set),
            ("spec.items", Rule::Keys(&["name", "zone"])),
        ],
        entries: &["spec.entries"],
        ..plain(
            "Typed",
            Gvr::new("example.com", "v1", "typeds"),
            json!({ "spec": { "base": "x" } }),
            spots,
        )
    }
}

fn untyped() -> Kind {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let spots = vec![
        spot("f:spec f:single", json!(["1", 2, true])),
        spot("f:spec f:map f:a", json!(["1", "2"])),
        spot("f:spec f:map f:b", json!(["1", "2"])),
        spot("f:spec f:deep f:map f:a", json!(["1", "2"])),
        spot("f:spec f:list", json!([["a"], [{ "name": "a" }]])),
    ];
    Kind {
        definition: Some(definition("Untyped", schema)),
        untyped: Some("spec"),
        ..plain(
            "Untyped",
            Gvr::new("example.com", "v1", "untypeds"),
            json!({ "spec": { "base": "x" } }),
            spots,
        )
    }
}

pub(crate) fn all() -> Vec<Kind> {
    vec![service(), deployment(), custom(), untyped()]
}
