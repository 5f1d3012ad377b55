// SPDX-License-Identifier: Apache-2.0

//! Cell: network policies as a table.
//! Requires: optionally a Kubernetes client. Provides: read-only table `network-policies`.

use std::{path::PathBuf, sync::Arc};

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_k8s_client::Client;
use skep_k8s_reflectors::ReflectError;
use statedb::{Db, RwTable};

use crate::{
    files::{self, PolicyFiles},
    kubernetes::{
        CiliumCIDRGroup, CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, ClusterNetworkPolicy,
        NetworkPolicy, reflect,
    },
    table::{PolicyRow, new_table},
};

/// Sources of network policies.
#[derive(Debug, Clone, hive::Config)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Config {
    /// Enforce NetworkPolicies of Kubernetes.
    #[config(default = true)]
    pub enable_k8s_networkpolicy: bool,
    /// Enforce CiliumNetworkPolicies.
    #[config(default = true)]
    pub enable_cilium_network_policy: bool,
    /// Enforce CiliumClusterwideNetworkPolicies.
    #[config(default = true)]
    pub enable_cilium_clusterwide_network_policy: bool,
    /// Enforce ClusterNetworkPolicies of Kubernetes.
    #[config(default = false, hidden)]
    pub enable_k8s_cluster_network_policy: bool,
    /// Directory with files of CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies, one object in each; empty for none.
    #[config(default = "")]
    pub static_cnp_path: String,
}

/// Network policies as a table.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("policy-sources", "Network policies as a table")
        .config::<Config>()
        .provide_private(new_table)
        .provide(statedb::read_only::<PolicyRow>)
        .run(start)
}

/// Why policies are not read.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Reflect(#[from] ReflectError),
    #[error(transparent)]
    Job(#[from] SpawnError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    client: Option<Arc<dyn Client>>,
    db: Db,
    table: RwTable<PolicyRow>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        config,
        client,
        db,
        table,
        jobs,
    } = params;
    if let Some(client) = client.filter(|client| client.is_enabled()) {
        if config.enable_k8s_networkpolicy {
            reflect::<NetworkPolicy>(&client, &db, &table, &jobs)?;
        }
        if config.enable_k8s_cluster_network_policy {
            reflect::<ClusterNetworkPolicy>(&client, &db, &table, &jobs)?;
        }
        if config.enable_cilium_network_policy {
            reflect::<CiliumNetworkPolicy>(&client, &db, &table, &jobs)?;
        }
        if config.enable_cilium_clusterwide_network_policy {
            reflect::<CiliumClusterwideNetworkPolicy>(&client, &db, &table, &jobs)?;
        }
        if config.enable_cilium_network_policy || config.enable_cilium_clusterwide_network_policy {
            reflect::<CiliumCIDRGroup>(&client, &db, &table, &jobs)?;
        }
    }
    if !config.static_cnp_path.is_empty() {
        let mut txn = db.write(&[&table]);
        let initializer = table.announce_initializer(&mut txn, files::KIND)?;
        txn.commit();
        let files = PolicyFiles {
            directory: PathBuf::from(&config.static_cnp_path),
            db,
            table,
            initializer,
        };
        jobs.keep("read-policy-files", files, PolicyFiles::follow)?;
    }
    Ok(())
}
