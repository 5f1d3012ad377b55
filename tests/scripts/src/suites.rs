// SPDX-License-Identifier: Apache-2.0

//! The table of suites. A new one is a module here and a line in [`all`].

mod health;
mod healthserver;
mod hive;
mod k8s_client;
mod k8s_tables;
mod loadbalancer;
mod metrics;
mod redirectpolicy;
mod statedb;

use crate::Suite;

/// All suites.
pub fn all() -> &'static [Suite] {
    static ALL: [Suite; 9] = [
        health::SUITE,
        healthserver::SUITE,
        hive::SUITE,
        k8s_client::SUITE,
        k8s_tables::SUITE,
        loadbalancer::SUITE,
        metrics::SUITE,
        redirectpolicy::SUITE,
        statedb::SUITE,
    ];
    &ALL
}

/// The suite of this name.
pub fn find(name: &str) -> Option<&'static Suite> {
    all().iter().find(|suite| suite.name == name)
}
