// SPDX-License-Identifier: Apache-2.0

//! `/v1/policy`: rules and selectors, in the form of Cilium's agent API; `/v1/policy/explain` is our own.

mod endpoint;
mod explain;

use std::collections::{BTreeSet, HashMap};

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use hive::{Cell, Member};
use serde::Serialize;
use serde_json::Value;
use skep_base_api::{Routes, json_list};
use skep_policy_model::{ResourceId, cache::CachedSelector, document, policies::PeerUses, rule::RuleOrigin};
use skep_policy_sources::PolicyRow;
use statedb::Table;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Repository, follow::resource_of};
use explain::{Explanation, Question};

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("policy-api", "Policies in the API of the agent").provide(api)
}

#[derive(Clone)]
struct Policies {
    repository: Repository,
    objects: Table<PolicyRow>,
}

fn api(repository: Repository, objects: Table<PolicyRow>) -> Member<Routes> {
    let routes = OpenApiRouter::new()
        .routes(routes!(get))
        .routes(routes!(selectors))
        .routes(routes!(subject_selectors))
        .routes(routes!(explain))
        .with_state(Policies { repository, objects });
    Member(Routes::new(routes))
}

/// A label of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct Label {
    /// Key.
    key: String,
    /// Value; empty for none.
    value: String,
    /// Source.
    source: String,
}

impl From<document::Label> for Label {
    fn from(document::Label { key, value, source }: document::Label) -> Self {
        Self { key, value, source }
    }
}

/// The rules of all policies.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct Policy {
    /// Rules, as JSON text.
    policy: String,
    /// Revision of the rules.
    revision: u64,
}

/// A selector, and the identities that it selects.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct SelectorIdentityMapping {
    /// Canonical text.
    selector: String,
    /// Selected identities.
    identities: Vec<u32>,
    /// Number of uses.
    users: usize,
    /// Labels of the rules that use it.
    labels: Vec<Vec<Label>>,
}

impl SelectorIdentityMapping {
    fn new<'a>(
        cached: &CachedSelector,
        users: usize,
        origins: impl IntoIterator<Item = &'a std::sync::Arc<RuleOrigin>>,
    ) -> Self {
        let labels: BTreeSet<&[Box<str>]> = origins.into_iter().map(|origin| &*origin.labels).collect();
        Self {
            selector: cached.selector.to_string(),
            identities: cached.selection.iter().map(|identity| identity.get()).collect(),
            users,
            labels: labels
                .into_iter()
                .map(|labels| document::labels(labels).into_iter().map(Label::from).collect())
                .collect(),
        }
    }
}

/// Shows the rules of all policies.
#[utoipa::path(get, path = "/policy", responses((status = 200, description = "The rules", body = Policy)))]
async fn get(State(policies): State<Policies>) -> Json<Policy> {
    let (rules, revision) = policies.repository.with(|policies| {
        let rules: Vec<_> = policies.rules().cloned().collect();
        (rules, policies.revision())
    });
    let snapshot = policies.repository.0.db.read();
    let objects: HashMap<ResourceId, &Value> = policies
        .objects
        .all(&snapshot)
        .filter_map(|row| Some((resource_of(row)?, &*row.object)))
        .collect();
    let entries = rules.iter().map(|rule| {
        let object = rule.origin.resource.as_ref().and_then(|id| objects.get(id));
        document::entry(rule, object.copied())
    });
    Json(Policy {
        policy: document::text(&entries.collect::<Vec<_>>()),
        revision,
    })
}

/// Lists the selectors of peers with the identities that they select.
#[utoipa::path(
    get,
    path = "/policy/selectors",
    responses((status = 200, description = "The selectors", body = [SelectorIdentityMapping])),
)]
async fn selectors(State(policies): State<Policies>) -> Response {
    let mappings = policies.repository.with(|policies| {
        let uses = policies.peer_uses();
        let unused = PeerUses::default();
        let mappings = policies.peers().iter().map(|(_, cached)| {
            let uses = uses.get(&cached.selector).unwrap_or(&unused);
            SelectorIdentityMapping::new(cached, uses.filters, &uses.origins)
        });
        mappings.collect()
    });
    list(mappings)
}

/// Lists the selectors of the subjects of rules with the identities of endpoints that they select.
#[utoipa::path(
    get,
    path = "/policy/subject-selectors",
    responses((status = 200, description = "The selectors", body = [SelectorIdentityMapping])),
)]
async fn subject_selectors(State(policies): State<Policies>) -> Response {
    let mappings = policies.repository.with(|policies| {
        let mappings = policies.subjects().iter().map(|(id, cached)| {
            SelectorIdentityMapping::new(cached, cached.users, &policies.rules_with_subject(id))
        });
        mappings.collect()
    });
    list(mappings)
}

fn list(mut mappings: Vec<SelectorIdentityMapping>) -> Response {
    mappings.sort_unstable_by(|one, other| one.selector.cmp(&other.selector));
    json_list(mappings, |mapping, out| serde_json::to_writer(out, mapping))
}

/// Explains what happens to a packet, and which rules decide.
#[utoipa::path(
    get,
    path = "/policy/explain",
    params(Question),
    responses(
        (status = 200, description = "One explanation for each end on this node: egress, then ingress", body = [Explanation]),
        (status = 400, description = "The question is invalid"),
        (status = 404, description = "No end is an endpoint of this node with a policy"),
    ),
)]
async fn explain(State(policies): State<Policies>, Query(question): Query<Question>) -> Response {
    match policies
        .repository
        .with(|policies| explain::explain(policies, &question))
    {
        Err(error) => skep_base_api::error(StatusCode::BAD_REQUEST, &error.to_string()),
        Ok(found) if found.is_empty() => {
            let text = "neither end is an endpoint of this node with a policy";
            skep_base_api::error(StatusCode::NOT_FOUND, text)
        }
        Ok(found) => Json(found).into_response(),
    }
}

#[cfg(test)]
mod tests;
