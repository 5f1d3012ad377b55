// SPDX-License-Identifier: Apache-2.0

//! Settings of what is published.

use hive::config::Faults;
use skep_k8s_types::selector::{Selector, SelectorError};

/// Which objects are published.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = ExportSettings::check)]
pub struct ExportSettings {
    /// Export namespaces without the annotation `clustermesh.cilium.io/global`.
    #[config(default = true)]
    pub clustermesh_default_global_namespace: bool,
    /// Value of label `service.kubernetes.io/service-proxy-name` of published services; empty: services
    /// without the label.
    pub k8s_service_proxy_name: String,
}

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Slices of services, without those that are copies of backends of other clusters.
const OWN_SLICES: &str = "kubernetes.io/service-name,endpointslice.kubernetes.io/managed-by!=endpointslice-mesh-controller.cilium.io";

impl ExportSettings {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.services() {
            faults.add("k8s-service-proxy-name", error.to_string());
        }
    }

    pub(crate) fn services(&self) -> Result<Selector, SelectorError> {
        match self.k8s_service_proxy_name.as_str() {
            "" => format!("!{PROXY_NAME}"),
            name => format!("{PROXY_NAME}={name}"),
        }
        .parse()
    }

    pub(crate) fn slices(&self) -> Result<Selector, SelectorError> {
        OWN_SLICES.parse()
    }
}
