// SPDX-License-Identifier: Apache-2.0

//! Patches of all kinds, server-side apply.

use serde_json::{Value, json};
use skep_k8s_client::{Patch, WriteOptions};
use skep_k8s_types::Kind;

use super::{Space, code};

pub(super) async fn merging(space: &Space<'_>) {
    let service = json!({
        "metadata": { "name": "s" },
        "spec": { "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }] },
    });
    space.create(&Kind::SERVICE, service).await.unwrap();
    let apply = async |patch: Patch| space.patch(&Kind::SERVICE, "s", patch).await;

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
    let missing = space.patch(&Kind::SERVICE, "nope", Patch::Merge(json!({}))).await;
    assert_eq!(code(missing), 404);
}

pub(super) async fn server_side_apply(space: &Space<'_>) {
    let apply = async |data: Value, manager: &str, force: bool| {
        let patch = Patch::Apply(
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data }),
        );
        let options = WriteOptions {
            field_manager: manager.to_owned(),
            force,
            ..WriteOptions::default()
        };
        space.patch_as(&Kind::CONFIG_MAP, "a", patch, &options).await
    };

    let made = apply(json!({ "x": "1", "y": "1" }), "one", false).await.unwrap();
    assert_eq!(made["data"], json!({ "x": "1", "y": "1" }));
    let error = apply(json!({ "x": "2" }), "two", false).await.unwrap_err();
    assert!(error.is_conflict());
    assert_eq!(
        error.status().unwrap().message,
        "Apply failed with 1 conflict: conflict with \"one\": .data.x"
    );

    let forced = apply(json!({ "x": "2" }), "two", true).await.unwrap();
    assert_eq!(forced["data"], json!({ "x": "2", "y": "1" }));
    let dropped = apply(json!({ "z": "1" }), "one", false).await.unwrap();
    assert_eq!(
        dropped["data"],
        json!({ "x": "2", "z": "1" }),
        "what one gave up goes, what two owns stays"
    );
}
