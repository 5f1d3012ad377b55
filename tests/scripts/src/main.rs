// SPDX-License-Identifier: Apache-2.0

//! Runs script tests against partial hives: `run-scripts --hive SUITE FILE...`.
//!
//! The suites are those of the crates that are linked here; each registers its own.

use std::process::ExitCode;

use skep_base_health as _;
use skep_base_metrics as _;
use skep_clustermesh_coredns as _;
use skep_clustermesh_export as _;
use skep_clustermesh_suites as _;
use skep_datapath_network as _;
use skep_endpoint_ipam as _;
use skep_k8s_dynamicconfig as _;
use skep_k8s_memory as _;
use skep_loadbalancer_suites as _;
use skep_node_local as _;
use skep_operator_ipam as _;
use skep_operator_kvstore as _;
use skep_policy_repository as _;
use statedb as _;

fn main() -> ExitCode {
    hive_script::testing::main(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
}
