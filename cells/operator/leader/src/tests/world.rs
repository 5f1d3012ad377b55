// SPDX-License-Identifier: Apache-2.0

//! An API server, and clients that can be cut off.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use skep_k8s_client::testing::{Fault, FaultyClient, Verb};
use skep_k8s_client::{Client, Subresource, WriteOptions};
use skep_k8s_memory::testing::TestCluster;

use crate::election::{Attempt, Election, Settings};
use crate::lease::LEASES;

pub(crate) struct World {
    cluster: TestCluster,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            cluster: TestCluster::new(),
        }
    }

    pub(crate) fn raw(&self) -> Arc<dyn Client> {
        self.cluster.client().clone()
    }

    pub(crate) fn client(&self) -> Arc<FaultyClient> {
        FaultyClient::new(self.raw())
    }

    pub(crate) fn candidate(&self, identity: &str) -> Election {
        Election::new(self.client(), settings(identity))
    }

    pub(crate) async fn lease(&self) -> Value {
        self.cluster.get(&LEASES, "default", NAME).await
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

/// Writes of the client arrive; their answers do not.
pub(crate) fn lose_answers(client: &FaultyClient) {
    client.inject(|request| request.verb.is_write().then_some(Fault::AnswerLost));
}

pub(crate) fn forbid_watches(client: &FaultyClient) {
    client.inject(|request| (request.verb == Verb::Watch).then(Fault::forbidden));
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
