// SPDX-License-Identifier: Apache-2.0

//! Whom requests come from, tokens and reviews of tokens; and expiry of events while the server listens.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use skep_k8s_apiserver::{HttpOptions, HttpServer};
use skep_k8s_memory::testing::api_server_with;
use skep_k8s_memory::{ApiServer, DeleteOptions, Gvr, ListOptions, Settings, WriteOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

const AUDIENCE: &str = "https://kubernetes.default.svc";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// A server that listens until it is dropped.
struct Listening {
    api: ApiServer,
    address: SocketAddr,
    secret: &'static str,
    _stop: DropGuard,
}

impl Listening {
    /// `secret` is the static token; empty if there is none.
    async fn start(settings: Settings, secret: &'static str) -> Self {
        let api = api_server_with(settings);
        let options = HttpOptions {
            token: secret.to_owned(),
            ..HttpOptions::default()
        };
        let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), api.clone(), options);
        let server = server.unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        tokio::spawn(server.serve(stop.clone()));
        Self {
            api,
            address,
            secret,
            _stop: stop.drop_guard(),
        }
    }

    /// Code and body of the answer.
    async fn post(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let body = body.to_string();
        let mut headers = format!("host: x\r\ncontent-length: {}\r\n", body.len());
        if !token.is_empty() {
            headers += &format!("authorization: Bearer {token}\r\n");
        }
        let request = format!("POST {path} HTTP/1.0\r\n{headers}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let value = serde_json::from_str(body).unwrap_or_default();
        (head[9..12].parse().unwrap(), value)
    }

    /// A token of the default account.
    async fn token(&self, spec: Value) -> String {
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let (code, answer) = self.post(path, self.secret, &json!({ "spec": spec })).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    async fn whoami(&self, token: &str) -> (u16, Value) {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let (code, answer) = self.post(path, token, &json!({})).await;
        (code, answer["status"]["userInfo"].clone())
    }
}

#[tokio::test]
async fn requests_come_from_whom_the_token_stands_for() {
    let server = Listening::start(Settings::default(), "secret").await;

    assert_eq!(server.whoami("").await.0, 401);
    assert_eq!(server.whoami("wrong").await.0, 401);
    let (_, admin) = server.whoami("secret").await;
    assert_eq!(admin["username"], "system:admin");
    assert_eq!(admin["groups"][0], "system:masters");
    let token = server.token(json!({})).await;
    let (code, user) = server.whoami(&token).await;

    assert_eq!(
        (code, &user["username"]),
        (201, &json!("system:serviceaccount:default:default"))
    );
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ];
    assert_eq!(user["groups"], json!(groups));
    // Another audience, so not valid for this server.
    let elsewhere = server.token(json!({ "audiences": ["vault"] })).await;
    assert_eq!(server.whoami(&elsewhere).await.0, 401);
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
async fn reviews_say_whom_a_token_stands_for_and_why_not() {
    let server = Listening::start(Settings::default(), "secret").await;
    let token = server.token(json!({ "audiences": ["vault", AUDIENCE] })).await;
    let review = async |token: &str, audiences: Value| {
        let body = json!({ "spec": { "token": token, "audiences": audiences } });
        let (code, answer) = server.post(REVIEWS, "secret", &body).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"].clone()
    };

    let status = review(&token, json!([])).await;
    assert_eq!(
        (&status["authenticated"], &status["audiences"]),
        (&json!(true), &json!([AUDIENCE]))
    );
    assert_eq!(
        status["user"]["username"],
        "system:serviceaccount:default:default"
    );
    assert_eq!(
        review(&token, json!(["other", "vault"])).await["audiences"],
        json!(["vault"])
    );
    let error = format!(
        "token audiences [\"vault\", \"{AUDIENCE}\"] is invalid for the target audiences [\"other\"]"
    );
    assert_eq!(
        review(&token, json!(["other"])).await,
        json!({ "user": {}, "error": error })
    );
    assert_eq!(
        review("secret", json!([])).await["user"]["username"],
        "system:admin"
    );
    let accounts = Gvr::new("", "v1", "serviceaccounts");
    server
        .api
        .delete(&accounts, "default", "default", &DeleteOptions::default())
        .unwrap();
    let error = "service account token has been invalidated";
    assert_eq!(
        review(&token, json!([])).await,
        json!({ "user": {}, "error": error })
    );
    assert_eq!(server.post(REVIEWS, "secret", &json!({})).await.0, 400);
}

#[tokio::test]
async fn events_expire_while_the_server_listens() {
    let settings = Settings {
        event_ttl: Duration::from_millis(100),
        ..Settings::default()
    };
    let server = Listening::start(settings, "").await;
    let events = Gvr::new("", "v1", "events");
    let event = json!({ "metadata": { "name": "a" }, "involvedObject": { "namespace": "default" }, "reason": "Started" });
    server
        .api
        .create(&events, "default", event, &WriteOptions::default())
        .unwrap();

    let gone = async {
        while !server
            .api
            .list(&events, None, &ListOptions::default())
            .unwrap()
            .items
            .is_empty()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
}
