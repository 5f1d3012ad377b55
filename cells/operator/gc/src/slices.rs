// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes all CiliumEndpointSlices where they are not in use. Requires: a Kubernetes client.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, SpawnError};
use skep_k8s_client::Client;
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_types::slim::CiliumEndpointSlice;

use crate::endpoints::delete_once;

hive::catalogue!(cell);

/// Deletes all CiliumEndpointSlices, once, unless `--enable-cilium-endpoint-slice` is set.
pub fn cell() -> Cell {
    Cell::module(
        "k8s-endpointslice-gc",
        "Deletes CiliumEndpointSlices that are not in use",
    )
    .run(start)
}

fn start(crds: Cfg<CrdConfig>, client: Arc<dyn Client>, jobs: Jobs) -> Result<(), SpawnError> {
    match crds.enable_cilium_endpoint_slice || !client.is_enabled() {
        true => Ok(()),
        false => delete_once::<CiliumEndpointSlice>(&jobs, client),
    }
}
