// SPDX-License-Identifier: Apache-2.0

//! The fake client of scripts: objects from files, in two domains, without defaults.

use std::sync::Arc;

use serde_json::{Value, json};
use statedb::{Db, Table};

use crate::client::{InProcessClient, script_version};
use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::{Kind, Registry};
use crate::schema::{Shape, decode};
use crate::server::{ApiServer, Mode};
use crate::table::{Rows, TrackedObject};
use crate::tracker::{Domain, Tracker, Transaction};
use crate::{object, yaml};

/// Events of each resource that watches can catch up on.
const HISTORY: usize = 100_000;

/// Both domains, in the order in which they are tried.
const DOMAINS: [Domain; 2] = [Domain::Slim, Domain::Core];

/// The fake client: a store that scripts fill, and a client that reads it.
pub struct FakeClient {
    rows: Rows,
    api: ApiServer,
}

/// Why a script's object was not taken.
#[derive(Debug, thiserror::Error)]
pub enum FakeError {
    /// The text is no object.
    #[error("decode: {0}")]
    Decode(String),
    /// The kind is in no scheme.
    #[error("decode: no kind {kind:?} is registered for version {version:?}")]
    UnknownKind {
        /// The object's kind.
        kind: String,
        /// The object's `apiVersion`.
        version: String,
    },
    /// All domains refused.
    #[error("none of the trackers of FakeClientset accepted {type_name}\n{}", .errors.join("\n"))]
    Refused {
        /// Go type of the object.
        type_name: String,
        /// What each said.
        errors: Vec<String>,
    },
    /// No resource of this name was seen yet.
    #[error("{0:?} not a known resource, see 'k8s/resources' for full list")]
    UnknownResource(String),
    /// No object of this name is there.
    #[error("{0}")]
    NotFound(String),
    /// An object of another resource came in a resync.
    #[error("{file} is {found}, expected {expected}")]
    OtherResource {
        /// The file.
        file: String,
        /// Its resource.
        found: String,
        /// The resource to replace.
        expected: String,
    },
}

/// What a resync did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resynced {
    pub(crate) watches: usize,
    pub(crate) revision: u64,
    pub(crate) objects: usize,
}

/// An object of a file: its kind, and the object as each domain sees it.
pub(crate) struct Decoded {
    kind: Arc<Kind>,
    copies: Vec<(Domain, Value)>,
}

impl Decoded {
    fn place(&self) -> (String, String) {
        let object = self.copies.first().map(|(_, o)| o);
        object.map_or_else(Default::default, |o| {
            (object::namespace(o).to_owned(), object::name(o).to_owned())
        })
    }
}

impl FakeClient {
    /// A fake client whose objects are in the table `k8s-object-tracker` of `db`.
    ///
    /// # Errors
    /// If `db` has that table already.
    pub fn new(db: Db) -> Result<Arc<Self>, statedb::Error> {
        let rows = Rows::new(&db)?;
        let tracker = Tracker::new(rows.clone(), HISTORY, true);
        let api = ApiServer::new(tracker, Registry::with_extensions(), Mode::Fake);
        Ok(Arc::new(FakeClient { rows, api }))
    }

    /// The objects as an API server.
    pub fn server(&self) -> &ApiServer {
        &self.api
    }

    /// A client that reads and writes them. Label selectors count for its lists only: what changes later is delivered
    /// whatever its labels, which scripts rely on when they change a label that a selector is about.
    pub fn client(&self) -> InProcessClient {
        InProcessClient::new(self.api.clone(), script_version()).watching_all_labels()
    }

    /// The table of objects.
    pub fn table(&self) -> Table<TrackedObject> {
        self.rows.table()
    }

    fn tracker(&self) -> &Tracker {
        self.api.tracker()
    }

    /// Inserts or replaces the object of a YAML text; lists are expanded.
    ///
    /// # Errors
    /// If the text is no object of a known kind.
    pub fn add(&self, yaml: &str) -> Result<(), FakeError> {
        for object in self.decode(yaml)? {
            self.tracker().write(|tx| {
                for (domain, copy) in &object.copies {
                    insert(tx, *domain, &object.kind, copy.clone());
                }
                Ok::<_, FakeError>(())
            })?;
        }
        Ok(())
    }

    /// Replaces the object of a YAML text, which keeps its uid. If `strict`, its resource version must be the current
    /// one.
    ///
    /// # Errors
    /// If there is no such object, or another version of it.
    pub fn update(&self, yaml: &str, strict: bool) -> Result<(), FakeError> {
        for object in self.decode(yaml)? {
            let (namespace, name) = object.place();
            self.each_domain(&object, |tx, domain, copy| {
                let gvr = &object.kind.gvr;
                let stored = tx
                    .get(domain, gvr, &namespace, &name)
                    .ok_or_else(|| ApiError::not_found(gvr, &name))?;
                if strict {
                    check_version(gvr, &name, &stored, copy)?;
                }
                let mut new = copy.clone();
                object::set_metadata(&mut new, "uid", object::uid(&stored));
                insert(tx, domain, &object.kind, new);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Replaces only the status of the object of a YAML text, whose resource version must be the current one.
    ///
    /// # Errors
    /// If there is no such object, or another version of it.
    pub fn update_status(&self, yaml: &str) -> Result<(), FakeError> {
        for object in self.decode(yaml)? {
            let (namespace, name) = object.place();
            let gvr = &object.kind.gvr;
            let Some((domain, copy)) = object.copies.first() else {
                continue;
            };
            self.tracker()
                .write(|tx| {
                    let stored = tx
                        .get(*domain, gvr, &namespace, &name)
                        .ok_or_else(|| ApiError::not_found(gvr, &name))?;
                    check_version(gvr, &name, &stored, copy)?;
                    let mut new = (*stored).clone();
                    object::copy_field(&mut new, copy, "status");
                    tx.put(*domain, &object.kind, new);
                    Ok(())
                })
                .map_err(|error: ApiError| FakeError::NotFound(error.message))?;
        }
        Ok(())
    }

    /// Deletes the object of a YAML text. One that was deleted before is fine.
    ///
    /// # Errors
    /// If there never was such an object.
    pub fn delete(&self, yaml: &str) -> Result<(), FakeError> {
        for object in self.decode(yaml)? {
            let (namespace, name) = object.place();
            self.each_domain(&object, |tx, domain, _| {
                let gvr = &object.kind.gvr;
                let deleted = tx.delete(domain, &object.kind, &namespace, &name).is_some();
                if deleted || self.tracker().has_row(domain, gvr, &namespace, &name) {
                    Ok(())
                } else {
                    Err(ApiError::not_found(gvr, &name))
                }
            })?;
        }
        Ok(())
    }

    /// Runs `f` for each copy of an object; fine if one of them is.
    fn each_domain(
        &self,
        object: &Decoded,
        mut f: impl FnMut(&mut Transaction<'_>, Domain, &Value) -> Result<(), ApiError>,
    ) -> Result<(), FakeError> {
        self.tracker().write(|tx| {
            let mut errors = Vec::new();
            let mut accepted = false;
            for (domain, copy) in &object.copies {
                match f(tx, *domain, copy) {
                    Ok(()) => accepted = true,
                    Err(error) => errors.push(format!("{}: {error}", domain.name())),
                }
            }
            if accepted {
                return Ok(());
            }
            Err(FakeError::Refused {
                type_name: object.kind.go_type(),
                errors,
            })
        })
    }

    /// Names of the resources seen so far.
    pub fn resources(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (_, gvr) in self.tracker().resources() {
            let name = gvr.dotted();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The first known resource whose name is, or contains, `text`; true if it only contains it.
    pub(crate) fn resource(&self, text: &str) -> Result<(Gvr, bool), FakeError> {
        let known = self.tracker().resources();
        let found = known.iter().find(|(_, gvr)| gvr.dotted().contains(text));
        match found {
            Some((_, gvr)) if !text.is_empty() => Ok((gvr.clone(), gvr.dotted() != text)),
            _ => Err(FakeError::UnknownResource(text.to_owned())),
        }
    }

    /// The object of this name in the first domain that has it.
    pub(crate) fn get(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Arc<Value>, FakeError> {
        let found = DOMAINS
            .into_iter()
            .find_map(|domain| self.tracker().get(domain, gvr, namespace, name));
        found.ok_or_else(|| {
            let errors = DOMAINS.map(|_| ApiError::not_found(gvr, name).message);
            FakeError::NotFound(format!(
                "{}: no tracker recognized {}",
                errors.join("\n"),
                gvr.dotted()
            ))
        })
    }

    /// Live objects of the first domain that knows the resource, and the revision of the list.
    pub(crate) fn list(&self, gvr: &Gvr, namespace: &str) -> (Vec<Arc<Value>>, u64) {
        let domain = self.domains(gvr).first().copied().unwrap_or(Domain::Slim);
        self.tracker()
            .list(domain, gvr, (!namespace.is_empty()).then_some(namespace))
    }

    fn domains(&self, gvr: &Gvr) -> Vec<Domain> {
        let known = self.tracker().resources();
        DOMAINS
            .into_iter()
            .filter(|d| known.iter().any(|(domain, g)| domain == d && g == gvr))
            .collect()
    }

    /// The number of live objects of every resource seen so far, by domain. A domain lists each resource whose kind it
    /// knows, in the order in which the tracker has them, even if only the other domain has seen it.
    pub(crate) fn summary(&self) -> String {
        let mut resources: Vec<Gvr> = Vec::new();
        for (_, gvr) in self.tracker().resources() {
            if !resources.contains(&gvr) {
                resources.push(gvr);
            }
        }
        let mut text = String::new();
        for domain in DOMAINS {
            text.push_str(&format!("{}:\n", domain.name()));
            for gvr in &resources {
                if self.knows(domain, gvr) {
                    let count = self.tracker().list(domain, gvr, None).0.len();
                    text.push_str(&format!("- {}: {count}\n", gvr.dotted()));
                }
            }
        }
        text
    }

    /// Whether the scheme of a domain has the kind of a resource: that of compact types has all, that of the ordinary
    /// client those of Kubernetes itself.
    fn knows(&self, domain: Domain, gvr: &Gvr) -> bool {
        domain == Domain::Slim || self.api.kind(gvr).is_ok_and(|kind| kind.in_core_domain)
    }

    /// Replaces all objects of a resource at once by those of `files` (name, YAML) and ends its watches, so that
    /// clients list again.
    pub(crate) fn resync(&self, gvr: &Gvr, files: &[(String, String)]) -> Result<Resynced, FakeError> {
        let mut objects = Vec::new();
        for (file, yaml) in files {
            for object in self.decode(yaml)? {
                if object.kind.gvr != *gvr {
                    return Err(FakeError::OtherResource {
                        file: file.clone(),
                        found: object.kind.gvr.dotted(),
                        expected: gvr.dotted(),
                    });
                }
                objects.push(object);
            }
        }
        let kind = self
            .api
            .kind(gvr)
            .map_err(|error| FakeError::NotFound(error.message))?;
        let domains = self.domains(gvr);
        self.tracker().write(|tx| {
            let mut watches = 0;
            for domain in domains {
                for object in tx.list(domain, gvr, None) {
                    tx.delete(domain, &kind, object::namespace(&object), object::name(&object));
                }
                watches += tx.expire_watches(domain, gvr);
            }
            let mut count = 0;
            for object in &objects {
                for (domain, copy) in &object.copies {
                    insert(tx, *domain, &object.kind, copy.clone());
                    count += 1;
                }
            }
            Ok(Resynced {
                watches,
                revision: tx.revision(),
                objects: count,
            })
        })
    }

    /// The objects of a YAML text.
    fn decode(&self, text: &str) -> Result<Vec<Decoded>, FakeError> {
        let value = yaml::first_document(text).map_err(|error| FakeError::Decode(error.to_string()))?;
        let (version, kind) = (
            object::text(&value, &["apiVersion"]),
            object::text(&value, &["kind"]),
        );
        let of_one_kind = self.api.registry().by_list_kind(version, kind);
        let items = if let Some(kind) = of_one_kind {
            // Its items may leave out what kind they are.
            object::items(&value, &["items"])
                .iter()
                .map(|item| object::with_type(item.clone(), &kind.api_version(), &kind.kind))
                .collect()
        } else if kind == "List" {
            object::items(&value, &["items"]).to_vec()
        } else {
            vec![value]
        };
        items.into_iter().map(|item| self.decode_one(item)).collect()
    }

    fn decode_one(&self, mut value: Value) -> Result<Decoded, FakeError> {
        let (version, kind) = (
            object::text(&value, &["apiVersion"]),
            object::text(&value, &["kind"]),
        );
        let Some(found) = self.api.registry().by_kind(version, kind) else {
            return Err(FakeError::UnknownKind {
                kind: kind.to_owned(),
                version: version.to_owned(),
            });
        };
        yaml::resolve(&found.shape, &mut value);
        let mut copies = Vec::new();
        if found.in_slim_domain {
            copies.push((Domain::Slim, slim(&found, value.clone())?));
        }
        if found.in_core_domain {
            copies.push((Domain::Core, core(&found, value)?));
        }
        Ok(Decoded { kind: found, copies })
    }
}

fn check_version(gvr: &Gvr, name: &str, stored: &Value, copy: &Value) -> Result<(), ApiError> {
    let (current, got) = (object::resource_version(stored), object::resource_version(copy));
    if current == got {
        return Ok(());
    }
    Err(ApiError::other_version(gvr, name, current, got))
}

fn insert(tx: &mut Transaction<'_>, domain: Domain, kind: &Kind, mut value: Value) {
    if object::uid(&value).is_empty() {
        let stored = tx.get(domain, &kind.gvr, object::namespace(&value), object::name(&value));
        let uid = stored.map_or_else(
            || uuid::Uuid::new_v4().to_string(),
            |s| object::uid(&s).to_owned(),
        );
        object::set_metadata(&mut value, "uid", &uid);
    }
    tx.put(domain, kind, value);
}

/// The object as the compact client sees it.
fn slim(kind: &Kind, value: Value) -> Result<Value, FakeError> {
    match skep_k8s_types::slim::normalize(&value) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(FakeError::Decode(error.to_string())),
        None if kind.in_core_domain => core(kind, value),
        None => {
            let mut value = object::with_type(value, &kind.api_version(), &kind.kind);
            object::metadata_mut(&mut value).shift_remove("managedFields");
            Ok(value)
        }
    }
}

/// The object as the ordinary client sees it: fields it does not know are dropped, structs are always there.
fn core(kind: &Kind, value: Value) -> Result<Value, FakeError> {
    let mut value = object::with_type(value, &kind.api_version(), &kind.kind);
    decode(&kind.shape, &mut value, &kind.kind).map_err(FakeError::Decode)?;
    let shape = kind.shape.object();
    let has = |field: &str| shape.as_ref().is_some_and(|o| o.field(field).is_some());
    if kind.kind == "CustomResourceDefinition" {
        return Ok(value);
    }
    for part in ["spec", "status"] {
        let is_struct = matches!(kind.shape.child(part), Shape::Named(_));
        if has(part) && is_struct {
            object::map_mut(&mut value, part);
        }
    }
    if matches!(kind.kind.as_str(), "Service" | "Ingress") {
        object::map_mut(&mut value, "status")
            .entry("loadBalancer")
            .or_insert_with(|| json!({}));
    }
    Ok(value)
}
