// SPDX-License-Identifier: Apache-2.0

//! The network namespace of the health endpoint and its pair of interfaces.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use skep_base_net::{
    Link, LinkSpec, NetError, Netlink, Route,
    netns::{Namespace, NetnsError},
    packet::route::RouteScope,
};

/// Interface on the node.
pub(crate) const HOST: &str = "lxc_health";
/// Interface in the namespace.
pub(crate) const INSIDE: &str = "cilium";

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("health endpoint: cannot set up its interfaces")]
    Interface(#[from] NetError),
    /// Another program in the namespace may have the port.
    #[error("health endpoint: cannot listen on port {port}")]
    Listen {
        port: u16,
        #[source]
        cause: io::Error,
    },
}

/// An address of the endpoint and its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Family {
    pub(crate) address: IpAddr,
    pub(crate) gateway: IpAddr,
}

/// Both ends of the pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) host: Link,
    pub(crate) inside: Link,
}

#[derive(Debug, Clone)]
pub(crate) struct Network {
    pin: PathBuf,
    ipv6: bool,
    /// Settings of the kernel: `/proc/sys` is read-only in containers.
    settings: PathBuf,
}

impl Network {
    pub(crate) fn new(state_dir: &Path, ipv6: bool, settings: PathBuf) -> Self {
        Self {
            pin: state_dir.join("netns").join("cilium-health"),
            ipv6,
            settings,
        }
    }

    pub(crate) fn pin(&self) -> &Path {
        &self.pin
    }

    /// Creates it anew.
    pub(crate) fn create(&self, families: &[Family]) -> Result<Pair, NetworkError> {
        self.remove()?;
        let namespace = Namespace::new()?;
        namespace.pin(&self.pin)?;
        let net = Netlink::open()?;
        let peer = LinkSpec::new()
            .name(INSIDE)
            .mac(random_mac())
            .netns(namespace.as_fd());
        net.add_link(LinkSpec::veth(HOST, peer).mac(random_mac()))?;
        let path = self.settings.join(format!("net/ipv4/conf/{HOST}/rp_filter"));
        fs::write(&path, "0").map_err(|source| NetError::Sysctl { path, source })?;
        let host = net.link(HOST)?;
        net.set_link(&host, LinkSpec::new().up())?;
        let inside = namespace.inside(|| configure(families))??;
        Ok(Pair { host, inside })
    }

    /// The pair, if it is there and has these addresses.
    pub(crate) fn find(&self, addresses: &BTreeSet<IpAddr>) -> Result<Option<Pair>, NetworkError> {
        let Some(host) = Netlink::open()?.find_link(HOST)? else {
            return Ok(None);
        };
        // No namespace is pinned there, or that of another boot was.
        let Ok(found) = Namespace::open(&self.pin).and_then(|namespace| namespace.inside(inspect)) else {
            return Ok(None);
        };
        let Some((inside, found)) = found? else {
            return Ok(None);
        };
        let is_pair = inside.peer == Some(host.index) && host.is_up() && inside.is_up();
        Ok((is_pair && found == *addresses).then_some(Pair { host, inside }))
    }

    /// Listens inside of it.
    pub(crate) fn listen(&self, port: u16) -> Result<TcpListener, NetworkError> {
        let any: IpAddr = match self.ipv6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let bind = || {
            let listener = TcpListener::bind(SocketAddr::new(any, port))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = Namespace::open(&self.pin)?.inside(bind)?;
        listener.map_err(|cause| NetworkError::Listen { port, cause })
    }

    pub(crate) fn remove(&self) -> Result<(), NetworkError> {
        Netlink::open()?.delete_link(HOST)?;
        Ok(Namespace::unpin(&self.pin)?)
    }
}

fn inspect() -> Result<Option<(Link, BTreeSet<IpAddr>)>, NetError> {
    let net = Netlink::open()?;
    let Some(link) = net.find_link(INSIDE)? else {
        return Ok(None);
    };
    let addresses = net.addresses(&link)?.into_iter();
    let global = addresses
        .map(|address| address.address.addr())
        .filter(|address| !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()));
    Ok(Some((link, global.collect())))
}

/// Sets the interface up, inside the namespace.
fn configure(families: &[Family]) -> Result<Link, NetError> {
    let net = Netlink::open()?;
    net.set_link(&net.link("lo")?, LinkSpec::new().up())?;
    net.set_link(&net.link(INSIDE)?, LinkSpec::new().up())?;
    let link = net.link(INSIDE)?;
    for Family { address, gateway } in families {
        net.add_address(&link, (*address).into())?;
        let to_gateway = Route {
            device: Some(link.index),
            scope: match gateway {
                IpAddr::V4(_) => RouteScope::Link,
                IpAddr::V6(_) => RouteScope::Universe,
            },
            ..Route::to((*gateway).into())
        };
        let default = Route {
            device: Some(link.index),
            gateway: Some(*gateway),
            ..Route::default_of(gateway)
        };
        net.replace_route(&to_gateway)?;
        net.replace_route(&default)?;
    }
    Ok(link)
}

/// A random unicast address that is locally administered.
fn random_mac() -> [u8; 6] {
    let mut mac = [0; 6];
    fastrand::fill(&mut mac);
    mac[0] = mac[0] & 0xfe | 0x02;
    mac
}

#[cfg(test)]
mod tests {
    use skep_bpf_sys::testing::Node;

    use super::*;

    #[test]
    fn a_namespace_is_found_again_until_it_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let network = Network::new(folder.path(), true, "/proc/sys".into());
        let family = |address: &str, gateway: &str| Family {
            address: address.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
        };
        let families = [
            family("10.1.0.92", "10.1.0.103"),
            family("fd00:10:1::642e", "fd00:10:1::5c0d"),
        ];
        let addresses: BTreeSet<IpAddr> = families.iter().map(|family| family.address).collect();
        Node::run("health", |_| {
            assert_eq!(network.find(&addresses).unwrap(), None);
            let created = network.create(&families).unwrap();

            let found = network.find(&addresses).unwrap().expect("the pair");
            assert_eq!(found.host.index, created.host.index);
            assert_ne!(found.host.mac, found.inside.mac);
            let listener = network.listen(4240).unwrap();
            assert_eq!(listener.local_addr().unwrap().port(), 4240);
            assert!(matches!(
                network.listen(4240),
                Err(NetworkError::Listen { port: 4240, .. })
            ));

            let other = ["10.1.0.93".parse().unwrap()].into();
            assert_eq!(network.find(&other).unwrap(), None, "it has other addresses");
            Netlink::open().unwrap().delete_link(HOST).unwrap();
            assert_eq!(network.find(&addresses).unwrap(), None, "the interface is gone");
            network.create(&families).unwrap();
            network.remove().unwrap();
            assert!(!network.pin().exists());
            network.remove().unwrap();
            Ok::<_, io::Error>(())
        })
        .unwrap();
    }
}
