// SPDX-License-Identifier: Apache-2.0

//! `cilium_vxlan`, the interface of the tunnel to other nodes.

use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVxlan};
use skep_base_settings::TunnelConfig;

use skep_base_net::{NetError, connected, failed, find};

pub(crate) const VXLAN: &str = "cilium_vxlan";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelPlan {
    /// UDP port that it receives on.
    pub(crate) port: u16,
    /// First and last source port; `None`: the kernel's.
    pub(crate) source_ports: Option<(u16, u16)>,
    /// MTU of the network between nodes: routes say how large packets inside may be.
    pub(crate) mtu: u32,
}

impl TunnelPlan {
    /// What the settings ask for; `None` without a tunnel.
    pub(crate) fn new(config: &TunnelConfig, mtu: u32) -> Option<Self> {
        config.is_tunnelled().then(|| Self {
            port: config.port(),
            source_ports: config.tunnel_source_port_range.range(),
            mtu,
        })
    }

    /// The interface cannot be changed to be this.
    fn needs_another(&self, link: &LinkMessage) -> bool {
        let infos = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos.as_slice()),
            _ => None,
        });
        let infos = infos.unwrap_or_default();
        let data = infos.iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data.as_slice()),
            _ => None,
        });
        let data = data.unwrap_or_default();
        !infos.contains(&LinkInfo::Kind(InfoKind::Vxlan))
            || !data.contains(&InfoVxlan::CollectMetadata(true))
            || !data.contains(&InfoVxlan::Port(self.port))
            || !data.contains(&InfoVxlan::PortRange(self.source_ports.unwrap_or((0, 0))))
    }
}

/// Makes the interface as planned, or removes it if there is no plan. Returns its index.
pub(crate) async fn ensure(plan: Option<&TunnelPlan>) -> Result<Option<u32>, NetError> {
    connected(async |handle| {
        let found = find(handle, VXLAN).await?;
        let Some(plan) = plan else {
            if let Some(link) = found {
                remove(handle, &link).await?;
                tracing::info!("interface cilium_vxlan removed: packets are routed");
            }
            return Ok(None);
        };
        let link = match found {
            Some(link) if plan.needs_another(&link) => {
                remove(handle, &link).await?;
                add(handle, plan).await?
            }
            Some(link) => link,
            None => add(handle, plan).await?,
        };
        set_up(handle, &link, plan.mtu).await?;
        Ok(Some(link.header.index))
    })
    .await
}

async fn remove(handle: &Handle, link: &LinkMessage) -> Result<(), NetError> {
    let delete = handle.link().del(link.header.index).execute();
    delete.await.map_err(failed(format!("remove {VXLAN}")))
}

async fn add(handle: &Handle, plan: &TunnelPlan) -> Result<LinkMessage, NetError> {
    let (first, last) = plan.source_ports.unwrap_or((0, 0));
    let link = LinkVxlan::new(VXLAN, 0)
        .collect_metadata(true)
        .learning(false)
        .port(plan.port)
        .port_range(first, last)
        .build();
    let what = format!("add {VXLAN} on UDP port {}", plan.port);
    handle.link().add(link).execute().await.map_err(failed(what))?;
    tracing::info!(port = plan.port, "interface cilium_vxlan added");
    let link = find(handle, VXLAN).await?.ok_or(NetError::Removed(VXLAN))?;
    without_addresses(handle, &link).await?;
    Ok(link)
}

/// Sets that the interface has no IPv6 addresses of its own, and sends no router solicitations.
async fn without_addresses(handle: &Handle, link: &LinkMessage) -> Result<(), NetError> {
    let mut change = LinkMessageBuilder::<LinkUnspec>::default()
        .index(link.header.index)
        .build();
    let of_ipv6 = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
    change
        .attributes
        .push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(of_ipv6)]));
    match handle.link().set(change).execute().await {
        // The kernel has no IPv6.
        Err(rtnetlink::Error::NetlinkError(answer)) if answer.raw_code() == -libc::EAFNOSUPPORT => Ok(()),
        done => done.map_err(failed(format!("set {VXLAN} to have no addresses"))),
    }
}

async fn set_up(handle: &Handle, link: &LinkMessage, mtu: u32) -> Result<(), NetError> {
    if link.attributes.contains(&LinkAttribute::Mtu(mtu)) && link.header.flags.contains(LinkFlags::Up) {
        return Ok(());
    }
    let change = LinkMessageBuilder::<LinkUnspec>::default()
        .index(link.header.index)
        .mtu(mtu)
        .up();
    let set = handle.link().set(change.build()).execute();
    set.await
        .map_err(failed(format!("set {VXLAN} up with MTU {mtu}")))
}

#[cfg(test)]
mod tests {
    use skep_bpf_sys::testing::Node as TestNode;

    use super::*;

    fn plan(port: u16) -> TunnelPlan {
        TunnelPlan {
            port,
            source_ports: None,
            mtu: 1500,
        }
    }

    /// Runs a test in a network namespace of its own.
    fn in_namespace(test: impl AsyncFnOnce() -> Result<(), NetError> + Send) {
        let done: std::io::Result<()> = TestNode::run("tunnel", |_| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(test()).map_err(std::io::Error::other)
        });
        done.unwrap();
    }

    async fn link(name: &str) -> Option<LinkMessage> {
        connected(async |handle| find(handle, name).await).await.unwrap()
    }

    #[test]
    fn the_interface_is_made_repaired_and_removed() {
        in_namespace(async || {
            let first = ensure(Some(&plan(8472))).await?.unwrap();
            let made = link(VXLAN).await.unwrap();
            assert!(made.header.flags.contains(LinkFlags::Up));
            assert_eq!(made.header.index, first);
            assert_eq!(ensure(Some(&plan(8472))).await?, Some(first), "it fits");

            // Another program sets it down.
            connected(async |handle| {
                let down = LinkMessageBuilder::<LinkUnspec>::default()
                    .index(first)
                    .mtu(1400)
                    .down();
                let set = handle.link().set(down.build()).execute();
                set.await.map_err(failed("set it down"))
            })
            .await?;
            assert_eq!(ensure(Some(&plan(8472))).await?, Some(first));
            let repaired = link(VXLAN).await.unwrap();
            assert!(repaired.header.flags.contains(LinkFlags::Up));
            assert!(repaired.attributes.contains(&LinkAttribute::Mtu(1500)));

            // Its port cannot be changed.
            let mut other = plan(4789);
            other.source_ports = Some((40_000, 50_000));
            let second = ensure(Some(&other)).await?.unwrap();
            assert_ne!(second, first);
            assert_eq!(ensure(Some(&other)).await?, Some(second));

            assert_eq!(ensure(None).await?, None);
            assert!(link(VXLAN).await.is_none());
            assert_eq!(ensure(None).await?, None);
            Ok(())
        });
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        in_namespace(async || {
            let taken = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 8472)).unwrap();
            let error = ensure(Some(&plan(8472))).await.unwrap_err();
            let text = hive::error_chain(&error);
            assert!(text.contains(VXLAN), "{text}");
            drop(taken);

            ensure(Some(&plan(8472))).await?;
            Ok(())
        });
    }
}
