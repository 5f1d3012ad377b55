// SPDX-License-Identifier: Apache-2.0

//! What is known of a remote cluster, for status, waits and metrics.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use parking_lot::Mutex;
use skep_base_api_types::{RemoteClusterConfig, RemoteClusterStatus, RemoteClusterSynced};
use skep_clustermesh_types::{CiliumClusterConfig, ClusterName, Kind};
use skep_kvstore_client::{Client, Connection};
use skep_kvstore_store::WatchStoreStatus;
use tokio::sync::watch;

use crate::error::RemoteError;

/// What is known of a remote cluster.
#[derive(Debug)]
pub(crate) struct RemoteState {
    pub(crate) name: ClusterName,
    kinds: BTreeSet<Kind>,
    known: Mutex<Known>,
    /// Kinds that were complete once, or that the cluster does not publish. `None` when the cluster is removed.
    synced: watch::Sender<Option<BTreeSet<Kind>>>,
}

#[derive(Debug, Default)]
struct Known {
    client: Option<Client>,
    /// The configuration, as long as the cluster is connected; the outer one is whether it was looked for.
    config: Option<Option<CiliumClusterConfig>>,
    /// Why it could not be read the last time.
    config_error: Option<RemoteError>,
    failures: u64,
    last_failure: Option<Timestamp>,
    last_error: Option<RemoteError>,
    stores: BTreeMap<Kind, StoreState>,
}

#[derive(Clone, Debug)]
struct StoreState {
    status: WatchStoreStatus,
    is_enabled: bool,
}

impl RemoteState {
    pub(crate) fn new(name: ClusterName, kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self {
            name,
            kinds: kinds.into_iter().collect(),
            known: Mutex::default(),
            synced: watch::Sender::new(Some(BTreeSet::new())),
        }
    }

    pub(crate) fn add_store(&self, kind: Kind, status: WatchStoreStatus) {
        let state = StoreState {
            status,
            is_enabled: true,
        };
        self.known.lock().stores.insert(kind, state);
    }

    pub(crate) fn connecting(&self, client: Client) {
        let mut known = self.known.lock();
        known.client = Some(client);
        known.config = None;
        known.config_error = None;
        // A client is made of a file that makes sense.
        known
            .last_error
            .take_if(|error| matches!(error, RemoteError::File { .. }));
    }

    /// The configuration of the cluster was read.
    pub(crate) fn configured(&self, config: CiliumClusterConfig) {
        let mut known = self.known.lock();
        known.config = Some(Some(config));
        known.config_error = None;
    }

    /// The configuration of the cluster could not be read. Returns whether that is for another reason than the last time.
    pub(crate) fn not_configured(&self, error: &RemoteError) -> bool {
        let mut known = self.known.lock();
        if !matches!(error, RemoteError::ReadConfig { .. }) {
            known.config = Some(None);
        }
        let text = |error: &RemoteError| hive::error_chain(error);
        let last = known.config_error.replace(error.clone());
        last.is_none_or(|last| text(&last) != text(error))
    }

    pub(crate) fn disconnected(&self) {
        let mut known = self.known.lock();
        known.client = None;
        known.config = None;
        known.config_error = None;
    }

    /// The connection failed. Returns how often it did.
    pub(crate) fn failed(&self, error: RemoteError) -> u64 {
        let mut known = self.known.lock();
        known.failures += 1;
        known.last_failure = Some(Timestamp::now());
        known.last_error = Some(error);
        known.failures
    }

    pub(crate) fn recovered(&self) {
        self.known.lock().last_error = None;
    }

    /// Whether the last connection failed, and none was made since.
    pub(crate) fn has_failed(&self) -> bool {
        self.known.lock().last_error.is_some()
    }

    /// Whether the cluster publishes a kind. What it does not publish counts as complete.
    pub(crate) fn set_enabled(&self, kind: Kind, is_enabled: bool) {
        if let Some(store) = self.known.lock().stores.get_mut(&kind) {
            store.is_enabled = is_enabled;
        }
        if !is_enabled {
            self.synced(kind);
        }
    }

    /// A kind is complete for the first time.
    pub(crate) fn synced(&self, kind: Kind) {
        self.synced
            .send_if_modified(|kinds| kinds.as_mut().is_some_and(|kinds| kinds.insert(kind)));
    }

    /// The cluster is removed: no wait includes it any longer.
    pub(crate) fn removed(&self) {
        self.synced.send_replace(None);
    }

    /// The cluster is configured again, before its removal was over.
    pub(crate) fn renewed(&self) {
        self.synced.send_replace(Some(BTreeSet::new()));
    }

    /// Which of these kinds were never complete.
    pub(crate) fn missing(&self, kinds: &[Kind]) -> Vec<Kind> {
        let synced = self.synced.borrow();
        let is_missing = |kind: &Kind| synced.as_ref().is_some_and(|synced| !synced.contains(kind));
        let missing = kinds
            .iter()
            .filter(|kind| self.kinds.contains(kind) && is_missing(kind));
        missing.copied().collect()
    }

    /// Waits until these kinds were complete once, or the cluster is removed. Kinds that nothing reads are complete.
    pub(crate) async fn wait_synced(&self, kinds: &[Kind]) {
        let mut changes = self.synced.subscribe();
        while !self.missing(kinds).is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// How many values of a kind there are.
    pub(crate) fn entries(&self, kind: Kind) -> usize {
        let known = self.known.lock();
        known.stores.get(&kind).map_or(0, |store| store.status.entries())
    }

    pub(crate) fn status(&self) -> RemoteClusterStatus {
        let known = self.known.lock();
        let count = |kind| {
            known
                .stores
                .get(&kind)
                .map_or(0, |store| store.status.entries() as u64)
        };
        let config = known.config.clone().flatten();
        // What nothing here reads is not missing; what the cluster does not publish is, as long as that is not known.
        let synced = |kind| match known.stores.get(&kind) {
            None => !self.kinds.contains(&kind),
            Some(store) if store.is_enabled => store.status.is_synced(),
            Some(_) => config.is_some(),
        };
        let optional = |kind| self.kinds.contains(&kind).then(|| synced(kind));
        let status = known.client.as_ref().map(Client::status);
        let connected = status
            .as_ref()
            .is_some_and(|status| matches!(status.connection, Connection::Connected));
        let is_healthy = status
            .as_ref()
            .is_some_and(skep_kvstore_client::Status::is_healthy);
        let is_synced = self.kinds.iter().all(|kind| synced(*kind));
        let last_error = known.last_error.as_ref().map(|error| hive::error_chain(error));
        let text = match &status {
            Some(status) if connected => status.to_string(),
            _ => "Waiting for initial connection to be established".to_owned(),
        };
        // The newest one. Cilium's model has no member for it.
        let connecting = status.and_then(|status| match status.connection {
            Connection::Connecting(error) => error.map(|error| hive::error_chain(&error)),
            _ => None,
        });
        // With why the connection before has ended: another store may lack the configuration.
        let unreadable = known.config_error.as_ref().map(|error| hive::error_chain(error));
        let unreadable = unreadable.map(|error| match &last_error {
            Some(last) if *last != error => format!("{error}; last failure: {last}"),
            _ => error,
        });
        let reason = connecting.or(unreadable).or_else(|| last_error.clone());
        let text = match reason {
            Some(reason) => format!("{text}: {reason}"),
            None => text,
        };
        RemoteClusterStatus {
            name: self.name.to_string(),
            ready: is_healthy && config.is_some() && is_synced,
            connected,
            status: text,
            num_nodes: count(Kind::Nodes),
            num_endpoints: count(Kind::Ips),
            num_identities: count(Kind::Identities),
            num_shared_services: count(Kind::Services),
            num_endpoint_slices: count(Kind::EndpointSlices),
            num_service_exports: count(Kind::ServiceExports),
            num_failures: known.failures,
            last_failure: known.last_failure,
            last_error,
            config: known.config.as_ref().map(|config| config_status(config.as_ref())),
            synced: RemoteClusterSynced {
                nodes: synced(Kind::Nodes),
                endpoints: synced(Kind::Ips),
                identities: synced(Kind::Identities),
                services: synced(Kind::Services),
                endpoint_slices: optional(Kind::EndpointSlices),
                service_exports: optional(Kind::ServiceExports),
            },
        }
    }
}

/// The configuration of a cluster that was asked for it.
fn config_status(config: Option<&CiliumClusterConfig>) -> RemoteClusterConfig {
    let required = RemoteClusterConfig {
        required: true,
        ..RemoteClusterConfig::default()
    };
    let Some(config) = config else {
        return required;
    };
    let capabilities = &config.capabilities;
    RemoteClusterConfig {
        retrieved: true,
        cluster_id: config.id,
        kvstoremesh: capabilities.cached,
        sync_canaries: capabilities.synced_canaries,
        service_exports_enabled: capabilities.service_exports_enabled,
        endpoint_slices_export_mode: capabilities.endpoint_slices_export_mode.as_str().to_owned(),
        ..required
    }
}
