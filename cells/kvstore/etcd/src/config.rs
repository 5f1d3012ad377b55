// SPDX-License-Identifier: Apache-2.0

//! Settings of the client of the own store.

use std::collections::BTreeMap;
use std::time::Duration;

use hive::config::Faults;
use skep_kvstore_client::{ClientKind, ClientOptions, LOCK_TTL};

use crate::options::EtcdOptions;

/// The longest time to live of leases.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Which key-value store is used, and how.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = KvstoreConfig::check)]
pub struct KvstoreConfig {
    /// Key-value store backend: `etcd`; empty: none.
    pub kvstore: String,
    /// Options of the key-value store, such as `etcd.config=/var/lib/etcd-config/etcd.config`.
    pub kvstore_opt: BTreeMap<String, String>,
    /// TTL of the lease of written keys.
    #[config(default = "15m")]
    pub kvstore_lease_ttl: Duration,
    /// Maximum number of consecutive quorum errors before the store counts as failed.
    #[config(default = 2)]
    pub kvstore_max_consecutive_quorum_errors: u32,
    /// Has no effect: keys that vanish are written again at once.
    #[config(default = "5m", hidden, deprecated = "it has no effect")]
    pub kvstore_periodic_sync: Duration,
    /// Has no effect: the store is tried for 15 minutes before it counts as failed.
    #[config(default = "2m", hidden, deprecated = "it has no effect")]
    pub kvstore_connectivity_timeout: Duration,
}

impl KvstoreConfig {
    fn check(&self, faults: &mut Faults) {
        if !(LOCK_TTL..=MAX_TTL).contains(&self.kvstore_lease_ttl) {
            faults.add("kvstore-lease-ttl", "must be from 25s to 24h");
        }
        match self.kvstore.as_str() {
            "" => {}
            "etcd" => {
                for error in EtcdOptions::parse(&self.kvstore_opt).err().into_iter().flatten() {
                    faults.add("kvstore-opt", error.to_string());
                }
            }
            other => faults.add(
                "kvstore",
                format!("`{other}` is not supported; use `etcd`, or nothing for no store"),
            ),
        }
    }

    pub fn is_enabled(&self) -> bool {
        !self.kvstore.is_empty()
    }

    /// How the client of the own store behaves; clients of remote clusters take over most of it by
    /// [`ClientOptions::for_remote_cluster`].
    pub fn client_options(&self) -> ClientOptions {
        let mut options = ClientOptions::new("etcd", ClientKind::Full);
        options.lease_ttl = self.kvstore_lease_ttl;
        options.max_quorum_errors = self.kvstore_max_consecutive_quorum_errors;
        if let Ok(etcd) = EtcdOptions::parse(&self.kvstore_opt) {
            etcd.apply(&mut options);
        }
        options
    }
}
