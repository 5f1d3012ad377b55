// SPDX-License-Identifier: Apache-2.0

//! Labels of an identity, as selectors match them.

use std::net::IpAddr;

use compact_str::CompactString;
use ipnet::IpNet;
use skep_identity::{Label, LabelSource, Labels, Reserved};

/// Labels of an identity in their order, with what selectors ask for most. A key may have labels of several sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityLabels {
    labels: Box<[Label]>,
    namespace: CompactString,
    /// The network of its `cidr` label: the most specific one.
    network: Option<IpNet>,
}

impl IdentityLabels {
    /// Value of the namespace label; empty for identities of no pod.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn network(&self) -> Option<IpNet> {
        self.network
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Label> {
        self.labels.iter()
    }

    /// The first label with this key, of this source unless that is `any`.
    pub fn get(&self, source: &LabelSource, key: &str) -> Option<&Label> {
        self.labels
            .iter()
            .find(|label| label.key() == key && (*source == LabelSource::Any || label.source() == source))
    }

    pub fn is_reserved(&self, reserved: Reserved) -> bool {
        self.labels.iter().any(|label| label.reserved() == Some(reserved))
    }
}

impl FromIterator<Label> for IdentityLabels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        let labels: Box<[Label]> = labels.into_iter().collect();
        let namespace = labels
            .iter()
            .find(|label| *label.source() == LabelSource::K8s && label.key() == Labels::NAMESPACE)
            .map(|label| CompactString::new(label.value()))
            .unwrap_or_default();
        let network = labels
            .iter()
            .filter(|label| *label.source() == LabelSource::Cidr)
            .find_map(|label| network_of(label.key()));
        Self {
            labels,
            namespace,
            network,
        }
    }
}

impl From<&Labels> for IdentityLabels {
    fn from(labels: &Labels) -> Self {
        labels.iter().cloned().collect()
    }
}

/// The network that the key of a `cidr` label stands for.
fn network_of(key: &str) -> Option<IpNet> {
    let (address, length) = key.split_once('/')?;
    let address: IpAddr = match address.contains('.') {
        true => address.parse().ok()?,
        false => address.replace('-', ":").parse().ok()?,
    };
    IpNet::new(address, length.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_the_labels() {
        for net in ["10.0.0.0/8", "::1/128", "2001:db8::/32", "fd00::/8", "1.2.3.4/32"] {
            let net: IpNet = net.parse().unwrap();
            let labels: IdentityLabels = Label::cidr(net).into_iter().collect();

            assert_eq!(labels.network(), Some(net));
        }
    }
}
