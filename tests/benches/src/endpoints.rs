// SPDX-License-Identifier: Apache-2.0

//! What an endpoint costs: time until its packets are handled, and memory in the kernel.

use std::{
    fs,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use clap::Args;
use skep_bpf_programs::{NodeOptions, PACKET_PROGRAMS, Packets};
use skep_bpf_sys::{
    MapStore, RawMap as _,
    filter::Filters,
    link::{InterfaceHook, InterfaceLinks},
    testing::{Node, Pod},
};
use skep_datapath_hooks::EndpointHooks;
use skep_datapath_maps::Maps;
use skep_endpoint::EndpointSpec;

use crate::{
    datapath::{self, Datapath, identify, ip},
    report::{Report, Row, median, milliseconds},
};

const NAME: &str = "endpoints";
const PROGRAM: &str = "cil_from_container";
/// Endpoints whose median is "the first", and "the last".
const SAMPLE: usize = 20;
/// Endpoints that are created at the same time.
const AT_ONCE: usize = 10;
/// Longest wait until endpoints have their links.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Endpoints of the node.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(20..=1000))]
    endpoints: u16,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    Node::run("endpoints", |node| {
        let done = measure(node, options.endpoints, report);
        datapath::remove_cgroup(node, NAME);
        Ok::<_, std::io::Error>(done)
    })?
}

fn measure(node: &Node, count: u16, report: &mut Report) -> anyhow::Result<()> {
    let netns = node.pod(NAME)?;
    let datapath = Datapath::start(node, &netns, NAME, &["--kube-proxy-replacement"])?;
    let store = datapath.get::<Arc<MapStore>>()?;
    let sizes = datapath.get::<Arc<Maps>>()?.sizes();
    // The same programs once more, to look at.
    let programs = netns.run(|| Packets::load(&store, sizes, &NodeOptions::default()))?;
    let program = programs.program(PROGRAM).context(PROGRAM)?;
    kernel_alone(&netns, &store, program, report)?;

    let mut specs = Vec::new();
    for n in 1..=count {
        specs.push(netns.run(|| interface(n))?);
    }
    let hooks = datapath.get::<Arc<dyn EndpointHooks>>()?;
    let attach = |(n, spec): (u16, &EndpointSpec)| {
        netns.run(|| {
            let begun = Instant::now();
            hooks.attach(n, &spec.interface)?;
            anyhow::Ok(begun.elapsed())
        })
    };
    let attached: Vec<Duration> = (1..).zip(&specs).map(attach).collect::<Result<_, _>>()?;
    add_times(report, "program of an endpoint attached", &attached);
    let took = linked(&store, count)?;
    report.add(Row::cost(
        format!("links of {count} endpoints, in the background"),
        took.as_secs_f64(),
        "s",
    ));
    for n in 1..=count {
        netns.run(|| hooks.detach(n))?;
    }

    let before = map_bytes(&store)?;
    let mut created = Vec::new();
    let mut ids = Vec::new();
    for spec in &specs {
        let (id, took) = datapath.add_endpoint(spec)?;
        ids.push(id);
        created.push(took);
    }
    add_times(report, "endpoint created until its packets are handled", &created);
    let grown = map_bytes(&store)?.saturating_sub(before);
    report.add(
        Row::cost(
            "map memory of an endpoint, with its policy",
            grown as f64 / f64::from(count),
            "B",
        )
        .target(4096.0),
    );
    ids.iter().try_for_each(|id| datapath.delete_endpoint(*id))?;
    let took = created_at_once(&datapath, &specs)?;
    report.add(Row::cost(
        format!("{count} endpoints created, {AT_ONCE} at a time"),
        took.as_secs_f64(),
        "s",
    ));
    report.add(
        Row::cost(
            "programs that are loaded for an endpoint",
            foreign_programs(&netns, &specs)? as f64,
            "",
        )
        .target(0.0),
    );
    let all = PACKET_PROGRAMS.iter().filter_map(|name| programs.program(name));
    let bytes: u64 = all.map(memlock).sum::<anyhow::Result<_>>()?;
    report.add(Row::cost(
        "memory of the programs that all endpoints share",
        bytes as f64 / 1024.0,
        "KiB",
    ));
    Ok(())
}

/// Creates endpoints from [`AT_ONCE`] threads; returns the time until the packets of all are handled.
fn created_at_once(datapath: &Datapath, specs: &[EndpointSpec]) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let create = |part: &[EndpointSpec]| {
            part.iter()
                .try_for_each(|spec| datapath.add_endpoint(spec).map(drop))
        };
        let parts = specs.chunks(specs.len().div_ceil(AT_ONCE));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || create(part))).collect();
        threads.into_iter().try_for_each(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(begun.elapsed())
}

/// What the kernel takes to attach a program that is loaded.
fn kernel_alone(
    netns: &Pod,
    store: &MapStore,
    program: BorrowedFd<'_>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut links, mut filters) = (Vec::new(), Vec::new());
    for n in 0..SAMPLE {
        netns.run(|| {
            let (one, other) = (format!("link{n}"), format!("filter{n}"));
            ip(&format!(
                "link add {one} type veth peer name p{one}
                 link add {other} type veth peer name p{other}"
            ))?;
            let folder = store.root().join(&one);
            let begun = Instant::now();
            InterfaceLinks::new(&folder, &one)?.attach(PROGRAM, program, InterfaceHook::Ingress)?;
            links.push(milliseconds(begun.elapsed()));
            let begun = Instant::now();
            Filters::new(&other)?.attach_alone(PROGRAM, program, InterfaceHook::Ingress, 1)?;
            filters.push(milliseconds(begun.elapsed()));
            anyhow::Ok(())
        })?;
    }
    report.add(Row::cost(
        "the kernel alone: a tcx link (a grace period)",
        median(links),
        "ms",
    ));
    report.add(Row::cost(
        "the kernel alone: qdisc clsact and a filter",
        median(filters),
        "ms",
    ));
    Ok(())
}

/// An interface of a pod, and what its endpoint is.
fn interface(n: u16) -> anyhow::Result<EndpointSpec> {
    let name = format!("lxc{n}");
    ip(&format!(
        "link add {name} type veth peer name p{name}
         link set {name} up"
    ))?;
    let (ifindex, host_mac) = identify(&name)?;
    let [high, low] = n.to_be_bytes();
    Ok(EndpointSpec {
        container_id: name.clone(),
        container_interface: "eth0".to_owned(),
        ifindex,
        ipv4: Some([10, 1, high, low].into()),
        ipv6: format!("fd00::1:{n:x}").parse().ok(),
        host_mac,
        mac: identify(&format!("p{name}"))?.1,
        interface: name,
        ..EndpointSpec::default()
    })
}

fn add_times(report: &mut Report, what: &str, times: &[Duration]) {
    let middle = |times: &[Duration]| median(times.iter().map(|time| milliseconds(*time)).collect());
    let (first, last) = (&times[..SAMPLE], &times[times.len() - SAMPLE..]);
    let count = times.len();
    for (which, sample) in [
        (format!("1st to {SAMPLE}th"), first),
        (format!("{}th to {count}th", count - SAMPLE + 1), last),
    ] {
        report.add(Row::cost(format!("{what}, {which}"), middle(sample), "ms").target(2.0));
    }
}

/// Waits until all have links; returns how long the last of them took after the last attachment.
fn linked(store: &MapStore, count: u16) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let folder = store.root().join("cilium/endpoints");
    let is_linked = |n| folder.join(format!("{n}/links/{PROGRAM}")).exists();
    while !(1..=count).all(is_linked) {
        ensure!(begun.elapsed() < PATIENCE, "some endpoints have no links");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(begun.elapsed())
}

/// Bytes that the kernel charges for all pinned maps.
pub(crate) fn map_bytes(store: &MapStore) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for name in store.pins("")? {
        let Ok(map) = store.open_raw(&name) else { continue };
        if let Some(fd) = map.fd() {
            bytes += memlock(fd)?;
        }
    }
    Ok(bytes)
}

/// Bytes that the kernel charges for a map or program.
fn memlock(object: BorrowedFd<'_>) -> anyhow::Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", object.as_raw_fd());
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("memlock:"));
    let value = value.with_context(|| format!("{path}: no memlock"))?;
    value.trim().parse().with_context(|| format!("{path}: {value}"))
}

/// Programs at interfaces of endpoints beside the one that all share.
fn foreign_programs(netns: &Pod, specs: &[EndpointSpec]) -> anyhow::Result<usize> {
    let mut ids = std::collections::BTreeSet::new();
    for spec in specs {
        let found = netns.run(|| {
            let by_filter = Filters::new(&spec.interface)?.running(PROGRAM, InterfaceHook::Ingress)?;
            let links = InterfaceLinks::new("/".as_ref(), &spec.interface)?;
            let by_link = links.attached(InterfaceHook::Ingress)?;
            anyhow::Ok(by_filter.into_iter().chain(by_link).collect::<Vec<_>>())
        })?;
        ensure!(!found.is_empty(), "{}: no program", spec.interface);
        ids.extend(found);
    }
    Ok(ids.len().saturating_sub(1))
}
