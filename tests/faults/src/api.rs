// SPDX-License-Identifier: Apache-2.0

//! An API server that takes whatever it is given, and can go away.

use std::{net::SocketAddr, sync::Arc};

use serde_json::{Value, json};
use skep_k8s_apiserver::{HttpOptions, HttpServer};
use skep_k8s_memory::{ApiServer, Domain, FakeClient, Gvr, guess_plural};
use statedb::Db;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Outcome;

/// An API server on a loopback port. Objects outlive its listener.
pub struct Api {
    objects: Arc<FakeClient>,
    address: SocketAddr,
    serving: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Api {
    /// Starts one that knows the node `here`.
    pub async fn start() -> Outcome<Self> {
        let objects = FakeClient::new(Db::new())?;
        let mut api = Self {
            objects,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            serving: None,
        };
        api.put(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "here", "labels": {"a": "b"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.244.0.1"}]},
        }))?;
        api.listen().await?;
        Ok(api)
    }

    /// The objects.
    #[must_use]
    pub fn server(&self) -> &ApiServer {
        self.objects.server()
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Listens, on the same port as before.
    pub async fn listen(&mut self) -> Outcome {
        let server = HttpServer::bind(
            self.address,
            self.objects.server().clone(),
            HttpOptions::default(),
        )?;
        self.address = server.address();
        let stop = CancellationToken::new();
        self.serving = Some((stop.clone(), tokio::spawn(server.serve(stop))));
        Ok(())
    }

    /// Goes away: connections close, new ones are refused.
    pub async fn go_away(&mut self) -> Outcome {
        if let Some((stop, task)) = self.serving.take() {
            stop.cancel();
            task.await?;
        }
        Ok(())
    }

    /// Creates or replaces an object.
    ///
    /// # Errors
    /// When its kind or name is unknown, or it is malformed.
    pub fn put(&self, object: &Value) -> Outcome {
        Ok(self.objects.add(&object.to_string())?)
    }

    /// Creates or replaces a [`service`] and its [`slice()`] of backends.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn serve(&self, name: &str, ip: &str, addresses: &[&str], port: u16) -> Outcome {
        self.put(&service(name, ip))?;
        self.put(&slice(name, addresses, port))
    }

    /// Creates or replaces an object that may be malformed, see [`put_malformed`].
    pub fn put_malformed(&self, object: &Value) -> Outcome {
        put_malformed(&self.objects, object)
    }

    pub fn delete(&self, object: &Value) -> Outcome {
        Ok(self.objects.delete(&object.to_string())?)
    }

    /// Forgets the past, as etcd does when it compacts, and ends all watches with 410.
    pub fn forget_history(&self) {
        self.objects.server().tracker().compact();
        self.objects.server().tracker().expire_watches();
    }
}

/// Stores an object as it is, whatever it is like: what no API server would accept, and clients get all the same from
/// one of another version.
pub fn put_malformed(objects: &FakeClient, object: &Value) -> Outcome {
    let (api_version, name) = (
        object["apiVersion"].as_str().unwrap_or_default(),
        object["kind"].as_str().unwrap_or_default(),
    );
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let server = objects.server();
    let kind = server.kind(&Gvr::new(group, version, &guess_plural(name)))?;
    server.tracker().write(|txn| {
        txn.put(Domain::Slim, &kind, object.clone());
        Ok(())
    })
}

/// A service of namespace `shop`, port 80 by TCP (`web`) and UDP (`dns`).
#[must_use]
pub fn service(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": [
            {"name": "web", "port": 80, "protocol": "TCP"},
            {"name": "dns", "port": 80, "protocol": "UDP"},
        ]},
    })
}

/// Its backends, by the ports of one server: `web` and `dns`.
#[must_use]
pub fn slice(service: &str, addresses: &[&str], port: u16) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "shop", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": addresses.iter().map(|address| json!({"addresses": [address]})).collect::<Vec<_>>(),
        "ports": [
            {"name": "web", "port": port, "protocol": "TCP"},
            {"name": "dns", "port": port, "protocol": "UDP"},
        ],
    })
}
