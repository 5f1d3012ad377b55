// SPDX-License-Identifier: Apache-2.0

//! `/v1/ipam`, and the part `ipam` of the status, in the form of Cilium's agent API.
//! Requires: [`Ipam`], the addresses of the node itself; optionally `Arc<dyn AddressUsers>`.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    Json,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use hive::{Cell, Member, Params};
use serde::Deserialize;
use serde_json::json;
use skep_base_api::{Routes, StatusProbe, parse_address};
use skep_base_api_types::{
    EndpointAddressing, IpamAddressResponse, IpamResponse, IpamStatus, NodeAddressing, NodeAddressingFamily,
    Status, StatusResponse,
};
use statedb::{Db, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    AddressUsers, Allocation, Allocations, Family, InfrastructureAddress, Ipam, IpamError, NodeOwner,
};

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipam-api", "Addresses in the API of the agent")
        .provide(api)
        .provide(probe)
}

#[derive(Clone)]
struct Api {
    ipam: Ipam,
    db: Db,
    node: Table<InfrastructureAddress>,
    users: Option<Arc<dyn AddressUsers>>,
}

#[derive(Params)]
struct ApiParams {
    ipam: Ipam,
    db: Db,
    node: Table<InfrastructureAddress>,
    users: Option<Arc<dyn AddressUsers>>,
}

fn api(params: ApiParams) -> Member<Routes> {
    let ApiParams {
        ipam,
        db,
        node,
        users,
    } = params;
    Member(Routes::new(router(Api {
        ipam,
        db,
        node,
        users,
    })))
}

fn router(api: Api) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(allocate))
        .routes(routes!(allocate_ip, release))
        .with_state(api)
}

#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("family in query should be one of [ipv4 ipv6]")]
    Family,
    #[error("{0}")]
    Allocate(String),
    #[error("{0}")]
    Failed(String),
    #[error("Invalid IP address {ip}: {cause}")]
    Address { ip: String, cause: String },
}

/// Code of validation errors of Cilium's API framework: not in a list of values.
const ENUM_FAIL: u32 = 606;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let text = self.to_string();
        let (status, body) = match self {
            Self::Family => {
                let body = json!({ "code": ENUM_FAIL, "message": text });
                (StatusCode::UNPROCESSABLE_ENTITY, body)
            }
            Self::Allocate(_) => (StatusCode::BAD_GATEWAY, text.into()),
            Self::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, text.into()),
            Self::Address { .. } => (StatusCode::BAD_REQUEST, text.into()),
        };
        (status, Json(body)).into_response()
    }
}

fn failed(error: &IpamError) -> ApiError {
    ApiError::Failed(hive::error_chain(error))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Parameters {
    family: Option<String>,
    owner: String,
    pool: String,
}

/// A boolean header, as Go's API framework reads it.
fn is_true(headers: &HeaderMap, name: &str) -> bool {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    let words = [
        "true", "1", "yes", "ok", "y", "on", "selected", "checked", "t", "enabled",
    ];
    value.is_some_and(|value| words.contains(&value.to_lowercase().as_str()))
}

impl Api {
    fn addressing(&self) -> Result<NodeAddressing, ApiError> {
        let snapshot = self.db.read();
        let of = |family: Family| {
            if !family.is_enabled(self.ipam.families()) {
                return Ok(NodeAddressingFamily::default());
            }
            let key = InfrastructureAddress::key(NodeOwner::Router, family);
            let row = self.node.get(&snapshot, InfrastructureAddress::BY_NAME.key(&key));
            let router = row.ok_or_else(|| ApiError::Failed(format!("no {family} router address yet")))?;
            Ok(NodeAddressingFamily {
                alloc_range: self.ipam.network(family),
                enabled: true,
                ip: router.ip.to_string(),
            })
        };
        Ok(NodeAddressing {
            ipv4: of(Family::V4)?,
            ipv6: of(Family::V6)?,
        })
    }

    fn allocate(&self, family: Option<Family>, parameters: &Parameters) -> Result<Allocations, IpamError> {
        let Parameters { owner, pool, .. } = parameters;
        let one = |family| self.ipam.allocate(family, owner, pool).map(Some);
        match family {
            None => self.ipam.allocate_all(owner, pool),
            Some(Family::V4) => Ok(Allocations {
                ipv4: one(Family::V4)?,
                ipv6: None,
            }),
            Some(Family::V6) => Ok(Allocations {
                ipv4: None,
                ipv6: one(Family::V6)?,
            }),
        }
    }

    fn response(&self, allocation: &Allocation, expires: bool) -> Result<IpamAddressResponse, ApiError> {
        let expiration_uuid = match expires {
            true => self
                .ipam
                .start_expiration(allocation)
                .map_err(|error| failed(&error))?
                .to_string(),
            false => String::new(),
        };
        Ok(IpamAddressResponse {
            expiration_uuid,
            ip: allocation.ip.to_string(),
            skip_masquerade: allocation.skip_masquerade,
            ..IpamAddressResponse::default()
        })
    }
}

/// Allocates addresses.
#[utoipa::path(post, path = "/ipam", params(
    ("family" = Option<String>, Query, description = "`ipv4` or `ipv6`; default: both"),
    ("owner" = Option<String>, Query, description = "Owner, `<namespace>/<pod>`"),
    ("pool" = Option<String>, Query, description = "Pool, in mode multi-pool; default: that of the pod"),
    ("expiration" = Option<bool>, Header, description = "Release the addresses unless an endpoint is created with them")), responses(
    (status = 201, description = "The addresses", body = IpamResponse),
    (status = 422, description = "The family is unknown"),
    (status = 500, description = "The node has no router address yet", body = String),
    (status = 502, description = "No address could be allocated", body = String)))]
async fn allocate(
    State(api): State<Api>,
    Query(parameters): Query<Parameters>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<IpamResponse>), ApiError> {
    let family = match parameters.family.as_deref() {
        None | Some("") => None,
        Some("ipv4") => Some(Family::V4),
        Some("ipv6") => Some(Family::V6),
        Some(_) => return Err(ApiError::Family),
    };
    let host_addressing = Some(api.addressing()?);
    let allocations = api
        .allocate(family, &parameters)
        .map_err(|error| ApiError::Allocate(hive::error_chain(&error)))?;
    let expires = is_true(&headers, "expiration");
    let mut response = IpamResponse {
        host_addressing,
        ..IpamResponse::default()
    };
    let mut address = EndpointAddressing::default();
    if let Some(ipv4) = &allocations.ipv4 {
        address.ipv4 = ipv4.ip.to_string();
        address.ipv4_pool_name.clone_from(&ipv4.pool);
        response.ipv4 = Some(api.response(ipv4, expires)?);
    }
    if let Some(ipv6) = &allocations.ipv6 {
        address.ipv6 = ipv6.ip.to_string();
        address.ipv6_pool_name.clone_from(&ipv6.pool);
        response.ipv6 = Some(api.response(ipv6, expires)?);
    }
    response.address = Some(address);
    Ok((StatusCode::CREATED, Json(response)))
}

/// Allocates an address.
#[utoipa::path(post, path = "/ipam/{ip}", params(
    ("ip" = String, Path, description = "The address"),
    ("owner" = Option<String>, Query, description = "Owner, `<namespace>/<pod>`"),
    ("pool" = String, Query, description = "Pool")), responses(
    (status = 200, description = "The address is allocated"),
    (status = 500, description = "The address could not be allocated", body = String)))]
async fn allocate_ip(
    State(api): State<Api>,
    Path(ip): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Result<(), ApiError> {
    let ip: IpAddr = ip
        .parse()
        .map_err(|_| ApiError::Failed(format!("Invalid IP address: {ip}")))?;
    let allocated = api.ipam.allocate_ip(ip, &parameters.owner, &parameters.pool);
    allocated.map(drop).map_err(|error| failed(&error))
}

/// Releases an address.
#[utoipa::path(delete, path = "/ipam/{ip}", params(
    ("ip" = String, Path, description = "The address"),
    ("pool" = String, Query, description = "Pool")), responses(
    (status = 200, description = "The address is not allocated any more"),
    (status = 400, description = "The address is invalid", body = String),
    (status = 500, description = "The address is in use, or the pool is missing", body = String)))]
async fn release(
    State(api): State<Api>,
    Path(ip): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Result<(), ApiError> {
    let ip = parse_address(&ip).map_err(|cause| ApiError::Address { ip, cause })?;
    if let Some(endpoint) = api.users.as_ref().and_then(|users| users.endpoint(ip)) {
        return Err(ApiError::Failed(format!("IP is in use by endpoint {endpoint}")));
    }
    let released = api.ipam.release(ip, &parameters.pool);
    released.map_err(|error| failed(&error))
}

struct IpamProbe(Ipam);

fn probe(ipam: Ipam) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(IpamProbe(ipam)))
}

#[async_trait]
impl StatusProbe for IpamProbe {
    fn name(&self) -> &'static str {
        "ipam"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let ipam = &self.0;
        let mut allocations = BTreeMap::new();
        let mut names = |family| -> Vec<String> {
            let owned = ipam.addresses(family).into_iter();
            let named = owned.map(|address| {
                let name = match address.pool == ipam.default_pool() {
                    true => address.ip.to_string(),
                    false => format!("{}/{}", address.pool, address.ip),
                };
                allocations.insert(name.clone(), address.owner);
                name
            });
            named.collect()
        };
        let (ipv4, ipv6) = (names(Family::V4), names(Family::V6));
        response.ipam = Some(IpamStatus {
            allocations,
            ipv4,
            ipv6,
            status: ipam.status(),
        });
        None
    }
}
