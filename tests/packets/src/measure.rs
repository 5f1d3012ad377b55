// SPDX-License-Identifier: Apache-2.0

//! What a packet costs on each of its ways: one call a packet, less what a program costs that does nothing.

use std::{os::fd::AsFd as _, path::Path};

use skep_bpf_programs::{
    DirectReturn, DsrDispatch, NodeOptions,
    testing::run::{SkBuff, empty_tc, empty_xdp, run_tc, run_xdp},
};
use skep_bpf_sys::testing::Node;

use crate::{
    Error,
    vectors::{Facts, Group, Step},
    world::{World, options},
};

/// A way, and the steps of a recorded scenario that go it.
struct Way {
    name: &'static str,
    group: &'static str,
    scenario: &'static str,
    /// Steps that open the flow; the first one is measured as its first packet.
    opening: &'static [usize],
    established: Option<usize>,
    /// Made a packet without SYN.
    reply: Option<usize>,
    /// Backends of other nodes answer clients themselves.
    is_direct: bool,
}

impl Way {
    fn is_xdp(&self) -> bool {
        self.group.starts_with("xdp-")
    }
}

const WAYS: [Way; 10] = [
    Way {
        name: "pod to pod of the node",
        group: "pod-pod",
        scenario: "pp_full",
        opening: &[0, 1, 2],
        established: Some(2),
        reply: Some(1),
        is_direct: false,
    },
    Way {
        name: "pod to ClusterIP, backend on the node",
        group: "service-east-west",
        scenario: "ew_local",
        opening: &[0, 1, 2],
        established: Some(2),
        reply: Some(1),
        is_direct: false,
    },
    Way {
        name: "pod to ClusterIP, backend elsewhere",
        group: "service-east-west",
        scenario: "ew_remote",
        opening: &[0, 2, 3],
        established: Some(3),
        reply: Some(2),
        is_direct: false,
    },
    Way {
        name: "NodePort at tc, backend elsewhere",
        group: "service-north-south",
        scenario: "ns_remote",
        opening: &[0, 2, 4],
        established: Some(4),
        reply: Some(2),
        is_direct: false,
    },
    Way {
        name: "NodePort at XDP, backend elsewhere",
        group: "xdp-north-south",
        scenario: "xdp_ns_remote",
        opening: &[0, 1, 2],
        established: Some(3),
        reply: Some(1),
        is_direct: false,
    },
    Way {
        name: "to the node, no service, XDP",
        group: "xdp-north-south",
        scenario: "xdp_ns_miss",
        opening: &[0],
        established: Some(0),
        reply: None,
        is_direct: false,
    },
    Way {
        name: "to the node, no service, tc",
        group: "service-north-south",
        scenario: "ns_miss",
        opening: &[1],
        established: Some(1),
        reply: None,
        is_direct: false,
    },
    Way {
        name: "pod to the world, masquerade on the way out",
        group: "masquerade",
        scenario: "mq_tcp",
        opening: &[1, 4],
        established: Some(4),
        reply: None,
        is_direct: false,
    },
    Way {
        name: "NodePort at tc, backend elsewhere, DSR",
        group: "service-north-south",
        scenario: "ns_remote",
        opening: &[0, 4],
        established: Some(4),
        reply: None,
        is_direct: true,
    },
    Way {
        name: "NodePort at XDP, backend elsewhere, DSR",
        group: "xdp-north-south",
        scenario: "xdp_ns_remote",
        opening: &[0, 2],
        established: Some(3),
        reply: None,
        is_direct: true,
    },
];

/// Nanoseconds of many calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// A tenth of the calls took less.
    pub p10: u64,
    /// Half of the calls took less.
    pub p50: u64,
}

/// What packets of one way cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    /// Name of the way.
    pub name: &'static str,
    /// IPv6.
    pub is_ipv6: bool,
    /// The first packet of a flow.
    pub first: Cost,
    /// Another one of its direction.
    pub established: Option<Cost>,
    /// Back.
    pub reply: Option<Cost>,
}

/// Measures all ways with the facts and scenarios of this folder, `calls` times each.
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn measure(folder: &Path, calls: u32) -> Result<Vec<Costs>, Error> {
    let mut all = Vec::new();
    for is_direct in [false, true] {
        for (is_xdp, files) in [
            (false, &["facts.json"][..]),
            (true, &["facts.json", "facts-xdp.json"]),
        ] {
            all.extend(measure_with(folder, calls, files, is_xdp, is_direct)?);
        }
    }
    Ok(all)
}

/// The options of the facts, with direct return.
fn direct(mut options: NodeOptions) -> NodeOptions {
    options.packets.dsr = Some(DirectReturn {
        dispatch: DsrDispatch::IpOption,
        all_services: true,
        icmp_errors: false,
    });
    options
}

/// Measures those ways, on a node of these facts.
fn measure_with(
    folder: &Path,
    calls: u32,
    files: &[&str],
    is_xdp: bool,
    is_direct: bool,
) -> Result<Vec<Costs>, Error> {
    let facts = Facts::read_all(files.iter().map(|file| folder.join(file)))?;
    let mut options = options(&facts, "")?;
    if is_direct {
        options = direct(options);
    }
    Node::run("measure", |node| {
        let world = World::with_options(node, facts, "", &options)?;
        let mut all = Vec::new();
        for is_ipv6 in [false, true] {
            for way in WAYS
                .iter()
                .filter(|way| (way.is_xdp(), way.is_direct) == (is_xdp, is_direct))
            {
                let family = if is_ipv6 { "v6" } else { "v4" };
                let group = Group::read(&folder.join(format!("{}-{family}.json", way.group)))?;
                let found = group
                    .scenarios
                    .into_iter()
                    .find(|scenario| scenario.name == way.scenario);
                let scenario = found.ok_or_else(|| Error::Facts {
                    what: format!("scenario {}", way.scenario),
                })?;
                all.push(way_costs(&world, way, is_ipv6, &scenario.steps, calls)?);
            }
        }
        Ok(all)
    })
}

fn way_costs(world: &World, way: &Way, is_ipv6: bool, steps: &[Step], calls: u32) -> Result<Costs, Error> {
    let step = |index: usize| {
        steps.get(index).ok_or_else(|| Error::Facts {
            what: format!("step {index} of {}", way.scenario),
        })
    };
    let idle = idle(way, step(way.opening[0])?, calls)?;
    let ports = if is_ipv6 { 54 } else { 34 };

    world.forget_flows()?;
    let mut first = Vec::new();
    let mut frame = step(way.opening[0])?.packet_in.0.clone();
    for n in 0..calls {
        // Each is another flow; ports in the range that translation keeps.
        let port = 32_768 + (n % 8000) as u16;
        if n % 8000 == 0 {
            world.forget_flows()?;
        }
        frame[ports..ports + 2].copy_from_slice(&port.to_be_bytes());
        first.push(call(world, step(way.opening[0])?, &frame)?);
    }

    world.forget_flows()?;
    for index in way.opening {
        let step = step(*index)?;
        call(world, step, &step.packet_in.0)?;
    }
    let again = |index: Option<usize>| -> Result<Option<Cost>, Error> {
        let Some(index) = index else { return Ok(None) };
        let step = step(index)?;
        let mut frame = step.packet_in.0.clone();
        // An acknowledgement alone.
        frame[ports + 13] = 0x10;
        let times: Result<Vec<u64>, Error> = (0..calls).map(|_| call(world, step, &frame)).collect();
        Ok(Some(cost(times?, idle)))
    };
    Ok(Costs {
        name: way.name,
        is_ipv6,
        first: cost(first, idle),
        established: again(way.established)?,
        reply: again(way.reply)?,
    })
}

fn context(step: &Step) -> SkBuff {
    SkBuff {
        mark: step.ctx_in.mark,
        ifindex: step.ifindex,
        ingress_ifindex: step.ctx_in.ingress_ifindex,
        ..SkBuff::default()
    }
}

fn call(world: &World, step: &Step, frame: &[u8]) -> Result<u64, Error> {
    let name = step.program.as_deref().unwrap_or_default();
    let ran = world.run(name, frame, &context(step))?;
    Ok(ran.duration.as_nanos() as u64)
}

/// What a call costs without anything done.
fn idle(way: &Way, step: &Step, calls: u32) -> Result<u64, Error> {
    let program = if way.is_xdp() { empty_xdp()? } else { empty_tc()? };
    let frame = &step.packet_in.0;
    let mut times = Vec::new();
    for _ in 0..calls {
        let duration = if way.is_xdp() {
            run_xdp(program.as_fd(), frame, step.ifindex, 1)?.duration
        } else {
            run_tc(program.as_fd(), frame, &context(step), 1)?.duration
        };
        times.push(duration.as_nanos() as u64);
    }
    Ok(cost(times, 0).p10)
}

fn cost(mut times: Vec<u64>, idle: u64) -> Cost {
    times.sort_unstable();
    let at = |tenths: usize| times.get(times.len() * tenths / 10).copied().unwrap_or_default();
    Cost {
        p10: at(1).saturating_sub(idle),
        p50: at(5).saturating_sub(idle),
    }
}
