// SPDX-License-Identifier: Apache-2.0

//! `cilium_host`, `cilium_net`, their addresses and routes, settings of the kernel, and nodes with little.

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use skep_bpf_maps::{
    conntrack::{CT_TCP4, CtEntry, CtKey4},
    endpoint::{DEVICES, Device},
    nat::NAT4,
};
use skep_bpf_sys::{MapFlags, MapKind, MapSpec, MapStore, RawMap as _, link::InterfaceHook};

use crate::world::*;

#[test]
fn the_pair_has_the_addresses_of_the_router_and_routes() {
    run("pair", async |world: World| {
        let agent = world.attached(&["--mtu=1400"]).await?;
        assert!(!ip("addr show cilium_host")?.contains("10.1.0"));
        agent.local_node().update(with_pods)?;

        let shown = || ip("addr show cilium_host").unwrap();
        agent
            .until("addresses", |_| {
                shown().contains("inet 10.1.0.1/32") && shown().contains("inet6 fd00:1::1/128")
            })
            .await;
        assert!(
            shown().contains("NOARP") && shown().contains("mtu 1400"),
            "{}",
            shown()
        );
        assert!(!shown().contains("fe80:"), "{}", shown());
        assert!(ip("link show cilium_net")?.contains("mtu 1400"));
        // Rules for packets to proxies may come before local addresses.
        for family in ["-4", "-6"] {
            let rules = ip(&format!("{family} rule"))?;
            assert!(rules.starts_with("100:\tfrom all lookup local"), "{rules}");
        }
        let routes =
            || ip("route show dev cilium_host").unwrap() + &ip("-6 route show dev cilium_host").unwrap();
        let is_routed = || {
            routes().contains("fd00:1::/64")
                && routes().contains("10.1.0.0/24 via 10.1.0.1 proto kernel src 10.1.0.1")
        };
        agent.until("routes", |_| is_routed()).await;

        // Another network is routed instead; the address stays.
        agent
            .local_node()
            .update(|node| node.pod_cidrs = vec!["10.2.0.0/24".parse().unwrap()])?;
        agent
            .until("another route", |_| {
                let routes = routes();
                routes.contains("10.2.0.0/24")
                    && !routes.contains("10.1.0.0/24")
                    && !routes.contains("fd00:1::/64")
            })
            .await;
        agent.stop().await?;
        // Over restarts, too.
        let agent = world.attached(&["--enable-local-node-route=false"]).await?;
        assert!(shown().contains("inet 10.1.0.1/32"), "{}", shown());
        agent.stop().await?;
        // Unless it is configured.
        let agent = world.attached(&["--local-router-ipv4=10.9.9.9"]).await?;
        agent
            .until("the address", |_| shown().contains("inet 10.9.9.9/32"))
            .await;
        assert!(!shown().contains("10.1.0.1"), "{}", shown());
        agent.stop().await
    });
}

#[test]
fn a_removed_pair_is_made_again() {
    run("pair-removed", async |world: World| {
        let agent = world.attached(&[]).await?;
        let is_attached = || {
            let hooks = [InterfaceHook::Ingress, InterfaceHook::Egress];
            hooks.into_iter().all(|hook| at("cilium_host", hook).len() == 1)
        };
        assert!(is_attached());
        world.assert_pins("devices/cilium_host", &["cil_from_host", "cil_to_host"]);

        ip("link del cilium_host")?;

        agent
            .until("there again", |agent| {
                ip("link show cilium_host").is_ok() && agent.datapath().check().is_ok()
            })
            .await;
        assert!(is_attached());
        world.assert_pins("devices/cilium_host", &["cil_from_host", "cil_to_host"]);
        agent.stop().await
    });
}

#[test]
fn maps_of_an_older_layout_are_replaced() {
    run("layouts", async |world: World| {
        let store = MapStore::new(&world.root);
        // Shorter entries, another kind of map, another key.
        store.provide(
            MapSpec::<[u8; 14], [u8; 40]>::new("cilium_ct4_global", MapKind::LruHash, 1024, MapFlags::NONE)
                .raw(),
        )?;
        store.provide(
            MapSpec::<[u8; 14], [u8; 40]>::new(
                "cilium_snat_v4_external",
                MapKind::Hash,
                1024,
                MapFlags::NONE,
            )
            .raw(),
        )?;
        store
            .provide(MapSpec::<u64, [u8; 8]>::new("skep_devices", MapKind::Hash, 16, MapFlags::NONE).raw())?;

        let agent = world.attached(&["--kube-proxy-replacement"]).await?;

        assert_eq!(agent.health().1, None);
        let store = MapStore::new(&world.root);
        store.open::<CtKey4, CtEntry>(CT_TCP4.name)?;
        let nat = store.open_raw(NAT4.name)?;
        assert_eq!(nat.info().kind, MapKind::LruHash as u32);
        let devices = store.open::<u32, Device>(DEVICES.name)?.entries()?;
        assert_eq!(devices.len(), 3, "the pair and eth0");
        agent.stop().await
    });
}

#[test]
fn settings_of_the_kernel_are_made() {
    run("sysctl", async |world: World| {
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1")?;
        let agent = world.attached(&[]).await?;

        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
        for (name, value) in [
            ("ipv4/conf/all/rp_filter", "0\n"),
            ("ipv4/conf/cilium_host/rp_filter", "0\n"),
            ("ipv4/conf/cilium_net/accept_local", "1\n"),
            ("ipv4/conf/cilium_host/send_redirects", "0\n"),
            ("ipv6/conf/cilium_net/forwarding", "1\n"),
        ] {
            assert_eq!(read(name), value, "{name}");
        }
        agent.stop().await
    });
}

#[test]
fn programs_are_attached_with_read_only_settings_and_health_names_them() {
    run("read-only", async |world: World| {
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1")?;
        mount_bind("/proc/sys", "/proc/sys")?;
        mount_remount("/proc/sys", MountFlags::BIND | MountFlags::RDONLY, "")?;

        let agent = world.attached(&[]).await?;

        agent.until("degraded", |agent| agent.health().1.is_some()).await;
        let (message, error) = agent.health();
        assert!(message.starts_with("4 programs attached"), "{message}");
        let error = error.unwrap();
        assert!(
            error.contains("/proc/sys/net/ipv4/conf/all/rp_filter is 1, not 0, and cannot be changed"),
            "{error}"
        );
        agent.stop().await
    });
}

/// As Cilium's chart runs an agent that is not privileged.
#[test]
fn settings_of_the_kernel_are_written_where_procfs_says() {
    run("procfs", async |world: World| {
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1")?;
        let host = tempfile::tempdir()?;
        let sysctl = host.path().join("sys/net");
        std::fs::create_dir_all(&sysctl)?;
        mount_bind("/proc/sys/net", &sysctl)?;
        mount_bind("/proc/sys", "/proc/sys")?;
        mount_remount("/proc/sys", MountFlags::BIND | MountFlags::RDONLY, "")?;

        let agent = world
            .attached(&[&format!("--procfs={}", host.path().display())])
            .await?;

        assert_eq!(agent.health().1, None);
        let filter = std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter")?;
        assert_eq!(filter, "0\n");
        agent.stop().await?;
        unmount(&sysctl, UnmountFlags::DETACH)?;
        Ok(())
    });
}

#[test]
fn a_device_that_does_not_forward_is_named_where_the_node_forwards() {
    run("forwarding", async |world: World| {
        std::fs::write("/proc/sys/net/ipv4/conf/eth0/forwarding", "0")?;
        let agent = world.attached(&[]).await?;
        assert_eq!(agent.health().1, None);
        agent.stop().await?;

        for flag in ["--kube-proxy-replacement", "--enable-host-legacy-routing"] {
            let agent = world.attached(&[flag]).await?;

            agent.until("degraded", |agent| agent.health().1.is_some()).await;
            assert_eq!(
                agent.health().1.as_deref(),
                Some("forwarding is off: eth0 (IPv4)"),
                "{flag}"
            );
            agent.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn a_bare_node_has_the_pair_and_no_devices() {
    run_bare("bare", async |world: World| {
        let agent = world.attached(&["--kube-proxy-replacement"]).await?;

        let (message, error) = agent.health();
        assert_eq!(
            message,
            format!(
                "3 programs attached by {} to cilium_host, cilium_net and no devices",
                attachment().1
            )
        );
        assert_eq!(error, None);
        agent.stop().await
    });
}

#[test]
fn one_address_family_is_enough() {
    run("ipv4-only", async |world: World| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")?;
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
        let agent = world
            .attached(&["--enable-ipv6=false", "--kube-proxy-replacement"])
            .await?;
        agent.local_node().update(with_pods)?;
        agent
            .until("an address", |_| {
                ip("addr show cilium_host").unwrap().contains("10.1.0.1/32")
            })
            .await;
        assert_eq!(agent.health().1, None);
        agent.stop().await
    });
}
