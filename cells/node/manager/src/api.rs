// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/node/ids` and `GET /v1/cluster/nodes`: nodes and ids of other nodes, in the form of Cilium's agent API.

mod nodes;

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hive::{Cell, Member};
use skep_base_api::Routes;
use statedb::{Db, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::NodeId;

hive::catalogue!(cell);

/// Nodes and their ids, for the agent's API.
#[must_use]
pub fn cell() -> Cell {
    Cell::group([
        Cell::module("node-ids-api", "Ids of nodes in the API of the agent").provide(api),
        Cell::module("nodes-api", "Nodes in the API of the agent").provide(nodes::api),
    ])
}

fn api(db: Db, table: Table<NodeId>) -> Member<Routes> {
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(ids)).with_state((db, table)),
    ))
}

/// Lists the ids of other nodes with their addresses.
#[utoipa::path(get, path = "/node/ids", responses(
    (status = 200, description = "The ids", body = [skep_base_api_types::NodeId])))]
async fn ids(State((db, table)): State<(Db, Table<NodeId>)>) -> Response {
    let mut addresses: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for row in table.all(&db.read()) {
        addresses.entry(row.id).or_default().push(row.address.to_string());
    }
    let ids = addresses.into_iter();
    let ids: Vec<skep_base_api_types::NodeId> = ids
        .map(|(id, ips)| skep_base_api_types::NodeId { id, ips })
        .collect();
    Json(ids).into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use statedb::reconciler::Status;

    use super::*;
    use crate::NodeKey;

    #[tokio::test]
    async fn ids_are_listed_with_all_addresses() {
        let db = Db::new();
        let table = crate::ids::new_table(db.clone()).unwrap();
        let mut txn = db.write(&[&table]);
        for (address, id) in [("172.30.1.3", 2), ("fd00::2", 1), ("172.30.1.2", 1)] {
            let row = NodeId {
                address: address.parse().unwrap(),
                id,
                node: NodeKey::new("", "n"),
                spi: 0,
                status: Status::pending(),
            };
            table.insert(&mut txn, row).unwrap();
        }
        txn.commit();

        let answer = ids(State((db, table.reader()))).await;

        let body = axum::body::to_bytes(answer.into_body(), usize::MAX)
            .await
            .unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&body).unwrap(),
            json!([{"id": 1, "ips": ["172.30.1.2", "fd00::2"]}, {"id": 2, "ips": ["172.30.1.3"]}])
        );
    }
}
