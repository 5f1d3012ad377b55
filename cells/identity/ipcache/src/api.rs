// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/ip`: what addresses and networks are, in the form of Cilium's agent API.

use std::collections::HashSet;

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use hive::{Cell, Member};
use serde::Deserialize;
use skep_base_api::{BodyModel, LocalApi, Routes, json_list};
use skep_base_api_types::{Identity, IpListEntry, IpListEntryMetadata};
use skep_identity::NumericIdentity;
use skep_node_local::{LocalNode, LocalNodeStore};
use statedb::{Db, Obj, Snapshot, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{IpcacheEntry, Prefix, PrefixKind, Source};

hive::catalogue!(cell);

/// The ipcache, for the agent's API.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipcache-api", "Addresses in the API of the agent").provide(api)
}

fn api(db: Db, table: Table<IpcacheEntry>, local: Option<LocalNodeStore>) -> Member<Routes> {
    let state = Ipcache { db, table, local };
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(list)).with_state(state),
    ))
}

#[derive(Clone)]
struct Ipcache {
    db: Db,
    table: Table<IpcacheEntry>,
    local: Option<LocalNodeStore>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Filter {
    cidr: Option<String>,
}

/// Lists the entries of the ipcache: those within a network, and those whose identity has all labels in the body.
#[utoipa::path(get, path = "/ip", params(
    ("cidr" = Option<String>, Query, description = "Filter by network")), responses(
    (status = 200, description = "The entries", body = [IpListEntry]),
    (status = 400, description = "The network or the body is invalid", body = String),
    (status = 404, description = "No such entry")))]
async fn list(
    State(Ipcache { db, table, local }): State<Ipcache>,
    Query(Filter { cidr }): Query<Filter>,
    api: Option<Extension<LocalApi>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let within = match cidr.filter(|cidr| !cidr.is_empty()) {
        None => None,
        Some(cidr) => match cidr.parse::<Prefix>() {
            Ok(prefix) => Some(prefix.net()),
            Err(error) => {
                let text = format!("`{cidr}` is no address or network: {error}");
                return (StatusCode::BAD_REQUEST, Json(text)).into_response();
            }
        },
    };
    let labels = match BodyModel::LABELS.optional::<Vec<String>>(&headers, &body) {
        Ok(labels) => labels.unwrap_or_default(),
        Err(error) => return error.into_response(),
    };
    let identities = match (labels.is_empty(), api) {
        (true, _) => None,
        (false, api) => Some(with_labels(api, &labels).await),
    };
    let snapshot = db.read();
    let is_shown = |row: &&Obj<IpcacheEntry>| {
        row.resolve().is_some_and(|resolved| {
            let has_labels = identities.as_ref();
            has_labels.is_none_or(|identities| identities.contains(&resolved.identity.get()))
        }) && within.is_none_or(|within| within.contains(&row.prefix.net()))
            && !is_shadowed(row, &table, &snapshot)
    };
    let rows: Vec<Obj<IpcacheEntry>> = table.all(&snapshot).filter(is_shown).cloned().collect();
    if rows.is_empty() && (within.is_some() || identities.is_some()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let host = local.and_then(|local| local.get());
    json_list(rows, move |row, out| {
        serde_json::to_writer(out, &entry(row, host.as_deref()).unwrap_or_default())
    })
}

/// Identities that have all of these labels.
async fn with_labels(api: Option<Extension<LocalApi>>, labels: &[String]) -> HashSet<u32> {
    let Some(Extension(api)) = api else {
        return HashSet::new();
    };
    let found = api.get("/v1/identity").await;
    let all: Vec<Identity> = found
        .and_then(|found| serde_json::from_value(found).ok())
        .unwrap_or_default();
    let has_all = |identity: &Identity| labels.iter().all(|label| identity.labels.contains(label));
    all.iter()
        .filter(|identity| has_all(identity))
        .map(|identity| identity.id)
        .collect()
}

/// Whether the row is a network whose entry in the map is that of its one address.
fn is_shadowed(row: &IpcacheEntry, table: &Table<IpcacheEntry>, snapshot: &Snapshot) -> bool {
    let twin = row
        .prefix
        .twin()
        .filter(|twin| twin.kind() == PrefixKind::Address);
    let twin = twin.and_then(|twin| table.get(snapshot, IpcacheEntry::BY_PREFIX.key(&twin)));
    twin.is_some_and(|address| address.resolve().is_some())
}

/// Whether this node has the address for an endpoint or its router.
fn is_hosted(row: &IpcacheEntry, identity: NumericIdentity, host: &LocalNode) -> bool {
    let is_own = row.claims.iter().any(|claim| claim.owner.source == Source::Local);
    let is_router = || host.routers().any(|router| router == row.prefix.net().addr());
    is_own && row.prefix.kind() == PrefixKind::Address && (identity != NumericIdentity::HOST || is_router())
}

fn entry(row: &IpcacheEntry, host: Option<&LocalNode>) -> Option<IpListEntry> {
    let resolved = row.resolve()?;
    let host = host.filter(|host| is_hosted(row, resolved.identity, host));
    let host = host.and_then(|host| host.node_ip(true).or_else(|| host.node_ip(false)));
    let pod = resolved
        .pod
        .map(|pod| (pod.name.to_string(), pod.namespace.to_string()));
    // Cilium has metadata of pods only, and those of the node from their CiliumEndpoints, too.
    let source = match resolved.source {
        Source::Local => Source::CustomResource,
        source => source,
    };
    let source = pod.as_ref().map(|_| source.as_str().to_owned());
    let (name, namespace) = pod.unwrap_or_default();
    Some(IpListEntry {
        cidr: row.prefix.net().to_string(),
        encrypt_key: resolved.encrypt_key,
        host_ip: resolved
            .tunnel_peer
            .or(host)
            .map(|node| node.to_string())
            .unwrap_or_default(),
        identity: resolved.identity.get(),
        metadata: IpListEntryMetadata {
            name,
            namespace,
            source: source.unwrap_or_default(),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use serde_json::{Value, json};
    use skep_base_settings::NodeName;
    use skep_k8s_types::slim::NodeAddressType;

    use super::*;
    use crate::{Claim, Owner, PodMetadata, ResourceId, Writer};

    async fn ask(writer: &Writer, cidr: Option<&str>) -> (u16, Value) {
        ask_on(writer, None, cidr).await
    }

    async fn ask_on(writer: &Writer, local: Option<LocalNodeStore>, cidr: Option<&str>) -> (u16, Value) {
        let state = Ipcache {
            db: writer.db().clone(),
            table: writer.table(),
            local,
        };
        let filter = Filter {
            cidr: cidr.map(str::to_owned),
        };
        let answer = list(State(state), Query(filter), None, HeaderMap::new(), Bytes::new()).await;
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX)
            .await
            .unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn entries_are_listed_and_found_by_address_and_network() {
        let writer = Writer::with_table(&Db::new()).unwrap();
        let owner = |source| Owner::new(source, ResourceId::new("test", "", "a"));
        let number = |source, identity| Claim::identity(owner(source), NumericIdentity::new(identity));
        let pod = PodMetadata {
            namespace: "shop".into(),
            name: "cart-0".into(),
            ..PodMetadata::default()
        };
        let node: IpAddr = "192.168.5.12".parse().unwrap();
        let mut txn = writer.write();
        for (prefix, claim) in [
            ("0.0.0.0/0", number(Source::Local, 2)),
            ("10.0.2.8/32", number(Source::Generated, 3)),
            (
                "10.0.2.8",
                number(Source::ClusterMesh, 52_311)
                    .tunnel_peer(node)
                    .encrypt_key(3)
                    .pod(Arc::new(pod)),
            ),
        ] {
            writer.upsert(&mut txn, prefix.parse().unwrap(), claim).unwrap();
        }
        txn.commit();
        let world = json!({"cidr": "0.0.0.0/0", "identity": 2});
        let cart = json!({
            "cidr": "10.0.2.8/32", "encryptKey": 3, "hostIP": "192.168.5.12", "identity": 52_311,
            "metadata": {"name": "cart-0", "namespace": "shop", "source": "clustermesh"},
        });

        assert_eq!(ask(&writer, None).await, (200, json!([world, cart])));
        assert_eq!(ask(&writer, Some("10.0.2.8")).await, (200, json!([cart])));
        assert_eq!(ask(&writer, Some("10.0.2.8/32")).await, (200, json!([cart])));
        assert_eq!(ask(&writer, Some("10.0.0.0/8")).await, (200, json!([cart])));
        assert_eq!(ask(&writer, Some("0.0.0.0/0")).await, (200, json!([world, cart])));
        assert_eq!(ask(&writer, Some("10.0.2.9")).await, (404, Value::Null));
        assert_eq!(
            ask(&writer, Some("x")).await,
            (
                400,
                json!("`x` is no address or network: invalid IP address syntax")
            )
        );
    }

    #[tokio::test]
    async fn pods_and_routers_of_this_node_are_hosted_by_it() {
        let writer = Writer::with_table(&Db::new()).unwrap();
        let local = LocalNodeStore::new(writer.db(), &NodeName::new("n1")).unwrap();
        let own = [
            (NodeAddressType::InternalIp, "172.30.40.1"),
            (NodeAddressType::CiliumInternalIp, "10.1.0.3"),
        ];
        local
            .update(|node| node.addresses = own.map(|(kind, ip)| (kind, ip.parse().unwrap())).into())
            .unwrap();
        let mut txn = writer.write();
        for (prefix, identity) in [
            ("10.1.0.3", 1),
            ("10.1.0.8", 300),
            ("172.30.40.1", 1),
            ("0.0.0.0/0", 2),
        ] {
            let owner = Owner::new(Source::Local, ResourceId::new("test", "", prefix));
            let claim = Claim::identity(owner, NumericIdentity::new(identity));
            writer.upsert(&mut txn, prefix.parse().unwrap(), claim).unwrap();
        }
        txn.commit();

        let (_, found) = ask_on(&writer, Some(local), None).await;

        let hosted = found.as_array().unwrap().iter();
        let hosted: Vec<_> = hosted
            .filter(|entry| entry["hostIP"] == "172.30.40.1")
            .map(|entry| &entry["cidr"])
            .collect();
        assert_eq!(hosted, ["10.1.0.3/32", "10.1.0.8/32"]);
    }
}
