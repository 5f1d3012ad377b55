// SPDX-License-Identifier: Apache-2.0

//! Addresses of Services by name, for nodes whose resolver does not know the DNS of the cluster: the etcd of kvstoremesh
//! is `clustermesh-apiserver.<namespace>.svc`.
//!
//! Requires: a client of Kubernetes. Provides: `Arc<dyn Resolver>`.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use hive::Cell;
use skep_k8s_client::Client;
use skep_k8s_types::Kind;
use skep_kvstore_etcd::Resolver;

/// Cluster IPs of Services, read when a connection is made.
pub fn cell() -> Cell {
    Cell::module("service-resolver", "Resolves names of Services").provide(resolver)
}

fn resolver(client: Arc<dyn Client>) -> Arc<dyn Resolver> {
    Arc::new(ServiceResolver(client))
}

struct ServiceResolver(Arc<dyn Client>);

impl fmt::Debug for ServiceResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceResolver")
    }
}

/// Namespace and name of `<name>.<namespace>.svc[.<domain>]`.
fn service(host: &str) -> Option<(&str, &str)> {
    let mut labels = host.split('.');
    let (name, namespace) = (labels.next()?, labels.next()?);
    (labels.next()? == "svc").then_some((namespace, name))
}

#[async_trait]
impl Resolver for ServiceResolver {
    async fn resolve(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        let Some((namespace, name)) = service(host) else {
            return Vec::new();
        };
        let found = match self.0.get(&Kind::SERVICE, namespace, name).await {
            Ok(found) => found.to_value(),
            Err(error) => {
                tracing::debug!(host, %error, "Failed to read Service");
                return Vec::new();
            }
        };
        let service = found.unwrap_or_default();
        let addresses = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
        addresses
            .filter_map(|address| address.as_str()?.parse::<IpAddr>().ok())
            .map(|address| SocketAddr::new(address, port))
            .collect()
    }
}

hive::catalogue!(cell);

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skep_k8s_memory::{Gvr, WriteOptions, in_process_client, testing::api_server};

    use super::*;

    #[tokio::test]
    async fn names_of_services_are_their_cluster_ips() {
        let server = api_server();
        let object = json!({"metadata": {"name": "etcd"}, "spec": {"ports": [{"port": 2379}]}});
        let created = server
            .create(
                &Gvr::new("", "v1", "services"),
                "default",
                object,
                &WriteOptions::default(),
            )
            .unwrap();
        let address = created.object["spec"]["clusterIP"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let resolver = resolver(Arc::new(in_process_client(&server)));

        for host in ["etcd.default.svc", "etcd.default.svc.cluster.local"] {
            assert_eq!(
                resolver.resolve(host, 2379).await,
                [SocketAddr::new(address, 2379)]
            );
        }
        for host in ["etcd.default", "other.default.svc", "etcd.example.org"] {
            assert!(resolver.resolve(host, 2379).await.is_empty(), "{host}");
        }
    }
}
