// SPDX-License-Identifier: Apache-2.0

//! The API as a library: what the HTTP server and the in-process client call.

mod accounts;
mod bind;
mod crd;
mod defaults;
mod delete;
mod expiry;
mod list;
mod options;
mod scale;
mod schema;
mod service;
mod tokens;
mod validate;
mod watch;
mod write;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub use list::List;
pub use options::{DeleteOptions, FieldValidation, ListOptions, Propagation, VersionMatch, WriteOptions};
pub use scale::{read_scale, scale_patch};
pub use schema::{SchemaCompiler, Validator, add_object_fields, prune};
pub use tokens::{Bound, Reference, Token, TokenError};
pub use watch::{Watch, WatchEvent, WatchKind};
pub use write::{Deleted, Subresource, Written};

use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::{Kind, Registry};
use crate::object;
use crate::tracker::{Domain, Tracker};
use expiry::Expiry;
use service::Allocator;
use tokens::Tokens;

/// How much like a real server it acts.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Objects are stored as they come: no defaults, no validation, no namespaces that must exist. For scripts.
    Fake,
    /// Objects are decoded, defaulted, validated and owned as a real server does.
    Real(Settings),
}

/// Settings of a server that acts like a real one.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Networks that cluster addresses are taken from, at most one of each family. The first is the default.
    pub service_networks: Vec<IpNet>,
    /// Node ports.
    pub node_ports: RangeInclusive<u16>,
    /// Time between two bookmarks of a watch that asked for them.
    pub bookmark_every: Duration,
    /// How long events are kept after their last write; zero keeps them.
    pub event_ttl: Duration,
    /// Admission plugin ServiceAccount: pods get an account, which must exist, and a volume with its token.
    pub admits_service_accounts: bool,
    /// Certificates in PEM by which pods verify this server; every namespace gets them as ConfigMap `kube-root-ca.crt`.
    pub root_ca: Option<String>,
    /// Validation of custom resources; `None`: they are pruned and defaulted only.
    pub schemas: Option<Arc<dyn SchemaCompiler>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            service_networks: vec![IpNet::new_assert("10.96.0.0".parse().expect("an address"), 16)],
            node_ports: 30000..=32767,
            bookmark_every: Duration::from_secs(60),
            event_ttl: Duration::from_secs(60 * 60),
            admits_service_accounts: true,
            root_ca: None,
            schemas: None,
        }
    }
}

/// A Kubernetes API server without a network. Cheap to clone; clones share.
#[derive(Clone)]
pub struct ApiServer(Arc<Inner>);

struct Inner {
    tracker: Tracker,
    registry: Registry,
    mode: Mode,
    allocator: Mutex<Allocator>,
    expiry: Mutex<Expiry>,
    event_ttl: Option<Duration>,
    admits_service_accounts: bool,
    tokens: Tokens,
    root_ca: Option<String>,
    schemas: Option<Arc<dyn SchemaCompiler>>,
}

impl ApiServer {
    /// A server over `tracker` for the kinds of `registry`. Objects that are there already are taken over.
    pub fn new(tracker: Tracker, registry: Registry, mode: Mode) -> Self {
        let settings = match &mode {
            Mode::Real(settings) => settings.clone(),
            Mode::Fake => Settings {
                event_ttl: Duration::ZERO,
                ..Settings::default()
            },
        };
        let server = ApiServer(Arc::new(Inner {
            tracker,
            registry,
            mode,
            allocator: Mutex::new(Allocator::new(&settings)),
            expiry: Mutex::default(),
            event_ttl: Some(settings.event_ttl).filter(|ttl| !ttl.is_zero()),
            admits_service_accounts: settings.admits_service_accounts,
            tokens: Tokens::default(),
            root_ca: settings.root_ca,
            schemas: settings.schemas,
        }));
        if matches!(server.0.mode, Mode::Real(_)) {
            server.take_over();
        }
        server
    }

    /// Makes what every cluster has, and accounts for what is stored.
    fn take_over(&self) {
        for definition in self.0.tracker.list(Domain::Core, &crd::definitions(), None).0 {
            for kind in crd::kinds(&definition, self.schemas()) {
                self.0.registry.insert(kind);
            }
        }
        for service in self
            .0
            .tracker
            .list(Domain::Core, &Gvr::new("", "v1", "services"), None)
            .0
        {
            self.0.allocator.lock().account(&service);
        }
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let namespace = json!({ "metadata": { "name": name } });
            // Fails only if it is there already.
            let _ = self.create(
                &Gvr::new("", "v1", "namespaces"),
                "",
                namespace,
                &WriteOptions::default(),
            );
        }
    }

    /// The store.
    pub fn tracker(&self) -> &Tracker {
        &self.0.tracker
    }

    /// The kinds.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// True if it acts like a real server.
    pub fn is_real(&self) -> bool {
        matches!(self.0.mode, Mode::Real(_))
    }

    fn schemas(&self) -> Option<&dyn SchemaCompiler> {
        self.0.schemas.as_deref()
    }

    fn settings(&self) -> Settings {
        match &self.0.mode {
            Mode::Real(settings) => settings.clone(),
            Mode::Fake => Settings::default(),
        }
    }

    /// Reads an object.
    pub fn get(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Arc<Value>, ApiError> {
        let kind = self.kind(gvr)?;
        let domain = self.domain(&kind);
        self.0.tracker.note(domain, &kind.stored());
        self.0
            .tracker
            .get(domain, &kind.stored(), namespace, name)
            .map(|object| present(&kind, object))
            .ok_or_else(|| ApiError::not_found(gvr, name))
    }

    /// The kind behind a resource; an error if there is none.
    pub fn kind(&self, gvr: &Gvr) -> Result<Arc<Kind>, ApiError> {
        self.0.registry.get(gvr).ok_or_else(ApiError::no_resource)
    }

    /// Where objects of a kind are: the fake keeps the compact kinds apart, a real server has one store.
    pub(crate) fn domain(&self, kind: &Kind) -> Domain {
        match self.0.mode {
            Mode::Fake if kind.in_slim_domain => Domain::Slim,
            _ => Domain::Core,
        }
    }
}

/// The object in the version that was asked for, with the defaults that it has today.
pub(crate) fn present(kind: &Kind, object: Arc<Value>) -> Arc<Value> {
    let api_version = kind.api_version();
    let defaults = kind
        .custom
        .as_ref()
        .filter(|custom| custom.has_defaults && schema::lacks_defaults(&custom.schema, &object));
    let is_of_version = object::text(&object, &["apiVersion"]) == api_version;
    if is_of_version && defaults.is_none() {
        return object;
    }
    let mut copy = (*object).clone();
    if let Some(map) = copy.as_object_mut() {
        map.insert("apiVersion".to_owned(), api_version.into());
    }
    if let Some(custom) = defaults {
        schema::fill(&custom.schema, &mut copy);
    }
    Arc::new(copy)
}
