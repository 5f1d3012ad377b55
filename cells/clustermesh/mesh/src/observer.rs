// SPDX-License-Identifier: Apache-2.0

//! Observers: what becomes of the values of remote clusters.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skep_clustermesh_types::{
    Capabilities, ClusterEndpointSlice, ClusterName, ClusterService, Identity, IpIdentityPair, Kind, Node,
    RemoteInfo, ServiceExport, ValueError,
};
use skep_kvstore_client::{Client, Key};
use skep_kvstore_store::{Decoder, InvalidEntry, Observer, WatchStore, WatchStoreOptions, WatchStoreStatus};

/// A kind of values of remote clusters that this program reads. Cells add theirs as `Member<Arc<dyn MeshObserver>>`, one
/// for each kind. Most are made by [`observe`].
pub trait MeshObserver: fmt::Debug + Send + Sync {
    fn kind(&self) -> Kind;

    /// Whether a cluster publishes the kind. If not, what was read of it before is deleted, and it counts as synced.
    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        is_published(self.kind(), capabilities)
    }

    /// What holds the values of one remote cluster. It lives as long as the cluster is configured.
    fn store(&self, context: StoreContext) -> Box<dyn RemoteStore>;

    /// Waits until everything that was observed up to now has taken effect.
    fn flushed(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Whether a cluster publishes a kind.
fn is_published(kind: Kind, capabilities: &Capabilities) -> bool {
    match kind {
        Kind::Nodes | Kind::Ips | Kind::Identities => true,
        Kind::Services => capabilities.endpoint_slices_export_mode.has_services(),
        Kind::EndpointSlices => capabilities.endpoint_slices_export_mode.has_endpoint_slices(),
        Kind::ServiceExports => capabilities.service_exports_enabled.is_some(),
    }
}

/// What a store needs to know.
#[derive(Debug)]
pub struct StoreContext {
    pub cluster: ClusterName,
    pub options: WatchStoreOptions,
    /// To be called when the first list is complete.
    pub synced: SyncedCallback,
}

/// Called when the first list of a store is complete.
pub struct SyncedCallback(pub(crate) Box<dyn FnOnce() + Send>);

impl SyncedCallback {
    pub fn call(self) {
        (self.0)();
    }
}

impl fmt::Debug for SyncedCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncedCallback")
    }
}

/// Holds the values of one kind of one remote cluster.
pub trait RemoteStore: Send {
    /// Says what the values are checked against, before a watch.
    fn configure(&mut self, remote: &RemoteInfo);

    /// Keeps the values in step with a prefix. Never returns: it ends by being dropped. Values stay then.
    fn watch<'a>(&'a mut self, client: &'a Client, prefix: &'a str) -> BoxFuture<'a, ()>;

    fn drain(&mut self);

    /// The cluster does not publish the kind: deletes all values, and counts as synced.
    fn disable(&mut self) {
        self.drain();
    }

    fn status(&self) -> WatchStoreStatus;
}

pub trait RemoteValue: Sized + Send + Sync + 'static {
    const KIND: Kind;

    /// Reads and checks a value. `name` is the key below the prefix of the cluster.
    ///
    /// # Errors
    ///
    /// If the value is invalid, or is not the cluster's.
    fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError>;
}

macro_rules! remote_values {
    ($($value:ident: $kind:ident, $decode:ident;)*) => { $(
        impl RemoteValue for $value {
            const KIND: Kind = Kind::$kind;

            fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
                $value::$decode(remote, name, value)
            }
        }
    )* };
}

remote_values! {
    Node: Nodes, decode;
    ClusterService: Services, decode;
    ClusterEndpointSlice: EndpointSlices, decode_value;
    IpIdentityPair: Ips, decode;
    Identity: Identities, decode;
    ServiceExport: ServiceExports, decode;
}

/// Observes values of all remote clusters, such as those of nodes. All methods return at once: the cluster's connection
/// waits for them. Clusters call at the same time.
pub trait ValueObserver<V>: Send + Sync + 'static {
    /// A value is new or may have changed. `name` is its key below the prefix of the cluster.
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, value: &Arc<V>);

    /// A value that was reported is gone. The store does not keep values: of 100,000 addresses they were a quarter of the
    /// agent's memory. What they are about follows from the name, which they were checked against.
    fn delete(&self, cluster: &RemoteInfo, name: &Key);

    /// All values that a cluster had at first were reported. Comes once as long as the cluster is configured.
    fn synced(&self, cluster: &ClusterName) {
        let _ = cluster;
    }

    /// Whether a cluster publishes what is observed: [`MeshObserver::is_enabled`].
    fn is_enabled(&self, capabilities: &Capabilities) -> bool
    where
        V: RemoteValue,
    {
        is_published(V::KIND, capabilities)
    }

    /// Waits until everything that was observed up to now has taken effect.
    fn flushed(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Reads the values of a kind for an observer.
pub fn observe<V: RemoteValue>(observer: Arc<dyn ValueObserver<V>>) -> Arc<dyn MeshObserver> {
    Arc::new(Observed { observer })
}

struct Observed<V> {
    observer: Arc<dyn ValueObserver<V>>,
}

impl<V: RemoteValue> fmt::Debug for Observed<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observed({})", V::KIND)
    }
}

impl<V: RemoteValue> MeshObserver for Observed<V> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        self.observer.is_enabled(capabilities)
    }

    fn store(&self, context: StoreContext) -> Box<dyn RemoteStore> {
        let observer = OfCluster {
            cluster: context.cluster,
            observer: self.observer.clone(),
            synced: Some(context.synced),
        };
        Box::new(WatchStore::new(
            Checked::<V>(None, PhantomData),
            observer,
            context.options,
        ))
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        self.observer.flushed()
    }
}

/// Decodes the values of a remote cluster.
struct Checked<V>(Option<Arc<RemoteInfo>>, PhantomData<fn() -> V>);

/// A value with the cluster that it is of.
struct OfRemote<V> {
    remote: Arc<RemoteInfo>,
    value: Arc<V>,
}

/// The cluster of a value as it was when the value was read: it is deleted as the same.
struct ReadFrom(Arc<RemoteInfo>);

impl<V> From<Arc<OfRemote<V>>> for ReadFrom {
    fn from(value: Arc<OfRemote<V>>) -> Self {
        Self(value.remote.clone())
    }
}

/// Why a value is not used.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The store is watched before it was configured: an error of this crate.
    #[error("the configuration of the cluster is not known")]
    NotConfigured,
}

impl<V: RemoteValue> Decoder for Checked<V> {
    type Key = Key;
    type Value = OfRemote<V>;
    type Kept = ReadFrom;
    type Error = CheckError;

    fn decode(&self, name: &Key, value: &Bytes) -> Result<(Key, OfRemote<V>), CheckError> {
        let remote = self.0.clone().ok_or(CheckError::NotConfigured)?;
        let value = Arc::new(V::decode(&remote, name, value)?);
        Ok((name.clone(), OfRemote { remote, value }))
    }
}

struct OfCluster<V> {
    cluster: ClusterName,
    observer: Arc<dyn ValueObserver<V>>,
    synced: Option<SyncedCallback>,
}

impl<V: RemoteValue> Observer<Key, OfRemote<V>, ReadFrom> for OfCluster<V> {
    fn upsert(&mut self, key: &Key, value: &Arc<OfRemote<V>>) {
        self.observer.upsert(&value.remote, key, &value.value);
    }

    fn delete(&mut self, key: &Key, ReadFrom(remote): &ReadFrom) {
        self.observer.delete(remote, key);
    }

    fn synced(&mut self) {
        self.observer.synced(&self.cluster);
        if let Some(synced) = self.synced.take() {
            synced.call();
        }
    }

    fn invalid(&mut self, _entry: &InvalidEntry) {}
}

impl<V: RemoteValue> RemoteStore for WatchStore<Checked<V>, OfCluster<V>> {
    fn configure(&mut self, remote: &RemoteInfo) {
        let decoder = self.decoder_mut();
        if decoder.0.as_deref() != Some(remote) {
            decoder.0 = Some(Arc::new(remote.clone()));
        }
    }

    fn watch<'a>(&'a mut self, client: &'a Client, prefix: &'a str) -> BoxFuture<'a, ()> {
        WatchStore::watch(self, client, prefix).boxed()
    }

    fn drain(&mut self) {
        WatchStore::drain(self);
    }

    fn status(&self) -> WatchStoreStatus {
        WatchStore::status(self)
    }
}

#[cfg(test)]
mod tests {
    use skep_clustermesh_types::EndpointSlicesExportMode;

    use super::*;

    #[test]
    fn clusters_publish_what_their_capabilities_say() {
        let published = |mode: EndpointSlicesExportMode, exports| {
            let capabilities = Capabilities {
                endpoint_slices_export_mode: mode,
                service_exports_enabled: exports,
                ..Capabilities::default()
            };
            let kinds = Kind::ALL
                .into_iter()
                .filter(|kind| is_published(*kind, &capabilities));
            kinds.map(Kind::as_str).collect::<Vec<_>>().join(" ")
        };

        use EndpointSlicesExportMode::{EndpointSlicesOnly, ServicesAndEndpointSlices, ServicesOnly};
        assert_eq!(published(ServicesOnly, None), "nodes services ip identities");
        assert_eq!(
            published(ServicesAndEndpointSlices, Some(false)),
            "nodes services endpointslices ip identities serviceexports"
        );
        assert_eq!(
            published(EndpointSlicesOnly, Some(true)),
            "nodes endpointslices ip identities serviceexports"
        );
    }
}
