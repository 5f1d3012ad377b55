// SPDX-License-Identifier: Apache-2.0

//! `cilium_vxlan`, the interface of the tunnel to other nodes.

use skep_base_net::{
    Link, LinkSpec, NetError, Netlink,
    packet::link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkInfo,
    },
};
use skep_base_settings::TunnelConfig;

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
    fn needs_another(&self, link: &Link) -> bool {
        let data = link.info().iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data.as_slice()),
            _ => None,
        });
        let data = data.unwrap_or_default();
        !link.is_kind(InfoKind::Vxlan)
            || !data.contains(&InfoVxlan::CollectMetadata(true))
            || !data.contains(&InfoVxlan::Port(self.port))
            || !data.contains(&InfoVxlan::PortRange(self.source_ports.unwrap_or((0, 0))))
    }
}

/// Makes the interface as planned, or removes it if there is no plan. Returns its index.
pub(crate) fn ensure(plan: Option<&TunnelPlan>) -> Result<Option<u32>, NetError> {
    let net = Netlink::open()?;
    let Some(plan) = plan else {
        if net.delete_link(VXLAN)? {
            tracing::info!("Removed interface cilium_vxlan: native routing");
        }
        return Ok(None);
    };
    let link = match net.find_link(VXLAN)? {
        Some(link) if plan.needs_another(&link) => {
            net.delete_link(VXLAN)?;
            add(&net, plan)?
        }
        Some(link) => link,
        None => add(&net, plan)?,
    };
    if link.mtu != plan.mtu || !link.is_up() {
        net.set_link(&link, LinkSpec::new().mtu(plan.mtu).up())?;
    }
    Ok(Some(link.index))
}

fn add(net: &Netlink, plan: &TunnelPlan) -> Result<Link, NetError> {
    let data = vec![
        InfoVxlan::CollectMetadata(true),
        InfoVxlan::Learning(false),
        InfoVxlan::Port(plan.port),
        InfoVxlan::PortRange(plan.source_ports.unwrap_or((0, 0))),
    ];
    net.add_link(LinkSpec::vxlan(VXLAN, data))?;
    tracing::info!(port = plan.port, "Added interface cilium_vxlan");
    let link = net.link(VXLAN)?;
    // No IPv6 addresses of its own, no router solicitations.
    let of_ipv6 = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
    let without = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(of_ipv6)]);
    match net.set_link(&link, LinkSpec::new().attribute(without)) {
        // The kernel has no IPv6.
        Err(error) if error.errno() == Some(libc::EAFNOSUPPORT) => {}
        done => done?,
    }
    Ok(link)
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
    fn in_namespace(test: impl FnOnce(&Netlink) -> Result<(), NetError> + Send) {
        let done: std::io::Result<()> = TestNode::run("tunnel", |_| {
            Netlink::open()
                .and_then(|net| test(&net))
                .map_err(std::io::Error::other)
        });
        done.unwrap();
    }

    #[test]
    fn the_interface_is_made_repaired_and_removed() {
        in_namespace(|net| {
            let first = ensure(Some(&plan(8472)))?.unwrap();
            let made = net.link(VXLAN)?;
            assert!(made.is_up());
            assert_eq!(made.index, first);
            assert_eq!(ensure(Some(&plan(8472)))?, Some(first), "it fits");

            // Another program sets it down.
            net.set_link(&made, LinkSpec::new().mtu(1400).down())?;
            assert_eq!(ensure(Some(&plan(8472)))?, Some(first));
            let repaired = net.link(VXLAN)?;
            assert!(repaired.is_up());
            assert_eq!(repaired.mtu, 1500);

            // Its port cannot be changed.
            let mut other = plan(4789);
            other.source_ports = Some((40_000, 50_000));
            let second = ensure(Some(&other))?.unwrap();
            assert_ne!(second, first);
            assert_eq!(ensure(Some(&other))?, Some(second));

            assert_eq!(ensure(None)?, None);
            assert_eq!(net.find_link(VXLAN)?, None);
            assert_eq!(ensure(None)?, None);
            Ok(())
        });
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        in_namespace(|_| {
            let taken = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 8472)).unwrap();
            let error = ensure(Some(&plan(8472))).unwrap_err();
            let text = hive::error_chain(&error);
            assert!(text.contains(VXLAN), "{text}");
            drop(taken);

            ensure(Some(&plan(8472)))?;
            Ok(())
        });
    }
}
