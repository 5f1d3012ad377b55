// SPDX-License-Identifier: Apache-2.0

//! Nodes of all clusters, whole or as what has changed since a client asked last.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hive::Member;
use parking_lot::Mutex;
use serde_json::json;
use skep_base_api::Routes;
use skep_base_api_types::{
    ClusterNode, ClusterNodeStatus, NodeAddressing, NodeAddressingAddress, NodeAddressingFamily,
};
use statedb::{Db, Revision};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::node::DEFAULT_CLUSTER;
use crate::{Node, NodeKey, NodeManager};

/// How long a client may be silent before it gets the whole list again.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// Header with the id of a client.
const CLIENT_ID: &str = "client-id";

pub(super) fn api(db: Db, manager: NodeManager) -> Member<Routes> {
    let lister = Arc::new(Lister {
        db,
        manager,
        state: Mutex::default(),
    });
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(nodes)).with_state(lister),
    ))
}

/// Lists the nodes of all clusters, or the changes since the last request of a client with an id.
#[utoipa::path(get, path = "/cluster/nodes", params(
    ("client-id" = Option<i64>, Header, description = "Client id of the last response; 0 to get one")), responses(
    (status = 200, description = "The nodes", body = ClusterNodeStatus),
    (status = 422, description = "The id is not a number")))]
async fn nodes(State(lister): State<Arc<Lister>>, headers: HeaderMap) -> Response {
    let sent = headers.get(CLIENT_ID).filter(|value| !value.is_empty());
    let sent = sent.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let id = match sent.as_deref().map(str::parse::<i64>) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => {
            let text = format!(
                "{CLIENT_ID} in header must be of type int64: {:?}",
                sent.unwrap_or_default()
            );
            let error = json!({"code": 601, "message": text});
            return (StatusCode::UNPROCESSABLE_ENTITY, Json(error)).into_response();
        }
    };
    Json(lister.answer(id, Instant::now())).into_response()
}

type Nodes = BTreeMap<String, ClusterNode>;

/// What a client was told last, and when.
struct Client {
    told: Arc<Nodes>,
    asked: Instant,
}

#[derive(Default)]
struct Told {
    /// The list as it is at a revision of the table: clients share it.
    last: Option<(Revision, Arc<Nodes>)>,
    clients: HashMap<i64, Client>,
}

struct Lister {
    db: Db,
    manager: NodeManager,
    state: Mutex<Told>,
}

impl Lister {
    fn answer(&self, id: Option<i64>, now: Instant) -> ClusterNodeStatus {
        let snapshot = self.db.read();
        let rows = self.manager.nodes(&snapshot);
        let own = rows.iter().find(|row| row.is_local());
        let own = own.map(|row| full_name(&row.key)).unwrap_or_default();
        let revision = self.manager.table().revision(&snapshot);
        let mut state = self.state.lock();
        state
            .clients
            .retain(|_, client| now - client.asked < FORGET_AFTER);
        let nodes = match &state.last {
            Some((found, nodes)) if *found == revision => nodes.clone(),
            _ => Arc::new(rows.iter().map(|row| (full_name(&row.key), model(row))).collect()),
        };
        state.last = Some((revision, nodes.clone()));
        let mut answer = ClusterNodeStatus {
            own,
            ..ClusterNodeStatus::default()
        };
        let told = match id {
            None => Arc::default(),
            Some(id) => {
                let known = state.clients.remove(&id);
                answer.client_id = known.as_ref().map_or_else(|| new_id(&state.clients), |_| id);
                let client = Client {
                    told: nodes.clone(),
                    asked: now,
                };
                state.clients.insert(answer.client_id, client);
                known.map_or_else(Arc::default, |client| client.told)
            }
        };
        let differ = |from: &Nodes, to: &Nodes| {
            let changed = from.iter().filter(|(name, node)| to.get(*name) != Some(node));
            changed.map(|(_, node)| node.clone()).collect()
        };
        answer.nodes_added = differ(&nodes, &told);
        answer.nodes_removed = differ(&told, &nodes);
        answer
    }
}

/// An id that no client has. 0 asks for one.
fn new_id(clients: &HashMap<i64, Client>) -> i64 {
    loop {
        let id = rand::random_range(1..=i64::MAX);
        if !clients.contains_key(&id) {
            return id;
        }
    }
}

/// `cluster/name`; only `name` if the cluster has no name of its own.
fn full_name(key: &NodeKey) -> String {
    match key.cluster.as_str() {
        DEFAULT_CLUSTER => key.name.to_string(),
        _ => key.to_string(),
    }
}

fn model(node: &Node) -> ClusterNode {
    let primary = [node.node_ip(true), node.node_ip(false)];
    let cidr = |ipv4: bool| {
        let found = node.pod_cidrs.iter().find(|cidr| cidr.addr().is_ipv4() == ipv4);
        found.map(ToString::to_string).unwrap_or_default()
    };
    let family = |address: Option<IpAddr>, alloc_range: String| NodeAddressingFamily {
        alloc_range,
        enabled: address.is_some(),
        ip: address.map(|address| address.to_string()).unwrap_or_default(),
    };
    let others = node.addresses.iter().map(|(_, address)| *address);
    let of = |addresses: &[IpAddr]| {
        let find = |ipv4| {
            addresses
                .iter()
                .copied()
                .find(|address| address.is_ipv4() == ipv4)
        };
        (!addresses.is_empty()).then(|| NodeAddressing {
            ipv4: family(find(true), String::new()),
            ipv6: family(find(false), String::new()),
        })
    };
    ClusterNode {
        name: full_name(&node.key),
        primary_address: NodeAddressing {
            ipv4: family(primary[0], cidr(true)),
            ipv6: family(primary[1], cidr(false)),
        },
        secondary_addresses: others
            .filter(|address| !primary.contains(&Some(*address)))
            .map(|address| NodeAddressingAddress {
                ip: address.to_string(),
            })
            .collect(),
        health_endpoint_address: of(&node.health),
        ingress_address: of(&node.ingress),
        source: node.source.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, to_value};
    use skep_ipcache::Source;
    use skep_k8s_types::slim::NodeAddressType;

    use super::*;

    fn lister() -> Arc<Lister> {
        let db = Db::new();
        let manager = NodeManager::with_table(&db).unwrap();
        Arc::new(Lister {
            db,
            manager,
            state: Mutex::default(),
        })
    }

    fn put(lister: &Lister, cluster: &str, name: &str, source: Source, address: &str) {
        let mut node = Node::new(NodeKey::new(cluster, name), source);
        node.addresses = vec![
            (NodeAddressType::InternalIp, address.parse().unwrap()),
            (NodeAddressType::CiliumInternalIp, "10.1.0.103".parse().unwrap()),
        ];
        node.pod_cidrs = vec!["10.1.0.0/24".parse().unwrap()];
        node.health = vec!["10.1.0.92".parse().unwrap()];
        let mut txn = lister.manager.write();
        lister.manager.upsert(&mut txn, node).unwrap();
        txn.commit();
    }

    async fn ask(lister: &Arc<Lister>, id: Option<&str>) -> (u16, Value) {
        let mut headers = HeaderMap::new();
        if let Some(id) = id {
            headers.insert(CLIENT_ID, id.parse().unwrap());
        }
        let answer = nodes(State(lister.clone()), headers).await;
        let code = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX)
            .await
            .unwrap();
        (code, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn nodes_are_listed_in_ciliums_form() {
        let lister = lister();
        put(&lister, "", "n1", Source::Local, "172.30.40.1");
        put(&lister, "", "n1", Source::Kubernetes, "172.30.40.9");
        put(&lister, "west", "n1", Source::ClusterMesh, "fd00:30:40::1");

        let (code, answer) = ask(&lister, None).await;

        let common = json!({
            "secondary-addresses": [{"ip": "10.1.0.103"}],
            "health-endpoint-address": {"ipv4": {"enabled": true, "ip": "10.1.0.92"}, "ipv6": {}},
        });
        let node = |name: &str, source: &str, primary: Value| {
            let mut node = common.clone();
            node["name"] = name.into();
            node["source"] = source.into();
            node["primary-address"] = primary;
            node
        };
        let own = json!({
            "ipv4": {"enabled": true, "ip": "172.30.40.1", "alloc-range": "10.1.0.0/24"}, "ipv6": {},
        });
        let remote = json!({
            "ipv4": {"enabled": true, "ip": "10.1.0.103", "alloc-range": "10.1.0.0/24"},
            "ipv6": {"enabled": true, "ip": "fd00:30:40::1"},
        });
        let mut remote = node("west/n1", "clustermesh", remote);
        remote["primary-address"]["ipv4"] = json!({"alloc-range": "10.1.0.0/24"});
        assert_eq!(code, 200);
        assert_eq!(
            answer,
            json!({"nodes-added": [node("n1", "local", own), remote], "nodes-removed": null, "self": "n1"})
        );
    }

    #[tokio::test]
    async fn clients_with_an_id_get_what_has_changed() {
        let lister = lister();
        put(&lister, "", "n1", Source::Local, "172.30.40.1");
        put(&lister, "", "n2", Source::CustomResource, "172.30.40.2");
        let names = |answer: &Value, list: &str| -> Vec<String> {
            let nodes = answer[list].as_array().into_iter().flatten();
            nodes
                .map(|node| node["name"].as_str().unwrap().to_owned())
                .collect()
        };

        let (_, first) = ask(&lister, Some("0")).await;
        let id = first["client-id"].as_i64().unwrap().to_string();
        assert_eq!(names(&first, "nodes-added"), ["n1", "n2"]);
        let (_, same) = ask(&lister, Some(&id)).await;
        let expected = json!({
            "client-id": first["client-id"], "nodes-added": null, "nodes-removed": null, "self": "n1",
        });
        assert_eq!(same, expected);

        put(&lister, "", "n2", Source::CustomResource, "172.30.40.3");
        let mut txn = lister.manager.write();
        let gone = NodeKey::new("", "n1");
        lister.manager.delete(&mut txn, &gone, Source::Local).unwrap();
        txn.commit();
        let (_, changed) = ask(&lister, Some(&id)).await;
        assert_eq!(names(&changed, "nodes-added"), ["n2"]);
        assert_eq!(names(&changed, "nodes-removed"), ["n1", "n2"]);

        let (_, other) = ask(&lister, Some("999999")).await;
        assert_ne!(other["client-id"], first["client-id"]);
        assert_eq!(names(&other, "nodes-added"), ["n2"]);
        // One that was silent for long starts anew.
        let number = first["client-id"].as_i64();
        let late = lister.answer(number, Instant::now() + FORGET_AFTER);
        assert_eq!(to_value(&late.nodes_added).unwrap().as_array().unwrap().len(), 1);
        assert_ne!(Some(late.client_id), number);
    }

    #[tokio::test]
    async fn an_id_that_is_no_number_is_refused() {
        assert_eq!(
            ask(&lister(), Some("x")).await,
            (
                422,
                json!({"code": 601, "message": "client-id in header must be of type int64: \"x\""})
            )
        );
    }
}
