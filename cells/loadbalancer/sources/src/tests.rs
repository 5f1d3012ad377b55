// SPDX-License-Identifier: Apache-2.0

//! What sources write to the tables.

mod file;
mod hive;
mod pods;
mod reflector;
mod slices;

use serde_json::{Value, json};
use skep_k8s_types::slim::{AddressType, Endpoint, EndpointPort, EndpointSlice, Metadata};
use skep_k8s_types::{RawObject, Resource};
use skep_loadbalancer_model::{Tables, Writer, WriterSettings};
use statedb::Db;
use std::sync::Arc;

/// A writer of fresh tables.
pub(super) fn writer() -> Writer {
    let db = Db::new();
    let tables = Tables::new(&db).unwrap();
    Writer::new(db, tables, WriterSettings::default())
}

/// An object as it arrives.
#[track_caller]
pub(super) fn object<T: Resource>(value: Value) -> Arc<T> {
    RawObject::from_value(Arc::new(value)).decode().unwrap()
}

/// A service with one cluster IP and port 80.
pub(super) fn service_json(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    })
}

/// A slice of a service with these addresses and port 8080.
pub(super) fn slice_json(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address]}))
        .collect();
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// Frontends as `address service backends`.
pub(super) fn frontends(writer: &Writer) -> Vec<String> {
    let txn = writer.db().read();
    let table = writer.frontends();
    let text = |row: &skep_loadbalancer_model::Frontend| {
        let backends: Vec<String> = row
            .backends
            .iter()
            .map(|backend| backend.params.address.to_string())
            .collect();
        format!(
            "{} {} [{}]",
            row.address(),
            row.service_name(),
            backends.join(" ")
        )
    };
    table.all(&txn).map(|row| text(row)).collect()
}

/// Names of all services.
pub(super) fn services(writer: &Writer) -> Vec<String> {
    let txn = writer.db().read();
    let table = writer.services();
    table.all(&txn).map(|row| row.name.to_string()).collect()
}

/// Backends as `service address`.
pub(super) fn backends(writer: &Writer) -> Vec<String> {
    let txn = writer.db().read();
    let table = writer.backends();
    table
        .all(&txn)
        .map(|row| format!("{} {}", row.service, row.params.address))
        .collect()
}

/// A slice of service `shop/web`.
pub(super) fn web_slice(
    name: &str,
    endpoints: impl Iterator<Item = Endpoint>,
    port: EndpointPort,
) -> EndpointSlice {
    EndpointSlice {
        metadata: Metadata {
            name: name.into(),
            namespace: "shop".into(),
            labels: [("kubernetes.io/service-name", "web")].into_iter().collect(),
            ..Metadata::default()
        },
        address_type: AddressType::V4,
        endpoints: endpoints.collect(),
        ports: [port].into(),
    }
}
