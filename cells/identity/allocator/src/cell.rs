// SPDX-License-Identifier: Apache-2.0

//! Cell: allocation of security identities.
//! Requires: table `identities`, the local node, the settings of identities and of the cluster, clients of the key-value store
//! and, optionally, of Kubernetes. Provides: [`Allocator`].

use std::sync::Arc;

use hive::{Cell, Cfg, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::AddressFamilies;
use skep_base_settings::cluster::ClusterSettings;
use skep_base_settings::identity::{AllocationMode, IdentityConfig, ManagementMode};
use skep_identity::{IdentityRange, RangeError};
use skep_identity_cache::{LocalIdentities, SecurityIdentity, Writer};
use skep_identity_kvstore::AllocatorOptions;
use skep_k8s_client::Client as KubernetesClient;
use skep_kvstore_client::Client;
use skep_node_local::LocalNodeStore;
use statedb::{Db, Table};

use crate::allocator::Allocator;
use crate::config::Config;
use crate::fixed::{FixedIdentities, FixedIdentityError};
use crate::kvstore::KeyIdentities;
use crate::objects::{IdentityObjects, ObjectOptions};
use crate::store::{BothStores, IdentityStore};

/// Namespace of the agents, unless `k8s-namespace` says otherwise.
const AGENTS: &str = "kube-system";

#[must_use]
pub fn cell() -> Cell {
    Cell::module("identity-allocator", "Allocation of security identities")
        .config::<Config>()
        .provide_private(stores)
        .provide(allocator)
        .run(start)
        .library() // other cells allocate
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("identities of the cluster")]
    Range(#[from] RangeError),
    #[error("fixed identities")]
    Fixed(#[from] FixedIdentityError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// The stores that the allocation mode requires and a client is there for.
#[derive(Clone, Default, hive::Value)]
struct Stores {
    objects: Option<Arc<IdentityObjects>>,
    keys: Option<Arc<KeyIdentities>>,
}

#[derive(Params)]
struct StoreParams {
    config: Cfg<Config>,
    identities: Cfg<IdentityConfig>,
    cluster: Cfg<ClusterSettings>,
    db: Db,
    table: Table<SecurityIdentity>,
    kubernetes: Option<Arc<dyn KubernetesClient>>,
    kvstore: Client,
}

fn stores(params: StoreParams) -> Result<Stores, StartError> {
    let StoreParams {
        config,
        identities,
        cluster,
        db,
        table,
        kubernetes,
        kvstore,
    } = params;
    let mode = identities.identity_allocation_mode;
    let cluster = cluster.info();
    let options = ObjectOptions {
        range: IdentityRange::of_cluster(cluster.id, cluster.max_connected_clusters)?,
        creates: identities.identity_management_mode != ManagementMode::Operator,
        is_read: mode.reads_objects(),
        refresh_interval: config.identity_allocation_sync_interval,
    };
    let client = kubernetes.filter(|client| client.is_enabled() && mode.uses_objects());
    let uses_keys = kvstore.is_enabled() && mode.uses_kvstore();
    Ok(Stores {
        objects: client.map(|client| Arc::new(IdentityObjects::new(client, db, table, options))),
        keys: uses_keys.then(|| Arc::new(KeyIdentities::new(kvstore))),
    })
}

impl Stores {
    fn store(&self, mode: AllocationMode) -> Option<Arc<dyn IdentityStore>> {
        let objects = self.objects.clone().map(|store| store as Arc<dyn IdentityStore>);
        let keys = self.keys.clone().map(|store| store as Arc<dyn IdentityStore>);
        let (read, copy) = match mode.reads_objects() {
            true => (objects?, keys),
            false => (keys?, objects),
        };
        Some(match copy {
            Some(copy) => Arc::new(BothStores { read, copy }),
            None => read,
        })
    }
}

fn allocator(
    config: Cfg<Config>,
    identities: Cfg<IdentityConfig>,
    cluster: Cfg<ClusterSettings>,
    local: LocalIdentities,
    cache: Writer,
    stores: Stores,
) -> Result<Allocator, StartError> {
    let mut fixed = FixedIdentities::new(&config.fixed_identity_mapping)?;
    if config.enable_well_known_identities {
        fixed = fixed.well_known(&cluster.cluster_name, AGENTS);
    }
    cache.insert_reserved(fixed.all_well_known())?;
    let store = stores.store(identities.identity_allocation_mode);
    Ok(Allocator::new(
        fixed,
        local,
        store,
        config.identity_allocation_timeout,
    ))
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    cluster: Cfg<ClusterSettings>,
    families: Cfg<AddressFamilies>,
    db: Db,
    node: LocalNodeStore,
    stores: Stores,
    jobs: Jobs,
}

/// The key-value store, and what its keys have of this node.
struct Keys {
    store: Arc<KeyIdentities>,
    config: Cfg<Config>,
    cluster: Cfg<ClusterSettings>,
    range: IdentityRange,
    ipv4: bool,
    db: Db,
    node: LocalNodeStore,
}

fn start(params: StartParams) -> Result<(), StartError> {
    if let Some(objects) = params.stores.objects {
        params
            .jobs
            .keep("create-ciliumidentities", objects, keep_objects)?;
    }
    if let Some(store) = params.stores.keys {
        let cluster = params.cluster.info();
        let keys = Keys {
            store,
            range: IdentityRange::of_cluster(cluster.id, cluster.max_connected_clusters)?,
            config: params.config,
            cluster: params.cluster,
            ipv4: params.families.ipv4,
            db: params.db,
            node: params.node,
        };
        params.jobs.keep("keep-keys", keys, Keys::run)?;
    }
    Ok(())
}

async fn keep_objects(objects: &IdentityObjects, cx: &JobCtx) -> Result<(), StartError> {
    objects.run(cx).await;
    Ok(())
}

impl Keys {
    async fn run(&self, cx: &JobCtx) -> Result<(), StartError> {
        self.store.run(|| self.options(), cx).await;
        Ok(())
    }

    /// Waits for the address of the node, which ends its keys.
    async fn options(&self) -> AllocatorOptions {
        let table = self.node.table();
        let node = loop {
            let changed = table.table_watch(&self.db.read());
            let node = self.node.get();
            if let Some(address) = node.and_then(|node| node.node_ip(self.ipv4).or(node.node_ip(!self.ipv4)))
            {
                break address.to_string();
            }
            changed.closed().await;
        };
        let mut options = AllocatorOptions::new(&*self.cluster.cluster_name, node, self.range);
        options.refresh_interval = self.config.identity_allocation_sync_interval;
        options
    }
}
