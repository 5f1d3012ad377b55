// SPDX-License-Identifier: Apache-2.0

//! Identities that need no allocation.

use std::collections::{BTreeMap, HashMap};

use skep_identity::{Label, LabelSource, Labels, NumericIdentity, Scope};

/// Label whose value names the fixed identity of a pod.
const FIXED: &str = "io.cilium.fixed-identity";
/// Ids that `fixed-identity-mapping` may have.
const FIXED_IDS: std::ops::RangeInclusive<u32> = 128..=255;

const NAMESPACE_NAME: &str = "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";
const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";

/// Id, namespace (`None` for that of the agents), service account, labels of the pods.
type WellKnown = (
    u32,
    Option<&'static str>,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const KUBE_DNS: (&str, &str) = ("k8s-app", "kube-dns");
const WELL_KNOWN: [WellKnown; 5] = [
    (102, Some("kube-system"), "kube-dns", &[KUBE_DNS]),
    (
        103,
        Some("kube-system"),
        "kube-dns",
        &[KUBE_DNS, ("eks.amazonaws.com/component", "kube-dns")],
    ),
    (104, Some("kube-system"), "coredns", &[KUBE_DNS]),
    (
        105,
        None,
        "cilium-operator",
        &[
            ("name", "cilium-operator"),
            ("io.cilium/app", "operator"),
            ("app.kubernetes.io/name", "cilium-operator"),
            ("app.kubernetes.io/part-of", "cilium"),
        ],
    ),
    (
        106,
        Some("kube-system"),
        "coredns",
        &[KUBE_DNS, ("eks.amazonaws.com/component", "coredns")],
    ),
];
/// From the id of a well-known identity to that of pods whose labels have the name of the namespace.
const WITH_NAMESPACE_NAME: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FixedIdentityError {
    #[error("`{0}` is not an id from 128 to 255")]
    Id(String),
    /// The value that pods have in label `io.cilium.fixed-identity`.
    #[error("id {0} has no name")]
    Name(u32),
}

/// Reserved identities, and those that the settings of the cluster fix.
#[derive(Clone, Debug, Default)]
pub struct FixedIdentities {
    well_known: HashMap<Labels, NumericIdentity>,
    by_name: HashMap<String, NumericIdentity>,
}

impl FixedIdentities {
    /// Reads `fixed-identity-mapping`: ids and the names of their pods.
    pub fn new(mapping: &BTreeMap<String, String>) -> Result<Self, FixedIdentityError> {
        let by_name = mapping.iter().map(|(id, name)| {
            let number = id.parse().ok().filter(|id| FIXED_IDS.contains(id));
            let number = number.ok_or_else(|| FixedIdentityError::Id(id.clone()))?;
            match name.is_empty() {
                true => Err(FixedIdentityError::Name(number)),
                false => Ok((name.clone(), NumericIdentity::new(number))),
            }
        });
        Ok(Self {
            by_name: by_name.collect::<Result<_, _>>()?,
            ..Self::default()
        })
    }

    /// With the well-known identities of a cluster: of DNS servers and of the operator, in the namespace of the agents.
    #[must_use]
    pub fn well_known(mut self, cluster: &str, agents: &str) -> Self {
        for (id, namespace, account, labels) in WELL_KNOWN {
            let namespace = namespace.unwrap_or(agents);
            let mut pairs = vec![
                (Labels::CLUSTER, cluster),
                (Labels::NAMESPACE, namespace),
                (SERVICE_ACCOUNT, account),
            ];
            pairs.extend(labels);
            let mut add = |id, pairs: &[(&str, &str)]| {
                let labels = pairs
                    .iter()
                    .map(|(key, value)| Label::new(LabelSource::K8s, key, value));
                // Names of clusters and namespaces have no semicolon.
                if let Ok(labels) = labels.collect::<Result<Labels, _>>() {
                    self.well_known.insert(labels, NumericIdentity::new(id));
                }
            };
            add(id, &pairs);
            pairs.push((NAMESPACE_NAME, namespace));
            add(id + WITH_NAMESPACE_NAME, &pairs);
        }
        self
    }

    /// Well-known identities with their labels.
    pub(crate) fn all_well_known(&self) -> impl Iterator<Item = (NumericIdentity, &Labels)> {
        self.well_known.iter().map(|(labels, id)| (*id, labels))
    }

    /// The identity of labels that need no allocation: well-known, fixed, reserved.
    pub fn identity(&self, labels: &Labels) -> Option<NumericIdentity> {
        let fixed = || {
            let label = labels.get(FIXED)?;
            let is_kept = *label.source() != LabelSource::Reserved;
            is_kept
                .then(|| self.by_name.get(label.value()).copied())
                .flatten()
        };
        let well_known = self.well_known.get(labels).copied();
        well_known.or_else(fixed).or_else(|| match labels.scope() {
            // A node with labels of its own has an identity of its own.
            Scope::RemoteNode if labels.iter().any(|label| label.reserved().is_none()) => None,
            _ => labels.reserved_identity(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_cluster_components_and_of_the_mapping_have_fixed_ids() {
        let mapping = BTreeMap::from([("128".to_owned(), "kv-store".to_owned())]);
        let fixed = FixedIdentities::new(&mapping)
            .unwrap()
            .well_known("alder", "kube-system");
        let dns = "k8s:io.cilium.k8s.policy.cluster=alder;k8s:io.cilium.k8s.policy.serviceaccount=coredns;\
                   k8s:io.kubernetes.pod.namespace=kube-system;k8s:k8s-app=kube-dns;";
        let named = format!("{dns}k8s:{NAMESPACE_NAME}=kube-system;");

        for (labels, id) in [
            (dns, Some(104)),
            (&*named, Some(112)),
            (&*format!("{dns}k8s:pod-of=another;"), None),
            ("k8s:io.cilium.fixed-identity=kv-store;k8s:app=etcd;", Some(128)),
            ("k8s:io.cilium.fixed-identity=other;", None),
            ("reserved:health;", Some(4)),
            ("reserved:host;node:zone=a;", Some(1)),
            ("reserved:remote-node;reserved:kube-apiserver;", Some(7)),
            ("reserved:remote-node;node:zone=a;", None),
            ("k8s:app=cart;", None),
        ] {
            let found = fixed.identity(&labels.parse().unwrap());
            assert_eq!(found.map(NumericIdentity::get), id, "{labels}");
        }
    }

    #[test]
    fn mappings_of_other_ids_are_invalid() {
        let error = |id: &str, name: &str| {
            let mapping = BTreeMap::from([(id.to_owned(), name.to_owned())]);
            FixedIdentities::new(&mapping).unwrap_err().to_string()
        };
        assert_eq!(error("256", "kv-store"), "`256` is not an id from 128 to 255");
        assert_eq!(error("128", ""), "id 128 has no name");
    }
}
