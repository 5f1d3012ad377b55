// SPDX-License-Identifier: Apache-2.0

//! What is known of a service, and what is planned for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use skep_clustermesh_types::ServiceExport;
use skep_k8s_client::Subresource;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{Metadata, Str};

use crate::namespace::NamespaceState;
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};

/// What is known of a service.
pub(crate) struct View<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) cluster: &'a str,
    pub(crate) namespace: NamespaceState,
    pub(crate) export: Option<&'a ExportObject>,
    pub(crate) service: Option<&'a ServiceObject>,
    pub(crate) import: Option<&'a ImportObject>,
    pub(crate) derived: Option<&'a ServiceObject>,
    pub(crate) remotes: &'a [Arc<ServiceExport>],
    /// Whether the exports of a cluster are not known.
    pub(crate) is_unknown: &'a dyn Fn(&str) -> bool,
    /// Slices of the Service, but for those of remote clusters.
    pub(crate) slices: Vec<&'a SliceObject>,
    /// Slices of the derived Service that were copied.
    pub(crate) copies: Vec<&'a SliceObject>,
    /// What was copied, by the name of the copy.
    pub(crate) copied: &'a BTreeMap<ObjectKey, Copied>,
    pub(crate) now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Export,
    Import,
    Service,
    Slice,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Create(Target, Value),
    Patch(Target, Str, Subresource, Value),
    /// Deletes an object if it is still this one.
    Delete(Target, Metadata),
    Copy(Box<SliceCopy>),
}

/// What has to be written for a service.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    /// What keeps the service from being as desired.
    pub(crate) fault: Option<String>,
    pub(crate) is_incomplete: bool,
}

/// A slice that has to be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SliceCopy {
    pub(crate) namespace: Str,
    pub(crate) source: Str,
    pub(crate) version: Str,
    pub(crate) target: Str,
    pub(crate) exists: bool,
    pub(crate) labels: BTreeMap<String, String>,
    /// Name and id of the derived Service, which owns the copy.
    pub(crate) owner: (Str, Str),
}

/// What was copied: nothing has to be done as long as that is what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) copy: SliceCopy,
    pub(crate) version: Str,
}
