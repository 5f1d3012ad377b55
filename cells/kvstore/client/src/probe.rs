// SPDX-License-Identifier: Apache-2.0

//! The key-value store in the status of the agent.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Member};
use skep_base_api::StatusProbe;
use skep_base_api_types::{State, Status, StatusResponse};

use crate::client::{Client, Connection};

hive::catalogue!(cell);

/// Part `kvstore` of the agent's status.
pub fn cell() -> Cell {
    Cell::module("kvstore-status", "Key-value store in the status of the agent").provide(probe)
}

struct Kvstore(Client);

fn probe(client: Client) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Kvstore(client)))
}

#[async_trait]
impl StatusProbe for Kvstore {
    fn name(&self) -> &'static str {
        "kvstore"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let status = status(&self.0);
        response.kvstore = Some(status.clone());
        Some(status)
    }
}

fn status(client: &Client) -> Status {
    let status = client.status();
    let state = match status.connection {
        Connection::Disabled => return Status::default(),
        Connection::Connecting(_) => State::Warning,
        Connection::Connected if status.failure.is_some() => State::Failure,
        Connection::Connected if status.quorum_error.is_some() || status.refusal.is_some() => State::Warning,
        Connection::Connected => State::Ok,
    };
    let msg = match &status.connection {
        Connection::Connecting(Some(_)) => format!("{status} (check setting `kvstore-opt`)"),
        _ => status.to_string(),
    };
    Status { state, msg }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use std::time::Duration;

    use crate::testing::{FaultyBackend, PATIENCE, RunningClient};

    #[tokio::test(start_paused = true)]
    async fn the_status_is_that_of_the_client() {
        assert_eq!(status(&Client::disabled()).state, State::Disabled);
        let client = RunningClient::full(Arc::new(Memory::new()));
        assert_eq!(
            status(&client).msg,
            "Waiting for initial connection to be established"
        );
        assert_eq!(status(&client).state, State::Warning);

        client.wait_connected().await;

        assert_eq!(status(&client).state, State::Ok);
    }

    /// The text was that of a client that has just begun, and the health as well.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_not_reached_is_named_with_its_cause_and_setting() {
        let store = FaultyBackend::new(Arc::new(Memory::new()));
        store.partition(true);
        let (health, reports) = hive::testing::health("kvstore-client");
        let client = RunningClient::full(store);

        let named = async {
            while !status(&client).msg.contains("established: no answer within ") {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE * 10, named).await.unwrap();

        let Status { state, msg } = status(&client);
        assert_eq!(state, State::Warning);
        assert!(msg.ends_with(" (check setting `kvstore-opt`)"), "{msg}");
        crate::cell::report_status(&client.status(), &health);
        let report = reports.get("kvstore-client").unwrap();
        assert_eq!(report.level, hive::Level::Degraded);
        assert_eq!(
            report.message,
            crate::client::CONNECTING,
            "the error has the cause"
        );
        assert!(report.error.unwrap().contains("no answer within "));
    }

    /// Of a store that is full from the start, and of one that becomes full.
    #[tokio::test(start_paused = true)]
    async fn a_store_without_space_is_named_until_there_is_space_again() {
        for is_full_at_first in [true, false] {
            let store = FaultyBackend::new(Arc::new(Memory::new()));
            store.fill(is_full_at_first);
            let client = RunningClient::full(store.clone());
            if !is_full_at_first {
                client.wait_connected().await;
                store.fill(true);
            }
            let named = async {
                while !status(&client).msg.contains("the store has no space left") {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::time::timeout(PATIENCE * 10, named).await.unwrap();
            assert_eq!(status(&client).state, State::Warning);

            store.fill(false);

            let well = async {
                while status(&client).state != State::Ok || !client.status().is_healthy() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::time::timeout(PATIENCE * 10, well).await.unwrap();
            assert!(!status(&client).msg.contains("space"), "{}", status(&client).msg);
        }
    }
}
