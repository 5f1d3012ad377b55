// SPDX-License-Identifier: Apache-2.0

//! The port of the proxy, its sockets, and the routes of what is redirected to it.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::Path,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use skep_base_net::{
    MarkRule, NetError, Netlink, Route,
    packet::{
        AddressFamily,
        route::{RouteScope, RouteType},
    },
    transparent::{ProxySocket, Transport},
};

use super::MARK;

/// Name of the proxy in the file.
pub(crate) const NAME: &str = "cilium-dns-egress";
/// Ports that are tried if some socket's is taken.
const ATTEMPTS: usize = 16;
/// Packets to proxies of the node are routed to it.
const RULE: MarkRule = MarkRule {
    priority: 9,
    mark: 0x200,
    mask: 0xf00,
    table: 2004,
};

/// The sockets of the proxy, at one port of the loopback addresses.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) port: u16,
    /// IPv6 or not, UDP, TCP.
    pub(crate) sockets: Vec<(bool, tokio::net::UdpSocket, tokio::net::TcpListener)>,
}

fn open(address: IpAddr, port: u16, transport: Transport) -> io::Result<OwnedFd> {
    ProxySocket {
        transport,
        is_ipv6: address.is_ipv6(),
        mark: MARK,
        bind: Some(SocketAddr::new(address, port)),
        is_listener: true,
    }
    .open()
}

impl Listeners {
    /// Opens the sockets at a port; 0: any port that is free for all of them.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub(crate) fn open(ipv4: bool, ipv6: bool, port: u16) -> io::Result<Self> {
        let v4 = ipv4.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let v6 = ipv6.then_some(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let addresses: Vec<IpAddr> = v4.into_iter().chain(v6).collect();
        let mut failure = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..if port == 0 { ATTEMPTS } else { 1 } {
            match Self::open_all(&addresses, port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => failure = error,
                opened => return opened,
            }
        }
        Err(failure)
    }

    fn open_all(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let (mut port, mut sockets) = (port, Vec::new());
        for address in addresses {
            let udp = std::net::UdpSocket::from(open(*address, port, Transport::Udp)?);
            port = udp.local_addr()?.port();
            let tcp = std::net::TcpListener::from(open(*address, port, Transport::Tcp)?);
            sockets.push((
                address.is_ipv6(),
                tokio::net::UdpSocket::from_std(udp)?,
                tokio::net::TcpListener::from_std(tcp)?,
            ));
        }
        Ok(Self { port, sockets })
    }
}

/// Routes packets to the proxy to the node.
pub(crate) fn route_marked(ipv4: bool, ipv6: bool) -> Result<(), NetError> {
    let net = Netlink::open()?;
    let loopback = net.link("lo")?;
    for (is_on, family, any) in [
        (ipv4, AddressFamily::Inet, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        (ipv6, AddressFamily::Inet6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    ] {
        if is_on {
            net.replace_route(&Route {
                device: Some(loopback.index),
                table: RULE.table,
                scope: RouteScope::Host,
                kind: RouteType::Local,
                ..Route::default_of(&any)
            })?;
            net.add_mark_rule(family, &RULE)?;
        }
    }
    Ok(())
}

/// A proxy of `proxy_ports_state.json`.
#[derive(Debug, Serialize, Deserialize)]
struct SavedPort {
    #[serde(rename = "type")]
    kind: String,
    ingress: bool,
    port: u16,
}

/// The port of the run before, if the file is not older than that.
pub(crate) fn restored_port(file: &Path, age: Duration) -> Option<u16> {
    let changed = fs::metadata(file).and_then(|metadata| metadata.modified()).ok()?;
    let is_recent = SystemTime::now()
        .duration_since(changed)
        .is_ok_and(|passed| passed <= age);
    let text = fs::read(file).ok().filter(|_| is_recent)?;
    let ports: BTreeMap<String, SavedPort> = serde_json::from_slice(&text).ok()?;
    ports.get(NAME).map(|saved| saved.port).filter(|port| *port > 0)
}

/// Saves the port, for the next run.
pub(crate) fn save_port(file: &Path, port: u16) -> io::Result<()> {
    let saved = SavedPort {
        kind: "dns".to_owned(),
        ingress: false,
        port,
    };
    let text = serde_json::to_vec(&BTreeMap::from([(NAME, saved)]))?;
    let temporary = file.with_extension("json.tmp");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&temporary)?.write_all(&text)?;
    fs::rename(&temporary, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_restored_unless_the_file_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("proxy_ports_state.json");
        assert_eq!(restored_port(&file, Duration::from_secs(60)), None);

        save_port(&file, 10_053).unwrap();

        assert_eq!(restored_port(&file, Duration::from_secs(60)), Some(10_053));
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text,
            r#"{"cilium-dns-egress":{"type":"dns","ingress":false,"port":10053}}"#
        );
        let old = SystemTime::now() - Duration::from_secs(61);
        let opened = fs::File::options().write(true).open(&file).unwrap();
        opened.set_modified(old).unwrap();
        assert_eq!(restored_port(&file, Duration::from_secs(60)), None);
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_and_any_other_is_free_for_all_sockets() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();

        let failed = Listeners::open(true, true, port).unwrap_err();
        let opened = Listeners::open(true, true, 0).unwrap();

        assert_eq!(failed.kind(), io::ErrorKind::AddrInUse);
        assert_ne!(opened.port, port);
        let ports = opened
            .sockets
            .iter()
            .flat_map(|(_, udp, tcp)| [udp.local_addr(), tcp.local_addr()]);
        for address in ports {
            assert_eq!(address.unwrap().port(), opened.port);
        }
    }
}
