// SPDX-License-Identifier: Apache-2.0

//! Table `network-policies`.

use std::sync::Arc;

use serde_json::{Value, json};
use statedb::row::BoxError;
use statedb::{Db, Index, Row, RwTable};

/// Where an object is from, as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Kinds of Kubernetes.
    Kubernetes,
    /// Kinds of Cilium.
    CustomResource,
    /// Files of `static-cnp-path`.
    Directory,
}

impl Origin {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "k8s",
            Self::CustomResource => "custom-resource",
            Self::Directory => "directory",
        }
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRow {
    pub origin: Origin,
    /// As in its `kind`; the kind of the row of a file is `file`.
    pub kind: &'static str,
    /// Of a file the directory.
    pub namespace: String,
    /// Of a file its name.
    pub name: String,
    /// JSON with `kind`, without managed fields and status.
    pub object: Arc<Value>,
}

impl PolicyRow {
    /// By `kind/namespace/name`.
    pub const BY_KEY: Index<Self, str> = Index::new("key", |row, keys| keys.add(&row.key()));

    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

impl Row for PolicyRow {
    fn header() -> &'static [&'static str] {
        &["Kind", "Namespace", "Name", "Source"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.kind.to_owned(),
            self.namespace.clone(),
            self.name.clone(),
            self.origin.as_str().to_owned(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "Kind": self.kind,
            "Namespace": self.namespace,
            "Name": self.name,
            "Source": self.origin.as_str(),
            "Object": &*self.object,
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<PolicyRow>, statedb::Error> {
    RwTable::builder("network-policies")
        .primary(PolicyRow::BY_KEY)
        .build(&db)
}
