// SPDX-License-Identifier: Apache-2.0

//! For tests: clusters in memory ([`TestCluster`], [`api_server`]), and the script suites `k8s-client` and `k8s-tables`.

mod cluster;
mod k8s_client;
mod k8s_tables;

pub use cluster::{TestCluster, api_server, api_server_with};
