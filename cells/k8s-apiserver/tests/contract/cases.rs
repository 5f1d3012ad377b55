// SPDX-License-Identifier: Apache-2.0

//! The cases. Each works in a namespace of its own; one list, so that it shows at a glance what both servers are
//! held to.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use skep_k8s::selector::FieldSelector;
use skep_k8s::{
    ApiError, Change, Client, DeleteOptions, Kind, ListOptions, Patch, Preconditions, RawEvent, RawObject,
    RawWatch, Subresource, WatchOptions, WriteOptions,
};

/// What is checked.
pub(crate) struct Subject {
    pub(crate) client: Arc<dyn Client>,
    /// Makes the server forget the past, where that can be done.
    pub(crate) compact: Option<Box<dyn Fn() + Send + Sync>>,
}

const CONFIG: Kind = Kind::new("", "v1", "ConfigMap", "configmaps", true);
const SERVICE: Kind = Kind::new("", "v1", "Service", "services", true);
const NAMESPACE: Kind = Kind::new("", "v1", "Namespace", "namespaces", false);
const LEASE: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);
const POD: Kind = Kind::new("", "v1", "Pod", "pods", true);
const BINDING: Kind = Kind::new("", "v1", "Binding", "bindings", true);
const DEFINITION: Kind = Kind::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

pub(crate) async fn all(subject: &Subject) {
    let client = &*subject.client;
    lifecycle(client, &namespace(client).await).await;
    conflicts(client, &namespace(client).await).await;
    pages(client, &namespace(client).await).await;
    selectors(client, &namespace(client).await).await;
    watches(client, &namespace(client).await).await;
    bookmarks(client, &namespace(client).await).await;
    patches(client, &namespace(client).await).await;
    server_side_apply(client, &namespace(client).await).await;
    finalizers(client, &namespace(client).await).await;
    status(client, &namespace(client).await).await;
    service_defaults(client, &namespace(client).await).await;
    leases(client, &namespace(client).await).await;
    dry_run(client, &namespace(client).await).await;
    bindings(client, &namespace(client).await).await;
    preconditions(client, &namespace(client).await).await;
    invalid_objects(client, &namespace(client).await).await;
    definitions(client, &namespace(client).await).await;
    if let Some(compact) = &subject.compact {
        gone(client, &namespace(client).await, compact).await;
    }
}

fn options() -> WriteOptions {
    WriteOptions {
        field_manager: "contract".to_owned(),
        ..WriteOptions::default()
    }
}

fn value(object: &RawObject) -> Value {
    (*object.to_value().unwrap()).clone()
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn namespace(client: &dyn Client) -> String {
    let object = json!({ "metadata": { "generateName": "contract-" } });
    let made = client.create(&NAMESPACE, "", object, &options()).await.unwrap();
    value(&made)["metadata"]["name"].as_str().unwrap().to_owned()
}

fn config(name: &str, data: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "app": name } }, "data": { "k": data } })
}

async fn make(client: &dyn Client, ns: &str, object: Value) -> Value {
    value(&client.create(&CONFIG, ns, object, &options()).await.unwrap())
}

async fn names(client: &dyn Client, ns: &str, options: &ListOptions) -> Vec<String> {
    let page = client.list(&CONFIG, ns, options).await.unwrap();
    page.items
        .iter()
        .map(|o| value(o)["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn code<T: std::fmt::Debug>(result: Result<T, ApiError>) -> u16 {
    result.unwrap_err().status().map_or(0, |s| s.code)
}

async fn lifecycle(client: &dyn Client, ns: &str) {
    let made = make(client, ns, config("a", "1")).await;
    assert!(!made["metadata"]["uid"].as_str().unwrap().is_empty());
    assert!(made["metadata"]["creationTimestamp"].is_string());
    assert_eq!(made["metadata"]["namespace"], ns);

    let again = client
        .create(&CONFIG, ns, config("a", "1"), &options())
        .await
        .unwrap_err();
    assert!(again.is_already_exists());
    assert_eq!(again.status().unwrap().message, "configmaps \"a\" already exists");
    assert_eq!(
        value(&client.get(&CONFIG, ns, "a").await.unwrap())["data"]["k"],
        "1"
    );

    let updated = client
        .update(&CONFIG, ns, Subresource::None, config("a", "2"), &options())
        .await
        .unwrap();
    assert_eq!(value(&updated)["metadata"]["uid"], made["metadata"]["uid"]);
    assert_ne!(version(&value(&updated)), version(&made));
    let same = client
        .update(&CONFIG, ns, Subresource::None, config("a", "2"), &options())
        .await
        .unwrap();
    assert_eq!(
        version(&value(&same)),
        version(&value(&updated)),
        "an update without change is none"
    );

    client
        .delete(&CONFIG, ns, "a", &DeleteOptions::default())
        .await
        .unwrap();
    let missing = client.get(&CONFIG, ns, "a").await.unwrap_err();
    assert!(missing.is_not_found());
    assert_eq!(missing.status().unwrap().message, "configmaps \"a\" not found");
    assert_eq!(
        code(client.delete(&CONFIG, ns, "a", &DeleteOptions::default()).await),
        404
    );
    assert_eq!(
        code(
            client
                .update(&CONFIG, ns, Subresource::None, config("a", "3"), &options())
                .await
        ),
        404
    );
}

async fn conflicts(client: &dyn Client, ns: &str) {
    let first = make(client, ns, config("a", "1")).await;
    let mut stale = config("a", "3");
    stale["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"].clone();
    client
        .update(&CONFIG, ns, Subresource::None, config("a", "2"), &options())
        .await
        .unwrap();

    let error = client
        .update(&CONFIG, ns, Subresource::None, stale, &options())
        .await
        .unwrap_err();

    assert!(error.is_conflict());
    assert!(
        error
            .status()
            .unwrap()
            .message
            .starts_with("Operation cannot be fulfilled on configmaps \"a\": the object has been modified")
    );
}

async fn pages(client: &dyn Client, ns: &str) {
    for name in ["a", "b", "c", "d", "e"] {
        make(client, ns, config(name, "")).await;
    }
    let first = client
        .list(
            &CONFIG,
            ns,
            &ListOptions {
                limit: 2,
                ..ListOptions::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(first.items.len(), 2);
    // What changes between pages does not show.
    client
        .delete(&CONFIG, ns, "d", &DeleteOptions::default())
        .await
        .unwrap();
    make(client, ns, config("f", "")).await;

    let mut found = Vec::new();
    let mut token = first.continue_token.clone();
    while !token.is_empty() {
        let options = ListOptions {
            limit: 2,
            continue_token: token,
            ..ListOptions::default()
        };
        let page = client.list(&CONFIG, ns, &options).await.unwrap();
        assert_eq!(page.resource_version, first.resource_version);
        found.extend(
            page.items
                .iter()
                .map(|o| value(o)["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        token = page.continue_token;
    }

    assert_eq!(found, ["c", "d", "e"]);
    let bad = ListOptions {
        continue_token: "nonsense".to_owned(),
        ..ListOptions::default()
    };
    assert_eq!(code(client.list(&CONFIG, ns, &bad).await), 400);
}

async fn selectors(client: &dyn Client, ns: &str) {
    for name in ["a", "b", "c"] {
        make(client, ns, config(name, "")).await;
    }
    let labels = |text: &str| ListOptions {
        labels: text.parse().unwrap(),
        ..ListOptions::default()
    };

    assert_eq!(names(client, ns, &labels("app=a")).await, ["a"]);
    assert_eq!(names(client, ns, &labels("app!=a")).await, ["b", "c"]);
    assert_eq!(names(client, ns, &labels("app in (a,c)")).await, ["a", "c"]);
    assert_eq!(names(client, ns, &labels("app notin (a),app")).await, ["b", "c"]);
    assert_eq!(names(client, ns, &labels("!app")).await, [""; 0]);
    let fields = ListOptions {
        fields: FieldSelector::equal("metadata.name", "b"),
        ..ListOptions::default()
    };
    assert_eq!(names(client, ns, &fields).await, ["b"]);
    let unknown = ListOptions {
        fields: FieldSelector::equal("data.k", "b"),
        ..ListOptions::default()
    };
    assert_eq!(code(client.list(&CONFIG, ns, &unknown).await), 400);
}

async fn next(watch: &mut RawWatch) -> Result<RawEvent, ApiError> {
    tokio::time::timeout(Duration::from_secs(10), watch.next())
        .await
        .expect("no event")
        .expect("watch ended")
}

async fn change(watch: &mut RawWatch) -> (Change, Value) {
    loop {
        if let RawEvent::Object(change, object) = next(watch).await.unwrap() {
            return (change, value(&object));
        }
    }
}

async fn watches(client: &dyn Client, ns: &str) {
    let start = client
        .list(&CONFIG, ns, &ListOptions::default())
        .await
        .unwrap()
        .resource_version;
    make(client, ns, config("a", "1")).await;
    let from = |version: &str| WatchOptions {
        resource_version: version.into(),
        ..WatchOptions::default()
    };
    let mut watch = client.watch(&CONFIG, ns, &from(&start)).await.unwrap();

    let (added, first) = change(&mut watch).await;
    client
        .update(&CONFIG, ns, Subresource::None, config("a", "2"), &options())
        .await
        .unwrap();
    let (modified, second) = change(&mut watch).await;
    client
        .delete(&CONFIG, ns, "a", &DeleteOptions::default())
        .await
        .unwrap();
    let (deleted, last) = change(&mut watch).await;

    assert_eq!(
        (added, modified, deleted),
        (Change::Added, Change::Modified, Change::Deleted)
    );
    assert_eq!(
        (&first["data"]["k"], &second["data"]["k"], &last["data"]["k"]),
        (&json!("1"), &json!("2"), &json!("2"))
    );
    let number = |o: &Value| version(o).parse::<u64>().unwrap();
    assert!(number(&first) < number(&second) && number(&second) < number(&last));

    // A watch from an event's version goes on behind that event.
    let mut resumed = client.watch(&CONFIG, ns, &from(&version(&first))).await.unwrap();
    assert_eq!(change(&mut resumed).await.0, Change::Modified);

    // Objects that start or cease to match appear and disappear.
    let selective = WatchOptions {
        labels: "app=x".parse().unwrap(),
        ..from(&version(&last))
    };
    let mut watch = client.watch(&CONFIG, ns, &selective).await.unwrap();
    make(client, ns, config("b", "")).await;
    for label in ["x", "y"] {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "app": label } } }));
        client
            .patch(&CONFIG, ns, "b", Subresource::None, &patch, &options())
            .await
            .unwrap();
    }
    assert_eq!(change(&mut watch).await.0, Change::Added);
    assert_eq!(change(&mut watch).await.0, Change::Deleted);
}

async fn bookmarks(client: &dyn Client, ns: &str) {
    make(client, ns, config("a", "1")).await;
    let options = WatchOptions {
        bookmarks: true,
        initial_events: true,
        ..WatchOptions::default()
    };
    let mut watch = client.watch(&CONFIG, ns, &options).await.unwrap();

    // Real servers make an object of their own in each namespace.
    let mut seen = Vec::new();
    loop {
        match next(&mut watch).await.unwrap() {
            RawEvent::Object(change, object) => {
                assert_eq!(change, Change::Added);
                seen.push(value(&object)["metadata"]["name"].as_str().unwrap().to_owned());
            }
            RawEvent::Bookmark {
                initial_events_end: true,
                resource_version,
            } => {
                assert!(!resource_version.is_empty());
                break;
            }
            RawEvent::Bookmark { .. } => {}
        }
    }

    assert!(seen.contains(&"a".to_owned()));
}

async fn patches(client: &dyn Client, ns: &str) {
    let service = json!({
        "metadata": { "name": "s" },
        "spec": { "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }] },
    });
    client.create(&SERVICE, ns, service, &options()).await.unwrap();
    let apply = async |patch: Patch| {
        client
            .patch(&SERVICE, ns, "s", Subresource::None, &patch, &options())
            .await
            .map(|o| value(&o))
    };

    let strategic = apply(Patch::Strategic(
        json!({ "spec": { "ports": [{ "port": 81, "targetPort": 8081 }] } }),
    ))
    .await
    .unwrap();
    assert_eq!(strategic["spec"]["ports"].as_array().unwrap().len(), 2);
    assert_eq!(strategic["spec"]["ports"][1]["targetPort"], 8081);

    let merged = apply(Patch::Merge(
        json!({ "metadata": { "labels": { "x": "y" } }, "spec": { "ports": [{ "port": 82 }] } }),
    ))
    .await
    .unwrap();
    assert_eq!(merged["spec"]["ports"].as_array().unwrap().len(), 1);
    assert_eq!(merged["metadata"]["labels"]["x"], "y");

    let changed = apply(Patch::Json(json!([
        { "op": "test", "path": "/metadata/labels/x", "value": "y" },
        { "op": "remove", "path": "/metadata/labels/x" },
        { "op": "replace", "path": "/spec/ports/0/port", "value": 83 },
    ])))
    .await
    .unwrap();
    assert_eq!(changed["spec"]["ports"][0]["port"], 83);
    assert!(
        changed["metadata"]
            .get("labels")
            .is_none_or(|l| l.get("x").is_none())
    );

    let failing = apply(Patch::Json(
        json!([{ "op": "test", "path": "/metadata/name", "value": "nope" }]),
    ))
    .await;
    assert_eq!(code(failing), 422);
    let stale = apply(Patch::Merge(
        json!({ "metadata": { "resourceVersion": "1" }, "spec": { "type": "NodePort" } }),
    ))
    .await;
    assert_eq!(code(stale), 409);
    let missing = client
        .patch(
            &SERVICE,
            ns,
            "nope",
            Subresource::None,
            &Patch::Merge(json!({})),
            &options(),
        )
        .await;
    assert_eq!(code(missing), 404);
}

async fn server_side_apply(client: &dyn Client, ns: &str) {
    let by = |manager: &str, force: bool| WriteOptions {
        field_manager: manager.to_owned(),
        force,
        ..WriteOptions::default()
    };
    let config = |data: Value| {
        Patch::Apply(
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data }),
        )
    };
    let apply = async |patch: Patch, options: WriteOptions| {
        client
            .patch(&CONFIG, ns, "a", Subresource::None, &patch, &options)
            .await
            .map(|o| value(&o))
    };

    let made = apply(config(json!({ "x": "1", "y": "1" })), by("one", false))
        .await
        .unwrap();
    assert_eq!(made["data"], json!({ "x": "1", "y": "1" }));
    let conflict = apply(config(json!({ "x": "2" })), by("two", false)).await;
    let error = conflict.unwrap_err();
    assert!(error.is_conflict());
    assert_eq!(
        error.status().unwrap().message,
        "Apply failed with 1 conflict: conflict with \"one\": .data.x"
    );

    let forced = apply(config(json!({ "x": "2" })), by("two", true)).await.unwrap();
    assert_eq!(forced["data"], json!({ "x": "2", "y": "1" }));
    let dropped = apply(config(json!({ "z": "1" })), by("one", false))
        .await
        .unwrap();
    assert_eq!(
        dropped["data"],
        json!({ "x": "2", "z": "1" }),
        "what one gave up goes, what two owns stays"
    );
}

async fn finalizers(client: &dyn Client, ns: &str) {
    let mut held = config("a", "");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    make(client, ns, held).await;

    client
        .delete(&CONFIG, ns, "a", &DeleteOptions::default())
        .await
        .unwrap();
    assert!(value(&client.get(&CONFIG, ns, "a").await.unwrap())["metadata"]["deletionTimestamp"].is_string());
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    client
        .patch(&CONFIG, ns, "a", Subresource::None, &release, &options())
        .await
        .unwrap();

    assert_eq!(code(client.get(&CONFIG, ns, "a").await), 404);
}

async fn status(client: &dyn Client, ns: &str) {
    let service =
        json!({ "metadata": { "name": "s" }, "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] } });
    let mut made = value(&client.create(&SERVICE, ns, service, &options()).await.unwrap());
    made["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    made["spec"]["sessionAffinity"] = "ClientIP".into();

    let updated = client
        .update(&SERVICE, ns, Subresource::Status, made.clone(), &options())
        .await
        .unwrap();
    let updated = value(&updated);

    assert_eq!(updated["spec"]["sessionAffinity"], "None");
    let stale = client
        .update(&SERVICE, ns, Subresource::Status, made, &options())
        .await;
    assert_eq!(code(stale), 409);
}

async fn service_defaults(client: &dyn Client, ns: &str) {
    let service =
        json!({ "metadata": { "name": "s" }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
    let made = value(&client.create(&SERVICE, ns, service, &options()).await.unwrap());

    assert_eq!(made["spec"]["ports"][0]["protocol"], "TCP");
    assert_eq!(made["spec"]["ports"][0]["targetPort"], 80);
    assert!(made["spec"]["ports"][0]["nodePort"].as_u64().unwrap() >= 30000);
    assert!(made["spec"]["clusterIP"].as_str().unwrap().starts_with("10.96."));
    assert_eq!(made["spec"]["clusterIPs"][0], made["spec"]["clusterIP"]);
    assert_eq!(made["spec"]["ipFamilyPolicy"], "SingleStack");
    assert_eq!(made["spec"]["externalTrafficPolicy"], "Cluster");
    assert_eq!(made["spec"]["internalTrafficPolicy"], "Cluster");

    let headless = json!({ "metadata": { "name": "h" }, "spec": { "clusterIP": "None", "selector": { "a": "b" }, "ports": [{ "port": 80 }] } });
    let made = value(&client.create(&SERVICE, ns, headless, &options()).await.unwrap());
    assert_eq!(made["spec"]["clusterIPs"], json!(["None"]));

    let change =
        Patch::Merge(json!({ "spec": { "clusterIP": "10.96.250.250", "clusterIPs": ["10.96.250.250"] } }));
    assert_eq!(
        code(
            client
                .patch(&SERVICE, ns, "s", Subresource::None, &change, &options())
                .await
        ),
        422
    );
    let plain = Patch::Merge(json!({ "spec": { "type": "ClusterIP" } }));
    let plain = value(
        &client
            .patch(&SERVICE, ns, "s", Subresource::None, &plain, &options())
            .await
            .unwrap(),
    );
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
}

async fn leases(client: &dyn Client, ns: &str) {
    let lease = json!({ "metadata": { "name": "l" }, "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z" } });
    let mut first = value(&client.create(&LEASE, ns, lease, &options()).await.unwrap());
    let mut second = first.clone();
    first["spec"]["holderIdentity"] = "b".into();
    second["spec"]["holderIdentity"] = "c".into();

    let won = client
        .update(&LEASE, ns, Subresource::None, first, &options())
        .await
        .unwrap();
    assert_eq!(value(&won)["spec"]["holderIdentity"], "b");
    assert_eq!(
        code(
            client
                .update(&LEASE, ns, Subresource::None, second, &options())
                .await
        ),
        409
    );
}

async fn dry_run(client: &dyn Client, ns: &str) {
    let dry = WriteOptions {
        dry_run: true,
        ..options()
    };
    let shown = value(&client.create(&CONFIG, ns, config("a", "1"), &dry).await.unwrap());
    assert_eq!(shown["metadata"].get("resourceVersion"), None);
    assert_eq!(code(client.get(&CONFIG, ns, "a").await), 404);

    let made = make(client, ns, config("a", "1")).await;
    let updated = client
        .update(&CONFIG, ns, Subresource::None, config("a", "2"), &dry)
        .await
        .unwrap();
    assert_eq!(value(&updated)["data"]["k"], "2");
    assert_eq!(version(&value(&updated)), version(&made));
    assert_eq!(value(&client.get(&CONFIG, ns, "a").await.unwrap()), made);
}

async fn bindings(client: &dyn Client, ns: &str) {
    let pod =
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    client.create(&POD, ns, pod, &options()).await.unwrap();
    let binding = |node: &str| {
        json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node } })
    };
    assert_eq!(
        code(client.create(&BINDING, ns, binding(""), &options()).await),
        422
    );
    client
        .create(&BINDING, ns, binding("n1"), &options())
        .await
        .unwrap();

    let bound = value(&client.get(&POD, ns, "p").await.unwrap());
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(
        code(client.create(&BINDING, ns, binding("n2"), &options()).await),
        409
    );
    let change = |spec: Value| Patch::Merge(json!({ "spec": spec }));
    for spec in [json!({ "nodeName": "n2" }), json!({ "hostNetwork": true })] {
        let patched = client
            .patch(&POD, ns, "p", Subresource::None, &change(spec), &options())
            .await;
        assert_eq!(code(patched), 422);
    }
}

async fn preconditions(client: &dyn Client, ns: &str) {
    let made = make(client, ns, config("a", "1")).await;
    let with = |uid: &str| DeleteOptions {
        preconditions: Preconditions {
            uid: uid.into(),
            ..Preconditions::default()
        },
        ..DeleteOptions::default()
    };

    assert_eq!(code(client.delete(&CONFIG, ns, "a", &with("other")).await), 409);
    client
        .delete(&CONFIG, ns, "a", &with(made["metadata"]["uid"].as_str().unwrap()))
        .await
        .unwrap();
}

async fn invalid_objects(client: &dyn Client, ns: &str) {
    let cases = [
        (&CONFIG, json!({ "metadata": { "name": "Bad_Name" } }), 422),
        (&CONFIG, json!({ "metadata": {} }), 422),
        (
            &CONFIG,
            json!({ "metadata": { "name": "a", "labels": { "-x": "y" } } }),
            422,
        ),
        (
            &CONFIG,
            json!({ "metadata": { "name": "a" }, "data": { "k": 1 } }),
            400,
        ),
        (
            &SERVICE,
            json!({ "metadata": { "name": "a" }, "spec": { "ports": [] } }),
            422,
        ),
        (
            &SERVICE,
            json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": 70000 }] } }),
            422,
        ),
        (
            &SERVICE,
            json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": "x" }] } }),
            400,
        ),
        (
            &SERVICE,
            json!({ "metadata": { "name": "1a" }, "spec": { "ports": [{ "port": 80 }] } }),
            422,
        ),
    ];
    for (kind, object, expected) in cases {
        let mut typed = object.clone();
        typed["apiVersion"] = kind.api_version().into();
        typed["kind"] = kind.kind.as_str().into();
        assert_eq!(
            code(client.create(kind, ns, typed, &options()).await),
            expected,
            "{object}"
        );
    }
    assert_eq!(
        code(
            client
                .create(&CONFIG, "no-such-namespace", config("a", ""), &options())
                .await
        ),
        404
    );
}

async fn definitions(client: &dyn Client, ns: &str) {
    let group = format!("{ns}.example.com");
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("colors.{group}") },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": { "plural": "colors", "singular": "color", "kind": "Color", "listKind": "ColorList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "required": ["rgb"], "properties": {
                        "rgb": { "type": "string", "pattern": "^[0-9a-f]{6}$" },
                        "level": { "type": "integer", "default": 3 },
                    } },
                    "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                } } },
            }],
        },
    });
    client
        .create(&DEFINITION, "", definition, &options())
        .await
        .unwrap();
    let color = Kind {
        group: group.as_str().into(),
        version: "v1".into(),
        kind: "Color".into(),
        plural: "colors".into(),
        namespaced: true,
    };
    let object = |rgb: &str| {
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Color",
            "metadata": { "name": "c" }, "spec": { "rgb": rgb, "extra": true },
        })
    };

    // Real servers need a moment to serve it.
    let mut made = Err(ApiError::Disabled);
    for _ in 0..100 {
        made = client.create(&color, ns, object("ff0000"), &options()).await;
        match &made {
            Err(error) if error.is_not_found() => tokio::time::sleep(Duration::from_millis(100)).await,
            _ => break,
        }
    }
    let made = value(&made.unwrap());

    assert_eq!(made["spec"], json!({ "rgb": "ff0000", "level": 3 }));
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(
        code(client.create(&color, ns, object("nope"), &options()).await),
        422
    );
    let patch = Patch::Merge(json!({ "status": { "seen": true } }));
    let status = value(
        &client
            .patch(&color, ns, "c", Subresource::Status, &patch, &options())
            .await
            .unwrap(),
    );
    assert_eq!(
        (&status["status"]["seen"], &status["metadata"]["generation"]),
        (&json!(true), &json!(1))
    );
    let patch = Patch::Merge(json!({ "spec": { "level": 4 } }));
    let spec = value(
        &client
            .patch(&color, ns, "c", Subresource::None, &patch, &options())
            .await
            .unwrap(),
    );
    assert_eq!(spec["metadata"]["generation"], 2);
    let unversioned = client
        .update(&color, ns, Subresource::None, object("00ff00"), &options())
        .await;
    assert_eq!(
        code(unversioned),
        422,
        "custom resources are replaced by version only"
    );
    client
        .delete(
            &DEFINITION,
            "",
            &format!("colors.{group}"),
            &DeleteOptions::default(),
        )
        .await
        .unwrap();
}

async fn gone(client: &dyn Client, ns: &str, compact: &(dyn Fn() + Send + Sync)) {
    let start = client
        .list(&CONFIG, ns, &ListOptions::default())
        .await
        .unwrap()
        .resource_version;
    make(client, ns, config("a", "1")).await;
    make(client, ns, config("b", "1")).await;
    let page = client
        .list(
            &CONFIG,
            ns,
            &ListOptions {
                limit: 1,
                ..ListOptions::default()
            },
        )
        .await
        .unwrap();
    make(client, ns, config("c", "1")).await;
    compact();

    let options = WatchOptions {
        resource_version: start,
        ..WatchOptions::default()
    };
    let error = match client.watch(&CONFIG, ns, &options).await {
        Ok(mut watch) => next(&mut watch).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.is_expired(), "{error}");
    let rest = ListOptions {
        continue_token: page.continue_token,
        ..ListOptions::default()
    };
    assert!(client.list(&CONFIG, ns, &rest).await.unwrap_err().is_expired());
}
