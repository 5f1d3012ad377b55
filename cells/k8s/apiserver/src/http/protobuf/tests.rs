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
