// SPDX-License-Identifier: Apache-2.0

//! A server, and requests to it.

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_apiserver::{
    ApiError, ApiServer, DeleteOptions, Gvr, HttpOptions, HttpServer, ListOptions, Manner, Registry, Rows,
    Settings, Tracker, WriteOptions,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A server without a network.
pub(crate) fn server(settings: Settings) -> ApiServer {
    let tracker = Tracker::new(Rows::new(&statedb::Db::new()).unwrap(), 1000, false);
    ApiServer::new(tracker, Registry::builtin(), Manner::Real(settings))
}

pub(crate) fn core(resource: &str) -> Gvr {
    Gvr::new("", "v1", resource)
}

pub(crate) fn create(api: &ApiServer, resource: &str, object: Value) -> Result<Arc<Value>, ApiError> {
    let namespace = if matches!(resource, "namespaces" | "nodes") {
        ""
    } else {
        "default"
    };
    let made = api.create(&core(resource), namespace, object, &WriteOptions::default());
    made.map(|written| written.object)
}

pub(crate) fn delete(api: &ApiServer, resource: &str, name: &str) {
    let options = DeleteOptions {
        grace_seconds: Some(0),
        ..DeleteOptions::default()
    };
    api.delete(&core(resource), "default", name, &options).unwrap();
}

/// Names of the objects of a kind in a namespace.
pub(crate) fn names(api: &ApiServer, resource: &str, namespace: &str) -> Vec<String> {
    let list = api.list(&core(resource), Some(namespace), &ListOptions::default());
    let items = list.unwrap().items;
    let name = |object: &Arc<Value>| object["metadata"]["name"].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

pub(crate) fn pod(name: &str, spec: Value) -> Value {
    let mut pod =
        json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "web", "image": "i" }] } });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// A server that listens until it is dropped.
pub(crate) struct Listening {
    pub(crate) api: ApiServer,
    address: SocketAddr,
    _stop: DropGuard,
}

impl Listening {
    /// `token` is the static one; empty if there is none.
    pub(crate) async fn start(settings: Settings, token: &str) -> Self {
        let api = server(settings);
        let options = HttpOptions {
            token: token.to_owned(),
            ..HttpOptions::default()
        };
        let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), api.clone(), options);
        let server = server.unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        tokio::spawn(server.serve(stop.clone()));
        Self {
            api,
            address,
            _stop: stop.drop_guard(),
        }
    }

    /// Code, content type and body of an answer.
    async fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, String, Value) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut headers = format!("host: x\r\ncontent-length: {}\r\n", body.len());
        if !token.is_empty() {
            headers += &format!("authorization: Bearer {token}\r\n");
        }
        let request = format!("{method} {path} HTTP/1.0\r\n{headers}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let media = head.lines().find_map(|line| line.strip_prefix("content-type: "));
        (
            head[9..12].parse().unwrap(),
            media.unwrap_or_default().to_owned(),
            serde_json::from_str(body).unwrap_or_default(),
        )
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> (u16, String, Value) {
        self.ask("GET", path, token, "").await
    }

    pub(crate) async fn post(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let (code, _, answer) = self.ask("POST", path, token, &body.to_string()).await;
        (code, answer)
    }

    /// A token of an account, as `secret` may request it.
    pub(crate) async fn token(&self, account: &str, spec: Value, secret: &str) -> String {
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let (code, answer) = self.post(&path, secret, &json!({ "spec": spec })).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Who a token is, as the server says.
    pub(crate) async fn whoami(&self, token: &str) -> (u16, Value) {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let (code, answer) = self.post(path, token, &json!({})).await;
        (code, answer["status"]["userInfo"].clone())
    }
}
