// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-identities`.

use std::fmt::Write;

use skep_k8s_types::slim::{CiliumIdentity, Str};
use statedb::{Index, Row};

/// Label with the namespace of the endpoints of an identity.
const NAMESPACE: &str = "k8s:io.kubernetes.pod.namespace";
/// Source of a label that has none.
const UNSPECIFIED: &str = "unspec";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdentityRow {
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    pub(crate) labels: Str,
}

/// Why an identity cannot be published. Fix the object; until then its last valid state stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidIdentity {
    #[error("the name is not an identity")]
    Name,
    /// It does not say to which namespace it belongs.
    #[error("security label `{NAMESPACE}` is missing")]
    Namespace,
    /// A label would be read as several.
    #[error("security label `{0}` contains a semicolon")]
    Label(String),
}

impl IdentityRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_NAMESPACE: Index<Self, str> =
        Index::new("namespace", |row, keys| keys.add(&row.namespace));

    pub(crate) fn new(identity: &CiliumIdentity) -> Result<Self, InvalidIdentity> {
        let name = &identity.metadata.name;
        if identity.id().is_none() {
            return Err(InvalidIdentity::Name);
        }
        let labels = identity.security_labels.iter();
        let mut labels: Vec<(&str, &str, &str)> = labels
            .map(|(label, value)| {
                if label.contains(';') || value.contains(';') {
                    return Err(InvalidIdentity::Label(label.to_owned()));
                }
                let (source, key) = match label.split_once(':') {
                    Some(("", key)) => (UNSPECIFIED, key),
                    Some((source, key)) => (source, key),
                    None => (UNSPECIFIED, label),
                };
                Ok((key, source, value))
            })
            .collect::<Result<_, _>>()?;
        labels.sort_unstable();
        let mut text = Str::default();
        for (key, source, value) in &labels {
            // Writing to a text does not fail.
            let _ = write!(text, "{source}:{key}={value};");
        }
        let namespace = identity.security_labels.get(NAMESPACE);
        Ok(Self {
            name: name.clone(),
            namespace: namespace.ok_or(InvalidIdentity::Namespace)?.into(),
            labels: text,
        })
    }
}

impl Row for IdentityRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Labels"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.name.to_string(), self.labels.to_string()]
    }
}
