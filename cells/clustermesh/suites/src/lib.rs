// SPDX-License-Identifier: Apache-2.0

//! Script suites. `kvstore`: commands on a store in memory. `clustermesh`: services of remote clusters as backends of the load
//! balancer.
//!
//! The hive of the latter is that of suite `loadbalancer` with the cells of the cluster mesh. Clusters `cluster1`, `cluster2` and
//! `cluster3`, with ids 1 to 3, share one store in memory, which scripts fill with `kvstore/update`. Scripts choose the local one
//! by `#! --cluster-id=1 --cluster-name=cluster1`.
//!
//! A runner links the crate (`use skep_clustermesh_suites as _;`) and finds the suites by
//! [`hive_script::testing::suites`].

mod clusters;
mod kvstore;
mod suite;
