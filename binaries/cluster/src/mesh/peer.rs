// SPDX-License-Identifier: Apache-2.0

//! A cluster of a mesh: its name, how others reach it, its authority.

use std::{error::Error, net::ToSocketAddrs as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use x509_parser::{extensions::ParsedExtension, pem::Pem};

use crate::{
    access::{Access, text},
    chart::Helm,
    failure,
};

/// A cluster.
pub(super) struct Peer {
    pub(super) access: Access,
    pub(super) name: String,
    pub(super) id: u32,
    pub(super) max: u32,
    pub(super) addresses: Vec<String>,
    pub(super) port: u16,
    /// Certificate, PEM.
    pub(super) authority: String,
    /// Its key.
    pub(super) key_id: String,
    routing: String,
}

impl Peer {
    /// Name and ids only.
    pub(super) async fn named(access: Access) -> Result<Self, Box<dyn Error>> {
        let settings = access.settings().await?;
        if settings.0.is_null() {
            return Err(failure(format!(
                "context `{}`: Skep is not installed in namespace {}",
                access.context,
                access.namespace()
            )));
        }
        let number = |key: &str, default| settings.text(key).parse().unwrap_or(default);
        let routing = match settings.text("routing-mode") {
            "native" => "native routing".to_owned(),
            _ => format!("tunnel {}", settings.text("tunnel-protocol")),
        };
        Ok(Self {
            name: settings.text("cluster-name").to_owned(),
            id: number("cluster-id", 0),
            max: number("max-connected-clusters", 255),
            addresses: Vec::new(),
            port: 0,
            authority: String::new(),
            key_id: String::new(),
            routing,
            access,
        })
    }

    /// All of it; `endpoints`, IP:PORT, instead of the Service.
    pub(super) async fn read(access: Access, endpoints: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut peer = Self::named(access).await?;
        eprintln!("✨ Extracting access information of cluster {}...", peer.name);
        match endpoints {
            [] => peer.read_service().await?,
            endpoints => {
                for endpoint in endpoints {
                    let (address, port) = endpoint
                        .rsplit_once(':')
                        .ok_or_else(|| failure(format!("endpoint `{endpoint}` is not IP:PORT")))?;
                    let port: u16 = port
                        .parse()
                        .map_err(|_| failure(format!("endpoint `{endpoint}` is not IP:PORT")))?;
                    if !peer.addresses.is_empty() && peer.port != port {
                        return Err(failure("all endpoints of a cluster must have the same port"));
                    }
                    peer.port = port;
                    peer.addresses.push(address.trim_matches(['[', ']']).to_owned());
                }
            }
        }
        eprintln!("🔑 Extracting secrets from cluster {}...", peer.name);
        peer.read_authority().await?;
        eprintln!(
            "ℹ️  Found ClusterMesh service IPs: [{}]",
            peer.addresses.join(" ")
        );
        Ok(peer)
    }

    async fn read_service(&mut self) -> Result<(), Box<dyn Error>> {
        let access = &self.access;
        let found = access.get(&access.core("services/clustermesh-apiserver")).await?;
        let service = found.ok_or_else(|| {
            failure(format!(
                "cluster {} has no Service clustermesh-apiserver: run `skep clustermesh enable --context {}`",
                self.name, access.context
            ))
        })?;
        let port = |field: &str| {
            let port = service
                .pointer("/spec/ports/0")
                .and_then(|port| port[field].as_u64());
            port.and_then(|port| u16::try_from(port).ok()).unwrap_or_default()
        };
        let kind = text(&service, "/spec/type");
        match kind {
            "NodePort" => {
                println!(
                    "⚠️  Service type NodePort detected! Service may fail when nodes are removed from the cluster!"
                );
                self.port = port("nodePort");
                let nodes = access.list("/api/v1/nodes").await?;
                let address = nodes.iter().find_map(|node| {
                    let all = node["status"]["addresses"].as_array()?;
                    let internal = all.iter().find(|one| text(one, "/type") == "InternalIP")?;
                    Some(text(internal, "/address").to_owned())
                });
                self.addresses.extend(address);
            }
            "LoadBalancer" => {
                self.port = port("port");
                let ingress = service
                    .pointer("/status/loadBalancer/ingress")
                    .and_then(Value::as_array);
                for one in ingress.into_iter().flatten() {
                    match (text(one, "/ip"), text(one, "/hostname")) {
                        ("", "") => {}
                        ("", host) => {
                            let resolved = (host, self.port).to_socket_addrs();
                            let resolved = resolved.map_err(|error| failure(format!("{host}: {error}")))?;
                            self.addresses
                                .extend(resolved.map(|address| address.ip().to_string()));
                        }
                        (address, _) => self.addresses.push(address.to_owned()),
                    }
                }
            }
            _ => {
                self.port = port("port");
                self.addresses.push(text(&service, "/spec/clusterIP").to_owned());
            }
        }
        self.addresses
            .retain(|address| !address.is_empty() && address != "None");
        if self.addresses.is_empty() || self.port == 0 {
            return Err(failure(format!(
                "cluster {}: Service clustermesh-apiserver of type {kind} has no address yet",
                self.name
            )));
        }
        Ok(())
    }

    async fn read_authority(&mut self) -> Result<(), Box<dyn Error>> {
        let access = &self.access;
        let found = access.get(&access.core("secrets/cilium-ca")).await?;
        let secret =
            found.ok_or_else(|| failure(format!("cluster {} has no Secret cilium-ca", self.name)))?;
        let invalid = || {
            failure(format!(
                "cluster {}: ca.crt in Secret cilium-ca is no certificate",
                self.name
            ))
        };
        let bytes = BASE64_STANDARD.decode(text(&secret, "/data/ca.crt"))?;
        self.authority = String::from_utf8(bytes)?;
        let block = Pem::iter_from_buffer(self.authority.as_bytes())
            .next()
            .and_then(Result::ok)
            .ok_or_else(invalid)?;
        let certificate = block.parse_x509().map_err(|_| invalid())?;
        let extension = certificate
            .extensions()
            .iter()
            .find_map(|one| match one.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            });
        // Without an identifier the key itself tells authorities apart.
        let id = extension.unwrap_or_else(|| certificate.public_key().subject_public_key.data.to_vec());
        self.key_id = id
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect::<Vec<_>>()
            .join(":");
        Ok(())
    }

    /// Checks that two clusters can be connected; returns whether their authorities differ.
    pub(super) fn check(&self, other: &Self, allow_mismatch: bool) -> Result<bool, Box<dyn Error>> {
        for peer in [self, other] {
            if peer.name.is_empty() || peer.name == "default" || peer.id == 0 {
                return Err(failure(format!(
                    "cluster `{}` has id {}: set cluster.name and cluster.id (`skep upgrade --set …`), and restart all pods",
                    peer.name, peer.id
                )));
            }
            if peer.id > peer.max {
                return Err(failure(format!(
                    "cluster {}: id {} is above {}",
                    peer.name, peer.id, peer.max
                )));
            }
        }
        if self.name == other.name || self.id == other.id {
            return Err(failure(format!(
                "clusters {} (id {}) and {} (id {}) must have different names and ids",
                self.name, self.id, other.name, other.id
            )));
        }
        if self.max != other.max {
            return Err(failure(format!(
                "clusters {} and {} differ in max-connected-clusters: {} and {}",
                self.name, other.name, self.max, other.max
            )));
        }
        if self.routing != other.routing {
            println!(
                "⚠️  Clusters {} and {} differ in routing: {} and {}",
                self.name, other.name, self.routing, other.routing
            );
        }
        match (self.key_id == other.key_id, allow_mismatch) {
            (true, _) => Ok(false),
            (false, true) => {
                println!(
                    "⚠️ Cilium CA certificates do not match between clusters {} and {}: both are trusted",
                    self.name, other.name
                );
                Ok(true)
            }
            (false, false) => Err(failure(format!(
                "Cilium CA certificates do not match between clusters {} and {}: copy Secret cilium-ca, or use --allow-mismatching-ca",
                self.name, other.name
            ))),
        }
    }

    /// Connections that the release has, by cluster.
    pub(super) fn clusters(&self) -> Result<Value, Box<dyn Error>> {
        let values = Helm::new(&self.access).values()?;
        Ok(by_name(&values["clustermesh"]["config"]["clusters"]))
    }
}

/// `clustermesh.config.clusters` by name: older charts have a list.
fn by_name(clusters: &Value) -> Value {
    match clusters {
        Value::Object(_) => clusters.clone(),
        Value::Array(list) => {
            let mut all = json!({});
            for cluster in list {
                let mut cluster = cluster.clone();
                let name = text(&cluster, "/name").to_owned();
                if let Some(fields) = cluster.as_object_mut() {
                    fields.shift_remove("name");
                }
                all[name] = cluster;
            }
            all
        }
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_clusters_become_maps() {
        assert_eq!(
            by_name(&json!([{ "name": "west", "ips": ["192.0.2.1"], "port": 32379 }])),
            json!({ "west": { "ips": ["192.0.2.1"], "port": 32379 } })
        );
        assert_eq!(by_name(&Value::Null), json!({}));
    }
}
