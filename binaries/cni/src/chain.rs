// SPDX-License-Identifier: Apache-2.0

//! Behind another plugin that made interface and addresses: the agent's programs are all that is added.

use std::{fs::File, net::IpAddr};

use skep_base_api_client::Client;
use skep_base_api_types::{DaemonConfigurationStatus, EndpointChangeRequest};
use skep_base_net::{Link, NetError, Netlink, RouteFilter, packet::link::InfoKind};

use crate::{
    add::{create, inside, request, set_mac},
    call::Call,
    error::{CniError, kernel, plain},
    link::mac_text,
    log::Log,
    output::CniResult,
};

/// All do the same: take the first veth link.
const MODES: [&str; 4] = ["generic-veth", "aws-cni", "azure", "flannel"];

/// The chaining mode of a call: by its setting, or by the name of the network.
pub(crate) fn mode<'a>(call: &'a Call, log: &Log) -> Result<Option<&'a str>, CniError> {
    let config = &call.config;
    let is_named = !config.chaining_mode.is_empty();
    let wanted = if is_named {
        &config.chaining_mode
    } else {
        &config.name
    };
    if MODES.contains(&wanted.as_str()) {
        let by = if is_named { "mode" } else { "name" };
        log.info("Using chained plugin", &[(by, wanted)]);
        return Ok(Some(wanted));
    }
    if !is_named {
        return Ok(None);
    }
    let message = format!("invalid chaining-mode {wanted}");
    log.error("Invalid chaining mode", &[("error", &message)]);
    Err(CniError::internal(message))
}

/// The link of another plugin.
struct Chained {
    host_index: u32,
    name: String,
    mac: String,
    addresses: Vec<IpAddr>,
}

pub(crate) fn add(
    call: &Call,
    client: &Client,
    settings: &DaemonConfigurationStatus,
    previous: &CniResult,
    log: &Log,
) -> Result<CniResult, CniError> {
    let added = added(call, client, settings, previous, log);
    if let Err(error) = &added {
        let previous = previous.of_version(&call.version).to_string();
        let about = [("error", error.message.as_str()), ("previous", &previous)];
        log.error("Unable to create endpoint", &about);
        log.warn("Chained ADD failed", &[("error", &error.message)]);
    }
    added
}

fn added(
    call: &Call,
    client: &Client,
    settings: &DaemonConfigurationStatus,
    previous: &CniResult,
    log: &Log,
) -> Result<CniResult, CniError> {
    File::open(call.netns_path()).map_err(|error| {
        let cause = plain(&error);
        CniError::internal(format!(
            "failed to open netns {0:?}: open {0}: {cause}",
            call.netns
        ))
    })?;
    let sets_mtu = call.config.enable_route_mtu || settings.chained_routes;
    let mtu = Some(settings.route_mtu).filter(|mtu| sets_mtu && *mtu > 0);
    let found = inside(call, || find(mtu))?.map_err(CniError::internal)?;
    let host = host_link(&found)?;
    let text = |is_ipv4: bool| {
        let mut addresses = found
            .addresses
            .iter()
            .filter(|address| address.is_ipv4() == is_ipv4);
        addresses.next().map(ToString::to_string).unwrap_or_default()
    };
    let mut request = EndpointChangeRequest {
        interface_name: host.name.clone(),
        interface_index: host.index,
        mac: found.mac.clone(),
        host_mac: host.mac.map(mac_text).unwrap_or_default(),
        ..request(call)
    };
    (request.addressing.ipv4, request.addressing.ipv6) = (text(true), text(false));
    let switches = [
        ("require-arp-passthrough", true),
        ("require-egress-prog", true),
        ("external-ipam", true),
        ("require-routing", false),
    ];
    request.datapath_configuration = switches.map(|(name, is_on)| (name.to_owned(), is_on)).into();
    let endpoint = create(client, &request, log)?;
    let mac = set_mac(call, &endpoint, &found.name, &found.mac)?;
    let mut result = previous.clone();
    for interface in &mut result.interfaces {
        if mac != found.mac && interface.name == found.name && !interface.sandbox.is_empty() {
            interface.mac.clone_from(&mac);
        }
    }
    Ok(result)
}

fn host_link(found: &Chained) -> Result<Link, CniError> {
    let looked = Netlink::open().and_then(|net| net.link_of_index(found.host_index));
    let missing =
        |cause: &str| CniError::internal(format!("unable to lookup link {}: {cause}", found.host_index));
    let link = looked.map_err(|error| missing(&kernel(&error)))?;
    let link = link.ok_or_else(|| missing("Link not found"))?;
    match link.name.is_empty() {
        true => Err(CniError::internal(
            "unable to determine name of veth pair on the host side",
        )),
        false => Ok(link),
    }
}

/// Finds the link in the namespace of the pod, and sets the MTU of its routes.
fn find(mtu: Option<u32>) -> Result<Chained, String> {
    let failed = |error: NetError| kernel(&error);
    let net = Netlink::open().map_err(failed)?;
    let links = net.links().map_err(failed)?;
    let link = links
        .into_iter()
        .find(|link| link.is_kind(InfoKind::Veth))
        .ok_or("no link found inside container")?;
    let mac = link
        .mac
        .ok_or("unable to determine MAC address of veth pair on the container side")?;
    let host_index = link
        .peer
        .ok_or_else(|| format!("unable to retrieve index of veth peer {}", link.name))?;
    let all = net.addresses(&link).map_err(failed)?;
    let all: Vec<IpAddr> = all.into_iter().map(|found| found.address.addr()).collect();
    let ipv4 = all.iter().find(|address| address.is_ipv4());
    let ipv6: Vec<&IpAddr> = all.iter().filter(|address| address.is_ipv6()).collect();
    let is_global =
        |address: &&&IpAddr| matches!(address, IpAddr::V6(address) if !address.is_unicast_link_local());
    // The only one, whatever it is, or the first global one.
    let ipv6 = match ipv6.as_slice() {
        [only] => Some(*only),
        several => several.iter().find(is_global).copied(),
    };
    let addresses: Vec<IpAddr> = ipv4.into_iter().chain(ipv6).copied().collect();
    if addresses.is_empty() {
        return Err("unable to determine IP address of the container".to_owned());
    }
    if let Some(mtu) = mtu {
        set_route_mtu(&net, mtu)
            .map_err(|error| format!("unable to set MTU of routes: {}", kernel(&error)))?;
    }
    Ok(Chained {
        host_index,
        mac: mac_text(mac),
        name: link.name,
        addresses,
    })
}

fn set_route_mtu(net: &Netlink, mtu: u32) -> Result<(), NetError> {
    for mut route in net.routes(&RouteFilter::default())? {
        if route.is_in_main_table() && route.device.is_some() {
            route.mtu = Some(mtu);
            net.replace_route(&route)?;
        }
    }
    Ok(())
}
