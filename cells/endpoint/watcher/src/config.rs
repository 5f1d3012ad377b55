// SPDX-License-Identifier: Apache-2.0

//! Which objects endpoints are read from.

/// Which objects endpoints are read from.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Disable CiliumEndpoints.
    #[config(default = false)]
    pub disable_endpoint_crd: bool,
    /// Watch CiliumEndpointSlices instead of CiliumEndpoints.
    #[config(default = false)]
    pub enable_cilium_endpoint_slice: bool,
}
