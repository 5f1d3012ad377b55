// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-service-exports`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use skep_k8s_types::slim::Str;
use statedb::{Index, Row};

use crate::objects::ServiceExport;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceExportRow {
    /// `<namespace>/<name>`, as the service.
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    /// Always there but in tests: the API server sets it.
    pub(crate) created: Option<Timestamp>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl ServiceExportRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_NAMESPACE: Index<Self, str> =
        Index::new("namespace", |row, keys| keys.add(&row.namespace));

    pub(crate) fn new(export: &ServiceExport) -> Self {
        let metadata = &export.metadata;
        let spec = export.spec.clone().unwrap_or_default();
        Self {
            name: Str::new(format!("{}/{}", metadata.namespace, metadata.name)),
            namespace: metadata.namespace.clone(),
            created: export.created,
            labels: spec.exported_labels.unwrap_or_default(),
            annotations: spec.exported_annotations.unwrap_or_default(),
        }
    }
}

impl Row for ServiceExportRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Created"]
    }

    fn cells(&self) -> Vec<String> {
        let created = self.created.map(|at| at.to_string()).unwrap_or_default();
        vec![self.name.to_string(), created]
    }
}
