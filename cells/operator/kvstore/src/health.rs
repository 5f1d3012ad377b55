// SPDX-License-Identifier: Apache-2.0

//! Cell: the key-value store in the health of the operator. Requires: a client of the store.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Member};
use skep_kvstore_client::{Client, Status};
use skep_operator_api::{HealthProbe, Unhealthy};

hive::catalogue!(cell);

/// Whether the key-value store works, in `GET /healthz`.
pub fn cell() -> Cell {
    Cell::module("kvstore-health", "Key-value store in the health of the operator").provide(probe)
}

/// The store is unreachable, or its status is not `Ok`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotHealthy(Box<Status>);

struct Kvstore(Client);

fn probe(client: Client) -> Member<Arc<dyn HealthProbe>> {
    Member(Arc::new(Kvstore(client)))
}

#[async_trait]
impl HealthProbe for Kvstore {
    fn name(&self) -> &'static str {
        "kvstore"
    }

    async fn check(&self) -> Result<(), Unhealthy> {
        let status = self.0.status();
        if !self.0.is_enabled() || status.is_healthy() {
            return Ok(());
        }
        Err(Box::new(NotHealthy(Box::new(status))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skep_kvstore_client::memory::Memory;
    use skep_kvstore_client::testing::{FaultyBackend, PATIENCE, RunningClient};
    use tokio::time::timeout;

    use super::*;

    async fn check(client: &Client) -> String {
        match Kvstore(client.clone()).check().await {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_not_reached_is_not_healthy() {
        assert_eq!(check(&Client::disabled()).await, "ok");
        let client = RunningClient::full(Arc::new(Memory::new()));
        assert_eq!(
            check(&client).await,
            "Waiting for initial connection to be established"
        );

        client.wait_connected().await;

        assert_eq!(check(&client).await, "ok");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_without_space_is_not_healthy() {
        let store = FaultyBackend::new(Arc::new(Memory::new()));
        let client = RunningClient::full(store.clone());
        client.wait_connected().await;
        let ends = async |is_healthy: bool| {
            while client.status().is_healthy() != is_healthy {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };

        store.fill(true);
        timeout(PATIENCE * 10, ends(false)).await.unwrap();
        let text = check(&client).await;
        assert!(
            text.contains("has-quorum=true, the store has no space left: "),
            "{text}"
        );
        assert!(text.ends_with("(Leader) (alarm NOSPACE)"), "{text}");

        store.fill(false);
        timeout(PATIENCE * 10, ends(true)).await.unwrap();
        assert_eq!(check(&client).await, "ok");
    }
}
