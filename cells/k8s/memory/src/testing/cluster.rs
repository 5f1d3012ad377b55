// SPDX-License-Identifier: Apache-2.0

//! A cluster for tests: an API server in memory, and what tests do to its objects.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skep_k8s_client::{Client, DeleteOptions, Patch, Subresource, WriteOptions};
use skep_k8s_types::Kind;

use crate::{ApiServer, Mode, Registry, Rows, Settings, Tracker, in_process_client};

/// Changes that are kept for watches.
const HISTORY: usize = 10_000;

/// An API server in memory that behaves like a real one, without controllers, with the kinds of Kubernetes.
///
/// # Panics
///
/// If there is no memory for its tables.
#[must_use]
pub fn api_server() -> ApiServer {
    api_server_with(Settings::default())
}

/// An [`api_server`] with other settings.
///
/// # Panics
///
/// If there is no memory for its tables.
#[must_use]
pub fn api_server_with(settings: Settings) -> ApiServer {
    let rows = Rows::new(&statedb::Db::new()).expect("names of tables are free");
    ApiServer::new(
        Tracker::new(rows, HISTORY, false),
        Registry::builtin(),
        Mode::Real(settings),
    )
}

/// An API server that behaves like a real one, without controllers. Objects are JSON; whatever is refused fails the test.
#[derive(Clone)]
pub struct TestCluster {
    client: Arc<dyn Client>,
}

impl Default for TestCluster {
    fn default() -> Self {
        Self::new()
    }
}

impl TestCluster {
    /// A cluster with the kinds of Kubernetes.
    ///
    /// # Panics
    ///
    /// If there is no memory for its tables.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Arc::new(in_process_client(&api_server())))
    }

    /// The cluster of another API server.
    #[must_use]
    pub fn of(client: Arc<dyn Client>) -> Self {
        Self { client }
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Arc<dyn Client> {
        &self.client
    }

    /// Creates a namespace, if there is none of the name.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub async fn namespace(&self, name: &str) {
        if self.client.get(&Kind::NAMESPACE, "", name).await.is_err() {
            self.create(&Kind::NAMESPACE, json!({ "metadata": { "name": name } }))
                .await;
        }
    }

    /// Creates an object, in the namespace of its metadata.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub async fn create(&self, kind: &Kind, mut object: Value) {
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.as_str().into();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let namespace = namespace.to_owned();
        let options = WriteOptions::default();
        let created = self.client.create(kind, &namespace, object, &options);
        created.await.expect("it is created");
    }

    /// Merges a patch into an object.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub async fn patch(&self, kind: &Kind, namespace: &str, name: &str, patch: Value) {
        self.patch_part(kind, namespace, name, Subresource::None, patch)
            .await;
    }

    /// Merges a patch into the status of an object.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub async fn patch_status(&self, kind: &Kind, namespace: &str, name: &str, status: Value) {
        let patch = json!({ "status": status });
        self.patch_part(kind, namespace, name, Subresource::Status, patch)
            .await;
    }

    async fn patch_part(&self, kind: &Kind, namespace: &str, name: &str, part: Subresource, patch: Value) {
        let (patch, options) = (Patch::Merge(patch), WriteOptions::default());
        let patched = self.client.patch(kind, namespace, name, part, &patch, &options);
        patched.await.expect("it is patched");
    }

    /// Deletes an object, without a grace period.
    ///
    /// # Panics
    ///
    /// If it is refused.
    pub async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        let options = DeleteOptions {
            grace_period: Some(Duration::ZERO),
            ..DeleteOptions::default()
        };
        let deleted = self.client.delete(kind, namespace, name, &options);
        deleted.await.expect("it is deleted");
    }

    /// An object; null if there is none.
    ///
    /// # Panics
    ///
    /// If it cannot be read as JSON.
    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Value {
        match self.client.get(kind, namespace, name).await {
            Ok(object) => (*object.to_value().expect("it is JSON")).clone(),
            Err(_) => Value::Null,
        }
    }

    /// All objects of a kind.
    ///
    /// # Panics
    ///
    /// If the kind is not known.
    pub async fn list(&self, kind: &Kind) -> Vec<Value> {
        let page = self.client.list(kind, "", &Default::default()).await;
        let items = page.expect("the kind is known").items;
        items
            .iter()
            .map(|item| (*item.to_value().expect("it is JSON")).clone())
            .collect()
    }
}
