// SPDX-License-Identifier: Apache-2.0

//! `/v1/fqdn`: names in caches, selectors of names; part `proxy` of the status.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    Json,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use hive::{Cell, Cfg, Member};
use ipnet::IpNet;
use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde::{Deserialize, Serialize};
use skep_base_api::{Routes, StatusProbe};
use skep_base_api_types::{ProxyRedirect, ProxyStatus, Status, StatusResponse};
use skep_node_local::LocalNodeStore;
use skep_policy_model::fqdn::{FqdnError, FqdnSelector, NameMatcher, pattern_regex};
use skep_policy_repository::Repository;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Config, Lookup, LookupSource, Names};

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("fqdn-api", "DNS names in the API of the agent")
        .provide(api)
        .provide(status)
}

struct Proxy {
    config: Cfg<Config>,
    repository: Repository,
    local: Option<LocalNodeStore>,
}

/// Part `proxy`.
fn status(
    config: Cfg<Config>,
    repository: Repository,
    local: Option<LocalNodeStore>,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Proxy {
        config,
        repository,
        local,
    }))
}

#[async_trait]
impl StatusProbe for Proxy {
    fn name(&self) -> &'static str {
        "proxy"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let port = self.repository.dns_port().unwrap_or_default();
        let redirect = |name| ProxyRedirect {
            name,
            proxy: crate::proxy::NAME.to_owned(),
            proxy_port: port,
        };
        let redirects: Vec<ProxyRedirect> = self
            .repository
            .dns_redirects()
            .into_iter()
            .map(redirect)
            .collect();
        let node = self.local.as_ref().and_then(|local| local.get());
        let routers: Vec<IpAddr> = node.iter().flat_map(|node| node.routers()).collect();
        let router = routers.iter().min_by_key(|router| router.is_ipv6());
        let envoy = if self.config.external_envoy {
            "external"
        } else {
            "embedded"
        };
        response.proxy = Some(ProxyStatus {
            envoy_deployment_mode: envoy.to_owned(),
            ip: router.map(ToString::to_string).unwrap_or_default(),
            port_range: format!("{}-{}", self.config.port_min, self.config.port_max),
            total_ports: u64::from(!redirects.is_empty()),
            total_redirects: redirects.len() as u64,
            redirects,
        });
        None
    }
}

fn api(names: Names) -> Member<Routes> {
    let routes = OpenApiRouter::new()
        .routes(routes!(cache, clear))
        .routes(routes!(endpoint_cache))
        .routes(routes!(selectors))
        .with_state(names);
    Member(Routes::new(routes))
}

/// A name that an endpoint looked up.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = DNSLookup)]
struct DnsLookup {
    /// Id of the endpoint.
    endpoint_id: u16,
    /// When the entry is due.
    #[schema(value_type = String)]
    expiration_time: String,
    /// Name.
    fqdn: String,
    /// Addresses.
    ips: Vec<String>,
    /// Time of the answer; of connections the last time that one was seen.
    #[schema(value_type = String)]
    lookup_time: String,
    /// `lookup` or `connection`.
    source: String,
    /// TTL in seconds.
    ttl: u32,
}

/// The form that commands of Cilium print: milliseconds, UTC.
fn time(time: Timestamp) -> String {
    let time = Zoned::new(time, TimeZone::UTC);
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

impl From<Lookup> for DnsLookup {
    fn from(lookup: Lookup) -> Self {
        Self {
            endpoint_id: lookup.endpoint,
            expiration_time: time(lookup.expiration),
            fqdn: lookup.name.to_string(),
            ips: lookup
                .addresses
                .iter()
                .map(|address| address.to_string())
                .collect(),
            lookup_time: time(lookup.lookup),
            source: match lookup.source {
                LookupSource::Lookup => "lookup",
                LookupSource::Connection => "connection",
            }
            .to_owned(),
            ttl: lookup.ttl,
        }
    }
}

/// A selector of names.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SelectorEntry {
    /// Regular expression of the names.
    regex_string: String,
    /// Selector, as rules have it.
    selector_string: String,
}

/// What follows names.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct NameManager {
    /// Names that are looked up regularly: none.
    #[serde(rename = "DNSPollNames")]
    poll_names: Option<Vec<String>>,
    /// Selectors of names.
    #[serde(rename = "FQDNPolicySelectors")]
    selectors: Vec<SelectorEntry>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Pattern of names.
    #[serde(default)]
    matchpattern: String,
    /// Network of addresses.
    #[serde(default)]
    cidr: String,
    /// `lookup` or `connection`.
    #[serde(default)]
    source: String,
}

/// An invalid filter.
#[derive(Debug, thiserror::Error)]
enum FilterError {
    #[error(transparent)]
    Pattern(#[from] FqdnError),
    #[error("invalid CIDR address: {0}")]
    Network(String),
}

fn matcher(pattern: &str) -> Result<Option<NameMatcher>, FqdnError> {
    if pattern.is_empty() {
        return Ok(None);
    }
    let selector = FqdnSelector::pattern(pattern);
    selector.validate()?;
    Ok(Some(selector.matcher()))
}

impl Filter {
    fn apply(&self, mut lookups: Vec<Lookup>) -> Result<Vec<DnsLookup>, FilterError> {
        if let Some(matcher) = matcher(&self.matchpattern)? {
            lookups.retain(|lookup| matcher.matches(&lookup.name));
        }
        if !self.cidr.is_empty() {
            let net: IpNet = self
                .cidr
                .parse()
                .map_err(|_| FilterError::Network(self.cidr.clone()))?;
            for lookup in &mut lookups {
                lookup.addresses.retain(|address| net.contains(address));
            }
            lookups.retain(|lookup| !lookup.addresses.is_empty());
        }
        let mut found: Vec<DnsLookup> = lookups.into_iter().map(DnsLookup::from).collect();
        if !self.source.is_empty() {
            found.retain(|lookup| lookup.source == self.source);
        }
        Ok(found)
    }
}

fn listed(lookups: Vec<Lookup>, filter: &Filter) -> Response {
    match filter.apply(lookups) {
        Ok(found) if found.is_empty() => StatusCode::NOT_FOUND.into_response(),
        Ok(found) => Json(found).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, Json(error.to_string())).into_response(),
    }
}

/// Lists the names that endpoints looked up.
#[utoipa::path(get, path = "/fqdn/cache", params(Filter), responses(
    (status = 200, description = "The names", body = Vec<DnsLookup>),
    (status = 400, description = "The filter is invalid", body = String),
    (status = 404, description = "There are none"),
))]
async fn cache(State(names): State<Names>, Query(filter): Query<Filter>) -> Response {
    listed(names.lookups(None).unwrap_or_default(), &filter)
}

/// Lists the names that an endpoint looked up.
#[utoipa::path(get, path = "/fqdn/cache/{id}", params(("id" = String, Path, description = "Id of the endpoint"), Filter), responses(
    (status = 200, description = "The names", body = Vec<DnsLookup>),
    (status = 400, description = "The filter is invalid", body = String),
    (status = 404, description = "There are none, or there is no such endpoint"),
))]
async fn endpoint_cache(
    State(names): State<Names>,
    Path(id): Path<String>,
    Query(filter): Query<Filter>,
) -> Response {
    let number = id.strip_prefix("cilium-local:").unwrap_or(&id);
    let lookups = number.parse().ok().and_then(|id| names.lookups(Some(id)));
    match lookups {
        Some(lookups) => listed(lookups, &filter),
        None => (StatusCode::NOT_FOUND, Json(format!("cannot find endpoint {id}"))).into_response(),
    }
}

/// Deletes names from all caches.
#[utoipa::path(delete, path = "/fqdn/cache", params(Filter), responses(
    (status = 200, description = "Deleted"),
    (status = 400, description = "The pattern is invalid", body = String),
))]
async fn clear(State(names): State<Names>, Query(filter): Query<Filter>) -> Response {
    match matcher(&filter.matchpattern) {
        Ok(matcher) => {
            let is_selected = |name: &str| matcher.as_ref().is_none_or(|matcher| matcher.matches(name));
            names.clear(Timestamp::now(), is_selected);
            StatusCode::OK.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, Json(error.to_string())).into_response(),
    }
}

/// Lists the selectors of names that policies use.
#[utoipa::path(get, path = "/fqdn/names", responses((status = 200, description = "The selectors", body = NameManager)))]
async fn selectors(State(names): State<Names>) -> Json<NameManager> {
    let entry = |selector: FqdnSelector| SelectorEntry {
        regex_string: match selector.match_name.is_empty() {
            true => pattern_regex(&selector.match_pattern),
            false => pattern_regex(&selector.match_name),
        },
        selector_string: selector.to_string(),
    };
    Json(NameManager {
        poll_names: None,
        selectors: names.selectors().into_iter().map(entry).collect(),
    })
}
