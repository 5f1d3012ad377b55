// SPDX-License-Identifier: Apache-2.0

//! An API server whose clients can be cut off.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use skep_k8s_apiserver::{ApiServer, Manner, Registry, Rows, Tracker, in_process_client};
use skep_k8s_client::{
    ApiError, Client, ListOptions, RawPage, RawWatch, Status, Subresource, WatchOptions, WriteOptions,
};
use skep_k8s_types::{Kind, RawObject};

use crate::election::{Attempt, Election, Settings};
use crate::lease::LEASES;

/// What a client meets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Network {
    #[default]
    Works,
    /// Requests fail.
    Down,
    /// Requests are not answered.
    Hangs,
    /// Updates arrive; their answers do not.
    LosesAnswers,
}

pub(crate) struct TestClient {
    inner: Arc<dyn Client>,
    pub(crate) network: Mutex<Network>,
    pub(crate) may_watch: bool,
    pub(crate) is_enabled: bool,
}

impl TestClient {
    async fn pass(&self) -> Result<(), ApiError> {
        let network = *self.network.lock();
        match network {
            Network::Works | Network::LosesAnswers => Ok(()),
            Network::Down => Err(ApiError::Unreachable {
                server: "https://lost".to_owned(),
                cause: "cut".into(),
            }),
            Network::Hangs => std::future::pending().await,
        }
    }

    async fn answer(&self) {
        if *self.network.lock() == Network::LosesAnswers {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn set(&self, network: Network) {
        *self.network.lock() = network;
    }
}

#[async_trait]
impl Client for TestClient {
    fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        self.inner.kinds().await
    }

    async fn list(&self, kind: &Kind, namespace: &str, options: &ListOptions) -> Result<RawPage, ApiError> {
        self.pass().await?;
        self.inner.list(kind, namespace, options).await
    }

    async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        options: &WatchOptions,
    ) -> Result<RawWatch, ApiError> {
        self.pass().await?;
        if !self.may_watch {
            return Err(ApiError::Status(Status::new(403, "Forbidden", "may not watch")));
        }
        self.inner.watch(kind, namespace, options).await
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<RawObject, ApiError> {
        self.pass().await?;
        self.inner.get(kind, namespace, name).await
    }

    async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        self.pass().await?;
        let created = self.inner.create(kind, namespace, object, options).await;
        self.answer().await;
        created
    }

    async fn update(
        &self,
        kind: &Kind,
        namespace: &str,
        subresource: Subresource,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        self.pass().await?;
        let updated = self
            .inner
            .update(kind, namespace, subresource, object, options)
            .await;
        self.answer().await;
        updated
    }
}

pub(crate) struct World {
    server: ApiServer,
}

impl World {
    pub(crate) fn new() -> Self {
        let rows = Rows::new(&statedb::Db::new()).unwrap();
        let server = ApiServer::new(
            Tracker::new(rows, 1000, false),
            Registry::builtin(),
            Manner::Real(skep_k8s_apiserver::Settings::default()),
        );
        Self { server }
    }

    pub(crate) fn raw(&self) -> Arc<dyn Client> {
        Arc::new(in_process_client(&self.server))
    }

    pub(crate) fn client(&self) -> Arc<TestClient> {
        self.make(true, true)
    }

    pub(crate) fn make(&self, may_watch: bool, is_enabled: bool) -> Arc<TestClient> {
        Arc::new(TestClient {
            inner: self.raw(),
            network: Mutex::default(),
            may_watch,
            is_enabled,
        })
    }

    pub(crate) fn candidate(&self, identity: &str) -> Election {
        Election::new(self.client(), settings(identity))
    }

    pub(crate) async fn lease(&self) -> Value {
        let lease = self.raw().get(&LEASES, "default", NAME).await.unwrap();
        (*lease.to_value().unwrap()).clone()
    }

    pub(crate) async fn holder(&self) -> String {
        let lease = self.lease().await;
        lease["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) async fn put(&self, lease: Value) {
        let options = WriteOptions::default();
        let client = self.raw();
        if client.get(&LEASES, "default", NAME).await.is_ok() {
            let updated = client.update(&LEASES, "default", Subresource::None, lease, &options);
            updated.await.unwrap();
        } else {
            client.create(&LEASES, "default", lease, &options).await.unwrap();
        }
    }
}

pub(crate) const NAME: &str = "cilium-operator-resource-lock";

pub(crate) fn settings(identity: &str) -> Settings {
    let config = <crate::Config as hive::Config>::defaults().unwrap();
    config.settings(identity.to_owned())
}

pub(crate) fn follows(holder: &str) -> Attempt {
    Attempt::Follows {
        holder: holder.to_owned(),
    }
}

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
