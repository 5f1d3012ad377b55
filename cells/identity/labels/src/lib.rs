// SPDX-License-Identifier: Apache-2.0

//! Which labels the identity of a pod has: its own, those of its namespace, its cluster and service account, without those
//! that say nothing about who it is, such as the hash of its template.
//!
//! ```
//! use skep_identity_labels::{LabelFilter, PodLabels};
//!
//! let pod = PodLabels {
//!     namespace: "shop",
//!     namespace_labels: &[("team", "web")],
//!     cluster: "default",
//!     service_account: "cart",
//!     labels: &[("app", "cart"), ("pod-template-hash", "6d5f")],
//! };
//!
//! assert_eq!(
//!     pod.identity(&LabelFilter::default()).to_string(),
//!     "k8s:app=cart;k8s:io.cilium.k8s.namespace.labels.team=web;k8s:io.cilium.k8s.policy.cluster=default;\
//!      k8s:io.cilium.k8s.policy.serviceaccount=cart;k8s:io.kubernetes.pod.namespace=shop;"
//! );
//! ```

#[cfg(feature = "hive")]
mod config;
mod filter;
mod pattern;
mod prefix_file;

use skep_identity::{Label, LabelSource, Labels};

#[cfg(feature = "hive")]
pub use config::LabelConfig;
pub use filter::{FilterError, LabelFilter};
pub use pattern::PatternError;
pub use prefix_file::PrefixFileError;

/// What comes before the keys of labels of a namespace.
const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";
/// Key of the label whose value is the service account.
const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";

/// What the labels of a pod's identity are made of.
#[derive(Clone, Copy, Debug)]
pub struct PodLabels<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Labels of the namespace.
    pub namespace_labels: &'a [(&'a str, &'a str)],
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Service account; empty for none.
    pub service_account: &'a str,
    /// Labels of the pod.
    pub labels: &'a [(&'a str, &'a str)],
}

impl PodLabels<'_> {
    /// The labels of its identity. What no label can have, such as a `;`, is left out.
    pub fn identity(&self, filter: &LabelFilter) -> Labels {
        let own = self
            .labels
            .iter()
            .map(|(key, value)| Label::new(LabelSource::K8s, key, value));
        let of_namespace = self.namespace_labels.iter().map(|(key, value)| {
            let key = format!("{NAMESPACE_LABELS}{key}");
            Label::new(LabelSource::K8s, &key, value)
        });
        let account = (!self.service_account.is_empty()).then_some((SERVICE_ACCOUNT, self.service_account));
        let rest = [
            (Labels::NAMESPACE, self.namespace),
            (Labels::CLUSTER, self.cluster),
        ];
        let rest = rest
            .into_iter()
            .chain(account)
            .map(|(key, value)| Label::new(LabelSource::K8s, key, value));
        // A pod cannot say that it is of another namespace, cluster or account: what comes last counts.
        let all = own.chain(of_namespace).chain(rest).flatten();
        all.filter(|label| filter.is_relevant(label)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_cannot_claim_another_namespace_cluster_or_account() {
        let pod = PodLabels {
            namespace: "shop",
            namespace_labels: &[],
            cluster: "alder",
            service_account: "cart",
            labels: &[
                ("io.kubernetes.pod.namespace", "kube-system"),
                ("io.cilium.k8s.policy.cluster", "maple"),
                ("io.cilium.k8s.policy.serviceaccount", "admin"),
            ],
        };

        assert_eq!(
            pod.identity(&LabelFilter::default()).to_string(),
            "k8s:io.cilium.k8s.policy.cluster=alder;k8s:io.cilium.k8s.policy.serviceaccount=cart;\
             k8s:io.kubernetes.pod.namespace=shop;"
        );
    }

    #[test]
    fn a_pod_without_account_and_labels_has_namespace_and_cluster() {
        let pod = PodLabels {
            namespace: "shop",
            namespace_labels: &[],
            cluster: "alder",
            service_account: "",
            labels: &[],
        };

        assert_eq!(pod.identity(&LabelFilter::default()).len(), 2);
    }
}
