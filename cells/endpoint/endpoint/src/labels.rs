// SPDX-License-Identifier: Apache-2.0

//! Labels of an endpoint, by their use.

use std::sync::Arc;

use skep_identity::{Label, LabelSource, Labels, Reserved};

/// Labels of an endpoint, as Cilium's `OpLabels`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointLabels {
    /// Added by a user.
    pub custom: Labels,
    /// Of the pod and the request, relevant for the identity.
    pub identity: Arc<Labels>,
    /// Of the pod and the request, not relevant for the identity.
    pub info: Labels,
    /// Removed from the identity by a user.
    pub disabled: Labels,
}

impl EndpointLabels {
    /// The labels of its identity: `reserved:init` without any.
    pub fn security(&self) -> Arc<Labels> {
        let labels = match self.custom.is_empty() && self.disabled.is_empty() {
            true => self.identity.clone(),
            false => {
                let is_enabled = |label: &&Label| self.disabled.get(label.key()) != Some(label);
                let orchestrated = self.identity.iter().filter(is_enabled);
                Arc::new(orchestrated.chain(self.custom.iter()).cloned().collect())
            }
        };
        match labels.is_empty() {
            true => Reserved::Init.into(),
            false => labels,
        }
    }

    /// The generated labels among those of the identity: of the named ports.
    pub(crate) fn generated(&self) -> impl Iterator<Item = Label> {
        let labels = self.identity.iter();
        labels.filter(|label| is_generated(label.source())).cloned()
    }
}

pub(crate) fn is_generated(source: &LabelSource) -> bool {
    matches!(source, LabelSource::Other(word) if word == "gen")
}

/// Labels as texts: `source:key=value`, without `=` if the value is empty.
pub(crate) fn texts(labels: &Labels) -> Vec<String> {
    labels.iter().map(Label::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_users_are_part_of_the_identity() {
        let labels = |text: &str| text.parse::<Labels>().unwrap();
        let endpoint = EndpointLabels {
            custom: labels("unspec:team=blue;"),
            identity: Arc::new(labels("k8s:app=cart;k8s:tier=front;")),
            info: labels("k8s:pod-template-hash=1;"),
            disabled: labels("k8s:tier=front;"),
        };

        assert_eq!(endpoint.security().to_string(), "k8s:app=cart;unspec:team=blue;");
        let none = EndpointLabels::default();
        assert_eq!(none.security().to_string(), "reserved:init=;");
    }
}
