// SPDX-License-Identifier: Apache-2.0

//! Links, addresses and routes, by netlink, inside the namespaces of other processes.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use futures::TryStreamExt;
use netlink_packet_route::{
    link::{LinkAttribute, LinkMessage},
    route::{RouteAttribute, RouteMessage, RouteMetric, RouteScope},
};
use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

/// Why the network could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The process has ended, or this one may not enter its namespaces.
    #[error("network namespace of process {pid}")]
    Enter {
        /// The process whose namespace it is.
        pid: u32,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// A netlink request failed; the text names it.
    #[error("{what}")]
    Netlink {
        what: String,
        /// The error of the system call.
        #[source]
        cause: rtnetlink::Error,
    },
    #[error("no link `{name}`")]
    Missing { name: String },
    /// One is an IPv4 address, the other an IPv6 address.
    #[error("a route to {network} cannot go through {gateway}: their families differ")]
    Families { network: IpAddr, gateway: IpAddr },
    /// The cookie of a network namespace cannot be read.
    #[error(transparent)]
    Cookie(#[from] skep_bpf_sys::netns::NetnsError),
    /// A kernel setting could not be written.
    #[error("setting {path}")]
    Setting {
        /// Below `/proc/sys/net`.
        path: String,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
}

/// Runs `work` on a thread inside the network namespace of process `pid`.
///
/// # Errors
/// When the namespace cannot be entered, and what `work` returns.
pub fn inside<T, F>(pid: u32, work: F) -> Result<T, LinkError>
where
    T: Send,
    F: AsyncFnOnce(Net) -> Result<T, LinkError> + Send,
{
    inside_file(Path::new(&format!("/proc/{pid}/ns/net")), pid, work)
}

fn inside_file<T, F>(path: &Path, pid: u32, work: F) -> Result<T, LinkError>
where
    T: Send,
    F: AsyncFnOnce(Net) -> Result<T, LinkError> + Send,
{
    let enter = |cause: io::Error| LinkError::Enter { pid, cause };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let file = File::open(path).map_err(enter)?;
            setns(&file, CloneFlags::CLONE_NEWNET).map_err(|errno| enter(errno.into()))?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(enter)?;
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().map_err(enter)?;
                let driver = tokio::spawn(connection);
                let result = work(Net { handle }).await;
                driver.abort();
                result
            })
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(enter(io::Error::other("the thread inside it panicked"))))
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identified {
    pub name: String,
    pub index: u32,
    pub mac: String,
}

#[derive(Debug, Clone)]
pub struct Net {
    handle: Handle,
}

impl Net {
    /// Creates a pair of links, both in this namespace, and moves `peer` to the namespace of process `pid`.
    pub async fn veth(&self, name: &str, peer: &str, pid: u32) -> Result<(), LinkError> {
        let pair = LinkVeth::new(name, peer).build();
        self.add(pair, format!("adding link pair `{name}`")).await?;
        let moved = self.link(peer).await?.setns_by_pid(pid);
        self.set(moved, format!("moving link `{peer}` to process {pid}"))
            .await
    }

    /// Creates a bridge and sets it up.
    pub async fn bridge(&self, name: &str) -> Result<(), LinkError> {
        let bridge = LinkBridge::new(name).up().build();
        self.add(bridge, format!("adding bridge `{name}`")).await
    }

    /// Makes `name` a port of the bridge `bridge` and sets it up.
    pub async fn enslave(&self, name: &str, bridge: &str) -> Result<(), LinkError> {
        let controller = self.index(bridge).await?;
        let port = self.link(name).await?.controller(controller).up();
        self.set(port, format!("making link `{name}` a port of `{bridge}`"))
            .await
    }

    pub async fn rename(&self, name: &str, to: &str) -> Result<(), LinkError> {
        let renamed = self.link(name).await?.name(to.to_owned());
        self.set(renamed, format!("renaming link `{name}` to `{to}`"))
            .await
    }

    pub async fn up(&self, name: &str) -> Result<(), LinkError> {
        let up = self.link(name).await?.up();
        self.set(up, format!("setting link `{name}` up")).await
    }

    /// Removes a link (and its peer). One that is not there is fine.
    pub async fn delete(&self, name: &str) -> Result<(), LinkError> {
        let index = match self.index(name).await {
            Ok(index) => index,
            Err(LinkError::Missing { .. }) => return Ok(()),
            Err(err) => return Err(err),
        };
        self.handle
            .link()
            .del(index)
            .execute()
            .await
            .map_err(failed(format!("removing link `{name}`")))
    }

    /// Adds an address to a link.
    pub async fn address(&self, name: &str, address: IpAddr, prefix: u8) -> Result<(), LinkError> {
        let index = self.index(name).await?;
        self.handle
            .address()
            .add(index, address, prefix)
            .execute()
            .await
            .map_err(failed(format!("adding {address}/{prefix} to link `{name}`")))
    }

    /// Adds a route to `network` through `gateway`, which is reached over the link `via`; `mtu` in bytes, if it is less than
    /// that of the link.
    pub async fn route(
        &self,
        network: (IpAddr, u8),
        gateway: IpAddr,
        via: &str,
        mtu: Option<u32>,
    ) -> Result<(), LinkError> {
        let index = self.index(via).await?;
        let (to, prefix) = network;
        let mut message = match (to, gateway) {
            (IpAddr::V4(to), IpAddr::V4(gateway)) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(to, prefix)
                .gateway(gateway)
                .output_interface(index)
                .build(),
            (IpAddr::V6(to), IpAddr::V6(gateway)) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(to, prefix)
                .gateway(gateway)
                .output_interface(index)
                .build(),
            (network, gateway) => return Err(LinkError::Families { network, gateway }),
        };
        if let Some(mtu) = mtu {
            message
                .attributes
                .push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        }
        self.add_route(message, format!("adding the route to {to}/{prefix} by {gateway}"))
            .await
    }

    /// Adds a route to one address, directly over the link `via`.
    pub async fn host_route(&self, address: IpAddr, via: &str) -> Result<(), LinkError> {
        let index = self.index(via).await?;
        let message = match address {
            IpAddr::V4(to) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(to, 32)
                .output_interface(index)
                .scope(RouteScope::Link)
                .build(),
            IpAddr::V6(to) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(to, 128)
                .output_interface(index)
                .build(),
        };
        self.add_route(message, format!("adding the route to {address} over `{via}`"))
            .await
    }

    async fn add(&self, link: LinkMessage, what: String) -> Result<(), LinkError> {
        let request = self.handle.link().add(link);
        request.execute().await.map_err(failed(what))
    }

    async fn set(&self, link: LinkMessageBuilder<LinkUnspec>, what: String) -> Result<(), LinkError> {
        let request = self.handle.link().set(link.build());
        request.execute().await.map_err(failed(what))
    }

    async fn add_route(&self, route: RouteMessage, what: String) -> Result<(), LinkError> {
        let request = self.handle.route().add(route);
        request.execute().await.map_err(failed(what))
    }

    async fn link(&self, name: &str) -> Result<LinkMessageBuilder<LinkUnspec>, LinkError> {
        Ok(LinkUnspec::new_with_index(self.index(name).await?))
    }

    /// Index and MAC address of a link.
    ///
    /// # Errors
    /// If there is no such link, or a system call fails.
    pub async fn identify(&self, name: &str) -> Result<Identified, LinkError> {
        let link = self.find(name).await?;
        let mac = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => Some(bytes),
            _ => None,
        });
        let octets: Vec<String> = mac
            .into_iter()
            .flatten()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Identified {
            name: name.to_owned(),
            index: link.header.index,
            mac: octets.join(":"),
        })
    }

    async fn index(&self, name: &str) -> Result<u32, LinkError> {
        Ok(self.find(name).await?.header.index)
    }

    async fn find(&self, name: &str) -> Result<LinkMessage, LinkError> {
        let mut found = self.handle.link().get().match_name(name.to_owned()).execute();
        let missing = || LinkError::Missing {
            name: name.to_owned(),
        };
        match found.try_next().await {
            Ok(link) => link.ok_or_else(missing),
            Err(rtnetlink::Error::NetlinkError(answer)) if answer.raw_code() == -(Errno::ENODEV as i32) => {
                Err(missing())
            }
            Err(cause) => Err(failed(format!("looking for link `{name}`"))(cause)),
        }
    }
}

/// Writes a setting below `/proc/sys/net` of the calling thread's namespace.
pub fn setting(path: &str, value: &str) -> Result<(), LinkError> {
    std::fs::write(Path::new("/proc/sys/net").join(path), value).map_err(|cause| LinkError::Setting {
        path: path.to_owned(),
        cause,
    })
}

/// Settings of a namespace that forwards: routing on, addresses usable at once.
pub fn router_settings() -> Result<(), LinkError> {
    setting("ipv4/ip_forward", "1")?;
    setting("ipv6/conf/all/forwarding", "1")?;
    for scope in ["all", "default"] {
        // ICMP redirects would replace the routes of machines.
        setting(&format!("ipv4/conf/{scope}/send_redirects"), "0")?;
    }
    immediate_addresses()
}

/// Disables duplicate-address detection for links created later: IPv6 addresses work at once.
pub fn immediate_addresses() -> Result<(), LinkError> {
    for scope in ["all", "default"] {
        setting(&format!("ipv6/conf/{scope}/accept_dad"), "0")?;
        setting(&format!("ipv6/conf/{scope}/disable_ipv6"), "0")?;
    }
    Ok(())
}

fn failed(what: String) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |cause| LinkError::Netlink { what, cause }
}
