// SPDX-License-Identifier: Apache-2.0

//! kvstoremesh: copies the state of remote clusters into the own key-value store, where agents read it.
//!
//! - [`cell`] copies the clusters of a directory of configurations: values byte for byte below `cilium/cache`, their
//!   canaries, and `cilium/cluster-config/<cluster>`;
//! - [`election`] takes the lock `cilium/kvstoremesh-lock`, and starts [`leader`], what only its owner does;
//! - [`api`] answers `GET /v1/cluster`, [`health`] answers `GET /readyz` when all is copied for the first time ([`Readiness`]).
//!
//! A copy stays when its cluster cannot be reached, and when this program stops; the next one takes it over: right keys are
//! not written again. It is deleted three minutes after the cluster was removed from the configuration. Clusters have
//! connections, queues and health of their own, and values are not decoded: a cluster that is slow or lies delays no other one.
//! Writes of all clusters share the limits of the client.

mod cell;
mod config;
mod copies;
mod copy;
mod election;
mod enforce;
mod metrics;
mod mirror;
mod orphans;
mod ready;
mod removal;
mod server;

pub use cell::{cell, leader};
pub use config::{ApiConfig, HealthConfig, HeartbeatConfig, KvstoreMeshConfig};
pub use election::{ElectionError, cell as election};
pub use metrics::KvstoreMeshMetrics;
pub use ready::Readiness;
pub use server::{Listening, ServeError, api, health};

hive::catalogue!(cell);
hive::catalogue!(leader);
hive::catalogue!(election);
hive::catalogue!(api);
hive::catalogue!(health);
