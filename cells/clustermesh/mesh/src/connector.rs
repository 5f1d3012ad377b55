// SPDX-License-Identifier: Apache-2.0

//! How remote clusters are reached.

use std::fmt;
use std::sync::Arc;

use skep_clustermesh_types::ClusterName;
use skep_kvstore_client::{Backend, Cause, ClientOptions};
use skep_kvstore_etcd::{
    ConfigSource, Etcd, EtcdConfig, EtcdOptions, KvstoreConfig, Resolver, TransportOptions,
};

use crate::directory::ConfigFile;

/// Makes the store of a remote cluster of its configuration file.
pub trait Connector: fmt::Debug + Send + Sync {
    /// The store. Nothing is connected yet: that the store cannot be reached is no error.
    fn connect(&self, cluster: &ClusterName, file: &ConfigFile) -> Result<Arc<dyn Backend>, Cause>;

    /// How the client of the cluster behaves.
    fn client_options(&self, cluster: &ClusterName) -> ClientOptions;
}

/// Remote clusters in etcd, as etcd's client configuration files say.
pub struct EtcdConnector {
    options: ClientOptions,
    transport: TransportOptions,
    resolver: Option<Arc<dyn Resolver>>,
}

impl EtcdConnector {
    /// Takes over from the client of the own store what concerns both.
    pub fn new(config: &KvstoreConfig, resolver: Option<Arc<dyn Resolver>>) -> Self {
        let transport = EtcdOptions::parse(&config.kvstore_opt).map(|options| options.transport);
        Self {
            options: config.client_options(),
            transport: transport.unwrap_or_default(),
            resolver,
        }
    }

    #[must_use]
    pub fn with_recorder(mut self, recorder: Arc<dyn skep_kvstore_client::Recorder>) -> Self {
        self.options.recorder = recorder;
        self
    }
}

impl fmt::Debug for EtcdConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConnector")
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl Connector for EtcdConnector {
    fn connect(&self, _cluster: &ClusterName, file: &ConfigFile) -> Result<Arc<dyn Backend>, Cause> {
        EtcdConfig::parse(&file.path, &file.text).map_err(|error| Arc::new(error) as Cause)?;
        // Read again when it is used: files that it names may be mounted later.
        let mut etcd = Etcd::new(ConfigSource::File(file.path.clone()), self.transport);
        if let Some(resolver) = &self.resolver {
            etcd = etcd.with_resolver(resolver.clone());
        }
        Ok(Arc::new(etcd))
    }

    fn client_options(&self, cluster: &ClusterName) -> ClientOptions {
        self.options.for_remote_cluster(cluster.as_str())
    }
}
