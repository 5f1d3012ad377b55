// SPDX-License-Identifier: Apache-2.0

//! What each client did with each resource: the rights that its role must have.

use std::collections::BTreeSet;

use http::{Method, request::Parts};
use parking_lot::Mutex;
use serde::Serialize;

use super::request::{Query, Target};
use super::user::User;

/// Kinds of requests since the start of the server, each once.
#[derive(Debug, Default)]
pub(super) struct Audit(Mutex<BTreeSet<Access>>);

/// A right that a request needs, in the terms of RBAC.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Access {
    /// Program, from `User-Agent`.
    client: String,
    /// User that the request is authenticated as.
    user: String,
    verb: &'static str,
    api_group: String,
    /// Resource, with its subresource: `services/status`.
    resource: String,
    /// Absent: of all namespaces, or of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

impl Audit {
    /// Records a request.
    pub(super) fn record(&self, user: &User, user_agent: &str, parts: &Parts, target: &Target) {
        let resource = match target.subresource.as_str() {
            "" => target.gvr.resource.to_string(),
            subresource => format!("{}/{subresource}", target.gvr.resource),
        };
        let verb = verb(
            &parts.method,
            target.name.is_empty(),
            parts.uri.query().unwrap_or_default(),
        );
        self.0.lock().insert(Access {
            client: user_agent.split('/').next().unwrap_or_default().to_owned(),
            user: user.name.clone(),
            verb,
            api_group: target.gvr.group.to_string(),
            resource,
            namespace: target.namespace.clone(),
        });
    }

    /// All of them, as JSON.
    pub(super) fn value(&self) -> serde_json::Value {
        serde_json::json!(*self.0.lock())
    }
}

/// Verb of a request, as in rules of roles.
fn verb(method: &Method, is_collection: bool, query: &str) -> &'static str {
    match *method {
        Method::GET if is_collection && Query::parse(query).flag("watch") => "watch",
        Method::GET if is_collection => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if is_collection => "deletecollection",
        Method::DELETE => "delete",
        _ => "get",
    }
}
