// SPDX-License-Identifier: Apache-2.0

//! Requests → what an endpoint is.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use skep_base_api::parse_address;
use skep_base_api_types::EndpointChangeRequest;
use skep_identity::{Label, LabelSource, Labels};

use super::ApiError;
use crate::{
    DatapathConfiguration, EndpointSpec, Mac, Phase,
    labels::is_generated,
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

/// The id that a request wants; none if the agent is to choose. That of the path has no meaning, as in Cilium.
pub(super) fn wanted_id(body: &EndpointChangeRequest) -> Option<u16> {
    (body.id != 0).then_some(body.id)
}

/// How the endpoint of a request begins: in another state than these it stays, as in Cilium.
pub(super) fn phase(body: &EndpointChangeRequest) -> Phase {
    match body.state.as_str() {
        "waiting-for-identity" | "restoring" => Phase::Live,
        _ => Phase::NeverBuilt,
    }
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
        text => text
            .parse()
            .map_err(|_| unparsable(format!("invalid netns cookie {text:?}")))?,
    };
    Ok(EndpointSpec {
        container_id: body.container_id.clone(),
        container_interface: body.container_interface_name.clone(),
        netns: body.container_netns_path.clone(),
        netns_cookie: cookie,
        interface: body.interface_name.clone(),
        ifindex: body.interface_index,
        mac: mac(&body.mac)?,
        host_mac: mac(&body.host_mac)?,
        ipv4: ipv4(&body.addressing.ipv4)?,
        ipv6: ipv6(&body.addressing.ipv6)?,
        ipv4_pool: body.addressing.ipv4_pool_name.clone(),
        ipv6_pool: body.addressing.ipv6_pool_name.clone(),
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
        Some((name, _)) => Err(ApiError::Invalid(format!("{field}: `{name}` is not supported"))),
    }
}

/// Labels of a request: none that the agent alone may give.
pub(super) fn labels(texts: &[String]) -> Result<Labels, ApiError> {
    let parsed: Result<Vec<Label>, _> = texts.iter().map(|text| text.parse::<Label>()).collect();
    let all = parsed.map_err(|error| unparsable(hive::error_chain(&error)))?;
    let of = |is_such: fn(&Label) -> bool| -> Vec<String> {
        let such = all.iter().filter(|label| is_such(label));
        such.map(Label::to_string).collect()
    };
    let reserved = of(|label| *label.source() == LabelSource::Reserved);
    if !reserved.is_empty() {
        let text = format!("not allowed to add reserved labels: [{}]", reserved.join(" "));
        return Err(ApiError::Invalid(text));
    }
    let generated = of(|label| is_generated(label.source()));
    if !generated.is_empty() {
        let text = format!("not allowed to add generated labels: {}", generated.join(","));
        return Err(ApiError::Invalid(text));
    }
    Ok(all.into_iter().collect())
}

fn unparsable(cause: String) -> ApiError {
    ApiError::Invalid(format!("unable to parse endpoint parameters: {cause}"))
}

fn mac(text: &str) -> Result<Mac, ApiError> {
    text.parse()
        .map_err(|_| unparsable(format!("address {text}: invalid MAC address")))
}

fn ipv4(text: &str) -> Result<Option<Ipv4Addr>, ApiError> {
    match address(text)? {
        None => Ok(None),
        Some(IpAddr::V4(address)) => Ok(Some(address)),
        Some(IpAddr::V6(_)) => Err(unparsable(format!("invalid IPv4 address {text:?}"))),
    }
}

fn ipv6(text: &str) -> Result<Option<Ipv6Addr>, ApiError> {
    match address(text)? {
        None => Ok(None),
        Some(IpAddr::V6(address)) => Ok(Some(address)),
        Some(IpAddr::V4(_)) => Err(unparsable(format!("invalid IPv6 address {text:?}"))),
    }
}

fn address(text: &str) -> Result<Option<IpAddr>, ApiError> {
    match text {
        "" => Ok(None),
        text => parse_address(text).map(Some).map_err(unparsable),
    }
}
