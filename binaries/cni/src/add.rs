// SPDX-License-Identifier: Apache-2.0

//! ADD: addresses, interfaces, endpoint. What was made is removed if a later step fails.

use std::{fs::File, net::IpAddr};

use serde_json::json;
use skep_base_api_client::Client;
use skep_base_api_types::{DaemonConfigurationStatus, Endpoint, EndpointChangeRequest, NodeAddressing};
use skep_base_net::{LinkSpec, Netlink, netns, sysctl};

use crate::{
    agent::{self, explain},
    call::Call,
    chain,
    error::{CniError, kernel, plain},
    ipam::{self, Allocation},
    link::{self, Family},
    log::Log,
    output::{CniResult, Interface, Ip},
};

pub(crate) fn add(call: &Call, log: &Log) -> Result<CniResult, CniError> {
    log.debug("Processing CNI ADD request", &[]);
    let client = agent::connect(agent::PATIENCE)?;
    let settings = agent::configuration(&client)?;
    if let Some(previous) = &call.previous {
        if chain::mode(call, log)?.is_some() {
            return chain::add(call, &client, &settings, previous, log);
        }
        let message = "CNI PrevResult supplied, but not in chaining mode -- this is invalid, please set \
                       chaining-mode in CNI configuration";
        log.error(message, &[]);
        return Err(CniError::internal(message));
    }
    let path = call.netns_path();
    let netns = File::open(&path).map_err(|error| {
        let cause = plain(&error);
        CniError::internal(format!(
            "opening netns pinned at {0}: open {0}: {cause}",
            call.netns
        ))
    })?;
    // Left by an ADD that was given up.
    inside(call, || Netlink::open()?.delete_link(&call.interface))?.map_err(|error| {
        CniError::internal(format!(
            "failed removing interface {:?} from namespace {:?}: {}",
            call.interface,
            call.netns,
            kernel(&error)
        ))
    })?;
    let allocation = ipam::allocate(call, &client, &settings)?;
    let host = link::host_name(&call.attachment());
    let added = families(&allocation).and_then(|families| {
        let pod = Pod {
            call,
            settings: &settings,
            allocation: &allocation,
            host: &host,
        };
        pod.add(&client, &netns, &families, log)
    });
    if added.is_err() {
        allocation.release(call, &client, log);
    }
    added
}

/// Runs `work` in the network namespace of the pod.
pub(crate) fn inside<T: Send>(call: &Call, work: impl FnOnce() -> T + Send) -> Result<T, CniError> {
    netns::inside(&call.netns_path(), work).map_err(|error| {
        let cause = std::error::Error::source(&error)
            .and_then(|cause| cause.downcast_ref())
            .map(plain);
        CniError::internal(format!("set netns: {}", cause.unwrap_or_default()))
    })
}

/// The families of a pod with their gateways, IPv6 first.
fn families(allocation: &Allocation) -> Result<Vec<Family>, CniError> {
    let node = allocation.node.as_ref().filter(|node| has_router(node)).ok_or_else(|| {
        CniError::internal(
            "IP allocation addressing is insufficient: Cilium daemon did not provide addressing information",
        )
    })?;
    let pod = &allocation.pod;
    let mut found = Vec::new();
    for (address, gateway) in [(&pod.ipv6, &node.ipv6), (&pod.ipv4, &node.ipv4)] {
        if address.is_empty() || !gateway.enabled {
            continue;
        }
        found.push(Family {
            address: parse(address)?,
            gateway: parse(&gateway.ip)?,
        });
    }
    match found.is_empty() {
        true => Err(CniError::internal(
            "IPAM did provide neither IPv4 nor IPv6 address",
        )),
        false => Ok(found),
    }
}

fn has_router(node: &NodeAddressing) -> bool {
    [&node.ipv4, &node.ipv6]
        .iter()
        .any(|family| !family.ip.is_empty())
}

/// An address, with or without the length of a network.
fn parse(text: &str) -> Result<IpAddr, CniError> {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    address
        .parse()
        .map_err(|error| CniError::internal(format!("unable to prepare IP addressing for {text}: {error}")))
}

struct Pod<'a> {
    call: &'a Call,
    settings: &'a DaemonConfigurationStatus,
    allocation: &'a Allocation,
    host: &'a str,
}

impl Pod<'_> {
    /// Makes interfaces and endpoint. Removes the pair if that fails.
    fn add(
        &self,
        client: &Client,
        netns: &File,
        families: &[Family],
        log: &Log,
    ) -> Result<CniResult, CniError> {
        let host = link::make_pair(netns, self.host, &self.call.interface, self.settings)?;
        let made = self.configure(client, &host, families, log);
        if made.is_err()
            && let Err(error) = Netlink::open().and_then(|net| net.delete_link(self.host))
        {
            log.warn(
                "failed to clean up and delete veth",
                &[("error", &kernel(&error)), ("veth", self.host)],
            );
        }
        made
    }

    fn configure(
        &self,
        client: &Client,
        host: &skep_base_net::Link,
        families: &[Family],
        log: &Log,
    ) -> Result<CniResult, CniError> {
        let (call, settings) = (self.call, self.settings);
        let has_ipv6 = families.iter().any(|family| family.address.is_ipv6());
        let (mac, cookie) = inside(call, || {
            prepare(settings, has_ipv6, log);
            let mac = link::configure(&call.interface, families, settings.route_mtu)?;
            // Kernels before 5.14 have none.
            Ok((
                mac,
                netns::cookie()
                    .map(|cookie| cookie.to_string())
                    .unwrap_or_default(),
            ))
        })?
        .map_err(|cause: String| {
            CniError::internal(format!(
                "unable to configure interfaces in container namespace: {cause}"
            ))
        })?;
        let (mac, host_mac) = (link::mac_text(mac), link::mac_text(host.mac.unwrap_or_default()));
        let last = call.netns.rsplit('/').next().unwrap_or_default();
        let mut request = EndpointChangeRequest {
            container_netns_path: format!("/var/run/cilium/netns/{last}"),
            netns_cookie: cookie,
            interface_name: self.host.to_owned(),
            interface_index: host.index,
            mac: mac.clone(),
            host_mac: host_mac.clone(),
            addressing: self.allocation.pod.clone(),
            properties: self.allocation.properties.clone(),
            ..request(call)
        };
        if self.allocation.is_delegated {
            request
                .datapath_configuration
                .insert("external-ipam".to_owned(), true);
        }
        let endpoint = create(client, &request, log)?;
        let mac = set_mac(call, &endpoint, &call.interface, &mac)?;
        inside(call, || finish(settings, log))?;
        Ok(self.result(families, &host_mac, mac))
    }

    fn result(&self, families: &[Family], host_mac: &str, mac: String) -> CniResult {
        let mut result = CniResult {
            interfaces: vec![
                Interface {
                    name: self.host.to_owned(),
                    mac: host_mac.to_owned(),
                    ..Interface::default()
                },
                Interface {
                    name: self.call.interface.clone(),
                    mac,
                    sandbox: self.call.netns.clone(),
                    ..Interface::default()
                },
            ],
            ..CniResult::default()
        };
        for family in families {
            let bits = if family.address.is_ipv4() { 32 } else { 128 };
            result.ips.push(Ip {
                address: format!("{}/{bits}", family.address),
                gateway: family.gateway.to_string(),
                interface: Some(1),
            });
            result
                .routes
                .extend(family.routes(self.settings.route_mtu).map(|route| {
                    let mut document = json!({"dst": route.destination.to_string()});
                    if let Some(gateway) = route.gateway {
                        document["gw"] = gateway.to_string().into();
                    }
                    if let Some(mtu) = route.mtu {
                        document["mtu"] = mtu.into();
                    }
                    document
                }));
        }
        result
    }
}

/// What every request for an endpoint has.
pub(crate) fn request(call: &Call) -> EndpointChangeRequest {
    EndpointChangeRequest {
        container_id: call.container.clone(),
        container_interface_name: call.interface.clone(),
        k8s_namespace: call.pod.namespace.clone(),
        k8s_pod_name: call.pod.name.clone(),
        k8s_uid: call.pod.uid.clone(),
        state: "waiting-for-identity".to_owned(),
        sync_build_endpoint: true,
        ..EndpointChangeRequest::default()
    }
}

pub(crate) fn create(
    client: &Client,
    request: &EndpointChangeRequest,
    log: &Log,
) -> Result<Endpoint, CniError> {
    client.put_endpoint(request).map_err(|error| {
        let cause = explain(&error, "endpoint");
        let fields = [("error", cause.as_str()), ("containerID", &request.container_id)];
        log.warn("Unable to create endpoint", &fields);
        CniError::internal(format!("unable to create endpoint: {cause}"))
    })
}

/// Sets the MAC address that the agent wants for an interface of the pod; returns the one that it has then.
pub(crate) fn set_mac(
    call: &Call,
    endpoint: &Endpoint,
    interface: &str,
    mac: &str,
) -> Result<String, CniError> {
    let wanted = &endpoint.status.networking.mac;
    if wanted.is_empty() || wanted == mac {
        return Ok(mac.to_owned());
    }
    let failed = |cause: String| {
        CniError::internal(format!(
            "unable to set MAC address on interface {interface}: {cause}"
        ))
    };
    let octets = link::mac(wanted).ok_or_else(|| failed(format!("invalid MAC address {wanted}")))?;
    inside(call, || {
        let net = Netlink::open()?;
        net.set_link(&net.link(interface)?, LinkSpec::new().mac(octets))
    })?
    .map_err(|error| failed(kernel(&error)))?;
    Ok(wanted.clone())
}

/// Settings of the namespace that its interfaces need.
fn prepare(settings: &DaemonConfigurationStatus, has_ipv6: bool, log: &Log) {
    let ports = &settings.ip_local_reserved_ports;
    if !ports.is_empty() {
        const RESERVED: &str = "net/ipv4/ip_local_reserved_ports";
        let there = sysctl::get(RESERVED).unwrap_or_default();
        let all = if there.is_empty() {
            ports.clone()
        } else {
            format!("{there},{ports}")
        };
        set(RESERVED, &all, log);
    }
    if has_ipv6 {
        set("net/ipv6/conf/all/disable_ipv6", "0", log);
    }
}

/// Settings of TCP in the namespace.
fn finish(settings: &DaemonConfigurationStatus, log: &Log) {
    let mode = match settings.path_probing.as_str() {
        "" => None,
        "disabled" => Some("0"),
        "blackhole" => Some("1"),
        "always" => Some("2"),
        number => Some(number),
    };
    if let Some(mode) = mode {
        set("net/ipv4/tcp_base_mss", "1024", log);
        set("net/ipv4/tcp_mtu_probing", mode, log);
        set("net/ipv4/tcp_mtu_probe_floor", "48", log);
    }
    if settings.bbr_host_only {
        set("net/ipv4/tcp_congestion_control", "cubic", log);
    }
}

fn set(name: &str, value: &str, log: &Log) {
    if let Err(error) = sysctl::set(name, value) {
        log.warn(
            "Unable to set kernel setting",
            &[("error", &kernel(&error)), ("setting", name)],
        );
    }
}
