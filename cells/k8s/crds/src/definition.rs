// SPDX-License-Identifier: Apache-2.0

//! CustomResourceDefinitions: names, versions, printer columns.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use skep_k8s_types::Resource;

use crate::schema;

/// Label of a definition with the version of its schema.
pub const SCHEMA_VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// Version of all schemas of group `cilium.io`. Raise it when a schema changes: definitions with an equal or higher
/// version are left alone.
pub const SCHEMA_VERSION: &str = "1.33.9";

/// Label of a definition of the Multi-Cluster Services API with its release.
pub(crate) const MCS_RELEASE_LABEL: &str = "multicluster.x-k8s.io/release-version";
pub(crate) const MCS_RELEASE: &str = "v0.5.0";
/// Label with the revision of the schema in that release.
pub(crate) const MCS_REVISION_LABEL: &str = "multicluster.x-k8s.io/crd-schema-revision";
pub(crate) const MCS_REVISION: &str = "1";

/// By which labels it is known how new a definition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// [`SCHEMA_VERSION_LABEL`].
    Cilium,
    /// Release and revision of the Multi-Cluster Services API.
    MultiCluster,
}

impl Revision {
    pub fn labels(self) -> Map<String, Value> {
        let labels: &[(&str, &str)] = match self {
            Revision::Cilium => &[(SCHEMA_VERSION_LABEL, SCHEMA_VERSION)],
            Revision::MultiCluster => &[
                (MCS_RELEASE_LABEL, MCS_RELEASE),
                (MCS_REVISION_LABEL, MCS_REVISION),
            ],
        };
        labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).into()))
            .collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresources {
    Absent,
    /// Named, and empty; means the same.
    Empty,
    Status,
}

/// Type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    Text,
    Integer,
    Boolean,
    /// A time, shown as the time since then.
    Date,
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub ty: ColumnType,
    /// JSONPath of the value in the object.
    pub path: &'static str,
    /// What it shows; empty for nothing.
    pub description: &'static str,
    /// 0: always shown. 1: shown by `-o wide`.
    pub priority: i32,
}

impl Column {
    /// A column that is always shown.
    pub const fn new(name: &'static str, ty: ColumnType, path: &'static str) -> Self {
        Self {
            name,
            ty,
            path,
            description: "",
            priority: 0,
        }
    }

    #[must_use]
    pub const fn described(self, description: &'static str) -> Self {
        Self { description, ..self }
    }

    /// Shows it by `-o wide` only.
    #[must_use]
    pub const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }

    fn to_value(self) -> Value {
        let ty = match self.ty {
            ColumnType::Text => "string",
            ColumnType::Integer => "integer",
            ColumnType::Boolean => "boolean",
            ColumnType::Date => "date",
        };
        let mut column = json!({ "jsonPath": self.path, "name": self.name, "type": ty });
        if !self.description.is_empty() {
            column["description"] = self.description.into();
        }
        if self.priority != 0 {
            column["priority"] = self.priority.into();
        }
        column
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// Name, such as `v2`.
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub schema: Value,
    pub subresources: Subresources,
    /// Columns of `kubectl get`.
    pub columns: Vec<Column>,
}

/// The definition of a custom resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub group: String,
    pub kind: String,
    pub plural: String,
    pub namespaced: bool,
    /// Short names for the command line.
    pub short_names: Vec<&'static str>,
    /// Groups of kinds that it belongs to.
    pub categories: Vec<&'static str>,
    /// By which labels it is known how new it is.
    pub revision: Revision,
    /// Versions, in the order of the definition.
    pub versions: Vec<Version>,
}

impl Definition {
    /// A definition with one version, that of `T`, which is served and stored.
    pub(crate) fn of<T: Resource + JsonSchema>(revision: Revision, metadata_is_required: bool) -> Self {
        let kind = T::kind();
        Self {
            group: kind.group.to_string(),
            kind: kind.kind.to_string(),
            plural: kind.plural.to_string(),
            namespaced: kind.namespaced,
            short_names: Vec::new(),
            categories: Vec::new(),
            revision,
            versions: vec![Version {
                name: kind.version.to_string(),
                served: true,
                storage: true,
                deprecated: false,
                schema: schema::of_kind::<T>(metadata_is_required),
                subresources: Subresources::Absent,
                columns: Vec::new(),
            }],
        }
    }

    pub(crate) fn short(mut self, names: &[&'static str]) -> Self {
        self.short_names = names.to_vec();
        self
    }

    pub(crate) fn categories(mut self, names: &[&'static str]) -> Self {
        self.categories = names.to_vec();
        self
    }

    pub(crate) fn subresources(mut self, subresources: Subresources) -> Self {
        self.versions
            .iter_mut()
            .for_each(|version| version.subresources = subresources);
        self
    }

    pub(crate) fn columns(mut self, columns: &[Column]) -> Self {
        self.versions
            .iter_mut()
            .for_each(|version| version.columns = columns.to_vec());
        self
    }

    /// Adds a served version behind the first, as that one is now, with `edit` made to its schema.
    pub(crate) fn also(mut self, name: &str, deprecated: bool, edit: impl FnOnce(&mut Value)) -> Self {
        let mut version = Version {
            name: name.to_owned(),
            storage: false,
            deprecated,
            ..self.versions[0].clone()
        };
        edit(&mut version.schema);
        self.versions.push(version);
        self
    }

    /// Name of the object: `plural.group`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Name of one object on the command line.
    pub fn singular(&self) -> String {
        self.kind.to_lowercase()
    }

    /// The version called `name`.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// The `spec` of the object.
    pub fn spec(&self) -> Value {
        let mut names = json!({
            "categories": self.categories,
            "kind": self.kind,
            "plural": self.plural,
            "shortNames": self.short_names,
            "singular": self.singular(),
        });
        if let Some(names) = names.as_object_mut() {
            names.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
        }
        json!({
            "group": self.group,
            "names": names,
            "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
            "versions": self.versions.iter().map(Version::to_value).collect::<Vec<_>>(),
        })
    }

    /// The object as it is created.
    pub fn to_object(&self) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": self.name(), "labels": self.revision.labels() },
            "spec": self.spec(),
        })
    }
}

impl Version {
    fn to_value(&self) -> Value {
        let mut version = json!({
            "name": self.name,
            "schema": { "openAPIV3Schema": self.schema },
            "served": self.served,
            "storage": self.storage,
        });
        if self.deprecated {
            version["deprecated"] = true.into();
        }
        if !self.columns.is_empty() {
            let columns: Vec<Value> = self.columns.iter().map(|column| column.to_value()).collect();
            version["additionalPrinterColumns"] = columns.into();
        }
        match self.subresources {
            Subresources::Absent => {}
            Subresources::Empty => version["subresources"] = json!({}),
            Subresources::Status => version["subresources"] = json!({ "status": {} }),
        }
        version
    }
}
