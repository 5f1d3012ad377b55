// SPDX-License-Identifier: Apache-2.0

//! Create.

use std::sync::Arc;

use serde_json::Value;

use super::{Request, check_name, place};
use crate::error::{ApiError, Fault};
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;
use crate::patch::apply::Ownership;
use crate::schema::fill_required;
use crate::server::service::Plan;
use crate::server::{ApiServer, defaults, validate};
use crate::tracker::{Domain, Transaction};

impl ApiServer {
    pub(super) fn create_in(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        request: &Request<'_>,
        mut object: Value,
        applied: Option<Ownership>,
    ) -> Result<Arc<Value>, ApiError> {
        let Request {
            kind,
            namespace,
            options,
            ..
        } = *request;
        place(kind, namespace, &mut object)?;
        if !request.name.is_empty() {
            check_name(request.name, &object)?;
        }
        if object::name(&object).is_empty() {
            let prefix = object::text(&object, &["metadata", "generateName"]).to_owned();
            if prefix.is_empty() {
                let fault = Fault::required("metadata.name", "name or generateName is required");
                return Err(ApiError::invalid(&kind.gvr.group, &kind.kind, "", &[fault]));
            }
            let name = self.generate(tx, kind, namespace, &prefix);
            object::set_metadata(&mut object, "name", &name);
        }
        let name = object::name(&object).to_owned();
        let sent_version = object::resource_version(&object);
        if self.is_real() && !sent_version.is_empty() && sent_version != "0" {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if self.is_real() {
            self.check_namespace(tx, kind, namespace, &name)?;
            object::set_metadata(&mut object, "uid", &uuid::Uuid::new_v4().to_string());
            object::set_metadata(&mut object, "creationTimestamp", &object::now());
            for key in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
                "selfLink",
            ] {
                object::metadata_mut(&mut object).shift_remove(key);
            }
            if kind.counts_generations {
                object::metadata_mut(&mut object).insert("generation".to_owned(), 1.into());
            }
            if kind.has_status
                && kind.gvr.resource != "nodes"
                && let Some(map) = object.as_object_mut()
            {
                map.shift_remove("status");
            }
            let api_version = kind.api_version();
            let (shape, manager) = (kind.shape.of_resource(), request.manager(&api_version));
            defaults::fill_in(kind, &mut object);
            let ownership = applied.unwrap_or_else(|| Ownership::update(&shape, None, &object, &manager));
            defaults::on_create(kind, &mut object);
            if kind.gvr.group.is_empty() && kind.gvr.resource == "pods" {
                self.admit_pod(tx, kind, namespace, &mut object)?;
            }
            self.admit(tx, plan, kind, None, &mut object)?;
            validate::object(kind, None, &object, self.schemas())?;
            fill_required(&kind.shape, &mut object);
            ownership.finish(&shape, None, &mut object, &manager);
        } else {
            if object::uid(&object).is_empty() {
                object::set_metadata(&mut object, "uid", &uuid::Uuid::new_v4().to_string());
            }
            if let Some(applied) = applied {
                let api_version = kind.api_version();
                let manager = request.manager(&api_version);
                applied.finish(&kind.shape.of_resource(), None, &mut object, &manager);
            }
        }
        // After validation, as real servers do: faults of the object are reported first.
        if tx
            .get(self.domain(kind), &kind.stored(), namespace, &name)
            .is_some()
        {
            return Err(ApiError::already_exists(&kind.gvr, &name));
        }
        let stored = self.store(tx, kind, object, options)?;
        if self.is_real() && kind.gvr.group.is_empty() && kind.gvr.resource == "namespaces" {
            self.populate_namespace(tx, &name);
        }
        Ok(stored)
    }

    /// A free name that starts with `prefix`.
    fn generate(&self, tx: &Transaction<'_>, kind: &Kind, namespace: &str, prefix: &str) -> String {
        // As Kubernetes: five letters that make no words, and names of at most 63 characters.
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let stem: String = prefix.chars().take(58).collect();
        loop {
            let suffix: String = (0..5)
                .map(|_| LETTERS[rand::random_range(0..LETTERS.len())] as char)
                .collect();
            let name = format!("{stem}{suffix}");
            if tx
                .get(self.domain(kind), &kind.stored(), namespace, &name)
                .is_none()
            {
                return name;
            }
        }
    }

    fn check_namespace(
        &self,
        tx: &Transaction<'_>,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        if !kind.namespaced {
            return Ok(());
        }
        let namespaces = Gvr::new("", "v1", "namespaces");
        match tx.get(Domain::Core, &namespaces, "", namespace) {
            None => Err(ApiError::not_found(&namespaces, namespace)),
            Some(found) if object::is_terminating(&found) => {
                let detail = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                let mut error = ApiError::forbidden(&kind.gvr, name, &detail);
                if let Some(details) = &mut error.details {
                    details["causes"] = serde_json::json!([{
                        "reason": "NamespaceTerminating",
                        "message": format!("namespace {namespace} is being terminated"),
                        "field": "metadata.namespace",
                    }]);
                }
                Err(error)
            }
            Some(_) => Ok(()),
        }
    }
}
