// SPDX-License-Identifier: Apache-2.0

//! Programs at interfaces: links, filters, XDP; beside those of others, on interfaces that come and go.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    error::Error,
    fs,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    process::Command,
};

use skep_bpf_sys::{
    filter::Filters,
    link::{
        self, Attached, InterfaceHook, InterfaceLinks, LinkError, XdpMode, detach, has_interface_links,
        program_id, running,
    },
    testing::{Node, ProgramKind, program},
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const OURS: &str = "cil_from_netdev";

fn with(name: &str, test: impl FnOnce(&World) -> Outcome + Send) {
    let result = Node::run(name, |node| {
        let world = World {
            root: node.bpf_root(),
        };
        world.add_interface("eth0")?;
        test(&world)
    });
    if let Err(error) = result {
        let source = error.source().map_or_else(String::new, ToString::to_string);
        panic!("{error}: {source}");
    }
}

/// As [`with`], where the kernel has links for tc programs.
fn with_links(name: &str, test: impl FnOnce(&World) -> Outcome + Send) {
    if has_interface_links() {
        with(name, test);
    } else {
        eprintln!("this kernel has no tcx");
    }
}

struct World {
    root: PathBuf,
}

impl World {
    fn directory(&self) -> PathBuf {
        self.root.join("cilium/devices/eth0/links")
    }

    fn links(&self) -> Outcome<InterfaceLinks> {
        Ok(InterfaceLinks::new(&self.directory(), "eth0")?)
    }

    /// A veth pair whose other side is `<name>-peer`.
    fn add_interface(&self, name: &str) -> Outcome {
        let peer = format!("{name}-peer");
        ip(&["link", "add", name, "type", "veth", "peer", "name", &peer])?;
        ip(&["link", "set", name, "up"])
    }
}

fn ip(arguments: &[&str]) -> Outcome {
    run("ip", arguments).map(drop)
}

fn run(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        return Err(format!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn tc(name: &str) -> Outcome<OwnedFd> {
    Ok(program(ProgramKind::Classifier, name)?)
}

fn xdp(name: &str) -> Outcome<OwnedFd> {
    Ok(program(ProgramKind::Xdp, name)?)
}

fn id(program: &OwnedFd) -> u32 {
    program_id(program.as_fd()).unwrap()
}

#[test]
fn a_program_is_replaced_in_its_place_between_those_of_others() {
    with_links("tcx-order", |world| {
        let (before, after) = (tc("before")?, tc("after")?);
        let others = InterfaceLinks::new(&world.root.join("others"), "eth0")?;
        let links = world.links()?;
        let (first, second) = (tc(OURS)?, tc(OURS)?);

        others.attach("before", before.as_fd(), InterfaceHook::Ingress)?;
        assert_eq!(
            links.attach(OURS, first.as_fd(), InterfaceHook::Ingress)?,
            Attached::Created
        );
        others.attach("after", after.as_fd(), InterfaceHook::Ingress)?;
        assert_eq!(
            links.attached(InterfaceHook::Ingress)?,
            [id(&before), id(&first), id(&after)]
        );

        assert_eq!(
            links.attach(OURS, second.as_fd(), InterfaceHook::Ingress)?,
            Attached::Updated
        );
        assert_eq!(
            links.attached(InterfaceHook::Ingress)?,
            [id(&before), id(&second), id(&after)]
        );
        assert_eq!(links.attached(InterfaceHook::Egress)?, [0; 0]);

        assert!(detach(&world.directory(), OURS)?);
        assert_eq!(links.attached(InterfaceHook::Ingress)?, [id(&before), id(&after)]);
        assert!(!detach(&world.directory(), OURS)?);
        Ok(())
    });
}

#[test]
fn a_pin_keeps_the_program_when_its_descriptors_are_closed() {
    with_links("tcx-pin", |world| {
        let first = tc(OURS)?;
        let ours = id(&first);
        world
            .links()?
            .attach(OURS, first.as_fd(), InterfaceHook::Egress)?;
        drop(first);

        assert_eq!(world.links()?.attached(InterfaceHook::Egress)?, [ours]);
        assert_eq!(running(&world.directory(), OURS)?, Some(ours));
        // What another process does that has the pin alone.
        let next = tc(OURS)?;
        assert!(link::replace(&world.directory(), OURS, next.as_fd())?);
        assert_eq!(world.links()?.attached(InterfaceHook::Egress)?, [id(&next)]);
        Ok(())
    });
}

#[test]
fn a_link_of_an_interface_that_is_gone_is_made_again_on_the_new_one() {
    with_links("tcx-gone", |world| {
        let program = tc(OURS)?;
        world
            .links()?
            .attach(OURS, program.as_fd(), InterfaceHook::Ingress)?;

        ip(&["link", "del", "eth0"])?;
        assert_eq!(running(&world.directory(), OURS)?, None);
        assert!(!link::replace(&world.directory(), OURS, program.as_fd())?);
        let error = world.links().unwrap_err();
        assert_eq!(error.to_string(), "no interface eth0");

        world.add_interface("eth0")?;
        let links = world.links()?;
        assert_eq!(
            links.attach(OURS, program.as_fd(), InterfaceHook::Ingress)?,
            Attached::Moved
        );
        assert_eq!(links.attached(InterfaceHook::Ingress)?, [id(&program)]);
        assert_eq!(fs::read_dir(world.directory())?.count(), 1);
        Ok(())
    });
}

#[test]
fn an_interface_that_vanishes_before_attaching_is_named() {
    with_links("tcx-vanish", |world| {
        let links = world.links()?;
        ip(&["link", "del", "eth0"])?;

        let error = links
            .attach(OURS, tc(OURS)?.as_fd(), InterfaceHook::Ingress)
            .unwrap_err();
        assert!(matches!(error, LinkError::NoInterface { .. }), "{error:?}");
        let error = links
            .attach_xdp("cil_xdp_entry", xdp("cil_xdp_entry")?.as_fd(), XdpMode::Generic)
            .unwrap_err();
        assert!(matches!(error, LinkError::NoInterface { .. }), "{error:?}");
        Ok(())
    });
}

#[test]
fn something_else_at_the_pin_is_named() {
    with("tcx-not-link", |world| {
        fs::create_dir_all(world.directory())?;
        let pinned = tc("other")?;
        skep_bpf_sys::testing::pin(pinned.as_fd(), &world.directory().join(OURS))?;

        let error = world
            .links()?
            .attach(OURS, tc(OURS)?.as_fd(), InterfaceHook::Ingress)
            .unwrap_err();

        assert!(
            error.to_string().ends_with("cil_from_netdev is not a link"),
            "{error}"
        );
        Ok(())
    });
}

#[test]
fn filters_are_replaced_in_place_and_leave_those_of_others_alone() {
    with("clsact", |_| {
        let filters = Filters::new("eth0")?;
        assert_eq!(filters.list(InterfaceHook::Ingress)?, []);
        let (first, second) = (tc(OURS)?, tc(OURS)?);

        filters.attach(OURS, first.as_fd(), InterfaceHook::Ingress, 1)?;
        // The tool agrees about name, priority and handle.
        let shown = run("tc", &["filter", "show", "dev", "eth0", "ingress"])?;
        assert!(shown.contains("pref 1 bpf"), "{shown}");
        assert!(
            shown.contains("handle 0x1 cil_from_netdev-eth0 direct-action"),
            "{shown}"
        );
        let other = tc("other")?;
        filters.attach("other", other.as_fd(), InterfaceHook::Ingress, 7)?;

        filters.attach(OURS, second.as_fd(), InterfaceHook::Ingress, 1)?;
        assert_eq!(filters.running(OURS, InterfaceHook::Ingress)?, Some(id(&second)));
        assert_eq!(filters.list(InterfaceHook::Ingress)?.len(), 2);
        assert_eq!(filters.running(OURS, InterfaceHook::Egress)?, None);

        // Another priority: the old filter goes.
        filters.attach(OURS, second.as_fd(), InterfaceHook::Ingress, 3)?;
        let priorities: Vec<u16> = filters
            .list(InterfaceHook::Ingress)?
            .iter()
            .map(|filter| filter.priority)
            .collect();
        assert_eq!(priorities, [3, 7]);

        assert!(filters.detach(OURS, InterfaceHook::Ingress)?);
        assert!(!filters.detach(OURS, InterfaceHook::Ingress)?);
        let shown = run("tc", &["filter", "show", "dev", "eth0", "ingress"])?;
        assert!(shown.contains("other-eth0") && !shown.contains("cil_"), "{shown}");
        Ok(())
    });
}

#[test]
fn a_filter_is_attached_alone_where_no_other_program_has_one() {
    with("clsact-alone", |_| {
        let filters = Filters::new("eth0")?;
        let (first, second) = (tc(OURS)?, tc(OURS)?);
        let running = || filters.running(OURS, InterfaceHook::Ingress).unwrap();

        assert!(filters.attach_alone(OURS, first.as_fd(), InterfaceHook::Ingress, 1)?);
        assert_eq!(running(), Some(id(&first)));
        assert!(filters.attach_alone(OURS, second.as_fd(), InterfaceHook::Ingress, 1)?);
        assert_eq!(running(), Some(id(&second)));
        let other = tc("other")?;
        filters.attach("other", other.as_fd(), InterfaceHook::Ingress, 7)?;
        assert!(!filters.attach_alone(OURS, first.as_fd(), InterfaceHook::Ingress, 1)?);
        assert_eq!(running(), Some(id(&second)), "the attached program stays");
        Ok(())
    });
}

#[test]
fn the_filter_of_another_program_at_our_priority_is_not_overwritten() {
    with("clsact-foreign", |_| {
        let filters = Filters::new("eth0")?;
        let other = tc("other")?;
        filters.attach("other", other.as_fd(), InterfaceHook::Egress, 1)?;

        let error = filters
            .attach(OURS, tc(OURS)?.as_fd(), InterfaceHook::Egress, 1)
            .unwrap_err();

        assert_eq!(
            error.to_string(),
            "program cil_from_netdev: cannot attach to interface eth0 at egress"
        );
        assert_eq!(filters.running("other", InterfaceHook::Egress)?, Some(id(&other)));
        filters.attach(OURS, tc(OURS)?.as_fd(), InterfaceHook::Egress, 2)?;
        assert_eq!(filters.list(InterfaceHook::Egress)?.len(), 2);
        Ok(())
    });
}

#[test]
fn a_foreign_qdisc_without_egress_takes_filters_for_what_is_received_only() {
    with("clsact-qdisc", |_| {
        run("tc", &["qdisc", "add", "dev", "eth0", "ingress"])?;
        let filters = Filters::new("eth0")?;

        let error = filters
            .attach(OURS, tc(OURS)?.as_fd(), InterfaceHook::Egress, 1)
            .unwrap_err();

        assert_eq!(error.to_string(), "interface eth0: cannot add qdisc clsact");
        let program = tc(OURS)?;
        filters.attach(OURS, program.as_fd(), InterfaceHook::Ingress, 1)?;
        assert_eq!(filters.running(OURS, InterfaceHook::Ingress)?, Some(id(&program)));
        assert_eq!(filters.list(InterfaceHook::Egress)?, []);
        assert!(run("tc", &["qdisc", "show", "dev", "eth0"])?.contains("ingress"));
        Ok(())
    });
}

#[test]
fn xdp_is_replaced_in_place_and_changes_its_mode() {
    with("xdp", |world| {
        const XDP: &str = "cil_xdp_entry";
        let links = world.links()?;
        let (first, second) = (xdp(XDP)?, xdp(XDP)?);

        assert_eq!(
            links.attach_xdp(XDP, first.as_fd(), XdpMode::Native)?,
            Attached::Created
        );
        assert_eq!(links.attached_xdp()?, Some(id(&first)));
        assert_eq!(
            links.attach_xdp(XDP, second.as_fd(), XdpMode::Native)?,
            Attached::Updated
        );
        assert_eq!(links.attached_xdp()?, Some(id(&second)));
        assert_eq!(running(&world.directory(), XDP)?, Some(id(&second)));

        links.attach_xdp(XDP, first.as_fd(), XdpMode::Generic)?;
        assert_eq!(links.attached_xdp()?, Some(id(&first)));
        assert!(run("ip", &["link", "show", "eth0"])?.contains("xdpgeneric"));

        assert!(detach(&world.directory(), XDP)?);
        assert_eq!(links.attached_xdp()?, None);
        Ok(())
    });
}

#[test]
fn the_xdp_program_of_another_is_named_and_stays() {
    with("xdp-foreign", |world| {
        let other = xdp("guard")?;
        let others = InterfaceLinks::new(&world.root.join("others"), "eth0")?;
        others.attach_xdp("guard", other.as_fd(), XdpMode::Native)?;

        let error = world
            .links()?
            .attach_xdp("cil_xdp_entry", xdp("cil_xdp_entry")?.as_fd(), XdpMode::Native)
            .unwrap_err();

        assert_eq!(
            error.to_string(),
            "program cil_xdp_entry: interface eth0 has an XDP program already: guard"
        );
        assert!(!world.links()?.remove_xdp("cil_xdp_entry")?);
        assert_eq!(others.attached_xdp()?, Some(id(&other)));
        Ok(())
    });
}

#[test]
fn an_xdp_program_of_ours_without_a_link_is_replaced() {
    with("xdp-netlink", |world| {
        const XDP: &str = "cil_xdp_entry";
        let old = xdp(XDP)?;
        let pin = world.root.join("old");
        skep_bpf_sys::testing::pin(old.as_fd(), &pin)?;
        ip(&[
            "link",
            "set",
            "dev",
            "eth0",
            "xdpgeneric",
            "pinned",
            pin.to_str().unwrap(),
        ])?;
        let links = world.links()?;
        assert_eq!(links.attached_xdp()?, Some(id(&old)));

        let new = xdp(XDP)?;
        links.attach_xdp(XDP, new.as_fd(), XdpMode::Native)?;
        assert_eq!(links.attached_xdp()?, Some(id(&new)));

        detach(&world.directory(), XDP)?;
        ip(&[
            "link",
            "set",
            "dev",
            "eth0",
            "xdpgeneric",
            "pinned",
            pin.to_str().unwrap(),
        ])?;
        assert!(links.remove_xdp(XDP)?);
        assert_eq!(links.attached_xdp()?, None);
        Ok(())
    });
}
