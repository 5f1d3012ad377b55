// SPDX-License-Identifier: Apache-2.0

//! The interfaces of a pod: a veth pair, addresses and routes.

use std::{fs::File, net::IpAddr, os::fd::AsFd as _};

use sha2::{Digest as _, Sha256};
use skep_base_api_types::DaemonConfigurationStatus;
use skep_base_net::{
    Link, LinkSpec, NetError, Netlink, Route,
    packet::{
        link::LinkAttribute,
        route::{RouteProtocol, RouteScope},
    },
    sysctl,
};

use crate::error::{CniError, kernel};

const QUEUE: u32 = 1000;
/// What the kernel sets itself.
const GSO: u32 = 65536;

/// Name of the interface on the node.
pub(crate) fn host_name(attachment: &str) -> String {
    format!("lxc{}", &sha256(attachment.as_bytes())[..12])
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The address of a text such as `0a:58:00:00:00:01`.
pub(crate) fn mac(text: &str) -> Option<[u8; 6]> {
    let octets: Vec<u8> = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok())
        .collect::<Option<_>>()?;
    octets.try_into().ok()
}

/// A random unicast address that is locally administered: set on purpose, so that systemd does not change it later.
fn random_mac() -> [u8; 6] {
    let random = uuid::Uuid::new_v4();
    let mut mac = [0; 6];
    mac.copy_from_slice(&random.as_bytes()[..6]);
    mac[0] = mac[0] & 0xfe | 0x02;
    mac
}

/// Makes the pair: `host` on the node, `name` in the namespace of the pod.
pub(crate) fn make_pair(
    netns: &File,
    host: &str,
    name: &str,
    settings: &DaemonConfigurationStatus,
) -> Result<Link, CniError> {
    let failed = |step: &str, error: &NetError| {
        CniError::internal(format!(
            "unable to set up link on host side: {step}: {}",
            kernel(error)
        ))
    };
    let net = Netlink::open().map_err(|error| failed("unable to open netlink", &error))?;
    let peer = sized(LinkSpec::new().name(name), settings)
        .mac(random_mac())
        .netns(netns.as_fd());
    let pair = sized(LinkSpec::veth(host, peer), settings).mac(random_mac());
    net.add_link(pair)
        .map_err(|error| failed("unable to create veth pair", &error))?;
    let ready = || {
        // Programs answer for the pod: what its packets come from is not looked up.
        sysctl::set(&format!("net/ipv4/conf/{host}/rp_filter"), "0")?;
        let link = net.link(host)?;
        net.set_link(&link, LinkSpec::new().up())?;
        Ok(link)
    };
    ready().map_err(|error| {
        // Without the pair nothing is left.
        let _ = net.delete_link(host);
        failed("unable to bring up veth pair", &error)
    })
}

/// Sets MTU, queue and sizes of large packets.
fn sized(link: LinkSpec, settings: &DaemonConfigurationStatus) -> LinkSpec {
    let mut link = link.attribute(LinkAttribute::TxQueueLen(QUEUE));
    if settings.device_mtu > 0 {
        link = link.mtu(settings.device_mtu);
    }
    for (size, attribute) in [
        (
            settings.gro_max_size,
            LinkAttribute::GroMaxSize(settings.gro_max_size),
        ),
        (
            settings.gso_max_size,
            LinkAttribute::GsoMaxSize(settings.gso_max_size),
        ),
        (
            settings.gro_ipv4_max_size,
            LinkAttribute::GroIpv4MaxSize(settings.gro_ipv4_max_size),
        ),
        (
            settings.gso_ipv4_max_size,
            LinkAttribute::GsoIpv4MaxSize(settings.gso_ipv4_max_size),
        ),
    ] {
        if size > 0 && size != GSO {
            link = link.attribute(attribute);
        }
    }
    link
}

/// An address of the pod and its gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    pub(crate) address: IpAddr,
    pub(crate) gateway: IpAddr,
}

impl Family {
    /// The routes of the pod, narrow ones first.
    pub(crate) fn routes(&self, mtu: u32) -> [Route; 2] {
        let to_gateway = Route {
            scope: match self.gateway {
                IpAddr::V4(_) => RouteScope::Link,
                IpAddr::V6(_) => RouteScope::Universe,
            },
            protocol: RouteProtocol::Boot,
            ..Route::to(self.gateway.into())
        };
        let default = Route {
            gateway: Some(self.gateway),
            mtu: (mtu > 0).then_some(mtu),
            protocol: RouteProtocol::Boot,
            ..Route::default_of(&self.gateway)
        };
        [to_gateway, default]
    }
}

/// Sets the interface up inside the namespace of the pod, IPv4 first; returns its MAC address.
pub(crate) fn configure(name: &str, families: &[Family], mtu: u32) -> Result<[u8; 6], String> {
    let net = Netlink::open().map_err(|error| kernel(&error))?;
    let link = net.link(name).map_err(|error| error.to_string())?;
    let names = LinkSpec::new().alternative_name(&format!("cilium_cni:{name}"));
    net.add_names(&link, names).map_err(|error| kernel(&error))?;
    net.set_link(&link, LinkSpec::new().up())
        .map_err(|error| format!("failed to set link UP: {}", kernel(&error)))?;
    for is_ipv4 in [true, false] {
        let version = if is_ipv4 { "IPv4" } else { "IPv6" };
        for family in families
            .iter()
            .filter(|family| family.address.is_ipv4() == is_ipv4)
        {
            add(&net, &link, family, mtu).map_err(|cause| format!("error configuring {version}: {cause}"))?;
        }
    }
    Ok(link.mac.unwrap_or_default())
}

fn add(net: &Netlink, link: &Link, family: &Family, mtu: u32) -> Result<(), String> {
    net.add_address(link, family.address.into())
        .map_err(|error| format!("failed to add addr to {:?}: {}", link.name, kernel(&error)))?;
    for mut route in family.routes(mtu) {
        route.device = Some(link.index);
        match net.add_route(&route) {
            Err(error) if error.errno() != Some(nix::errno::Errno::EEXIST as i32) => {
                let gateway = route
                    .gateway
                    .map(|gateway| format!(" via {gateway}"))
                    .unwrap_or_default();
                return Err(format!(
                    "failed to add route '{}{gateway} dev {}': {}",
                    route.destination,
                    link.name,
                    kernel(&error)
                ));
            }
            _ => {}
        }
    }
    Ok(())
}
