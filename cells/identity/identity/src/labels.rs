// SPDX-License-Identifier: Apache-2.0

//! The labels of an identity.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use crate::label::{Label, LabelError, LabelSource};
use crate::numeric::{NumericIdentity, Scope};
use crate::reserved::{Reserved, ReservedLabels};

/// The labels of an identity, sorted by key; each key once. [`Display`](fmt::Display) writes the form that is the key of an
/// identity in the key-value store.
///
/// ```
/// use skep_identity::Labels;
///
/// let labels: Labels = "k8s:io.kubernetes.pod.namespace=shop;k8s:app=cart;".parse()?;
/// assert_eq!(labels.to_string(), "k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;");
/// assert_eq!(labels.get("app").map(|label| label.value()), Some("cart"));
/// # Ok::<(), skep_identity::LabelError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Box<[Label]>);

impl Labels {
    /// Key of the label whose value is the name of the cluster.
    pub const CLUSTER: &'static str = "io.cilium.k8s.policy.cluster";
    /// Key of the label whose value is the namespace of the pods.
    pub const NAMESPACE: &'static str = "io.kubernetes.pod.namespace";

    /// Labels as a CiliumIdentity has them: pairs of `<source>:<key>` and value.
    ///
    /// ```
    /// use skep_identity::Labels;
    ///
    /// let labels = Labels::from_pairs([("k8s:app", "cart"), ("k8s:tier", "")])?;
    /// assert_eq!(labels.to_string(), "k8s:app=cart;k8s:tier=;");
    /// # Ok::<(), skep_identity::LabelError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`LabelError`] for the first pair that is no label.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, LabelError> {
        let labels = pairs.into_iter().map(|(name, value)| {
            let (source, key) = name.split_once(':').unwrap_or(("", name));
            Label::new(source.into(), key, value)
        });
        labels.collect()
    }

    pub fn get(&self, key: &str) -> Option<&Label> {
        let at = self.0.binary_search_by(|label| label.key().cmp(key)).ok()?;
        Some(&self.0[at])
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Label> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cluster that the identity belongs to, as its label says.
    pub fn cluster(&self) -> Option<&str> {
        let label = self.get(Self::CLUSTER)?;
        (*label.source() == LabelSource::K8s).then(|| label.value())
    }

    pub fn reserved(&self) -> ReservedLabels {
        self.0.iter().filter_map(Label::reserved).collect()
    }

    /// The reserved identity that has these labels, if it is one: by [`ReservedLabels::identity`] if a node is among them,
    /// else only if nothing else is.
    pub fn reserved_identity(&self) -> Option<NumericIdentity> {
        let reserved = self.reserved();
        let is_node = reserved.contains(Reserved::Host) || reserved.contains(Reserved::RemoteNode);
        (is_node || self.len() == 1)
            .then(|| reserved.identity())
            .flatten()
    }

    /// Where an identity with these labels is valid, unless it is a reserved one.
    pub fn scope(&self) -> Scope {
        let reserved = self.reserved();
        if reserved.contains(Reserved::RemoteNode) {
            return Scope::RemoteNode;
        }
        let is_local = self.0.iter().all(|label| label.source().is_local());
        match !self.is_empty() && (is_local || reserved.contains(Reserved::Ingress)) {
            true => Scope::Local,
            false => Scope::Global,
        }
    }
}

/// The labels of one reserved label, shared.
impl From<Reserved> for Arc<Labels> {
    fn from(reserved: Reserved) -> Self {
        static SHARED: LazyLock<[Arc<Labels>; Reserved::ALL.len()]> =
            LazyLock::new(|| Reserved::ALL.map(|reserved| Arc::new(Labels::from_iter([reserved.into()]))));
        let at = Reserved::ALL.iter().position(|other| *other == reserved);
        at.map(|at| SHARED[at].clone()).unwrap_or_default()
    }
}

/// Of several labels with a key the last counts.
impl FromIterator<Label> for Labels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        let mut sorted: Vec<Label> = labels.into_iter().collect();
        sorted.reverse();
        sorted.sort_by(|one, other| one.key().cmp(other.key()));
        sorted.dedup_by(|one, other| one.key() == other.key());
        Self(sorted.into())
    }
}

impl FromStr for Labels {
    type Err = LabelError;

    /// Parses labels that end with a `;` each.
    fn from_str(text: &str) -> Result<Self, LabelError> {
        let labels = text.split(';').filter(|label| !label.is_empty());
        labels.map(str::parse).collect()
    }
}

/// `source:key=value;` for each, with the `=` also if the value is empty.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in &self.0 {
            write!(f, "{}:{}={};", label.source(), label.key(), label.value())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(text: &str) -> Labels {
        text.parse().unwrap()
    }

    #[test]
    fn texts_are_sorted_by_key_and_end_with_a_semicolon() {
        let sorted = labels("reserved:b;any:c=1;a=2;k8s:empty").to_string();

        assert_eq!(sorted, "unspec:a=2;reserved:b=;any:c=1;k8s:empty=;");
        assert_eq!(labels(&sorted).to_string(), sorted);
        assert_eq!(labels("").to_string(), "");
        assert!("k8s:a=1;k8s:=2;".parse::<Labels>().is_err());
    }

    #[test]
    fn last_label_of_a_key_counts() {
        let found = labels("k8s:a=1;k8s:b=1;cni:a=2;");

        assert_eq!(found.to_string(), "cni:a=2;k8s:b=1;");
        assert_eq!(found.len(), 2);
        assert!(!found.is_empty());
    }

    #[test]
    fn cluster_is_a_label_of_kubernetes() {
        assert_eq!(
            labels("k8s:a=1;k8s:io.cilium.k8s.policy.cluster=alder;").cluster(),
            Some("alder")
        );
        assert_eq!(labels("cni:io.cilium.k8s.policy.cluster=alder;").cluster(), None);
    }

    #[test]
    fn scope_follows_from_the_sources() {
        for (text, scope) in [
            ("k8s:app=web;", Scope::Global),
            ("k8s:app=web;reserved:world;", Scope::Global),
            ("cidr:10.0.0.0/8;reserved:world;", Scope::Local),
            ("fqdn:*.example.com;", Scope::Local),
            ("cidrgroup:x=y;", Scope::Local),
            ("k8s:app=web;reserved:ingress;", Scope::Local),
            ("node:zone=a;reserved:remote-node;", Scope::RemoteNode),
            ("", Scope::Global),
        ] {
            assert_eq!(labels(text).scope(), scope, "{text}");
        }
    }

    #[test]
    fn reserved_identities_have_their_labels_alone_except_for_nodes() {
        let identity = |text: &str| labels(text).reserved_identity().map(NumericIdentity::get);

        assert_eq!(identity("reserved:health;"), Some(4));
        assert_eq!(identity("reserved:health;k8s:a=b;"), None);
        assert_eq!(identity("reserved:host;k8s:a=b;"), Some(1));
        assert_eq!(identity("reserved:kube-apiserver;reserved:remote-node;"), Some(7));
        assert_eq!(identity("k8s:a=b;"), None);
    }

    proptest! {
        #[test]
        fn texts_survive_a_round_trip(
            parts in proptest::collection::vec(("[a-z]{0,9}", "[a-z./]{1,5}", "[a-z:=.-]{0,5}"), 0..8),
        ) {
            let set: Labels = parts
                .iter()
                .map(|(source, key, value)| Label::new(source.as_str().into(), key, value).unwrap())
                .collect();

            prop_assert_eq!(set.to_string().parse::<Labels>(), Ok(set));
        }
    }
}
