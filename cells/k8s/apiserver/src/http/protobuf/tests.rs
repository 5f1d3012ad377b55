// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::http::tests::{ask, json_of, router};

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A message of messages and texts.
fn of<'a>(fields: impl IntoIterator<Item = (u32, &'a [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    fields
        .into_iter()
        .for_each(|(number, bytes)| put(&mut out, number, bytes));
    out
}

/// A field that is a number or a flag.
fn plain(number: u32, n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, u64::from(number << 3));
    varint(&mut out, n);
    out
}

fn wrap(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let (mut meta, mut body) = (Vec::new(), MAGIC.to_vec());
    put(&mut meta, 1, api_version.as_bytes());
    put(&mut meta, 2, kind.as_bytes());
    put(&mut body, 1, &meta);
    put(&mut body, 2, raw);
    body
}

#[test]
fn reads_a_service() {
    let mut metadata = Vec::new();
    put(&mut metadata, 1, b"web");
    put(&mut metadata, 3, b"");
    let mut label = Vec::new();
    put(&mut label, 1, b"app");
    put(&mut label, 2, b"x");
    put(&mut metadata, 11, &label);
    put(&mut metadata, 8, b"");
    let mut port = Vec::new();
    put(&mut port, 1, b"http");
    port.extend([3 << 3, 80]);
    put(&mut port, 4, &[8, 1, 16, 0, 26, 3, b'w', b'e', b'b']);
    port.extend([5 << 3, 0]);
    let (mut spec, mut raw) = (Vec::new(), Vec::new());
    put(&mut spec, 1, &port);
    put(&mut raw, 1, &metadata);
    put(&mut raw, 2, &spec);

    let value = decode(&wrap("v1", "Service", &raw), |_, _| {
        Some(Shape::Named("core.v1.Service"))
    })
    .unwrap();

    assert_eq!(
        value,
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "labels": { "app": "x" } },
            "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": "web" }] },
        })
    );
}

#[test]
fn reads_messages_that_json_does_not_show() {
    // Volume { name: "v", volumeSource: { emptyDir: { medium: "Memory" } } }
    let (mut empty, mut source, mut volume) = (Vec::new(), Vec::new(), Vec::new());
    put(&mut empty, 1, b"Memory");
    put(&mut source, 2, &empty);
    put(&mut volume, 1, b"v");
    put(&mut volume, 2, &source);

    let value = message(&Shape::Named("core.v1.Volume"), &volume, 0).unwrap();

    assert_eq!(value, json!({ "name": "v", "emptyDir": { "medium": "Memory" } }));
}

/// `Lease { spec: { renewTime } }`
fn lease(time: &[u8]) -> Vec<u8> {
    wrap("coordination.k8s.io/v1", "Lease", &of([(2, &*of([(4, time)]))]))
}

#[test]
fn micro_times_have_six_digits_and_times_none() {
    let time = |nanos| [plain(1, 1_767_323_045), plain(2, nanos)].concat();
    for (nanos, expected) in [
        (830_800_000, "2026-01-02T03:04:05.830800Z"),
        (830_800_999, "2026-01-02T03:04:05.830800Z"),
        (0, "2026-01-02T03:04:05.000000Z"),
    ] {
        let value = decode(&lease(&time(nanos)), |_, _| {
            Some(Shape::Named("coordination.v1.Lease"))
        })
        .unwrap();
        assert_eq!(value["spec"]["renewTime"], expected);

        let value = message(&Shape::Named("meta.v1.ObjectMeta"), &of([(8, &*time(nanos))]), 0).unwrap();
        assert_eq!(value, json!({ "creationTimestamp": "2026-01-02T03:04:05Z" }));
    }
    let zero = decode(&lease(&[]), |_, _| Some(Shape::Named("coordination.v1.Lease"))).unwrap();
    assert_eq!(zero["spec"], json!({}));
}

#[test]
fn reads_the_schema_of_a_definition() {
    let raw = |json: &str| of([(1, json.as_bytes())]);
    let kind = |name: &str| of([(5, name.as_bytes())]);
    let entry = |key: &str, schema: &[u8]| of([(1, key.as_bytes()), (2, schema)]);
    let double = |number: u32, n: f64| {
        let mut out = Vec::new();
        varint(&mut out, u64::from(number << 3 | 1));
        out.extend(n.to_le_bytes());
        out
    };
    let port = [
        kind("integer"),
        of([
            (6, &b"int32"[..]),
            (8, &raw("80")),
            (20, &raw("80")),
            (20, &raw("443")),
        ]),
        double(9, 65535.0),
        plain(10, 0),
        double(11, 0.5),
        plain(37, 1),
        plain(38, 1),
        plain(40, 0),
    ]
    .concat();
    let list = [
        kind("array"),
        of([(24, &*of([(1, &*kind("string"))])), (41, b"name"), (42, b"map")]),
        plain(16, 3),
    ]
    .concat();
    let either = of([
        (25, &*kind("string")),
        (28, &kind("object")),
        (23, b"a"),
        (23, b"b"),
    ]);
    let labels = of([
        (5, &b"object"[..]),
        (30, &[plain(1, 1), of([(2, &*kind("string"))])].concat()),
    ]);
    let rule = of([(1, &b"self > 1"[..]), (2, b"too small")]);
    let schema = of([
        (3, &b"#/x"[..]),
        (5, b"object"),
        (29, &entry("port", &port)),
        (29, &entry("list", &list)),
        (29, &entry("either", &either)),
        (29, &entry("labels", &labels)),
        (30, &plain(1, 0)),
        (44, &rule),
    ]);

    let value = message(&SCHEMA, &schema, 0).unwrap();

    assert_eq!(
        value,
        json!({
            "$ref": "#/x",
            "type": "object",
            "properties": {
                "port": {
                    "type": "integer", "format": "int32", "default": 80, "enum": [80, 443], "maximum": 65535,
                    "minimum": 0.5, "nullable": true, "x-kubernetes-preserve-unknown-fields": true,
                },
                "list": {
                    "type": "array", "items": { "type": "string" }, "maxItems": 3,
                    "x-kubernetes-list-map-keys": ["name"], "x-kubernetes-list-type": "map",
                },
                "either": { "allOf": [{ "type": "string" }], "not": { "type": "object" }, "required": ["a", "b"] },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
            },
            "additionalProperties": false,
            "x-kubernetes-validations": [{ "rule": "self > 1", "message": "too small" }],
        })
    );
    // A keyword that came later.
    assert_eq!(message(&SCHEMA, &of([(99, &b"x"[..])]), 0).unwrap_err().code, 415);
}

#[test]
fn unknown_fields_keep_their_numbers_unless_they_say_nothing() {
    let inner = of([(77, &b"x"[..]), (78, b"")]);
    let source = of([(99, &b"x"[..])]);
    let volume = [
        of([(1, &b"v"[..]), (2, &source), (55, &inner)]),
        plain(56, 0),
        plain(57, 1),
    ]
    .concat();

    let mut value = message(&Shape::Named("core.v1.Volume"), &volume, 0).unwrap();

    assert_eq!(
        value,
        json!({ "name": "v", "#2.99": null, "#55": null, "#57": null })
    );
    let decoded =
        skep_k8s_memory::schema::decode(&Shape::Named("core.v1.Volume"), &mut value, "Volume").unwrap();
    assert_eq!(decoded.unknown, ["#2.99", "#55", "#57"]);
    assert_eq!(value, json!({ "name": "v" }));
}

#[tokio::test]
async fn definitions_in_protobuf_are_created_whole() {
    let router = router("");
    let post = |path: &str, body: &[u8]| ask(&router, "POST", path, &[("content-type", MEDIA_TYPE)], body);
    let typed = |name: &str| of([(5, name.as_bytes())]);
    let property = |name: &str, schema: &[u8]| of([(29, &*of([(1, name.as_bytes()), (2, schema)]))]);
    let spec = [typed("object"), property("size", &typed("integer"))].concat();
    let schema = [typed("object"), property("spec", &spec)].concat();
    let version = [
        of([
            (1, &b"v1"[..]),
            (4, &of([(1, &*schema)])),
            (5, &of([(1, &b""[..])])),
        ]),
        plain(2, 1),
        plain(3, 1),
    ]
    .concat();
    let names = of([
        (1, &b"widgets"[..]),
        (2, b"widget"),
        (4, b"Widget"),
        (5, b"WidgetList"),
    ]);
    let spec = of([
        (1, &b"example.com"[..]),
        (3, &names),
        (4, b"Cluster"),
        (7, &version),
    ]);
    let metadata = of([(1, &b"widgets.example.com"[..])]);
    let body = wrap(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &of([(1, &*metadata), (2, &spec)]),
    );

    let response = post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &body);

    assert_eq!(response.status(), 201);
    let stored = &json_of(response).await["spec"]["versions"][0];
    let properties = &stored["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(
        properties["spec"]["properties"],
        json!({ "size": { "type": "integer" } })
    );
    assert_eq!(stored["subresources"], json!({ "status": {} }));
    let widget = wrap("example.com/v1", "Widget", &of([(1, &*of([(1, &b"w"[..])]))]));
    assert_eq!(post("/apis/example.com/v1/widgets", &widget).status(), 415);
}

#[tokio::test]
async fn unknown_fields_are_reported_as_those_of_json() {
    let router = router("");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let body = of([
        (1, &*of([(1, &b"l"[..])])),
        (2, &of([(1, &b"me"[..]), (99, b"x")])),
    ]);
    let body = wrap("coordination.k8s.io/v1", "Lease", &body);
    let post = |query: &str| {
        let path = format!("{leases}{query}");
        ask(&router, "POST", &path, &[("content-type", MEDIA_TYPE)], &body)
    };

    assert_eq!(post("?fieldValidation=Strict").status(), 400);
    let response = post("");

    assert_eq!(response.status(), 201);
    let warning = response.headers()["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains("spec.#99"), "{warning}");
    assert_eq!(json_of(response).await["spec"], json!({ "holderIdentity": "me" }));
}

/// Only what clients never send may be without: a type that a body cannot hold becomes an empty object.
#[test]
fn every_field_of_a_kind_that_is_served_has_a_number() {
    fn walk(shape: &Shape, seen: &mut Vec<&'static str>, missing: &mut Vec<String>) {
        match shape {
            Shape::List(list) => walk(&list.item, seen, missing),
            Shape::Map(item, _) => walk(item, seen, missing),
            Shape::Named(name) if !seen.contains(name) => {
                seen.push(name);
                let object = shape.object().unwrap();
                for field in &object.fields {
                    let is_in_envelope = matches!(field.name.as_str(), "apiVersion" | "kind");
                    if field.number.is_empty() && !is_in_envelope {
                        missing.push(format!("{name}.{}", field.name));
                    }
                    walk(&field.shape, seen, missing);
                }
            }
            _ => {}
        }
    }
    let (mut seen, mut missing) = (Vec::new(), Vec::new());
    for kind in skep_k8s_memory::Registry::builtin().all() {
        walk(&kind.shape, &mut seen, &mut missing);
    }
    assert_eq!(missing, Vec::<String>::new());
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&wrap("v1", "Pod", &bytes), |_, _| Some(Shape::Named("core.v1.Pod")));
        let _ = decode(&bytes, |_, _| Some(Shape::Named("core.v1.Pod")));
    }
}
