// SPDX-License-Identifier: Apache-2.0

//! Tokens of service accounts.

use serde_json::{Value, json};
use skep_k8s_types::Kind;

use super::Space;

const TOKEN: Kind = Kind::new("", "v1", "TokenRequest", "serviceaccounts/robot/token", true);

/// Code and message of a refusal.
async fn refused(space: &Space<'_>, spec: Value) -> (u16, String) {
    let error = space.create(&TOKEN, request(spec)).await.unwrap_err();
    let status = error.status().unwrap();
    (status.code, status.message.clone())
}

fn request(spec: Value) -> Value {
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec })
}

pub(crate) async fn requests(space: &Space<'_>) {
    assert_eq!(refused(space, json!({})).await.0, 404);
    space
        .create(&Kind::SERVICE_ACCOUNT, json!({ "metadata": { "name": "robot" } }))
        .await
        .unwrap();
    let secret = space
        .create(&Kind::SECRET, json!({ "metadata": { "name": "s" } }))
        .await
        .unwrap();

    let made = space.create(&TOKEN, request(json!({}))).await.unwrap();
    assert_ne!(made["status"]["token"].as_str().unwrap(), "", "{made}");
    assert_eq!(made["spec"]["expirationSeconds"], 3600);
    // The issuer stands for the server.
    assert_eq!(made["spec"]["audiences"].as_array().unwrap().len(), 1);
    let (code, message) = refused(space, json!({ "expirationSeconds": 60 })).await;
    assert_eq!(code, 422);
    assert!(
        message.contains("may not specify a duration less than 10 minutes"),
        "{message}"
    );
    let bound = |kind: &str, uid: &Value| json!({ "boundObjectRef": { "apiVersion": "v1", "kind": kind, "name": "s", "uid": uid } });
    space
        .create(&TOKEN, request(bound("Secret", &secret["metadata"]["uid"])))
        .await
        .unwrap();
    assert_eq!(refused(space, bound("Secret", &json!("other"))).await.0, 409);
    assert_eq!(refused(space, bound("Pod", &json!(""))).await.0, 404);
    assert_eq!(refused(space, bound("ConfigMap", &json!(""))).await.0, 400);
}
