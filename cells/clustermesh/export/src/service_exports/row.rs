// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-service-exports`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use skep_k8s_types::slim::Str;
use statedb::{Index, Row};

use crate::objects::ServiceExport;

/// An export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceExportRow {
    /// `<namespace>/<name>`, as the service.
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    pub(crate) created: Timestamp,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Why an export cannot be published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidExport {
    /// It does not say when it was created, which decides conflicts.
    #[error("metadata.creationTimestamp is missing")]
    Created,
}

impl ServiceExportRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_NAMESPACE: Index<Self, str> =
        Index::new("namespace", |row, keys| keys.add(&row.namespace));

    pub(crate) fn new(export: &ServiceExport) -> Result<Self, InvalidExport> {
        let metadata = &export.metadata;
        let spec = export.spec.clone().unwrap_or_default();
        Ok(Self {
            name: Str::new(format!("{}/{}", metadata.namespace, metadata.name)),
            namespace: metadata.namespace.clone(),
            created: export.created.ok_or(InvalidExport::Created)?,
            labels: spec.exported_labels.unwrap_or_default(),
            annotations: spec.exported_annotations.unwrap_or_default(),
        })
    }
}

impl Row for ServiceExportRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Created"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.name.to_string(), self.created.to_string()]
    }
}
