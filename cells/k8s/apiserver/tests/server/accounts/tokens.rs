// SPDX-License-Identifier: Apache-2.0

//! Tokens: requested, shown, reviewed.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};
use skep_k8s_apiserver::Settings;

use super::server::{Listening, create, delete, pod};

const ISSUER: &str = "https://kubernetes.default.svc";
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// What a token claims.
fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap()
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

#[tokio::test]
async fn a_token_claims_what_upstream_claims() {
    let server = Listening::start(Settings::default(), "").await;
    let account = server
        .api
        .get(&super::server::core("serviceaccounts"), "default", "default");
    let account = account.unwrap();
    let before = jiff::Timestamp::now().as_second();

    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": null } });
    let (code, answer) = server.post(TOKEN, "", &request).await;

    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer["kind"], "TokenRequest");
    assert_eq!(answer["metadata"]["name"], "default");
    assert_eq!(
        answer["spec"],
        json!({ "audiences": [ISSUER], "expirationSeconds": 3600 })
    );
    let claims = claims(answer["status"]["token"].as_str().unwrap());
    let number = |key: &str| claims[key].as_i64().unwrap();
    assert!(
        number("iat") >= before && number("nbf") == number("iat"),
        "{claims}"
    );
    assert_eq!(number("exp"), number("iat") + 3600);
    let expires: jiff::Timestamp = answer["status"]["expirationTimestamp"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(expires.as_second(), number("exp"));
    assert_eq!(claims["iss"], ISSUER);
    assert_eq!(claims["sub"], "system:serviceaccount:default:default");
    assert_eq!(claims["aud"], json!([ISSUER]));
    assert_eq!(claims["jti"].as_str().unwrap().len(), 36);
    assert_eq!(
        claims["kubernetes.io"],
        json!({ "namespace": "default", "serviceaccount": { "name": "default", "uid": uid(&account) } })
    );
}

#[tokio::test]
async fn requests_are_validated() {
    let server = Listening::start(Settings::default(), "").await;
    create(
        &server.api,
        "serviceaccounts",
        json!({ "metadata": { "name": "robot" } }),
    )
    .unwrap();
    create(
        &server.api,
        "pods",
        pod("p", json!({ "serviceAccountName": "robot" })),
    )
    .unwrap();
    let bound = |kind: &str, name: &str, uid: &str| json!({ "boundObjectRef": { "apiVersion": "v1", "kind": kind, "name": name, "uid": uid } });

    for (account, spec, code, message) in [
        ("none", json!({}), 404, "serviceaccounts \"none\" not found"),
        (
            "robot",
            json!({ "expirationSeconds": 599 }),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
        ),
        (
            "robot",
            json!({ "expirationSeconds": (1_u64 << 32) + 1 }),
            422,
            "may not specify a duration larger than 2^32 seconds",
        ),
        ("robot", bound("Pod", "none", ""), 404, "pods \"none\" not found"),
        (
            "default",
            bound("Pod", "p", ""),
            400,
            "cannot bind token for serviceaccount \"default\" to pod running with different serviceaccount name.",
        ),
        (
            "robot",
            bound("Pod", "p", "old"),
            409,
            "Operation cannot be fulfilled on Pod \"p\": the UID in the bound object reference (old) does not match the UID in record. The object might have been deleted and then recreated",
        ),
        (
            "robot",
            bound("Service", "s", ""),
            400,
            "cannot bind token to object of type /v1, Kind=Service",
        ),
        (
            "robot",
            json!({ "audiences": "x" }),
            400,
            "cannot be handled as a TokenRequest",
        ),
    ] {
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let (got, answer) = server.post(&path, "", &json!({ "spec": spec })).await;
        let text = answer["message"].as_str().unwrap();
        assert_eq!(got, code, "{spec}: {text}");
        assert!(text.contains(message), "{spec}: {text}");
    }
    let other = json!({ "metadata": { "name": "other" } });
    assert_eq!(server.post(TOKEN, "", &other).await.0, 400);
    assert_eq!(server.get(TOKEN, "").await.0, 405);
}

#[tokio::test]
async fn requests_come_from_whom_the_token_stands_for() {
    let server = Listening::start(Settings::default(), "secret").await;

    assert_eq!(server.whoami("").await.0, 401);
    assert_eq!(server.whoami("wrong").await.0, 401);
    let (_, admin) = server.whoami("secret").await;
    assert_eq!(admin["username"], "system:admin");
    assert_eq!(admin["groups"][0], "system:masters");
    let token = server.token("default", json!({}), "secret").await;
    let (code, user) = server.whoami(&token).await;

    assert_eq!(code, 201);
    assert_eq!(user["username"], "system:serviceaccount:default:default");
    assert_eq!(
        user["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    let id = format!("JTI={}", claims(&token)["jti"].as_str().unwrap());
    assert_eq!(
        user["extra"],
        json!({ "authentication.kubernetes.io/credential-id": [id] })
    );
    assert_eq!(server.get("/api/v1/pods", &token).await.0, 200);
    let last = token.chars().last().unwrap();
    let forged = format!(
        "{}{}",
        &token[..token.len() - 1],
        if last == 'A' { 'E' } else { 'A' }
    );
    assert_eq!(server.get("/api/v1/pods", &forged).await.0, 401);
    // Another audience, so not valid for this server.
    let elsewhere = server
        .token("default", json!({ "audiences": ["vault"] }), "secret")
        .await;
    assert_eq!(server.get("/api/v1/pods", &elsewhere).await.0, 401);
}

/// An open server refuses invalid tokens and nothing else.
#[tokio::test]
async fn an_open_server_still_refuses_a_wrong_token() {
    let server = Listening::start(Settings::default(), "").await;

    let (code, user) = server.whoami("").await;
    assert_eq!((code, &user["username"]), (201, &json!("system:admin")));
    assert_eq!(server.whoami("wrong").await.0, 401);
}

#[tokio::test]
async fn a_token_ends_with_what_it_is_bound_to() {
    let server = Listening::start(Settings::default(), "").await;
    create(&server.api, "nodes", json!({ "metadata": { "name": "n" } })).unwrap();
    let stored = create(&server.api, "pods", pod("p", json!({ "nodeName": "n" }))).unwrap();
    create(&server.api, "secrets", json!({ "metadata": { "name": "s" } })).unwrap();
    create(
        &server.api,
        "serviceaccounts",
        json!({ "metadata": { "name": "robot" } }),
    )
    .unwrap();
    let bound = |kind: &str, name: &str| json!({ "boundObjectRef": { "apiVersion": "v1", "kind": kind, "name": name } });
    let of_pod = server.token("default", bound("Pod", "p"), "").await;
    let of_secret = server.token("default", bound("Secret", "s"), "").await;
    let of_node = server.token("default", bound("Node", "n"), "").await;
    let of_robot = server.token("robot", json!({}), "").await;

    let (_, user) = server.whoami(&of_pod).await;
    let key = |name: &str| format!("authentication.kubernetes.io/{name}");
    assert_eq!(user["extra"][key("pod-name")], json!(["p"]));
    assert_eq!(user["extra"][key("pod-uid")], json!([uid(&stored)]));
    assert_eq!(user["extra"][key("node-name")], json!(["n"]));
    assert_eq!(user["extra"][key("node-uid")].as_array().unwrap().len(), 1);
    let options = skep_k8s_apiserver::DeleteOptions::default();
    server
        .api
        .delete(&super::server::core("nodes"), "", "n", &options)
        .unwrap();
    assert_eq!(server.whoami(&of_node).await.0, 401);
    // The node of a pod is only told.
    assert_eq!(server.whoami(&of_pod).await.0, 201);
    for (resource, name, token) in [
        ("pods", "p", &of_pod),
        ("secrets", "s", &of_secret),
        ("serviceaccounts", "robot", &of_robot),
    ] {
        assert_eq!(server.whoami(token).await.0, 201, "{resource}");
        delete(&server.api, resource, name);
        assert_eq!(server.whoami(token).await.0, 401, "{resource}");
    }
    // Another pod of the same name is another pod.
    create(&server.api, "pods", pod("p", json!({}))).unwrap();
    assert_eq!(server.whoami(&of_pod).await.0, 401);
}

#[tokio::test]
async fn reviews_say_whom_a_token_stands_for_and_why_not() {
    let server = Listening::start(Settings::default(), "secret").await;
    let token = server
        .token("default", json!({ "audiences": ["vault", ISSUER] }), "secret")
        .await;
    let review = async |token: &str, audiences: Value| {
        let body = json!({ "spec": { "token": token, "audiences": audiences } });
        let (code, answer) = server.post(REVIEWS, "secret", &body).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"].clone()
    };

    let status = review(&token, json!([])).await;
    assert_eq!(status["authenticated"], true);
    assert_eq!(status["audiences"], json!([ISSUER]));
    assert_eq!(
        status["user"]["username"],
        "system:serviceaccount:default:default"
    );
    let status = review(&token, json!(["other", "vault"])).await;
    assert_eq!(status["audiences"], json!(["vault"]));
    let status = review(&token, json!(["other"])).await;
    assert_eq!(
        status,
        json!({
            "user": {},
            "error": format!(
                "[invalid bearer token, token audiences [\"vault\", \"{ISSUER}\"] is invalid for the target audiences [\"other\"]]"
            ),
        })
    );
    let status = review("wrong", json!([])).await;
    assert_eq!(status, json!({ "user": {}, "error": "invalid bearer token" }));
    assert_eq!(
        review("secret", json!([])).await["user"]["username"],
        "system:admin"
    );
    delete(&server.api, "serviceaccounts", "default");
    let status = review(&token, json!([])).await;
    assert!(
        status["error"]
            .as_str()
            .unwrap()
            .contains("service account UID ("),
        "{status}"
    );
    assert_eq!(server.post(REVIEWS, "secret", &json!({})).await.0, 400);
}

#[tokio::test]
async fn others_find_the_keys() {
    let server = Listening::start(Settings::default(), "").await;
    let token = server.token("default", json!({}), "").await;

    let (_, media, document) = server.get("/.well-known/openid-configuration", "").await;
    assert_eq!(
        (media.as_str(), &document["issuer"]),
        ("application/json", &json!(ISSUER))
    );
    assert_eq!(
        document["id_token_signing_alg_values_supported"],
        json!(["ES256"])
    );
    let address = document["jwks_uri"].as_str().unwrap();
    assert!(address.starts_with("https://127.0.0.1:") && address.ends_with("/openid/v1/jwks"));
    let (_, media, keys) = server.get("/openid/v1/jwks", "").await;
    assert_eq!(media, "application/jwk-set+json");
    let header = BASE64.decode(token.split('.').next().unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    assert_eq!(header["kid"], keys["keys"][0]["kid"]);
    let (_, _, list) = server.get("/api/v1", "").await;
    let resources = list["resources"].as_array().unwrap();
    assert!(
        resources
            .iter()
            .any(|found| found["name"] == "serviceaccounts/token" && found["kind"] == "TokenRequest")
    );
}
