// SPDX-License-Identifier: Apache-2.0

//! etcd as key-value store: connections, client options, TLS.
//!
//! - [`Etcd`]: the store, for a [`skep_kvstore_client::Client`];
//! - [`EtcdConfig`]: etcd's client configuration file with Cilium's host aliases;
//! - [`EtcdOptions`]: the options of `--kvstore-opt`;
//! - [`cell()`]: the client of the own store, with Cilium's flags ([`KvstoreConfig`]).
//!
//! Feature `testing` adds `testing`: a real etcd for tests; feature `troubleshoot` adds `troubleshoot`: step by step, why etcd
//! cannot be reached.

mod backend;
mod cell;
mod config;
mod connector;
mod convert;
mod failure;
mod file;
mod options;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tls;
#[cfg(feature = "troubleshoot")]
pub mod troubleshoot;
mod users;

pub use backend::{ConfigSource, Etcd, TransportOptions};
pub use cell::cell;
pub use config::KvstoreConfig;
pub use connector::Resolver;
pub use file::{ConfigError, Endpoint, EtcdConfig, TlsFiles};
pub use options::{EtcdOptions, OptionError};

hive::catalogue!(cell);
