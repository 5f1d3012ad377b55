// SPDX-License-Identifier: Apache-2.0

//! Which objects endpoints are read from.

/// Which objects endpoints are read from.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Do without CiliumEndpoints.
    #[config(default = false)]
    pub disable_endpoint_crd: bool,
    /// Read CiliumEndpointSlices in place of CiliumEndpoints.
    #[config(default = false)]
    pub enable_cilium_endpoint_slice: bool,
}
