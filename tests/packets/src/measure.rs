// SPDX-License-Identifier: Apache-2.0

//! What a packet costs on each of its ways: one call a packet, less what a program costs that does nothing; what it calls
//! there, and how large the programs are.

mod background;
mod calls;
mod policy;
mod size;

use std::{
    fmt,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use skep_bpf_programs::{
    DirectReturn, DsrDispatch, NodeOptions, Tunnel, TunnelProtocol,
    testing::run::{FromTunnel, empty_tc, empty_xdp, run_tc, run_xdp},
};
use skep_bpf_sys::testing::Node;

pub use self::{
    calls::{WayCalls, count, count_between_pods},
    size::{SizedProgram, sizes},
};
use crate::{
    Error,
    options::{missing, options},
    vectors::{Facts, Group, Scenario, Step},
    world::World,
};

/// How packets come to other nodes, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// By routes; source addresses are translated.
    Routed,
    /// By routes; backends of other nodes answer clients themselves.
    Direct,
    Tunnelled,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Routed, Self::Direct, Self::Tunnelled];
}

/// A way, and the steps of a recorded scenario that go it.
struct Way {
    name: &'static str,
    group: &'static str,
    scenario: &'static str,
    /// Steps that open the flow; the first one is measured as its first packet.
    opening: &'static [usize],
    established: Option<usize>,
    reply: Option<usize>,
    mode: Mode,
}

impl Way {
    fn is_xdp(&self) -> bool {
        self.group.starts_with("xdp-")
    }

    fn scenario(&self, folder: &Path, is_ipv6: bool) -> Result<Scenario, Error> {
        let family = if is_ipv6 { "v6" } else { "v4" };
        let group = Group::read(&folder.join(format!("{}-{family}.json", self.group)))?;
        let mut scenarios = group.scenarios.into_iter();
        let found = scenarios.find(|scenario| scenario.name == self.scenario);
        found.ok_or_else(|| Error::Facts {
            what: format!("scenario {}", self.scenario),
        })
    }
}

const WAYS: [Way; 12] = [
    Way {
        name: "pod to pod of the node",
        group: "pod-pod",
        scenario: "pp_full",
        opening: &[0, 1, 2],
        established: Some(2),
        reply: Some(1),
        mode: Mode::Routed,
    },
    Way {
        name: "pod to ClusterIP, backend on the node",
        group: "service-east-west",
        scenario: "ew_local",
        opening: &[0, 1, 2],
        established: Some(2),
        reply: Some(1),
        mode: Mode::Routed,
    },
    Way {
        name: "pod to ClusterIP, backend elsewhere",
        group: "service-east-west",
        scenario: "ew_remote",
        opening: &[0, 2, 3],
        established: Some(3),
        reply: Some(2),
        mode: Mode::Routed,
    },
    Way {
        name: "NodePort at tc, backend elsewhere",
        group: "service-north-south",
        scenario: "ns_remote",
        opening: &[0, 2, 4],
        established: Some(4),
        reply: Some(2),
        mode: Mode::Routed,
    },
    Way {
        name: "NodePort at XDP, backend elsewhere",
        group: "xdp-north-south",
        scenario: "xdp_ns_remote",
        opening: &[0, 1, 2],
        established: Some(3),
        reply: Some(1),
        mode: Mode::Routed,
    },
    Way {
        name: "to the node, no service, XDP",
        group: "xdp-north-south",
        scenario: "xdp_ns_miss",
        opening: &[0],
        established: Some(0),
        reply: None,
        mode: Mode::Routed,
    },
    Way {
        name: "to the node, no service, tc",
        group: "service-north-south",
        scenario: "ns_miss",
        opening: &[1],
        established: Some(1),
        reply: None,
        mode: Mode::Routed,
    },
    Way {
        name: "pod to the world, masquerade on the way out",
        group: "masquerade",
        scenario: "mq_tcp",
        opening: &[1, 4],
        established: Some(4),
        reply: None,
        mode: Mode::Routed,
    },
    Way {
        name: "NodePort at tc, backend elsewhere, DSR",
        group: "service-north-south",
        scenario: "ns_remote",
        opening: &[0, 4],
        established: Some(4),
        reply: None,
        mode: Mode::Direct,
    },
    Way {
        name: "NodePort at XDP, backend elsewhere, DSR",
        group: "xdp-north-south",
        scenario: "xdp_ns_remote",
        opening: &[0, 2],
        established: Some(3),
        reply: None,
        mode: Mode::Direct,
    },
    Way {
        name: "pod to ClusterIP, backend elsewhere, tunnel",
        group: "service-east-west",
        scenario: "ew_remote",
        opening: &[0, 2, 3],
        established: Some(3),
        reply: Some(2),
        mode: Mode::Tunnelled,
    },
    Way {
        name: "NodePort at tc, backend elsewhere, tunnel",
        group: "service-north-south",
        scenario: "ns_remote",
        opening: &[0, 4],
        established: Some(4),
        reply: None,
        mode: Mode::Tunnelled,
    },
];

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
    pub name: &'static str,
    /// IPv6.
    pub is_ipv6: bool,
    /// A program that does nothing, in ns.
    pub idle: u64,
    /// The first packet of a flow.
    pub first: Cost,
    pub established: Option<Cost>,
    pub reply: Option<Cost>,
}

/// Further entries in the maps of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Services besides those of the facts, each with a backend.
    pub services: u32,
    /// Entries of TCP connections, for each address family.
    pub flows: u32,
    /// Room in the flow table; 0: none.
    pub flow_table: u32,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services = if self.services == 1 { "service" } else { "services" };
        write!(f, "{} {services}, {} flows", self.services, self.flows)?;
        match self.flow_table {
            0 => Ok(()),
            _ => write!(f, ", flow table"),
        }
    }
}

/// Measures all ways with the facts and scenarios of this folder, at most `calls` times each, on one CPU. Events have
/// no listener.
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn measure(folder: &Path, calls: u32, load: Load) -> Result<Vec<Costs>, Error> {
    visit(folder, calls, load, None, false, |meter| meter.costs())
}

/// As [`measure`], of packets between pods of the node: with policies of so many entries, or with those of the facts, which allow
/// everything.
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn measure_between_pods(
    folder: &Path,
    calls: u32,
    load: Load,
    policy: Option<u32>,
) -> Result<Vec<Costs>, Error> {
    visit(folder, calls, load, Some(policy), false, |meter| meter.costs())
}

/// What ways of packets are visited with.
const FILES: [(bool, &[&str]); 2] = [
    (false, &["facts.json"]),
    (true, &["facts.json", "facts-xdp.json"]),
];

/// Visits all ways, or those between pods with a policy; with programs that count what they call if `counts`.
fn visit<T: Send>(
    folder: &Path,
    calls: u32,
    load: Load,
    between_pods: Option<Option<u32>>,
    counts: bool,
    work: fn(&Meter<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        for (is_xdp, files) in FILES {
            let ways: Vec<&Way> = WAYS
                .iter()
                .filter(|way| (way.is_xdp(), way.mode) == (is_xdp, mode))
                .filter(|way| between_pods.is_none() || way.group == "pod-pod")
                .collect();
            if ways.is_empty() {
                continue;
            }
            let facts = Facts::read_all(files.iter().map(|file| folder.join(file)))?;
            let mut options = with_mode(options(&facts, "")?, &facts, mode)?;
            options.packets.flows = load.flow_table > 0;
            let sizes = background::sizes(load);
            // Flows of different ways have different ports.
            let ports = PORTS.count() as u32 / ways.len() as u32;
            let of_mode: Vec<T> = Node::run("measure", |node| {
                pin()?;
                let mut world = if counts {
                    World::counting(node, facts, &options, &sizes)?
                } else {
                    World::with_options(node, facts, "", &options, &sizes)?
                };
                world.stop_listening();
                background::fill(&world, load)?;
                if let Some(entries) = between_pods.flatten() {
                    policy::restrict(&world, entries)?;
                }
                let both = [false, true].into_iter().flat_map(|is_ipv6| {
                    let ports =
                        (0..).map(move |n| PORTS.start() + n * ports..PORTS.start() + (n + 1) * ports);
                    ways.iter()
                        .zip(ports)
                        .map(move |(way, ports)| (way, is_ipv6, ports))
                });
                both.map(|(way, is_ipv6, ports)| {
                    let scenario = way.scenario(folder, is_ipv6)?;
                    work(&Meter {
                        world: &world,
                        steps: &scenario.steps,
                        way,
                        is_ipv6,
                        calls,
                        ports,
                    })
                })
                .collect::<Result<_, Error>>()
            })?;
            all.extend(of_mode);
        }
    }
    Ok(all)
}

/// Identity of the pod on the other node.
const REMOTE_IDENTITY: u32 = 40_001;
const PORTS: std::ops::RangeInclusive<u32> = 32_768..=65_535;

/// The options of the facts, in this mode.
fn with_mode(mut options: NodeOptions, facts: &Facts, mode: Mode) -> Result<NodeOptions, Error> {
    match mode {
        Mode::Routed => {}
        Mode::Direct => {
            options.packets.dsr = Some(DirectReturn {
                dispatch: DsrDispatch::IpOption,
                all_services: true,
                icmp_errors: false,
            });
        }
        Mode::Tunnelled => {
            let router = &facts.addresses.router.ipv4;
            options.packets.router4 = router.parse().map_err(|_| Error::Facts {
                what: format!("address {router}"),
            })?;
            options.packets.tunnel = Some(Tunnel {
                protocol: TunnelProtocol::Vxlan,
                port: 8472,
                // Any interface: packets do not arrive there.
                device: options.packets.cilium_net,
                source_ports: (32_768, 60_999),
            });
        }
    }
    Ok(options)
}

/// Stays on one CPU: the last one that this thread may use.
fn pin() -> Result<(), Error> {
    let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    if let Some(cpu) = last {
        one.set(cpu);
    }
    Ok(sched_setaffinity(None, &one).map_err(std::io::Error::from)?)
}

/// Mean time of established packets to a service with its backend on the node while the flow table is invalidated so often
/// a second.
///
/// # Errors
///
/// [`Error`] as of [`run_file`](crate::run_file).
pub fn measure_churn(folder: &Path, rates: &[u32], seconds: u32) -> Result<Vec<(u32, f64)>, Error> {
    let way = WAYS.iter().find(|way| way.scenario == "ew_local");
    let way = way.ok_or_else(|| missing("scenario ew_local"))?;
    let facts = Facts::read_all(["facts.json"].map(|file| folder.join(file)))?;
    let mut options = options(&facts, "")?;
    options.packets.flows = true;
    let load = Load {
        services: 1,
        flows: 1,
        flow_table: 65_536,
    };
    let scenario = way.scenario(folder, false)?;
    Node::run("churn", |node| {
        pin()?;
        let mut world = World::with_options(node, facts, "", &options, &background::sizes(load))?;
        world.stop_listening();
        let meter = Meter {
            world: &world,
            steps: &scenario.steps,
            way,
            is_ipv6: false,
            calls: 1000,
            ports: PORTS.start().to_owned()..PORTS.end().to_owned(),
        };
        meter.open()?;
        let runner = meter.runner(way.established.unwrap_or_default())?;
        let frame = meter.acknowledgement(&runner);
        let idle = runner.idle(1000)?;
        let mut means = Vec::new();
        for rate in rates {
            let (began, mut raised) = (Instant::now(), 0);
            let (mut total, mut calls) = (0_u64, 0_u64);
            while began.elapsed() < Duration::from_secs(seconds.into()) {
                if u128::from(raised) < began.elapsed().as_micros() * u128::from(*rate) / 1_000_000 {
                    world.store.raise_epoch();
                    raised += 1_u64;
                }
                total += runner.call(&frame)?.saturating_sub(idle);
                calls += 1;
            }
            means.push((*rate, total as f64 / calls.max(1) as f64));
        }
        Ok(means)
    })
}

struct Meter<'a> {
    world: &'a World,
    steps: &'a [Step],
    way: &'a Way,
    is_ipv6: bool,
    calls: u32,
    ports: std::ops::Range<u32>,
}

impl Meter<'_> {
    fn costs(&self) -> Result<Costs, Error> {
        self.open()?;
        Ok(Costs {
            name: self.way.name,
            is_ipv6: self.is_ipv6,
            idle: self.runner(self.way.opening[0])?.idle(self.calls)?,
            first: self.first()?,
            established: self.again(self.way.established)?,
            reply: self.again(self.way.reply)?,
        })
    }

    fn open(&self) -> Result<(), Error> {
        for index in self.way.opening {
            let runner = self.runner(*index)?;
            runner.call(&runner.step.packet_in.0)?;
        }
        Ok(())
    }

    fn ports_at(&self) -> usize {
        if self.is_ipv6 { 54 } else { 34 }
    }

    /// Each packet is of another flow.
    fn first(&self) -> Result<Cost, Error> {
        let runner = self.runner(self.way.opening[0])?;
        let mut times = Vec::new();
        for port in self.ports.clone().take(self.calls as usize) {
            times.push(runner.call(&self.opening(&runner, port))?);
        }
        Ok(cost(times, runner.idle(self.calls)?))
    }

    /// The first packet of a flow from this port.
    fn opening(&self, runner: &Runner<'_>, port: u32) -> Vec<u8> {
        let mut frame = runner.step.packet_in.0.clone();
        let at = self.ports_at();
        frame[at..at + 2].copy_from_slice(&(port as u16).to_be_bytes());
        frame
    }

    /// A packet of a step as an acknowledgement alone.
    fn acknowledgement(&self, runner: &Runner<'_>) -> Vec<u8> {
        let mut frame = runner.step.packet_in.0.clone();
        frame[self.ports_at() + 13] = 0x10;
        frame
    }

    /// The same packet again and again.
    fn again(&self, index: Option<usize>) -> Result<Option<Cost>, Error> {
        let Some(index) = index else { return Ok(None) };
        let runner = self.runner(index)?;
        let frame = self.acknowledgement(&runner);
        let times: Result<Vec<u64>, Error> = (0..self.calls).map(|_| runner.call(&frame)).collect();
        Ok(Some(cost(times?, runner.idle(self.calls)?)))
    }

    fn runner(&self, index: usize) -> Result<Runner<'_>, Error> {
        let step = self.steps.get(index).ok_or_else(|| Error::Facts {
            what: format!("step {index} of {}", self.way.scenario),
        })?;
        let mut name = step.program.as_deref().unwrap_or_default();
        // What comes from the other node's pod comes by the tunnel; clients do not.
        let is_received = self.way.mode == Mode::Tunnelled && self.way.reply == Some(index);
        if is_received {
            name = "cil_from_overlay";
        }
        let program = self.world.program(name).ok_or_else(|| Error::Facts {
            what: format!("program {name}"),
        })?;
        let (program, idle) = if is_received {
            (
                Program::FromTunnel(FromTunnel::new(REMOTE_IDENTITY, Some(program))?),
                Program::FromTunnel(FromTunnel::new(REMOTE_IDENTITY, None)?),
            )
        } else if self.way.is_xdp() {
            (Program::Loaded(program), Program::Own(empty_xdp()?))
        } else {
            (Program::Loaded(program), Program::Own(empty_tc()?))
        };
        Ok(Runner {
            step,
            is_xdp: self.way.is_xdp(),
            program,
            idle,
        })
    }
}

enum Program<'a> {
    Loaded(BorrowedFd<'a>),
    Own(OwnedFd),
    FromTunnel(FromTunnel),
}

impl Program<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Loaded(program) => *program,
            Self::Own(program) => program.as_fd(),
            Self::FromTunnel(tunnel) => tunnel.program(),
        }
    }
}

/// Runs the program of a step.
struct Runner<'a> {
    step: &'a Step,
    is_xdp: bool,
    program: Program<'a>,
    /// A program that does nothing, whose cost is that of the call itself.
    idle: Program<'a>,
}

impl Runner<'_> {
    fn call(&self, frame: &[u8]) -> Result<u64, Error> {
        self.run(&self.program, frame)
    }

    /// What a call costs without anything done.
    fn idle(&self, calls: u32) -> Result<u64, Error> {
        let frame = &self.step.packet_in.0;
        let times: Result<Vec<u64>, Error> = (0..calls).map(|_| self.run(&self.idle, frame)).collect();
        Ok(cost(times?, 0).p10)
    }

    fn run(&self, program: &Program<'_>, frame: &[u8]) -> Result<u64, Error> {
        let step = self.step;
        let ifindex = step.ifindex.unwrap_or_default();
        let duration = if self.is_xdp {
            run_xdp(program.fd(), frame, ifindex, 1)?.duration
        } else {
            run_tc(program.fd(), frame, &step.context(ifindex), 1)?.duration
        };
        Ok(duration.as_nanos() as u64)
    }
}

fn cost(mut times: Vec<u64>, idle: u64) -> Cost {
    times.sort_unstable();
    let at = |tenths: usize| times.get(times.len() * tenths / 10).copied().unwrap_or_default();
    Cost {
        p10: at(1).saturating_sub(idle),
        p50: at(5).saturating_sub(idle),
    }
}
