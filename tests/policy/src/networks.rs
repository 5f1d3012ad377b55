// SPDX-License-Identifier: Apache-2.0

//! Identities of networks: which labels the metadata of a prefix gives it, as the ipcache does.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use skep_identity::{Label, LabelSource, Reserved};
use skep_policy_model::PolicySettings;

/// Labels of an identity by key.
pub(crate) type LabelSet = BTreeMap<String, Label>;

/// Labels of prefixes, by who says so.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    metadata: BTreeMap<IpNet, BTreeMap<String, Vec<Label>>>,
}

/// What networks depend on beside metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode<'a> {
    pub settings: &'a PolicySettings,
    /// Nodes have the labels of networks.
    pub cidr_of_nodes: bool,
}

impl Networks {
    /// Adds or replaces what one resource says about a prefix; no labels remove it.
    pub(crate) fn set(&mut self, prefix: IpNet, resource: &str, labels: Vec<Label>) {
        let prefix = prefix.trunc();
        let resources = self.metadata.entry(prefix).or_default();
        match labels.is_empty() {
            true => resources.remove(resource),
            false => resources.insert(resource.to_owned(), labels),
        };
        if resources.is_empty() {
            self.metadata.remove(&prefix);
        }
    }

    /// Replaces everything that one resource says.
    pub(crate) fn replace(&mut self, resource: &str, labels: BTreeMap<IpNet, Vec<Label>>) {
        for resources in self.metadata.values_mut() {
            resources.remove(resource);
        }
        self.metadata.retain(|_, resources| !resources.is_empty());
        for (prefix, labels) in labels {
            self.set(prefix, resource, labels);
        }
    }

    pub(crate) fn remove_like(&mut self, prefix: &str) {
        for resources in self.metadata.values_mut() {
            resources.retain(|resource, _| !resource.starts_with(prefix));
        }
        self.metadata.retain(|_, resources| !resources.is_empty());
    }

    /// Labels of each prefix.
    pub(crate) fn identities(&self, mode: Mode<'_>) -> Vec<(IpNet, LabelSet)> {
        self.metadata
            .keys()
            .map(|prefix| (*prefix, self.labels_of(*prefix, mode)))
            .collect()
    }

    fn labels_of(&self, prefix: IpNet, mode: Mode<'_>) -> LabelSet {
        let mut labels = LabelSet::new();
        let own = self
            .metadata
            .get(&prefix)
            .into_iter()
            .flat_map(BTreeMap::values)
            .flatten();
        for label in own {
            labels.insert(label.key().to_owned(), label.clone());
        }
        let is_cidr = |label: &Label| *label.source() == LabelSource::Cidr;
        let mut covering: Vec<&IpNet> = self
            .metadata
            .keys()
            .filter(|other| **other != prefix && other.contains(&prefix))
            .collect();
        covering.sort_by_key(|other| std::cmp::Reverse(other.prefix_len()));
        let mut has_cidr = labels.values().any(is_cidr);
        for label in covering
            .into_iter()
            .filter_map(|net| self.metadata.get(net))
            .flat_map(BTreeMap::values)
            .flatten()
        {
            if *label.source() == LabelSource::Reserved || is_cidr(label) && has_cidr {
                continue;
            }
            has_cidr |= is_cidr(label);
            labels
                .entry(label.key().to_owned())
                .or_insert_with(|| label.clone());
        }
        let has = |labels: &LabelSet, reserved: Reserved| {
            labels.values().any(|label| label.reserved() == Some(reserved))
        };
        let is_node = has(&labels, Reserved::Host) || has(&labels, Reserved::RemoteNode);
        if !is_node || !mode.settings.node_selector_labels {
            labels.retain(|_, label| *label.source() != LabelSource::Node);
        }
        if is_node || has(&labels, Reserved::Health) || has(&labels, Reserved::Ingress) {
            if is_node && mode.cidr_of_nodes {
                // The most specific network is its own address.
                labels.retain(|_, label| !is_cidr(label));
                labels.extend(Label::cidr(prefix).map(|label| (label.key().to_owned(), label)));
            } else {
                labels.retain(|_, label| {
                    !matches!(
                        label.source(),
                        LabelSource::Cidr | LabelSource::CidrGroup | LabelSource::Fqdn
                    )
                });
            }
            labels.retain(|_, label| {
                !matches!(
                    label.reserved(),
                    Some(Reserved::World | Reserved::WorldIpv4 | Reserved::WorldIpv6)
                )
            });
            if !mode.settings.node_selector_labels {
                labels.retain(|_, label| !matches!(label.source(), LabelSource::K8s) || mode.cidr_of_nodes);
            }
        } else {
            let world = Label::from(Reserved::world(prefix.addr(), mode.settings.dual_stack));
            labels.insert(world.key().to_owned(), world);
        }
        labels
    }
}

/// Labels of networks that a policy names: those of length 0 are the world, which needs none.
pub(crate) fn labels_of_networks(networks: &BTreeSet<IpNet>) -> BTreeMap<IpNet, Vec<Label>> {
    let labels = networks
        .iter()
        .filter_map(|net| Some((*net, vec![Label::cidr(*net)?])));
    labels.collect()
}
