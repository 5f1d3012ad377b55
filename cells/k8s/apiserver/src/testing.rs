// SPDX-License-Identifier: Apache-2.0

//! Script suites `k8s-client` and `k8s-tables`.

mod k8s_client;
mod k8s_tables;
