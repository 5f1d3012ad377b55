// SPDX-License-Identifier: Apache-2.0

//! CHECK and STATUS.

use std::net::IpAddr;

use skep_base_api_client::Client;
use skep_base_net::Netlink;

use crate::{
    add::inside,
    agent::{self, explain},
    call::Call,
    chain,
    error::{CniError, code, kernel},
    ipam,
    log::Log,
    output::CniResult,
};

fn connect(code: u32) -> Result<Client, CniError> {
    agent::connect(agent::PATIENCE).map_err(|error| CniError::detailed(code, "DaemonDown", error.message))
}

/// The endpoint is healthy, and the interface has the addresses of the result.
pub(crate) fn check(call: &Call, log: &Log) -> Result<(), CniError> {
    log.debug("Processing CNI CHECK request", &[]);
    let client = connect(code::TRY_AGAIN)?;
    let is_chained = chain::mode(call, log)?.is_some();
    let Some(previous) = &call.previous else {
        return Err(CniError::detailed(
            code::CONFIG,
            "InvalidNetworkConfig",
            "prevResult is missing",
        ));
    };
    let id = format!("cni-attachment-id:{}", call.attachment());
    if is_chained {
        log.warn("Asking agent for healthz for endpoint", &[("endpointID", &id)]);
    }
    let health = client.endpoint_health(&id).map_err(|error| {
        let details = format!(
            "failed to retrieve container health: {}",
            explain(&error, "health")
        );
        CniError::detailed(code::HEALTHZ, "HealthzFailed", details)
    })?;
    if health.overall_health == "Failure" {
        let details = "container is unhealthy in agent";
        return Err(CniError::detailed(code::UNHEALTHY, "Unhealthy", details));
    }
    if is_chained {
        return Ok(());
    }
    inside(call, || has_addresses(call, previous))?.map_err(CniError::internal)
}

fn has_addresses(call: &Call, previous: &CniResult) -> Result<(), String> {
    let name = &call.interface;
    let net = Netlink::open().map_err(|error| kernel(&error))?;
    let link = net.find_link(name).map_err(|error| kernel(&error))?;
    let link = link.ok_or_else(|| format!("cannot find container link {name}"))?;
    let there = net.addresses(&link).map_err(|error| kernel(&error))?;
    for ip in &previous.ips {
        let interface = ip.interface.and_then(|index| previous.interfaces.get(index));
        if interface.is_none_or(|interface| interface.name != *name) {
            continue;
        }
        let wanted = ip.address.split('/').next().unwrap_or_default();
        let is_there = wanted.parse::<IpAddr>().is_ok_and(|wanted| {
            let mut there = there.iter().map(|there| there.address.addr());
            there.any(|there| there == wanted)
        });
        if !is_there {
            return Err(format!("container IP address {wanted} is missing on link {name}"));
        }
    }
    Ok(())
}

/// The agent answers, and the plugin that allocates addresses is ready.
pub(crate) fn status(call: &Call, log: &Log) -> Result<(), CniError> {
    let client = connect(code::UNAVAILABLE)?;
    client.health(false).map_err(|error| {
        let details = format!(
            "Cilium agent healthz check failed: {}",
            explain(&error, "healthz")
        );
        CniError::detailed(code::UNAVAILABLE, "DaemonHealthzFailed", details)
    })?;
    let is_chained = chain::mode(call, log)?.is_some();
    if !is_chained && !call.config.ipam.kind.is_empty() {
        ipam::delegate(call)?;
    }
    Ok(())
}
