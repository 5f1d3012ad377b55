// SPDX-License-Identifier: Apache-2.0

//! An agent that is killed before each single step of attaching, and interfaces that vanish there.
//!
//! The agent is a process of its own, this test program again, whose system calls the test intercepts.
//! The others run in the test: it has many of them, and each leaves some descriptors open until the test ends.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::UNIX_EPOCH,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skep_bpf_sys::{
    filter::Filters,
    link::{InterfaceHook, InterfaceLinks},
    testing::{CallWatch, Calls, Watched},
};
use skep_datapath_hooks::{EndpointHooks, HookError};

use crate::world::*;

/// Raises the limit of open descriptors to its maximum.
fn more_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, most).unwrap();
}

/// Environment variable of the process: the directory of its [`Files`].
const DIRECTORY: &str = "SKEP_TEST_DIRECTORY";
/// The test that is the process.
const PROCESS: &str = "interrupted::the_agent_as_a_process";
const REPLACEMENT: &str = "--kube-proxy-replacement";

/// What an agent is to attach.
#[derive(Clone, Copy)]
struct Plan {
    flags: &'static [&'static str],
    /// Beside `eth0`; others are deleted.
    device: &'static str,
    /// Id, interface, and whether there is a program for what the kernel sends.
    endpoints: &'static [(u16, &'static str, bool)],
    has_filters: bool,
    xdp: bool,
}

const PLAIN: Plan = Plan {
    flags: &[REPLACEMENT],
    device: "eth1",
    endpoints: &[(17, "lxc1", false)],
    has_filters: false,
    xdp: false,
};
/// A device is replaced, XDP is added, an endpoint moves, another one comes.
const CHANGED: Plan = Plan {
    flags: &[REPLACEMENT, "--bpf-lb-acceleration=testing-only"],
    device: "eth2",
    endpoints: &[(17, "lxc2", false), (18, "lxc1", true)],
    xdp: true,
    ..PLAIN
};
const FILTERS: Plan = Plan {
    flags: &[REPLACEMENT, "--enable-tcx=false"],
    endpoints: &[(17, "lxc1", true)],
    has_filters: true,
    ..PLAIN
};

/// A process, killed with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Files by which test and process communicate.
struct Files(PathBuf);

impl Files {
    fn is_done(&self) -> bool {
        self.0.join("done").exists()
    }

    /// Errors of endpoints that have their interface.
    fn errors(&self) -> String {
        fs::read_to_string(self.0.join("errors")).unwrap_or_default()
    }
}

/// Which calls are steps, and of which of them the process is killed before.
#[derive(Clone, Copy)]
struct Steps {
    calls: Calls,
    stride: usize,
}

impl Steps {
    /// Every fifth of the steps, from one that the seed decides (`STEP_SEED`, else the clock); all with `EVERY_STEP`.
    fn chosen(self) -> impl Iterator<Item = u64> {
        let (first, stride) = if std::env::var_os("EVERY_STEP").is_some() {
            (0, self.stride)
        } else {
            let stride = self.stride * 5;
            let seed = match std::env::var("STEP_SEED") {
                Ok(seed) => seed.parse().expect("STEP_SEED is a number"),
                Err(_) => UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
            };
            println!("STEP_SEED={seed}");
            (seed % stride as u64, stride)
        };
        (first..).step_by(stride)
    }
}

/// From one plan to the other takes at least so many.
const FEWEST_STEPS: u64 = 20;

/// Each call that changes a link or a pin.
const LINKS: Steps = Steps {
    calls: Calls::Links,
    stride: 1,
};
/// Filters are asked for much more often than they are changed.
const WITH_NETLINK: Steps = Steps {
    calls: Calls::LinksAndNetlink,
    stride: 5,
};

/// Starts the process, whose calls are intercepted from the first one on.
fn start(world: &World, plan: &Plan, calls: Calls) -> Outcome<(Process, CallWatch, Files)> {
    let directory = world.root.parent().unwrap().join("process");
    fs::create_dir_all(&directory)?;
    for file in ["done", "errors"] {
        let _ = fs::remove_file(directory.join(file));
    }
    fs::write(directory.join("root"), world.root.display().to_string())?;
    fs::write(directory.join("cgroup"), world.cgroup.display().to_string())?;
    fs::write(directory.join("flags"), plan.flags.join("\n"))?;
    let endpoints: Vec<String> = plan
        .endpoints
        .iter()
        .map(|(id, name, has_egress)| format!("{id} {name} {has_egress}"))
        .collect();
    fs::write(directory.join("endpoints"), endpoints.join("\n"))?;
    let (child, watch) = CallWatch::start(calls, || {
        Command::new("/proc/self/exe")
            .args(["--exact", PROCESS, "--ignored", "--nocapture"])
            .env(DIRECTORY, &directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
    })?;
    Ok((Process(child?), watch, Files(directory)))
}

// The program that `start` runs. It is in the test binary, since no other program has the cells of these tests; nothing
// runs it as a test, for it does not end.
#[test]
#[ignore = "the process that the other tests start; it does not end"]
fn the_agent_as_a_process() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    let (root, cgroup, flags) = (read("root"), read("cgroup"), read("flags"));
    let flags: Vec<&str> = flags.lines().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let agent = Agent::start(Path::new(&root), Path::new(&cgroup), &flags)
            .await
            .unwrap();
        let hooks = agent.hooks();
        hooks.loaded().await;
        for line in read("endpoints").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (id, interface) = (words[0].parse().unwrap(), words[1]);
            let attached = attach(&*hooks, id, interface, words[2] == "true");
            match attached {
                Ok(()) | Err(HookError::NoInterface { .. }) => {}
                Err(error) => fs::write(directory.join("errors"), hive::error_chain(&error)).unwrap(),
            }
        }
        if let Err(error) = agent.datapath().link_endpoints() {
            fs::write(directory.join("errors"), hive::error_chain(&error)).unwrap();
        }
        fs::write(directory.join("done"), "").unwrap();
        std::future::pending::<()>().await;
    });
}

/// Attaches the programs of an endpoint; detaches the one that it does not have.
fn attach(hooks: &dyn EndpointHooks, id: u16, interface: &str, has_egress: bool) -> Result<(), HookError> {
    hooks.attach(id, interface)?;
    match has_egress {
        true => hooks.attach_egress(id, interface),
        false => hooks.detach_egress(id, interface),
    }
}

/// Makes the interfaces of the plan.
fn prepare(world: &World, plan: &Plan) -> Outcome {
    for name in ["eth1", "eth2"] {
        let exists = ip(&format!("link show {name}")).is_ok();
        if name == plan.device && !exists {
            world.add_interface(name, "198.51.100.1/24", "2001:db8:1::1/64")?;
        } else if name != plan.device && exists {
            ip(&format!("link del {name}"))?;
        }
    }
    for (name, ipv4) in [("lxc1", "10.0.0.1/32"), ("lxc2", "10.0.0.2/32")] {
        if ip(&format!("link show {name}")).is_err() {
            world.add_interface(name, ipv4, "fd00::1/128")?;
        }
    }
    Ok(())
}

/// Runs an agent to its end of attaching, and stops it.
async fn complete(world: &World, plan: &Plan, when: &str) -> Outcome {
    let agent = world.attached(plan.flags).await?;
    let hooks = agent.hooks();
    for id in [17, 18] {
        if plan.endpoints.iter().all(|(known, ..)| *known != id) {
            hooks.detach(id)?;
        }
    }
    for (id, interface, has_egress) in plan.endpoints {
        attach(&*hooks, *id, interface, *has_egress)?;
    }
    agent.datapath().link_endpoints()?;
    assert_eq!(agent.health().1, None, "{when}");
    agent.datapath().check()?;
    agent.stop().await
}

/// Every file below `cilium/devices` and `cilium/endpoints`.
fn pinned(world: &World) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for kind in ["devices", "endpoints"] {
        let owners = fs::read_dir(world.root.join("cilium").join(kind));
        for owner in owners.into_iter().flatten() {
            let name = owner.unwrap().file_name().into_string().unwrap();
            let owner = format!("{kind}/{name}");
            let pins = world.pins(&owner);
            assert!(!pins.is_empty(), "{owner} is empty");
            found.extend(pins.into_iter().map(|pin| format!("{owner}/{pin}")));
        }
    }
    found
}

fn filters(interface: &str, hook: InterfaceHook) -> Vec<String> {
    let listed = Filters::new(interface).unwrap().list(hook).unwrap();
    listed.into_iter().map(|filter| filter.name).collect()
}

/// Everything is attached once, and pinned where it belongs, and nothing else is.
#[track_caller]
fn assert_attached(world: &World, plan: &Plan, when: &str) {
    let mut hooks = vec![
        ("cilium_host", InterfaceHook::Ingress, "cil_to_host"),
        ("cilium_host", InterfaceHook::Egress, "cil_from_host"),
        ("cilium_net", InterfaceHook::Ingress, "cil_to_host"),
    ];
    for device in ["eth0", plan.device] {
        hooks.push((device, InterfaceHook::Ingress, "cil_from_netdev"));
        hooks.push((device, InterfaceHook::Egress, "cil_to_netdev"));
    }
    let mut pins = BTreeSet::new();
    for (device, _, program) in &hooks {
        pins.insert(format!("devices/{device}/{program}"));
    }
    for (id, interface, has_egress) in plan.endpoints {
        hooks.push((interface, InterfaceHook::Ingress, "cil_from_container"));
        pins.insert(format!("endpoints/{id}/cil_from_container"));
        if *has_egress {
            hooks.push((interface, InterfaceHook::Egress, "cil_to_container"));
            pins.insert(format!("endpoints/{id}/cil_to_container"));
        }
    }
    if plan.has_filters {
        pins.clear();
    }
    for device in ["eth0", plan.device] {
        let links = InterfaceLinks::new(&world.root, device).unwrap();
        assert_eq!(
            links.attached_xdp().unwrap().is_some(),
            plan.xdp,
            "{when}: {device}"
        );
        if plan.xdp {
            pins.insert(format!("devices/{device}/cil_xdp_entry"));
        }
    }
    assert_eq!(pinned(world), pins, "{when}");
    for name in ["cilium_host", "cilium_net", "eth0", plan.device, "lxc1", "lxc2"] {
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            let wanted: Vec<String> = hooks
                .iter()
                .filter(|(interface, at, _)| (*interface, *at) == (name, hook))
                .map(|(_, _, program)| format!("{program}-{name}"))
                .collect();
            let found = (linked_at(name, hook).len(), filters(name, hook));
            let expected = if plan.has_filters {
                (0, wanted)
            } else {
                (wanted.len(), Vec::new())
            };
            assert_eq!(found, expected, "{when}: {name}, {}", hook.name());
        }
    }
}

/// What translates packets at `eth0`, by link or by filter.
fn programs_of_eth0(hook: InterfaceHook) -> usize {
    linked_at("eth0", hook).len() + filters("eth0", hook).len()
}

/// From one plan to the other: killed before each step, and then completed.
async fn kill_on_the_way(world: &World, from: &Plan, to: &Plan, which: Steps) -> Outcome {
    more_descriptors();
    for steps in which.chosen() {
        prepare(world, from)?;
        complete(world, from, "before").await?;
        prepare(world, to)?;
        let (process, watch, files) = start(world, to, which.calls)?;
        let watched = watch.stop_before(steps, || files.is_done())?;
        let when = format!("killed before step {steps}");
        assert_ne!(watched, Watched::Ended, "{when}");
        drop(process);
        drop(watch);

        // Packets are translated all the time. While links take the place of filters, both are there for a moment.
        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            let running = programs_of_eth0(hook);
            let most = if from.has_filters == to.has_filters { 1 } else { 2 };
            assert!((1..=most).contains(&running), "{when}: {running} at eth0");
        }
        complete(world, to, &when).await?;
        assert_attached(world, to, &when);
        if watched == Watched::Done {
            println!("killed at {steps} steps");
            assert!(steps >= FEWEST_STEPS, "only {steps} steps");
            return Ok(());
        }
    }
    unreachable!("the range of steps is infinite")
}

// Links of a device and of XDP are made and pinned, others updated or moved.
#[test]
fn killed_before_any_step_the_next_agent_attaches_everything_once() {
    run_with_links("killed", async |world: World| {
        kill_on_the_way(&world, &PLAIN, &CHANGED, LINKS).await
    });
}

#[test]
fn killed_while_filters_take_the_place_of_links() {
    run_with_links("killed-filters", async |world: World| {
        kill_on_the_way(&world, &PLAIN, &FILTERS, WITH_NETLINK).await
    });
}

#[test]
fn killed_while_links_take_the_place_of_filters() {
    run_with_links("killed-links", async |world: World| {
        kill_on_the_way(&world, &FILTERS, &PLAIN, WITH_NETLINK).await
    });
}

/// The device and the interface of an endpoint vanish before steps: everything else is attached all the same.
async fn vanish_on_the_way(world: &World, plan: &Plan, which: Steps) -> Outcome {
    more_descriptors();
    for steps in which.chosen() {
        prepare(world, plan)?;
        let (process, watch, files) = start(world, plan, which.calls)?;
        let watched = watch.stop_before(steps, || files.is_done())?;
        let when = format!("vanished before step {steps}");
        assert_ne!(watched, Watched::Ended, "{when}");
        for name in [plan.device, "lxc1"] {
            ip(&format!("link del {name}"))?;
        }
        let gone = world.root.join("cilium/devices").join(plan.device);
        let is_tidy = || files.is_done() && !gone.exists();
        assert_eq!(watch.stop_before(u64::MAX, is_tidy)?, Watched::Done, "{when}");
        assert_eq!(files.errors(), "", "{when}");
        drop(process);
        drop(watch);

        for hook in [InterfaceHook::Ingress, InterfaceHook::Egress] {
            assert_eq!(programs_of_eth0(hook), 1, "{when}");
        }
        prepare(world, plan)?;
        complete(world, plan, &when).await?;
        assert_attached(world, plan, &when);
        if watched == Watched::Done {
            println!("vanished at {steps} steps");
            return Ok(());
        }
    }
    unreachable!("the range of steps is infinite")
}

#[test]
fn interfaces_that_vanish_keep_nothing_else_from_being_attached() {
    run_with_links("vanished", async |world: World| {
        vanish_on_the_way(&world, &CHANGED, LINKS).await
    });
}

#[test]
fn interfaces_that_vanish_while_filters_are_attached() {
    run("vanished-filters", async |world: World| {
        vanish_on_the_way(&world, &FILTERS, WITH_NETLINK).await
    });
}
