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

use std::collections::BTreeMap;

use skep_identity::{Label, LabelSource, Labels, Reserved};

#[cfg(feature = "hive")]
pub use config::LabelConfig;
pub use filter::{FilterError, LabelFilter};
pub use pattern::PatternError;
pub use prefix_file::PrefixFileError;

/// What comes before the keys of labels of a namespace.
const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";
/// Key of the label whose value is the service account.
const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";

/// Key of the label whose value are the named ports of a pod, and the longest value.
const NAMED_PORTS: &str = "io.cilium.k8s.named-ports";
const LONGEST_VALUE: usize = 63;

/// The labels for the named ports of the containers of a pod: name, protocol (TCP if empty), number. Agents of Cilium 1.20 give
/// identities with them to new pods, whatever the filter of labels says. Init containers do not count.
///
/// ```
/// let labels = skep_identity_labels::named_port_labels([("http", "", 8080), ("dns", "UDP", 53)]);
///
/// assert_eq!(labels[0].to_string(), "gen:io.cilium.k8s.named-ports=dns.UDP.53_http.TCP.8080");
/// ```
pub fn named_port_labels<'a>(ports: impl IntoIterator<Item = (&'a str, &'a str, i32)>) -> Vec<Label> {
    let named = ports.into_iter().filter(|(name, _, port)| {
        let is_number = (1..=i32::from(u16::MAX)).contains(port);
        !name.is_empty() && is_number
    });
    // Names are unique; of two ports with one name the last counts.
    let named: BTreeMap<String, String> = named
        .map(|(name, protocol, port)| {
            let protocol = match protocol {
                "" => "TCP".to_owned(),
                protocol => protocol.to_uppercase(),
            };
            let name = name.to_lowercase();
            (name.clone(), format!("{name}.{protocol}.{port}"))
        })
        .collect();
    let mut values: Vec<String> = Vec::new();
    for port in named.into_values() {
        match values.last_mut() {
            Some(value) if value.len() + 1 + port.len() <= LONGEST_VALUE => {
                value.push('_');
                value.push_str(&port);
            }
            _ => values.push(port),
        }
    }
    let label = |(index, value): (usize, &String)| {
        let key = match index {
            0 => NAMED_PORTS.to_owned(),
            index => format!("{NAMED_PORTS}-{index}"),
        };
        Label::new("gen".into(), &key, value).ok()
    };
    values.iter().enumerate().filter_map(label).collect()
}

/// The labels of the host endpoint: `reserved:host`, and those of its Node that the filter includes.
pub fn host_labels<'a>(
    of_node: impl IntoIterator<Item = (&'a str, &'a str)>,
    filter: &LabelFilter,
) -> Labels {
    let of_node = of_node.into_iter();
    let of_node = of_node.filter_map(|(key, value)| Label::new(LabelSource::K8s, key, value).ok());
    let (labels, _) = filter.split(of_node);
    labels.iter().cloned().chain([Reserved::Host.into()]).collect()
}

/// What the labels of a pod's identity are made of.
#[derive(Clone, Copy, Debug)]
pub struct PodLabels<'a> {
    pub namespace: &'a str,
    pub namespace_labels: &'a [(&'a str, &'a str)],
    pub cluster: &'a str,
    pub service_account: &'a str,
    pub labels: &'a [(&'a str, &'a str)],
}

impl PodLabels<'_> {
    /// The labels of its identity.
    pub fn identity(&self, filter: &LabelFilter) -> Labels {
        self.split(filter).0
    }

    /// The labels of its identity, and the others. What no label can have, such as a `;`, is left out.
    pub fn split(&self, filter: &LabelFilter) -> (Labels, Labels) {
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
        filter.split(own.chain(of_namespace).chain(rest).flatten())
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
    fn named_ports_are_sorted_and_continued_in_further_labels() {
        let texts = |ports: &[(&str, &str, i32)]| {
            let labels = named_port_labels(ports.iter().copied());
            labels.iter().map(Label::to_string).collect::<Vec<_>>()
        };
        let unnamed = [("", "TCP", 80), ("zero", "TCP", 0)];
        assert_eq!(texts(&unnamed), [""; 0]);

        // 63 characters fit, 64 do not.
        let three = [
            ("metrics-of-abcd", "TCP", 1234),
            ("b", "sctp", 65535),
            ("admin-interface", "UDP", 10001),
        ];
        let mut four = three.to_vec();
        four.push(("z", "TCP", 1));
        assert_eq!(
            texts(&three),
            ["gen:io.cilium.k8s.named-ports=admin-interface.UDP.10001_b.SCTP.65535_metrics-of-abcd.TCP.1234"]
        );
        assert_eq!(texts(&four)[1], "gen:io.cilium.k8s.named-ports-1=z.TCP.1");
        four[0].0 = "metrics-of-abcde";
        assert_eq!(
            texts(&four)[1],
            "gen:io.cilium.k8s.named-ports-1=metrics-of-abcde.TCP.1234_z.TCP.1"
        );
    }

    /// Pods with many labels, and what Cilium's agent made of them with some settings of `labels`.
    #[test]
    fn recorded_pods_have_the_recorded_labels() {
        #[derive(serde::Deserialize)]
        struct Recorded {
            labels: Vec<String>,
            pod: BTreeMap<String, String>,
            identity: Vec<String>,
            info: Vec<String>,
        }
        let all: Vec<Recorded> = serde_json::from_str(include_str!("../testdata/pods.json")).unwrap();

        for recorded in all {
            let filter = LabelFilter::new(recorded.labels.iter().map(String::as_str)).unwrap();
            let labels: Vec<(&str, &str)> = recorded
                .pod
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect();
            let pod = PodLabels {
                namespace: "gc-shop",
                namespace_labels: &[("kubernetes.io/metadata.name", "gc-shop"), ("team", "blue")],
                cluster: "default",
                service_account: "sa",
                labels: &labels,
            };
            let (identity, info) = pod.split(&filter);
            let texts = |labels: &Labels| {
                let mut texts: Vec<_> = labels.iter().map(Label::to_string).collect();
                texts.sort();
                texts
            };
            assert_eq!(texts(&identity), recorded.identity, "{:?}", recorded.labels);
            assert_eq!(texts(&info), recorded.info, "{:?}", recorded.labels);
        }
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
