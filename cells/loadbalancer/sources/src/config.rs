// SPDX-License-Identifier: Apache-2.0

//! Settings of the sources.

use std::path::PathBuf;
use std::time::Duration;

use hive::config::Faults;
use skep_k8s_types::selector::{Selector, SelectorError};

use crate::document::Format;

/// Settings of the Kubernetes source.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = KubernetesConfig::check)]
pub struct KubernetesConfig {
    /// Value of label `service.kubernetes.io/service-proxy-name` of handled services; empty: services without
    /// the label.
    #[config(flag = "k8s-service-proxy-name")]
    pub service_proxy_name: String,
    /// Longest time events are gathered for one transaction while more keep arriving.
    #[config(default = "500ms", flag = "lb-reflector-wait-time", hidden)]
    pub wait_time: Duration,
    /// Enable the Gateway API: headless services are reflected.
    #[config(default = false, flag = "enable-gateway-api")]
    pub gateway_api: bool,
    /// Enable Ingresses: headless services are reflected.
    #[config(default = false, flag = "enable-ingress-controller")]
    pub ingress_controller: bool,
}

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Slices mirrored from other clusters: their backends come from the mesh.
const NOT_MIRRORED: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-mesh-controller.cilium.io";

impl KubernetesConfig {
    fn check(&self, faults: &mut Faults) {
        if self.wait_time.is_zero() {
            faults.add("lb-reflector-wait-time", "must be longer than zero");
        }
        if let Err(error) = self.services() {
            faults.add("k8s-service-proxy-name", error.to_string());
        }
    }

    /// Which services are watched.
    pub fn services(&self) -> Result<Selector, SelectorError> {
        self.common().parse()
    }

    /// Which endpoint slices are watched. (They carry the labels of their services.)
    pub fn slices(&self) -> Result<Selector, SelectorError> {
        format!("{},{NOT_MIRRORED}", self.common()).parse()
    }

    fn common(&self) -> String {
        let by_proxy = match self.service_proxy_name.as_str() {
            "" => format!("!{PROXY_NAME}"),
            name => format!("{PROXY_NAME}={name}"),
        };
        if self.gateway_api || self.ingress_controller {
            by_proxy
        } else {
            format!("{by_proxy},!{HEADLESS}")
        }
    }
}

/// Settings of the file source.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = FileConfig::check)]
pub struct FileConfig {
    /// File with services and endpoint slices, for nodes without Kubernetes: `.yaml`, `.yml` or `.json`.
    #[config(flag = "lb-state-file")]
    pub state_file: PathBuf,
    /// How long the file must be quiet before it is read again.
    #[config(default = "1s", flag = "lb-state-file-interval", hidden)]
    pub interval: Duration,
}

impl FileConfig {
    /// Whether there is a file to read.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.state_file.as_os_str().is_empty()
    }

    fn check(&self, faults: &mut Faults) {
        if self.is_enabled()
            && let Err(error) = Format::of(&self.state_file)
        {
            faults.add("lb-state-file", error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use skep_k8s_types::slim::Labels;

    use super::*;

    #[test]
    fn a_state_file_of_an_unknown_format_is_a_fault_of_its_flag() {
        let faults = |file: &str| {
            let mut config = <FileConfig as hive::Config>::defaults().unwrap();
            config.state_file = file.into();
            let mut faults = Faults::default();
            config.check(&mut faults);
            faults.iter().map(|(flag, _)| flag.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(faults("state.txt"), ["lb-state-file"]);
        assert!(faults("state.yaml").is_empty());
        assert!(faults("").is_empty());
    }

    fn config() -> KubernetesConfig {
        <KubernetesConfig as hive::Config>::defaults().unwrap()
    }

    #[test]
    fn services_of_other_proxies_and_headless_ones_are_not_watched() {
        let selector = config().services().unwrap();
        let selects = |labels: &[(&str, &str)]| selector.matches(&Labels::from_iter(labels.iter().copied()));

        assert!(selects(&[("app", "web")]));
        assert!(!selects(&[(PROXY_NAME, "other")]));
        assert!(!selects(&[(HEADLESS, "")]));
    }

    #[test]
    fn a_proxy_name_selects_its_services() {
        let selector = KubernetesConfig {
            service_proxy_name: "skep".into(),
            ..config()
        }
        .services()
        .unwrap();
        assert!(selector.matches(&Labels::from_iter([(PROXY_NAME, "skep")])));
        assert!(!selector.matches(&Labels::from_iter([("app", "web")])));
    }

    #[test]
    fn gateways_and_ingresses_need_headless_services() {
        for config in [
            KubernetesConfig {
                gateway_api: true,
                ..config()
            },
            KubernetesConfig {
                ingress_controller: true,
                ..config()
            },
        ] {
            assert!(
                config
                    .services()
                    .unwrap()
                    .matches(&Labels::from_iter([(HEADLESS, "")]))
            );
        }
    }

    #[test]
    fn mirrored_slices_are_not_watched() {
        let selector = config().slices().unwrap();
        let by = |manager: &str| {
            selector.matches(&Labels::from_iter([(
                "endpointslice.kubernetes.io/managed-by",
                manager,
            )]))
        };
        assert!(by("endpointslice-controller.k8s.io"));
        assert!(!by("endpointslice-mesh-controller.cilium.io"));
    }
}
