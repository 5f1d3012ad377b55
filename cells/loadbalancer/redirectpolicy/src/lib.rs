// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies.
//!
//! A `CiliumLocalRedirectPolicy` sends traffic for an address, or for the cluster IPs of a service, to pods of the same
//! node. [`cell`] checks the resources ([`Policy`]), finds the pods, and brings frontends and backends into the load
//! balancer's tables; without a pod nothing is redirected. Traffic of the pods themselves can be left
//! alone, by their network namespaces ([`SkipRedirects`], [`NetnsCookies`]).

#[cfg(feature = "api")]
pub mod api;
mod cell;
mod command;
mod config;
mod controller;
mod cookies;
mod desired;
mod metrics;
mod policy;
mod skipmap;
mod sync;
mod table;

#[cfg(test)]
mod tests;

pub use cell::cell;
pub use config::Config;
pub use cookies::{CookieSource, NetnsCookies};
pub use policy::{FrontendType, Policy, PolicyError, Port, Target};
pub use skipmap::{SkipEntry, SkipMaps};
pub use table::{
    POLICY_BY_ADDRESS, POLICY_BY_ID, POLICY_BY_SERVICE, SKIP_BY_POD, SKIP_BY_POLICY, SkipRedirects,
};

hive::catalogue!(cell);
