// SPDX-License-Identifier: Apache-2.0

//! Endpoints of service `default/kubernetes` → where the API server is.
//!
//! A node that runs it gets identity 7 in place of 6, and this node stays the host. An API server outside of the cluster has
//! an identity of this node.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use hive::{Jobs, SpawnError};
use skep_identity::Reserved;
use skep_ipcache::{Claim, Owner, Prefix, Published, ResourceId, Source, SourceGuard, Writer};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{Feed, Rejected, Sink, State};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::EndpointSlice;
use statedb::WriteTxn;

/// Namespace and name of the service that every cluster has for its API server.
const SERVICE: (&str, &str) = ("default", "kubernetes");

/// Label of slices with the name of their service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Claims the addresses of the API server.
pub(crate) struct ApiServers {
    ipcache: Writer,
    guard: SourceGuard,
    slices: HashMap<ObjectKey, Vec<IpAddr>>,
    published: Published,
}

impl ApiServers {
    /// Forgets the claims of an earlier run.
    pub(crate) fn new(ipcache: Writer, guard: SourceGuard) -> Result<Self, statedb::Error> {
        let mut txn = ipcache.write();
        ipcache.delete_owned(&mut txn, |owner| *owner == Self::owner(), |_| false)?;
        txn.commit();
        Ok(Self {
            ipcache,
            guard,
            slices: HashMap::new(),
            published: Published::default(),
        })
    }

    pub(crate) fn spawn(self, client: Arc<dyn Client>, jobs: &Jobs) -> Result<(), SpawnError> {
        let (namespace, name) = SERVICE;
        let selector = format!("{SERVICE_LABEL}={name}").parse();
        let api = Api::<EndpointSlice>::namespaced(client, namespace)
            .labels(selector.expect("label and name are valid"));
        Feed::new("watch-kube-apiserver", Arc::new(api), self).spawn(jobs)
    }

    fn owner() -> Owner {
        let (namespace, name) = SERVICE;
        Owner::new(Source::KubeApiserver, ResourceId::new("ep", namespace, name))
    }
}

impl Sink<EndpointSlice> for ApiServers {
    fn write(&mut self) -> WriteTxn {
        self.ipcache.write()
    }

    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, EndpointSlice>,
    ) -> Result<Option<Rejected>, statedb::Error> {
        self.slices.remove(key);
        if let State::Applied(slice) = state {
            self.slices.insert(key.clone(), addresses(slice));
        }
        let mut addresses: Vec<IpAddr> = self.slices.values().flatten().copied().collect();
        addresses.sort();
        addresses.dedup();
        let claims = addresses.into_iter().map(|address| {
            let claim = Claim::labels(Self::owner(), Reserved::KubeApiserver);
            (Prefix::from(address), claim)
        });
        self.published.replace(&self.ipcache, txn, claims.collect())?;
        Ok(None)
    }

    fn objects(&self) -> Vec<ObjectKey> {
        self.slices.keys().cloned().collect()
    }

    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        self.guard.done(txn)
    }

    fn summary(&self) -> String {
        format!("{} slices", self.slices.len())
    }
}

/// The addresses of a slice of the service.
fn addresses(slice: &EndpointSlice) -> Vec<IpAddr> {
    if slice.service_name() != Some(SERVICE.1) {
        return Vec::new();
    }
    let texts = slice
        .endpoints
        .iter()
        .flat_map(|endpoint| endpoint.addresses.iter());
    // A slice of names has no addresses.
    texts.filter_map(|text| text.parse().ok()).collect()
}
