// SPDX-License-Identifier: Apache-2.0

//! Cell: the client of the own key-value store.
//! Requires: optionally metrics and a [`Resolver`]. Provides: [`Client`], disabled without `--kvstore`.
//!
//! Starting does not wait for etcd: who needs it waits by [`Client::wait_connected`].

use std::path::Path;
use std::sync::Arc;

use hive::{Cell, Cfg, Health, HookCtx, Jobs, Lifecycle, SpawnError};
use skep_kvstore_client::{Client, KvstoreMetrics, cell::spawn};

use crate::backend::{ConfigSource, Etcd};
use crate::config::KvstoreConfig;
use crate::connector::Resolver;
use crate::file::{ConfigError, EtcdConfig};
use crate::options::EtcdOptions;

/// The client of the own key-value store.
pub fn cell() -> Cell {
    Cell::module("kvstore-client", "Client of the key-value store")
        .config::<KvstoreConfig>()
        .provide(new_client)
}

fn new_client(
    config: Cfg<KvstoreConfig>,
    lifecycle: Lifecycle,
    jobs: Jobs,
    health: Health,
    metrics: Option<Arc<KvstoreMetrics>>,
    resolver: Option<Arc<dyn Resolver>>,
) -> Result<Client, SpawnError> {
    let etcd = match config.kvstore.as_str() {
        // Faults were reported when the settings were checked.
        "etcd" => EtcdOptions::parse(&config.kvstore_opt).ok(),
        _ => None,
    };
    let Some(etcd) = etcd else {
        return Ok(Client::disabled());
    };
    if let ConfigSource::File(path) = &etcd.source {
        let path = path.clone();
        lifecycle.on_start("check-etcd-config", move |_: HookCtx| {
            let result = check(&path);
            async move { result }
        });
    }
    let mut options = config.client_options();
    if let Some(metrics) = metrics {
        options.recorder = metrics;
    }
    let mut backend = Etcd::new(etcd.source, etcd.transport);
    if let Some(resolver) = resolver {
        backend = backend.with_resolver(resolver);
    }
    let (client, driver) = Client::new(Arc::new(backend), options);
    spawn(&jobs, &health, &client, driver)?;
    Ok(client)
}

/// A malformed file is an error at start; one that is missing may be mounted later.
fn check(path: &Path) -> Result<(), ConfigError> {
    match EtcdConfig::load(path) {
        Err(error) if !error.is_missing_file() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
