// SPDX-License-Identifier: Apache-2.0

//! Requests → what an endpoint is.

use std::{collections::BTreeMap, str::FromStr};

use serde::de::DeserializeOwned;
use skep_base_api_types::EndpointChangeRequest;
use skep_identity::{Label, LabelSource, Labels};

use super::ApiError;
use crate::{
    DatapathConfiguration, EndpointSpec, Mac,
    state_dir::{SKIP_MASQUERADE4, SKIP_MASQUERADE6},
};

const EXTERNAL_IPAM: &str = "external-ipam";
const INSTALL_ENDPOINT_ROUTE: &str = "install-endpoint-route";
const REQUIRE_ARP_PASSTHROUGH: &str = "require-arp-passthrough";
const REQUIRE_EGRESS_PROG: &str = "require-egress-prog";
const REQUIRE_ROUTING: &str = "require-routing";

/// Switches of `datapath-configuration` that are known here.
const SERVED: [&str; 5] = [
    EXTERNAL_IPAM,
    INSTALL_ENDPOINT_ROUTE,
    REQUIRE_ARP_PASSTHROUGH,
    REQUIRE_EGRESS_PROG,
    REQUIRE_ROUTING,
];

pub(super) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::Invalid(format!("the body of the request: {error}")))
}

/// The id that a request wants; none if the agent is to choose. The path has no meaning, as in Cilium.
pub(super) fn wanted_id(body: &EndpointChangeRequest) -> Result<Option<u16>, ApiError> {
    Ok((body.id != 0).then_some(body.id))
}

/// What the endpoint of a request is.
pub(super) fn spec(body: &EndpointChangeRequest) -> Result<EndpointSpec, ApiError> {
    refuse("datapath-configuration", &body.datapath_configuration, &SERVED)?;
    refuse(
        "properties",
        &body.properties,
        &[SKIP_MASQUERADE4, SKIP_MASQUERADE6],
    )?;
    let is_set = |key: &str| body.properties.get(key) == Some(&true);
    let cookie = match body.netns_cookie.as_str() {
        "" => 0,
        text => parse("netns-cookie", text)?,
    };
    Ok(EndpointSpec {
        container_id: body.container_id.clone(),
        container_interface: body.container_interface_name.clone(),
        netns: body.container_netns_path.clone(),
        netns_cookie: cookie,
        interface: body.interface_name.clone(),
        ifindex: body.interface_index,
        ipv4: optional("addressing.ipv4", &body.addressing.ipv4)?,
        ipv6: optional("addressing.ipv6", &body.addressing.ipv6)?,
        ipv4_pool: body.addressing.ipv4_pool_name.clone(),
        ipv6_pool: body.addressing.ipv6_pool_name.clone(),
        mac: parse::<Mac>("mac", &body.mac)?,
        host_mac: parse::<Mac>("host-mac", &body.host_mac)?,
        namespace: body.k8s_namespace.clone(),
        pod: body.k8s_pod_name.clone(),
        pod_uid: body.k8s_uid.clone(),
        labels: labels(&body.labels)?,
        skip_masquerade4: is_set(SKIP_MASQUERADE4),
        skip_masquerade6: is_set(SKIP_MASQUERADE6),
        datapath: datapath(&body.datapath_configuration),
    })
}

fn datapath(switches: &BTreeMap<String, bool>) -> DatapathConfiguration {
    let is_on = |key: &str| switches.get(key) == Some(&true);
    DatapathConfiguration {
        external_ipam: is_on(EXTERNAL_IPAM),
        install_endpoint_route: is_on(INSTALL_ENDPOINT_ROUTE),
        require_arp_passthrough: is_on(REQUIRE_ARP_PASSTHROUGH),
        require_egress_prog: is_on(REQUIRE_EGRESS_PROG),
        require_routing: switches.get(REQUIRE_ROUTING).copied(),
    }
}

/// Rejects switches that are on and not supported.
fn refuse(field: &str, switches: &BTreeMap<String, bool>, served: &[&str]) -> Result<(), ApiError> {
    let unserved = switches
        .iter()
        .find(|(name, is_on)| **is_on && !served.contains(&name.as_str()));
    match unserved {
        None => Ok(()),
        Some((name, _)) => Err(ApiError::Invalid(format!("{field}: `{name}` is not served"))),
    }
}

fn labels(texts: &[String]) -> Result<Labels, ApiError> {
    let label = |text: &String| -> Result<Label, ApiError> {
        let label: Label = parse("labels", text)?;
        match label.source() {
            LabelSource::Reserved => {
                let text = format!("labels: `{text}` is reserved: the agent alone gives such labels");
                Err(ApiError::Invalid(text))
            }
            _ => Ok(label),
        }
    };
    texts.iter().map(label).collect()
}

fn optional<T: FromStr<Err: std::error::Error + 'static>>(
    field: &str,
    text: &str,
) -> Result<Option<T>, ApiError> {
    match text {
        "" => Ok(None),
        text => parse(field, text).map(Some),
    }
}

fn parse<T: FromStr<Err: std::error::Error + 'static>>(field: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|error: T::Err| {
        ApiError::Invalid(format!("{field} `{text}`: {}", hive::error_chain(&error)))
    })
}
