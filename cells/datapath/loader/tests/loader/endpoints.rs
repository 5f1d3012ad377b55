// SPDX-License-Identifier: Apache-2.0

//! Hooks at interfaces of endpoints.

use std::os::fd::AsFd as _;

use skep_bpf_sys::{
    filter::Filters,
    link::{InterfaceHook, has_interface_links},
    testing::{ProgramKind, program},
};
use skep_datapath_hooks::HookError;

use crate::world::*;

const PROGRAM: &str = "cil_from_container";

/// Id of the program that a filter of ours runs.
fn filtered(interface: &str) -> Option<u32> {
    let filters = Filters::new(interface).unwrap();
    filters.running(PROGRAM, InterfaceHook::Ingress).unwrap()
}

/// Waits until an endpoint has its link and its filter is gone.
async fn linked(world: &World, agent: &Agent, endpoint: u16, interface: &str) {
    let pins = || world.pins(&format!("endpoints/{endpoint}"));
    agent
        .until("linked", |_| pins() == [PROGRAM] && filtered(interface).is_none())
        .await;
}

#[test]
fn endpoints_are_attached_replaced_and_detached() {
    run_with_links("endpoints", async |world: World| {
        let agent = world.start(&[]).await?;
        let hooks = agent.hooks();
        hooks.loaded().await;
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;

        hooks.attach(17, "lxc1")?;
        let by_filter = filtered("lxc1");
        assert!(by_filter.is_some(), "packets are handled from now on");
        agent.datapath().check()?;
        linked(&world, &agent, 17, "lxc1").await;
        let first = at("lxc1", InterfaceHook::Ingress);
        assert_eq!(first, by_filter.as_slice());
        agent.datapath().check()?;
        hooks.attach(17, "lxc1")?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), first);
        let error = hooks.attach(18, "lxc2").unwrap_err();
        assert!(matches!(error, HookError::NoInterface { .. }), "{error}");
        assert_eq!(error.to_string(), "endpoint 18: no interface lxc2");

        hooks.detach(17)?;
        hooks.detach(17)?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), [0; 0]);
        assert!(!world.root.join("cilium/endpoints/17").exists());
        // Before it has its link as well.
        hooks.attach(17, "lxc1")?;
        hooks.detach(17)?;
        assert_eq!(filtered("lxc1"), None);
        agent.stop().await
    });
}

#[test]
fn an_endpoint_gets_its_link_from_the_next_agent_if_the_first_one_ends_before() {
    run_with_links("unlinked", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let agent = world.attached(&[]).await?;
        agent.hooks().attach(17, "lxc1")?;
        agent.stop().await?;
        let first = filtered("lxc1");
        assert!(first.is_some() && world.pins("endpoints/17").is_empty());

        let agent = world.attached(&[]).await?;
        agent.hooks().attach(17, "lxc1")?;

        let second = filtered("lxc1");
        assert!(
            second.is_some() && second != first,
            "replaced in place: {second:?}"
        );
        linked(&world, &agent, 17, "lxc1").await;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), [second.unwrap()]);
        agent.stop().await
    });
}

#[test]
fn an_interface_with_filters_of_others_gets_a_link_at_once() {
    run_with_links("foreign-filter", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let other = program(ProgramKind::Classifier, "other")?;
        Filters::new("lxc1")?.attach("other", other.as_fd(), InterfaceHook::Ingress, 1)?;
        let agent = world.attached(&[]).await?;

        agent.hooks().attach(17, "lxc1")?;

        assert_eq!(world.pins("endpoints/17"), [PROGRAM]);
        assert_eq!(at("lxc1", InterfaceHook::Ingress).len(), 1);
        agent.stop().await
    });
}

#[test]
fn the_next_agent_replaces_the_programs_of_endpoints_that_it_does_not_know_yet() {
    run_with_links("restored", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let agent = world.attached(&[]).await?;
        agent.hooks().attach(17, "lxc1")?;
        linked(&world, &agent, 17, "lxc1").await;
        let first = at("lxc1", InterfaceHook::Ingress);
        agent.stop().await?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), first);

        let agent = world.attached(&[]).await?;

        let second = at("lxc1", InterfaceHook::Ingress);
        assert!(second.len() == 1 && second != first, "{second:?}");
        agent.hooks().detach(17)?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), [0; 0]);
        agent.stop().await
    });
}

#[test]
fn another_interface_of_an_endpoint_gets_its_link() {
    run_with_links("moved", async |world: World| {
        for name in ["lxc1", "lxc2"] {
            world.add_interface(name, "10.0.0.1/32", "fd00::1/128")?;
        }
        let agent = world.attached(&[]).await?;
        let hooks = agent.hooks();
        hooks.attach(17, "lxc1")?;

        hooks.attach(17, "lxc2")?;

        assert_eq!((filtered("lxc1"), filtered("lxc2").is_some()), (None, true));
        linked(&world, &agent, 17, "lxc2").await;
        hooks.attach(17, "lxc1")?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress).len(), 1);
        assert_eq!(at("lxc2", InterfaceHook::Ingress), [0; 0]);
        agent.datapath().check()?;
        agent.stop().await
    });
}

#[test]
fn a_changed_option_reaches_endpoints() {
    run("options", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let agent = world.attached(&["--enable-tcx=false"]).await?;
        let hooks = agent.hooks();
        hooks.attach(17, "lxc1")?;
        let running = || filtered("lxc1");
        let first = running();
        assert!(first.is_some());

        // The gateway of pods is an option.
        agent.local_node().update(with_pods)?;

        agent.until("replaced", |_| running() != first).await;
        agent.datapath().check()?;
        hooks.detach(17)?;
        assert_eq!(running(), None);
        agent.stop().await
    });
}

const TO_CONTAINER: &str = "cil_to_container";

/// As [`filtered`], of the program for what the kernel sends to the endpoint.
fn filtered_egress(interface: &str) -> Option<u32> {
    let filters = Filters::new(interface).unwrap();
    filters.running(TO_CONTAINER, InterfaceHook::Egress).unwrap()
}

#[test]
fn the_egress_program_of_an_endpoint_comes_and_goes() {
    run("egress", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let agent = world.attached(&["--enable-endpoint-routes"]).await?;
        let hooks = agent.hooks();
        let pins = || world.pins("endpoints/17");
        hooks.attach(17, "lxc1")?;

        hooks.attach_egress(17, "lxc1")?;

        assert!(
            filtered_egress("lxc1").is_some(),
            "packets are handled from now on"
        );
        if has_interface_links() {
            let is_linked = || pins() == [PROGRAM, TO_CONTAINER] && filtered_egress("lxc1").is_none();
            agent.until("linked", |_| is_linked()).await;
        }
        assert_eq!(at("lxc1", InterfaceHook::Egress).len(), 1);
        agent.datapath().check()?;
        let error = hooks.attach_egress(18, "lxc2").unwrap_err();
        assert_eq!(error.to_string(), "endpoint 18: no interface lxc2");

        hooks.detach_egress(17, "lxc1")?;
        hooks.detach_egress(17, "lxc1")?;
        world.assert_pins("endpoints/17", &[PROGRAM]);
        assert_eq!(at("lxc1", InterfaceHook::Egress), [0; 0]);
        assert_eq!(at("lxc1", InterfaceHook::Ingress).len(), 1);
        agent.datapath().check()?;
        hooks.attach_egress(17, "lxc1")?;
        hooks.detach(17)?;
        assert_eq!(filtered_egress("lxc1"), None);
        assert!(!world.root.join("cilium/endpoints/17").exists());
        agent.stop().await
    });
}

#[test]
fn the_next_agent_replaces_and_removes_egress_programs() {
    let ways = [&["--enable-tcx=false"][..], &[]];
    for flags in &ways[..1 + usize::from(has_interface_links())] {
        run("egress-restored", async |world: World| {
            world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
            let agent = world.attached(flags).await?;
            agent.hooks().attach(17, "lxc1")?;
            agent.hooks().attach_egress(17, "lxc1")?;
            let by_link = flags.is_empty();
            if by_link {
                let pins = || world.pins("endpoints/17").len();
                agent.until("linked", |_| pins() == 2).await;
            }
            let running = || match by_link {
                true => at("lxc1", InterfaceHook::Egress).first().copied(),
                false => filtered_egress("lxc1"),
            };
            let first = running();
            assert!(first.is_some());
            agent.stop().await?;
            assert_eq!(running(), first, "while no agent runs");

            let agent = world.attached(flags).await?;
            if by_link {
                assert!(
                    running().is_some_and(|id| Some(id) != first),
                    "before the endpoint is restored"
                );
            }
            agent.hooks().attach(17, "lxc1")?;
            agent.hooks().detach_egress(17, "lxc1")?;

            assert_eq!(running(), None);
            assert!(!world.pins("endpoints/17").contains(&TO_CONTAINER.to_owned()));
            agent.stop().await
        });
    }
}

#[test]
fn a_changed_option_reaches_egress_programs() {
    run("egress-options", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let agent = world.attached(&["--enable-tcx=false"]).await?;
        agent.hooks().attach(17, "lxc1")?;
        agent.hooks().attach_egress(17, "lxc1")?;
        let first = filtered_egress("lxc1");

        agent.local_node().update(with_pods)?;

        agent
            .until("replaced", |_| filtered_egress("lxc1") != first)
            .await;
        agent.datapath().check()?;
        agent.stop().await
    });
}

#[test]
fn with_endpoint_routes_the_pod_cidr_is_not_routed_to_the_pair() {
    run("local-route", async |world: World| {
        let cidrs = |agent: &Agent| agent.local_node().update(with_pods);
        let routes = || {
            let all =
                ip("-4 route show dev cilium_host").unwrap() + &ip("-6 route show dev cilium_host").unwrap();
            let ours = all
                .lines()
                .map(|line| line.split_whitespace().next().unwrap().to_owned());
            let mut ours: Vec<String> = ours.filter(|to| !to.starts_with("fe80")).collect();
            ours.sort();
            ours
        };
        let agent = world.attached(&[]).await?;
        cidrs(&agent)?;
        agent
            .until("routed", |_| routes().contains(&"10.1.0.0/24".to_owned()))
            .await;
        agent.stop().await?;

        let agent = world.attached(&["--enable-endpoint-routes"]).await?;
        cidrs(&agent)?;

        agent
            .until("no route", |_| routes() == ["10.1.0.1", "fd00:1::1"])
            .await;
        agent.stop().await
    });
}
