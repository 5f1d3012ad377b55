// SPDX-License-Identifier: Apache-2.0

//! Health-check node ports of services.
//!
//! External load balancers ask every node whether it has a backend of a service with external traffic policy Local:
//! [`cell`] answers on the service's `healthCheckNodePort`, and with `enable-health-check-loadbalancer-ip` on its virtual
//! addresses. [`kube_proxy_healthz`] answers for the node as a whole, in the place of kube-proxy.

mod answer;
mod cell;
#[cfg(feature = "testing")]
mod command;
mod config;
mod control;
mod healthz;
mod server;

#[cfg(test)]
mod tests;

pub use cell::cell;
#[cfg(feature = "testing")]
pub use cell::testing;
pub use config::{Config, ListenAddress};
pub use healthz::{HealthzConfig, NodeHealth, kube_proxy_healthz};

hive::catalogue!(cell);
hive::catalogue!(kube_proxy_healthz);
