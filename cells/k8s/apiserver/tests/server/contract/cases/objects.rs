// SPDX-License-Identifier: Apache-2.0

//! One object from its creation to its end: conflicts, preconditions, finalizers, dry runs, what is refused.

use serde_json::json;
use skep_k8s_client::{DeleteOptions, Patch, Preconditions, Subresource, WriteOptions};
use skep_k8s_types::Kind;

use super::{Space, code, config, options, value, version};

pub(super) async fn lifecycle(space: &Space<'_>) {
    let made = space.config("a", "1").await;
    assert!(!made["metadata"]["uid"].as_str().unwrap().is_empty());
    assert!(made["metadata"]["creationTimestamp"].is_string());
    assert_eq!(made["metadata"]["namespace"], space.name);

    let again = space
        .create(&Kind::CONFIG_MAP, config("a", "1"))
        .await
        .unwrap_err();
    assert!(again.is_already_exists());
    assert_eq!(again.status().unwrap().message, "configmaps \"a\" already exists");
    assert_eq!(space.get(&Kind::CONFIG_MAP, "a").await.unwrap()["data"]["k"], "1");

    let updated = space.update(&Kind::CONFIG_MAP, config("a", "2")).await.unwrap();
    assert_eq!(updated["metadata"]["uid"], made["metadata"]["uid"]);
    assert_ne!(version(&updated), version(&made));
    let same = space.update(&Kind::CONFIG_MAP, config("a", "2")).await.unwrap();
    assert_eq!(
        version(&same),
        version(&updated),
        "an update without change is none"
    );

    space.delete(&Kind::CONFIG_MAP, "a").await.unwrap();
    let missing = space.get(&Kind::CONFIG_MAP, "a").await.unwrap_err();
    assert!(missing.is_not_found());
    assert_eq!(missing.status().unwrap().message, "configmaps \"a\" not found");
    assert_eq!(code(space.delete(&Kind::CONFIG_MAP, "a").await), 404);
    assert_eq!(code(space.update(&Kind::CONFIG_MAP, config("a", "3")).await), 404);
}

pub(super) async fn conflicts(space: &Space<'_>) {
    let first = space.config("a", "1").await;
    let mut stale = config("a", "3");
    stale["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"].clone();
    space.update(&Kind::CONFIG_MAP, config("a", "2")).await.unwrap();

    let error = space.update(&Kind::CONFIG_MAP, stale).await.unwrap_err();

    assert!(error.is_conflict());
    assert!(
        error
            .status()
            .unwrap()
            .message
            .starts_with("Operation cannot be fulfilled on configmaps \"a\": the object has been modified")
    );
}

pub(super) async fn preconditions(space: &Space<'_>) {
    let made = space.config("a", "1").await;
    let delete = async |uid: &str| {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: uid.into(),
                ..Preconditions::default()
            },
            ..DeleteOptions::default()
        };
        space
            .client
            .delete(&Kind::CONFIG_MAP, &space.name, "a", &options)
            .await
    };

    assert_eq!(code(delete("other").await), 409);
    delete(made["metadata"]["uid"].as_str().unwrap()).await.unwrap();
}

pub(super) async fn finalizers(space: &Space<'_>) {
    let mut held = config("a", "");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    space.create(&Kind::CONFIG_MAP, held).await.unwrap();

    space.delete(&Kind::CONFIG_MAP, "a").await.unwrap();
    let deleted = space.get(&Kind::CONFIG_MAP, "a").await.unwrap();
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    space.patch(&Kind::CONFIG_MAP, "a", release).await.unwrap();

    assert_eq!(code(space.get(&Kind::CONFIG_MAP, "a").await), 404);
}

pub(super) async fn dry_run(space: &Space<'_>) {
    let (client, ns) = (space.client, &space.name);
    let dry = WriteOptions {
        dry_run: true,
        ..options()
    };
    let shown = client
        .create(&Kind::CONFIG_MAP, ns, config("a", "1"), &dry)
        .await
        .unwrap();
    assert_eq!(value(&shown)["metadata"].get("resourceVersion"), None);
    assert_eq!(code(space.get(&Kind::CONFIG_MAP, "a").await), 404);

    let made = space.config("a", "1").await;
    let updated = client
        .update(&Kind::CONFIG_MAP, ns, Subresource::None, config("a", "2"), &dry)
        .await
        .unwrap();
    assert_eq!(value(&updated)["data"]["k"], "2");
    assert_eq!(version(&value(&updated)), version(&made));
    assert_eq!(space.get(&Kind::CONFIG_MAP, "a").await.unwrap(), made);
}

pub(super) async fn invalid(space: &Space<'_>) {
    for (kind, object, expected) in [
        (
            &Kind::CONFIG_MAP,
            json!({ "metadata": { "name": "Bad_Name" } }),
            422,
        ),
        (&Kind::CONFIG_MAP, json!({ "metadata": {} }), 422),
        (
            &Kind::CONFIG_MAP,
            json!({ "metadata": { "name": "a", "labels": { "-x": "y" } } }),
            422,
        ),
        (
            &Kind::CONFIG_MAP,
            json!({ "metadata": { "name": "a" }, "data": { "k": 1 } }),
            400,
        ),
        (
            &Kind::SERVICE,
            json!({ "metadata": { "name": "a" }, "spec": { "ports": [] } }),
            422,
        ),
        (
            &Kind::SERVICE,
            json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": 70000 }] } }),
            422,
        ),
        (
            &Kind::SERVICE,
            json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": "x" }] } }),
            400,
        ),
        (
            &Kind::SERVICE,
            json!({ "metadata": { "name": "a.b" }, "spec": { "ports": [{ "port": 80 }] } }),
            422,
        ),
    ] {
        let mut typed = object.clone();
        typed["apiVersion"] = kind.api_version().into();
        typed["kind"] = kind.kind.as_str().into();
        assert_eq!(code(space.create(kind, typed).await), expected, "{object}");
    }
    let nowhere = space
        .client
        .create(
            &Kind::CONFIG_MAP,
            "no-such-namespace",
            config("a", ""),
            &options(),
        )
        .await;
    assert_eq!(code(nowhere), 404);
}
