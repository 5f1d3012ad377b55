// SPDX-License-Identifier: Apache-2.0

//! Hooks at interfaces of endpoints.

use skep_bpf_sys::link::InterfaceHook;
use skep_endpoint_hooks::HookError;

use crate::world::*;

#[test]
fn endpoints_are_attached_replaced_and_detached() {
    run("endpoints", async |world: World| {
        let agent = world.start(&[]).await?;
        let hooks = agent.hooks();
        hooks.loaded().await;
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;

        hooks.attach(17, "lxc1")?;
        assert_eq!(world.pins("endpoints/17"), ["cil_from_container"]);
        let first = at("lxc1", InterfaceHook::Ingress);
        assert_eq!(first.len(), 1);
        hooks.attach(17, "lxc1")?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), first);
        let error = hooks.attach(18, "lxc2").unwrap_err();
        assert!(matches!(error, HookError::NoInterface { .. }), "{error}");
        assert_eq!(error.to_string(), "endpoint 18: no interface lxc2");

        hooks.detach(17)?;
        hooks.detach(17)?;
        assert_eq!(at("lxc1", InterfaceHook::Ingress), [0; 0]);
        assert!(!world.root.join("cilium/endpoints/17").exists());
        agent.stop().await
    });
}

#[test]
fn the_next_agent_replaces_the_programs_of_endpoints_that_it_does_not_know_yet() {
    run("restored", async |world: World| {
        world.add_interface("lxc1", "10.0.0.1/32", "fd00::1/128")?;
        let agent = world.attached(&[]).await?;
        agent.hooks().attach(17, "lxc1")?;
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
    run("moved", async |world: World| {
        for name in ["lxc1", "lxc2"] {
            world.add_interface(name, "10.0.0.1/32", "fd00::1/128")?;
        }
        let agent = world.attached(&[]).await?;
        let hooks = agent.hooks();
        hooks.attach(17, "lxc1")?;

        hooks.attach(17, "lxc2")?;

        assert_eq!(at("lxc1", InterfaceHook::Ingress), [0; 0]);
        assert_eq!(at("lxc2", InterfaceHook::Ingress).len(), 1);
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
        let filters = skep_bpf_sys::filter::Filters::new("lxc1")?;
        let running = || {
            filters
                .running("cil_from_container", InterfaceHook::Ingress)
                .unwrap()
        };
        let first = running();
        assert!(first.is_some());

        // The gateway of pods is an option.
        agent.local_node().update(|node| {
            node.pod_cidrs = vec!["10.1.0.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()]
        })?;

        agent.until("replaced", |_| running() != first).await;
        agent.datapath().check()?;
        hooks.detach(17)?;
        assert_eq!(running(), None);
        agent.stop().await
    });
}
