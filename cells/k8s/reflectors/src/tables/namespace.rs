// SPDX-License-Identifier: Apache-2.0

//! Row of `k8s-namespaces`.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use skep_k8s_types::slim::{Labels, Namespace, Str};
use statedb::clock::{Clock, SystemClock};
use statedb::row::{self, BoxError};
use statedb::{Index, Row};

use super::stamp::Stamp;

/// A namespace.
#[derive(Debug, Clone)]
pub struct NamespaceRow {
    /// Name.
    pub name: Str,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// When this row was last written.
    pub updated_at: Stamp,
}

impl NamespaceRow {
    /// Primary index: by name.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    pub(super) fn new(namespace: &Namespace, clock: &Arc<dyn Clock>) -> Self {
        Self {
            name: namespace.metadata.name.clone(),
            labels: namespace.metadata.labels.clone(),
            annotations: namespace.metadata.annotations.clone(),
            updated_at: Stamp::now(clock),
        }
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        self.labels == other.labels && self.annotations == other.annotations
    }
}

fn pairs(labels: &Labels) -> String {
    labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Row for NamespaceRow {
    fn header() -> &'static [&'static str] {
        &["Namespace", "Labels", "Annotations", "Age"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            pairs(&self.labels),
            pairs(&self.annotations),
            self.updated_at.age_text(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let mut value = json!({ "name": self.name });
        for (key, labels) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            if !labels.is_empty() {
                value[key] = serde_json::to_value(labels)?;
            }
        }
        value["updatedAt"] = self.updated_at.at().to_string().into();
        Ok(value)
    }

    fn to_yaml(&self) -> Result<Value, BoxError> {
        self.to_json()
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Text {
            name: Str,
            labels: Labels,
            annotations: Labels,
            #[serde(rename = "updatedAt")]
            updated_at: Timestamp,
        }
        let text: Text = row::from_yaml(text)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(Self {
            name: text.name,
            labels: text.labels,
            annotations: text.annotations,
            updated_at: Stamp::of(&clock, text.updated_at),
        })
    }

    fn type_name() -> String {
        "k8s.Namespace".to_owned()
    }
}
