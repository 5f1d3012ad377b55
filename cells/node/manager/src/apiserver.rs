// SPDX-License-Identifier: Apache-2.0

//! Endpoints of service `default/kubernetes` → where the API server is.
//!
//! A node that runs it gets identity 7 in place of 6, and this node stays the host. An API server outside of the cluster
//! has no entry before its labels have an identity.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use hive::{Job, JobCtx, Jobs, SpawnError};
use skep_identity::Reserved;
use skep_ipcache::{Claim, Owner, Prefix, Published, ResourceId, Source, SourceGuard, Writer};
use skep_k8s_client::{Api, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::slim::{EndpointSlice, Str};

/// Namespace and name of the service that every cluster has for its API server.
const SERVICE: (&str, &str) = ("default", "kubernetes");

/// Label of slices with the name of their service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Claims the addresses of the API server.
pub(crate) struct ApiServers {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) ipcache: Writer,
    pub(crate) guard: SourceGuard,
}

type Slices = BTreeMap<Str, Vec<IpAddr>>;

impl ApiServers {
    pub(crate) fn spawn(self, jobs: &Jobs) -> Result<(), SpawnError> {
        let work = Arc::new(self);
        jobs.spawn(Job::once("watch-kube-apiserver", move |cx: JobCtx| {
            let work = work.clone();
            async move {
                let token = cx.token.clone();
                tokio::select! {
                    () = token.cancelled() => Ok(()),
                    result = work.run(&cx) => result,
                }
            }
        }))
    }

    fn owner() -> Owner {
        let (namespace, name) = SERVICE;
        Owner::new(Source::KubeApiserver, ResourceId::new("ep", namespace, name))
    }

    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let (namespace, name) = SERVICE;
        let selector = format!("{SERVICE_LABEL}={name}").parse();
        let api = Api::<EndpointSlice>::namespaced(self.client.clone(), namespace)
            .labels(selector.expect("label and name are valid"));
        let mut events = watcher(Arc::new(api), Backoff::default());
        let mut slices = Slices::new();
        let mut published = self.forget_earlier_run()?;
        while let Some(event) = events.next().await {
            let mut is_list = false;
            match event {
                WatcherEvent::Replaced { items, invalid } => {
                    slices.retain(|name, _| invalid.iter().any(|error| error.object.name == *name));
                    slices.extend(items.iter().filter_map(addresses));
                    is_list = true;
                    match invalid.first() {
                        None => cx.health.ok("Watching"),
                        Some(error) => cx.health.degraded("A slice is invalid", error),
                    }
                }
                WatcherEvent::Object(ObjectEvent::Applied(slice)) => {
                    slices.remove(&slice.metadata.name);
                    slices.extend(addresses(&slice));
                    cx.health.ok("Watching");
                }
                WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => drop(slices.remove(&key.name)),
                WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
                    cx.health.degraded("A slice is invalid", &error);
                }
                WatcherEvent::Failing(error) => {
                    cx.health
                        .degraded("Waiting for the Kubernetes API server", &*error);
                }
                WatcherEvent::Working => cx.health.ok("Watching"),
                WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
            }
            self.claim(&slices, is_list, &mut published)?;
        }
        Ok(())
    }

    fn forget_earlier_run(&self) -> Result<Published, statedb::Error> {
        let mut txn = self.ipcache.write();
        self.ipcache
            .delete_owned(&mut txn, |owner| *owner == Self::owner(), |_| false)?;
        txn.commit();
        Ok(Published::default())
    }

    fn claim(&self, slices: &Slices, is_list: bool, published: &mut Published) -> Result<(), statedb::Error> {
        let mut addresses: Vec<IpAddr> = slices.values().flatten().copied().collect();
        addresses.sort();
        addresses.dedup();
        let claims = addresses.into_iter().map(|address| {
            let claim = Claim::labels(Self::owner(), Reserved::KubeApiserver);
            (Prefix::from(address), claim)
        });
        let mut txn = self.ipcache.write();
        published.replace(&self.ipcache, &mut txn, claims.collect())?;
        if is_list {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }
}

/// The addresses of a slice of the service.
fn addresses(slice: &Arc<EndpointSlice>) -> Option<(Str, Vec<IpAddr>)> {
    if slice.service_name() != Some(SERVICE.1) {
        return None;
    }
    let texts = slice
        .endpoints
        .iter()
        .flat_map(|endpoint| endpoint.addresses.iter());
    // A slice of names has no addresses.
    let addresses = texts.filter_map(|text| text.parse().ok()).collect();
    Some((slice.metadata.name.clone(), addresses))
}
