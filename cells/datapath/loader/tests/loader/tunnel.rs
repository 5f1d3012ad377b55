// SPDX-License-Identifier: Apache-2.0

//! The interface of the tunnel.

use skep_bpf_sys::link::InterfaceHook;

use crate::world::*;

const TUNNEL: [&str; 3] = [
    "--kube-proxy-replacement",
    "--routing-mode=tunnel",
    "--tunnel-port=8473",
];

fn interface() -> String {
    ip("-d link show cilium_vxlan").unwrap_or_default()
}

#[test]
fn the_tunnel_has_an_interface_with_programs_until_packets_are_routed() {
    run("tunnel", async |world: World| {
        let agent = world.attached(&TUNNEL).await?;

        world.assert_pins("devices/cilium_vxlan", &["cil_from_overlay", "cil_to_overlay"]);
        let found = interface();
        for word in ["external", "dstport 8473", "UP", "mtu 1500"] {
            assert!(found.contains(word), "no {word} in {found}");
        }

        ip("link del cilium_vxlan")?;
        agent
            .until("made again", |agent| {
                interface().contains("dstport 8473") && agent.datapath().check().is_ok()
            })
            .await;
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            assert_eq!(at("cilium_vxlan", hook).len(), 1);
        }
        world.assert_pins("devices/cilium_vxlan", &["cil_from_overlay", "cil_to_overlay"]);
        agent.stop().await?;
        assert!(
            interface().contains("dstport 8473"),
            "packets go on without the agent"
        );

        let agent = world.attached(&TUNNEL[..1]).await?;
        agent
            .until("removed", |_| {
                interface().is_empty() && world.pins("devices/cilium_vxlan").is_empty()
            })
            .await;
        agent.stop().await
    });
}

#[test]
fn a_tunnel_that_cannot_be_made_is_reported() {
    run("tunnel-taken", async |world: World| {
        ip("link add other type vxlan external dstport 8473")?;
        ip("link set other up")?;

        let agent = world.start(&TUNNEL).await?;

        agent
            .until("reported", |agent| {
                let (_, error) = agent.health();
                error.is_some_and(|error| error.contains("cilium_vxlan"))
            })
            .await;
        ip("link del other")?;
        agent
            .until("attached", |agent| agent.datapath().status().is_attached)
            .await;
        agent.stop().await
    });
}
