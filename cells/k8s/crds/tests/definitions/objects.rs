// SPDX-License-Identifier: Apache-2.0

//! Objects that an API server with our definitions accepts and refuses, with its words.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod accepted;
mod kubernetes;
mod refused;
mod types;

use std::sync::{Arc, LazyLock};

use serde_json::Value;
use skep_k8s_apiserver::OpenApiSchemas;
use skep_k8s_crds::{Definition, definitions};
use skep_k8s_memory::{
    ApiError, ApiServer, Gvr, Mode, Patch, Registry, Rows, Settings, Subresource, Tracker, WriteOptions,
};

/// An API server with all definitions.
pub(crate) struct Cluster(pub(crate) ApiServer);

impl Cluster {
    pub(crate) fn new() -> Self {
        let rows = Rows::new(&statedb::Db::new()).unwrap();
        let tracker = Tracker::new(rows, 1000, false);
        let settings = Settings {
            schemas: Some(Arc::new(OpenApiSchemas)),
            ..Settings::default()
        };
        let cluster = Cluster(ApiServer::new(tracker, Registry::builtin(), Mode::Real(settings)));
        for definition in all() {
            let written = cluster
                .0
                .create(&crds(), "", definition.to_object(), &WriteOptions::default());
            let written = written.unwrap_or_else(|error| panic!("{}: {error}", definition.kind));
            assert_eq!(written.warnings, Vec::<String>::new(), "{}", definition.kind);
        }
        cluster
    }

    pub(crate) fn create(&self, kind: &str, object: Value) -> Result<Arc<Value>, ApiError> {
        self.create_in(kind, "", object)
    }

    /// Creates an object in a version; empty for the one that is stored.
    pub(crate) fn create_in(
        &self,
        kind: &str,
        version: &str,
        mut object: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let (gvr, namespace) = place(kind, version);
        if object["metadata"]["name"].is_null() {
            object["metadata"]["name"] = "x".into();
        }
        self.0
            .create(&gvr, namespace, object, &WriteOptions::default())
            .map(|written| written.object)
    }

    pub(crate) fn patch(&self, kind: &str, part: Subresource, patch: Patch) -> Result<Arc<Value>, ApiError> {
        let (gvr, namespace) = place(kind, "");
        self.0
            .patch(&gvr, namespace, "x", part, &patch, &WriteOptions::default())
            .map(|written| written.object)
    }

    pub(crate) fn get(&self, kind: &str, version: &str) -> Result<Arc<Value>, ApiError> {
        let (gvr, namespace) = place(kind, version);
        self.0.get(&gvr, namespace, "x")
    }
}

/// Making them takes a second without optimization.
pub(crate) fn all() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
        let mut all = definitions::cilium();
        all.extend(definitions::multi_cluster());
        all
    });
    &ALL
}

pub(crate) fn crds() -> Gvr {
    Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

fn place(kind: &str, version: &str) -> (Gvr, &'static str) {
    let definition = all().iter().find(|definition| definition.kind == kind).unwrap();
    let stored = definition
        .versions
        .iter()
        .find(|version| version.storage)
        .unwrap();
    let version = if version.is_empty() { &stored.name } else { version };
    let gvr = Gvr::new(&definition.group, version, &definition.plural);
    (gvr, if definition.namespaced { "default" } else { "" })
}
