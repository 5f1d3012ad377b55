// SPDX-License-Identifier: Apache-2.0

//! Addresses: the agent's, or those of another plugin (`ipam.type`).

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use skep_base_api_client::Client;
use skep_base_api_types::{DaemonConfigurationStatus, EndpointAddressing, IpamResponse, NodeAddressing};

use crate::{
    agent::explain,
    call::Call,
    error::{CniError, plain},
    log::Log,
    output::CniResult,
};

/// IPAM mode of the agent in which another plugin allocates.
const DELEGATED: &str = "delegated-plugin";

/// Addresses of a pod and of its gateways.
#[derive(Debug, Default)]
pub(crate) struct Allocation {
    pub(crate) pod: EndpointAddressing,
    pub(crate) node: Option<NodeAddressing>,
    /// Properties of the endpoint.
    pub(crate) properties: BTreeMap<String, bool>,
    /// Another plugin allocated them, and releases them.
    pub(crate) is_delegated: bool,
}

/// Allocates addresses.
pub(crate) fn allocate(
    call: &Call,
    client: &Client,
    settings: &DaemonConfigurationStatus,
) -> Result<Allocation, CniError> {
    if settings.ipam_mode == DELEGATED {
        return delegated(call, settings);
    }
    let owner = format!("{}/{}", call.pod.namespace, call.pod.name);
    let response: IpamResponse = client.allocate(&owner).map_err(|error| {
        let cause = explain(&error, "allocate");
        CniError::internal(format!("unable to allocate IP via local cilium agent: {cause}"))
    })?;
    let Some(mut pod) = response.address else {
        return Err(CniError::internal("invalid IPAM response, missing addressing"));
    };
    let mut properties = BTreeMap::new();
    let families = [
        (response.ipv4, &mut pod.ipv4_expiration_uuid, "v4"),
        (response.ipv6, &mut pod.ipv6_expiration_uuid, "v6"),
    ];
    for (family, expiration, name) in families {
        let Some(family) = family else { continue };
        *expiration = family.expiration_uuid;
        if family.skip_masquerade {
            properties.insert(format!("property-skip-masquerade-{name}"), true);
        }
    }
    Ok(Allocation {
        pod,
        node: response.host_addressing,
        properties,
        is_delegated: false,
    })
}

fn delegated(call: &Call, settings: &DaemonConfigurationStatus) -> Result<Allocation, CniError> {
    let output = delegate(call)?;
    let result = serde_json::from_slice::<Value>(&output)
        .map_err(|error| error.to_string())
        .and_then(|value| CniResult::read(&value))
        .map_err(|cause| {
            CniError::internal(format!(
                "unable to parse the result of plugin {:?}: {cause}",
                call.config.ipam.kind
            ))
        })?;
    let mut pod = EndpointAddressing::default();
    for ip in result.ips {
        match ip.address.contains(':') {
            true => pod.ipv6 = ip.address,
            false => pod.ipv4 = ip.address,
        }
    }
    Ok(Allocation {
        pod,
        node: settings.addressing.clone(),
        properties: BTreeMap::new(),
        is_delegated: true,
    })
}

impl Allocation {
    /// Releases the addresses of an ADD that failed.
    pub(crate) fn release(&self, call: &Call, client: &Client, log: &Log) {
        if self.is_delegated {
            if let Err(error) = delegate_as(call, "DEL") {
                log.warn("Unable to release IP", &[("error", &error.message)]);
            }
            return;
        }
        let pod = &self.pod;
        for (address, pool) in [(&pod.ipv4, &pod.ipv4_pool_name), (&pod.ipv6, &pod.ipv6_pool_name)] {
            if address.is_empty() {
                continue;
            }
            if let Err(error) = client.release(address, pool) {
                let error = explain(&error, "release");
                let fields = [("error", error.as_str()), ("ipAddr", address), ("poolName", pool)];
                log.warn("Unable to release IP", &fields);
            }
        }
    }
}

/// Runs the plugin of `ipam.type` for the verb of the call; returns what it prints.
pub(crate) fn delegate(call: &Call) -> Result<Vec<u8>, CniError> {
    let verb = std::env::var("CNI_COMMAND").unwrap_or_default();
    delegate_as(call, &verb)
}

fn delegate_as(call: &Call, verb: &str) -> Result<Vec<u8>, CniError> {
    let kind = &call.config.ipam.kind;
    let program = find(kind, &call.path)?;
    let failed = |cause: io::Error| CniError::internal(format!("{}: {}", program.display(), plain(&cause)));
    let mut process = Command::new(&program)
        .env("CNI_COMMAND", verb)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = process.stdin.take() {
        match stdin.write_all(&call.input) {
            // A plugin may answer without reading its configuration.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map_err(failed)?,
        }
    }
    let output = process.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let message = document["msg"].as_str().map_or_else(
        || format!("plugin {kind:?} failed: {}", output.status),
        ToOwned::to_owned,
    );
    Err(CniError {
        code: document["code"]
            .as_u64()
            .and_then(|code| code.try_into().ok())
            .unwrap_or(crate::code::INTERNAL),
        message,
        details: document["details"].as_str().unwrap_or_default().to_owned(),
    })
}

fn find(kind: &str, path: &str) -> Result<PathBuf, CniError> {
    let folders = path.split(':').filter(|folder| !folder.is_empty());
    let is_name = !kind.is_empty() && !kind.contains('/');
    let mut programs = folders.clone().map(|folder| Path::new(folder).join(kind));
    programs
        .find(|program| is_name && program.is_file())
        .ok_or_else(|| {
            let folders: Vec<&str> = folders.collect();
            CniError::internal(format!(
                "failed to find plugin {kind:?} in path [{}]",
                folders.join(" ")
            ))
        })
}
