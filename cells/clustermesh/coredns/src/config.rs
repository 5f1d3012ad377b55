// SPDX-License-Identifier: Apache-2.0

//! Where CoreDNS is, and the zones.

use hive::config::Faults;

/// Where CoreDNS is, and the zones that it serves.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Name of the Deployment of CoreDNS.
    #[config(default = "coredns")]
    pub coredns_deployment_name: String,
    /// Name of the ConfigMap with the Corefile.
    #[config(default = "coredns")]
    pub coredns_configmap_name: String,
    /// Namespace of CoreDNS.
    #[config(default = "kube-system")]
    pub coredns_namespace: String,
    /// Zone of cluster services.
    #[config(default = "cluster.local")]
    pub coredns_cluster_domain: String,
    /// Zone of clusterset services.
    #[config(default = "clusterset.local")]
    pub coredns_clusterset_domain: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        for (key, name) in [
            ("coredns-deployment-name", &self.coredns_deployment_name),
            ("coredns-configmap-name", &self.coredns_configmap_name),
            ("coredns-namespace", &self.coredns_namespace),
        ] {
            if name.is_empty() {
                faults.add(key, "it must not be empty");
            }
        }
        for (key, zone) in [
            ("coredns-cluster-domain", &self.coredns_cluster_domain),
            ("coredns-clusterset-domain", &self.coredns_clusterset_domain),
        ] {
            if !is_domain(zone) {
                faults.add(key, format!("`{zone}` is not a domain name"));
            }
        }
    }
}

/// Whether a text is a domain name that needs no quotes in a Corefile.
fn is_domain(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_letter);
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253 && text.split('.').all(is_label)
}
