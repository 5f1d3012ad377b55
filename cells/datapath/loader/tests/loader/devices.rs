// SPDX-License-Identifier: Apache-2.0

//! Devices of the node: attached, followed, kept.

use std::os::fd::AsFd as _;

use skep_bpf_sys::{
    filter::Filters,
    link::{InterfaceHook, InterfaceLinks, XdpMode, detach, has_interface_links, program_id},
    testing::{ProgramKind, program},
};
use skep_datapath_loader::{Attachment, DatapathError};

use crate::world::*;

const REPLACEMENT: &str = "--kube-proxy-replacement";

#[test]
fn programs_are_attached_and_stay_when_the_agent_ends() {
    run("attach", async |world: World| {
        let agent = world.attached(&[REPLACEMENT]).await?;

        world.assert_pins("devices/eth0", &["cil_from_netdev", "cil_to_netdev"]);
        world.assert_pins("devices/cilium_host", &["cil_from_host", "cil_to_host"]);
        world.assert_pins("devices/cilium_net", &["cil_to_host"]);
        let (ingress, egress) = (
            at("eth0", InterfaceHook::Ingress),
            at("eth0", InterfaceHook::Egress),
        );
        assert_eq!((ingress.len(), egress.len()), (1, 1));
        let status = agent.datapath().status();
        let (attachment, by) = attachment();
        assert_eq!(status.attachment, Some(attachment));
        assert_eq!(status.devices, ["eth0"]);
        assert_eq!(status.direct_routing.unwrap().ipv4, Some([192, 0, 2, 1].into()));
        let (message, error) = agent.health();
        assert_eq!(
            message,
            format!("5 programs attached by {by} to cilium_host, cilium_net and eth0; direct routing: eth0")
        );
        assert_eq!(error, None);

        agent.stop().await?;
        assert_eq!(at("eth0", InterfaceHook::Ingress), ingress);

        // The next one replaces the programs in their links.
        let agent = world.attached(&[REPLACEMENT]).await?;
        let next = at("eth0", InterfaceHook::Ingress);
        assert!(next.len() == 1 && next != ingress, "{next:?}");
        agent.stop().await
    });
}

// Node ports of a node that is ready without them, or with those of the run before, are not as configured: cloud load balancers
// and whoever updates one node after the other go by it.
#[test]
fn the_agent_is_ready_when_its_programs_are_attached() {
    run("ready", async |world: World| {
        for _ in 0..2 {
            let agent = world.start(&[REPLACEMENT]).await?;

            agent
                .until("ready", |agent| {
                    let pending = agent.not_ready();
                    assert!(
                        pending.is_empty() || pending == ["datapath-loader: programs"],
                        "{pending:?}"
                    );
                    pending.is_empty()
                })
                .await;
            assert!(agent.datapath().status().is_attached);

            agent.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn without_anything_to_translate_nothing_is_attached_to_what_leaves() {
    run("egress", async |world: World| {
        world.attached(&[REPLACEMENT]).await?.stop().await?;
        assert_eq!(at("eth0", InterfaceHook::Egress).len(), 1);

        let agent = world.attached(&[]).await?;

        agent
            .until("detached", |_| at("eth0", InterfaceHook::Egress).is_empty())
            .await;
        world.assert_pins("devices/eth0", &["cil_from_netdev"]);
        agent.stop().await?;
        // Masquerading is a reason, too.
        world.attached(&["--enable-bpf-masquerade"]).await?.stop().await?;
        assert_eq!(at("eth0", InterfaceHook::Egress).len(), 1);
        Ok(())
    });
}

#[test]
fn devices_are_followed() {
    run("follow", async |world: World| {
        let agent = world.attached(&[REPLACEMENT]).await?;

        world.add_interface("eth1", "198.51.100.1/24", "2001:db8:1::1/64")?;
        agent
            .until("attached to eth1", |agent| {
                agent.datapath().status().devices == ["eth0", "eth1"]
            })
            .await;
        world.assert_pins("devices/eth1", &["cil_from_netdev", "cil_to_netdev"]);

        ip("link del eth1")?;
        agent
            .until("unpinned", |agent| {
                world.pins("devices/eth1").is_empty() && agent.datapath().status().devices == ["eth0"]
            })
            .await;
        assert!(!world.root.join("cilium/devices/eth1").exists());
        assert_eq!(agent.health().1, None);
        // Another one of the name is another interface.
        world.add_interface("eth1", "198.51.100.1/24", "2001:db8:1::1/64")?;
        agent
            .until("attached again", |agent| {
                agent.datapath().status().devices == ["eth0", "eth1"]
            })
            .await;
        world.assert_pins("devices/eth1", &["cil_from_netdev", "cil_to_netdev"]);
        assert_eq!(at("eth1", InterfaceHook::Ingress).len(), 1);
        agent.stop().await
    });
}

#[test]
fn devices_that_went_while_there_was_no_agent_are_unpinned() {
    run_with_links("gone", async |world: World| {
        world.add_interface("eth1", "198.51.100.1/24", "2001:db8:1::1/64")?;
        world.attached(&[REPLACEMENT]).await?.stop().await?;
        assert_eq!(world.pins("devices/eth1").len(), 2);
        ip("link del eth1")?;

        let agent = world.attached(&[REPLACEMENT]).await?;

        assert!(!world.root.join("cilium/devices/eth1").exists());
        agent.stop().await
    });
}

#[test]
fn filters_are_removed_from_devices_that_were_deselected_while_there_was_no_agent() {
    run("deselected", async |world: World| {
        const FILTERS: &str = "--enable-tcx=false";
        world.add_interface("eth1.5", "198.51.100.1/24", "2001:db8:1::1/64")?;
        let names = || -> Outcome<Vec<String>> {
            let mut names = Vec::new();
            for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
                let filters = Filters::new("eth1.5")?.list(hook)?;
                names.extend(filters.into_iter().map(|filter| filter.name));
            }
            Ok(names)
        };
        for (next, is_link) in [(vec![REPLACEMENT, FILTERS], false), (vec![REPLACEMENT], true)] {
            world.attached(&[REPLACEMENT, FILTERS]).await?.stop().await?;
            assert_eq!(
                names()?,
                ["cil_from_netdev-eth1.5", "cil_to_netdev-eth1.5"],
                "links next: {is_link}"
            );
            // Of others.
            let other = program(ProgramKind::Classifier, "other")?;
            let filters = Filters::new("eth1.5")?;
            for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
                filters.attach("other", other.as_fd(), hook, 40)?;
            }

            let mut flags = next;
            flags.push("--devices=eth0");
            let agent = world.attached(&flags).await?;

            assert_eq!(agent.datapath().status().devices, ["eth0"]);
            assert_eq!(names()?, ["other-eth1.5", "other-eth1.5"]);
            assert_eq!(agent.health().1, None);
            agent.stop().await?;
            for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
                filters.detach("other", hook)?;
            }
        }
        Ok(())
    });
}

#[test]
fn xdp_programs_without_links_are_removed_from_devices_that_were_deselected() {
    run("deselected-xdp", async |world: World| {
        for name in ["eth1", "eth2", "eth3"] {
            let n = &name[3..];
            world.add_interface(name, &format!("10.9.{n}.1/24"), &format!("2001:db8:{n}::1/64"))?;
        }
        // By hand, as agents without links did: ours, and one of others; and one of our name by a link that is not ours.
        let attach_by_hand = |name: &str, interface: &str| -> Outcome {
            let made = program(ProgramKind::Xdp, name)?;
            let pin = world.root.join(format!("old-{interface}"));
            skep_bpf_sys::testing::pin(made.as_fd(), &pin)?;
            ip(&format!(
                "link set dev {interface} xdpgeneric pinned {}",
                pin.display()
            ))?;
            Ok(())
        };
        attach_by_hand("cil_xdp_entry", "eth1")?;
        attach_by_hand("guard", "eth2")?;
        let other = program(ProgramKind::Xdp, "cil_xdp_entry")?;
        InterfaceLinks::new(&world.root.join("others"), "eth3")?.attach_xdp(
            "cil_xdp_entry",
            other.as_fd(),
            XdpMode::Generic,
        )?;

        let agent = world.attached(&[REPLACEMENT, "--devices=eth0"]).await?;

        let attached = |name: &str| InterfaceLinks::new(&world.root, name)?.attached_xdp();
        assert_eq!(attached("eth1")?, None);
        assert!(attached("eth2")?.is_some());
        assert_eq!(attached("eth3")?, Some(program_id(other.as_fd())?));
        assert_eq!(agent.health().1, None);
        agent.stop().await
    });
}

#[test]
fn programs_of_others_keep_their_places() {
    run_with_links("foreign", async |world: World| {
        let (before, after) = (
            program(ProgramKind::Classifier, "before")?,
            program(ProgramKind::Classifier, "after")?,
        );
        let others = InterfaceLinks::new(&world.root.join("others"), "eth0")?;
        others.attach("before", before.as_fd(), InterfaceHook::Ingress)?;
        world.attached(&[REPLACEMENT]).await?.stop().await?;
        others.attach("after", after.as_fd(), InterfaceHook::Ingress)?;

        world.attached(&[REPLACEMENT]).await?.stop().await?;

        let ids = at("eth0", InterfaceHook::Ingress);
        assert_eq!(ids.len(), 3);
        assert_eq!(
            (ids[0], ids[2]),
            (program_id(before.as_fd())?, program_id(after.as_fd())?)
        );
        Ok(())
    });
}

#[test]
fn qdiscs_and_filters_of_others_are_kept() {
    run("foreign-filters", async |world: World| {
        let (before, after) = (
            program(ProgramKind::Classifier, "before")?,
            program(ProgramKind::Classifier, "after")?,
        );
        run_program("tc", "qdisc add dev eth0 root handle 7: pfifo limit 321")?;
        let filters = Filters::new("eth0")?;
        filters.attach("before", before.as_fd(), InterfaceHook::Ingress, 3)?;
        filters.attach("after", after.as_fd(), InterfaceHook::Ingress, 9)?;
        let names = || {
            let listed = Filters::new("eth0")
                .unwrap()
                .list(InterfaceHook::Ingress)
                .unwrap();
            listed.into_iter().map(|filter| filter.name).collect::<Vec<_>>()
        };
        let by_filter = [REPLACEMENT, "--enable-tcx=false", "--bpf-filter-priority=5"];

        for _ in 0..2 {
            world.attached(&by_filter).await?.stop().await?;
            assert_eq!(names(), ["before-eth0", "cil_from_netdev-eth0", "after-eth0"]);
        }
        if has_interface_links() {
            world.attached(&[REPLACEMENT]).await?.stop().await?;
            assert_eq!(names(), ["before-eth0", "after-eth0"]);
            assert_eq!(at("eth0", InterfaceHook::Ingress).len(), 1);
        }

        let qdiscs = run_program("tc", "qdisc show dev eth0")?;
        assert!(
            qdiscs.contains("qdisc pfifo 7: root") && qdiscs.contains("limit 321p"),
            "{qdiscs}"
        );
        Ok(())
    });
}

#[test]
fn filters_take_the_place_of_links_and_links_that_of_filters() {
    run_with_links("filters", async |world: World| {
        world.attached(&[REPLACEMENT]).await?.stop().await?;

        let agent = world
            .attached(&[REPLACEMENT, "--enable-tcx=false", "--bpf-filter-priority=5"])
            .await?;
        assert_eq!(
            agent.datapath().status().attachment,
            Some(Attachment::Filter { priority: 5 })
        );
        assert!(!world.root.join("cilium/devices/eth0").exists());
        assert_eq!(at("eth0", InterfaceHook::Ingress), [0; 0]);
        let filters = Filters::new("eth0")?.list(InterfaceHook::Egress)?;
        assert_eq!(filters.len(), 1);
        assert_eq!(
            (filters[0].name.as_str(), filters[0].priority),
            ("cil_to_netdev-eth0", 5)
        );
        agent.datapath().check()?;
        assert!(Filters::new("eth0")?.detach("cil_to_netdev", InterfaceHook::Egress)?);
        assert!(matches!(
            agent.datapath().check(),
            Err(DatapathError::Detached(_))
        ));
        agent.datapath().check()?;
        agent.stop().await?;

        world.attached(&[REPLACEMENT]).await?.stop().await?;
        assert_eq!(Filters::new("eth0")?.list(InterfaceHook::Egress)?, []);
        assert_eq!(at("eth0", InterfaceHook::Egress).len(), 1);
        Ok(())
    });
}

#[test]
fn links_that_others_remove_are_made_again_and_replaced_programs_are_named() {
    run_with_links("check", async |world: World| {
        let agent = world.attached(&[REPLACEMENT]).await?;
        let datapath = agent.datapath();
        datapath.check()?;

        let directory = world.root.join("cilium/devices/eth0/links");
        detach(&directory, "cil_from_netdev")?;
        let error = datapath.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "programs were detached by another program: cil_from_netdev at eth0"
        );
        assert_eq!(at("eth0", InterfaceHook::Ingress).len(), 1);
        datapath.check()?;

        let other = program(ProgramKind::Classifier, "intruder")?;
        InterfaceLinks::new(&directory, "eth0")?.attach(
            "cil_from_netdev",
            other.as_fd(),
            InterfaceHook::Ingress,
        )?;
        let error = datapath.check().unwrap_err();
        assert!(error.to_string().contains("intruder (id"), "{error}");
        assert_eq!(at("eth0", InterfaceHook::Ingress), [program_id(other.as_fd())?]);
        agent.stop().await
    });
}

#[test]
fn xdp_is_attached_where_acceleration_asks_for_it() {
    run("xdp", async |world: World| {
        let links = InterfaceLinks::new(&world.root, "eth0")?;
        for mode in ["native", "best-effort", "testing-only"] {
            let flag = format!("--bpf-lb-acceleration={mode}");
            let agent = world.attached(&[REPLACEMENT, &flag]).await?;
            assert_eq!(agent.datapath().status().xdp_devices, ["eth0"], "{mode}");
            assert!(links.attached_xdp()?.is_some(), "{mode}");
            agent.datapath().check()?;
            agent.stop().await?;
        }
        assert!(ip("link show eth0")?.contains("xdpgeneric"));

        world.attached(&[REPLACEMENT]).await?.stop().await?;
        assert_eq!(links.attached_xdp()?, None);
        Ok(())
    });
}

#[test]
fn the_xdp_program_of_another_is_named_and_the_rest_is_attached() {
    run("xdp-foreign", async |world: World| {
        let other = program(ProgramKind::Xdp, "guard")?;
        InterfaceLinks::new(&world.root.join("others"), "eth0")?.attach_xdp(
            "guard",
            other.as_fd(),
            XdpMode::Native,
        )?;

        let agent = world
            .attached(&[REPLACEMENT, "--bpf-lb-acceleration=native"])
            .await?;

        agent.until("degraded", |agent| agent.health().1.is_some()).await;
        let error = agent.health().1.unwrap();
        assert!(
            error.contains("interface eth0 has an XDP program already: guard (detach it, or change bpf-lb-acceleration or devices)"),
            "{error}"
        );
        assert_eq!(at("eth0", InterfaceHook::Ingress).len(), 1);
        agent.stop().await
    });
}
