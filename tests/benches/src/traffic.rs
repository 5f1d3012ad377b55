// SPDX-License-Identifier: Apache-2.0

//! What connections, requests and transfers through services reach, against plain routing and nftables in the same run.
//!
//! Each way has a node of its own, with pods, client and backend; all run at the same time and are measured in turn, so
//! that other load on the machine affects all alike. A ratio is the median of those of the rounds.

mod load;
mod network;
mod nftables;

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Args;
use skep_bpf_maps::{
    lb::{REVERSE_NAT4, ReverseNat4, ReverseNatKey, ServiceFlags},
    testing::{Frontend, LbMaps},
};
use skep_bpf_sys::{
    Map, MapStore,
    testing::{Node, Pod},
};
use skep_datapath_socketlb::SocketDatapath;
use skep_node_local::LocalNodeStore;

use self::{
    load::{Clock, Load, Served},
    network::{CLIENT, CLIENT_POD, NODE, NODE_INSIDE, Network, POD_NETWORK, Service, Target},
};
use crate::{
    datapath::{self, Datapath},
    report::{Report, Row, median},
    usage,
};

const TCP: u8 = 6;
/// Services that clients use, spread over all.
const USED: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rounds; medians count.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Milliseconds of a measurement.
    #[arg(long, default_value_t = 150)]
    milliseconds: u64,
    /// Numbers of services, ascending.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,1000,10000",
        // Ports of their servers are from 40,000 on.
        value_parser = clap::value_parser!(u16).range(1..=25_000)
    )]
    services: Vec<u16>,
    /// The processor that clients and servers run on.
    #[arg(long, default_value_t = 1)]
    processor: usize,
    /// Clock of rates.
    #[arg(long, value_enum, default_value_t = Clock::Wall)]
    clock: Clock,
}

/// How packets get to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Routing,
    Nftables,
    /// Programs at interfaces; node ports by SNAT.
    Packets,
    /// Sockets are translated when they connect.
    Sockets,
    /// Node ports by direct server return.
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// In a pod, of services at their ClusterIPs.
    Pod,
    /// Outside of the node, of services at node ports.
    Outside,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Pod => "ClusterIP",
            Self::Outside => "NodePort",
        }
    }

    /// The ways that are measured; the first two are what the others are compared with.
    const fn ways(self) -> [Way; 4] {
        match self {
            Self::Pod => [Way::Routing, Way::Nftables, Way::Packets, Way::Sockets],
            Self::Outside => [Way::Routing, Way::Nftables, Way::Packets, Way::Direct],
        }
    }
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Routing,
        Self::Nftables,
        Self::Packets,
        Self::Sockets,
        Self::Direct,
    ];

    const fn name(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Routing, _) => "routing",
            (Self::Nftables, _) => "nftables",
            (Self::Packets, Side::Pod) => "at tc",
            (Self::Packets, Side::Outside) => "SNAT",
            (Self::Sockets, _) => "at sockets",
            (Self::Direct, _) => "DSR",
        }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Routing => "routing",
            Self::Nftables => "nftables",
            Self::Packets => "packets",
            Self::Sockets => "sockets",
            Self::Direct => "direct",
        }
    }

    /// Settings of the agent of the node; `None`: the node has no agent.
    fn flags(self) -> Option<Vec<&'static str>> {
        // Sockets in pods and of clients are left alone: their packets are translated.
        const PACKETS: &str = "--bpf-lb-sock-hostns-only";
        let own: &[&str] = match self {
            Self::Routing | Self::Nftables => return None,
            Self::Packets => &[PACKETS],
            Self::Sockets => &[],
            Self::Direct => &[PACKETS, "--bpf-lb-mode=dsr"],
        };
        let mut flags = vec![
            "--kube-proxy-replacement",
            "--enable-ipv6=false",
            "--bpf-lb-map-max=65536",
            "--bpf-ct-global-tcp-max=262144",
            "--bpf-nat-global-max=262144",
            "--bpf-ct-global-any-max=4096",
        ];
        flags.extend(own);
        Some(flags)
    }
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    Node::run("traffic", |world| {
        let done = measure(world, options, report);
        for way in Way::ALL {
            datapath::remove_cgroup(world, way.short());
            datapath::remove_cgroup(world, &of_backend(way));
        }
        Ok::<_, std::io::Error>(done)
    })?
}

fn of_backend(way: Way) -> String {
    format!("{}-backend", way.short())
}

fn measure(world: &Node, options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let mut nodes = Vec::new();
    for way in Way::ALL {
        nodes.push(Host::new(world, way).with_context(|| format!("the node with {}", way.short()))?);
    }
    let mut found = Vec::new();
    for count in &options.services {
        for node in &mut nodes {
            node.serve(*count)
                .with_context(|| format!("{count} services by {}", node.way.short()))?;
        }
        for side in [Side::Pod, Side::Outside] {
            for load in Load::ALL {
                let rates = interleaved(world, options, &nodes, side, load)?;
                add_rows(report, side, load, *count, &rates);
                found.push((side, load, rates));
            }
        }
    }
    add_flatness(report, options, &found);
    Ok(())
}

/// Rates of the ways of a side, a round each.
type Rates = [Vec<f64>; 4];

fn interleaved(
    world: &Node,
    options: &Options,
    nodes: &[Host],
    side: Side,
    load: Load,
) -> anyhow::Result<Rates> {
    let mut rates = Rates::default();
    // The first round warms caches up and asks for neighbours.
    for round in 0..=options.rounds {
        for turn in 0..4 {
            let n = (turn + round) % 4;
            let way = side.ways()[n];
            let node = nodes.iter().find(|node| node.way == way).context("a node")?;
            let rate = node
                .measure(world, options, side, load)
                .with_context(|| format!("{} by {}: {}", side.name(), way.name(side), load.name()))?;
            if round > 0 {
                rates[n].push(rate);
            }
        }
    }
    Ok(rates)
}

/// Median of the ratios of rounds.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

fn add_rows(report: &mut Report, side: Side, load: Load, count: u16, rates: &Rates) {
    let ways = side.ways();
    for (way, found) in ways.iter().zip(rates) {
        let name = way.name(side);
        let case = format!("{} {name}, {} by {count} services", side.name(), load.name());
        report.add(Row::rate(case.clone(), median(found.clone()), load.unit()));
        if !matches!(way, Way::Routing | Way::Nftables) {
            let percent = |of: usize| 100.0 * ratio(found, &rates[of]);
            report.add(Row::rate(format!("{case}: of routing"), percent(0), "%").target(95.0));
            report.add(Row::rate(format!("{case}: of nftables"), percent(1), "%").target(100.0));
        }
    }
}

/// Adds the rates with the most services in percent of those with the least, each relative to routing in its own rounds.
fn add_flatness(report: &mut Report, options: &Options, found: &[(Side, Load, Rates)]) {
    let (Some(least), Some(most)) = (options.services.first(), options.services.last()) else {
        return;
    };
    for side in [Side::Pod, Side::Outside] {
        for load in Load::ALL {
            let mut of_load = found.iter().filter(|found| (found.0, found.1) == (side, load));
            let (Some((_, _, first)), Some((_, _, last))) = (of_load.next(), of_load.next_back()) else {
                continue;
            };
            for n in [2, 3] {
                let way = side.ways()[n].name(side);
                let name = format!(
                    "{} {way}, {}: {most} services of {least}",
                    side.name(),
                    load.name()
                );
                let value = 100.0 * ratio(&last[n], &last[0]) / ratio(&first[n], &first[0]);
                report.add(Row::rate(name, value, "%").target(95.0));
            }
        }
    }
}

/// A node and what is around it.
struct Host {
    way: Way,
    network: Network,
    services: Vec<Service>,
    skep: Option<Skep>,
    /// Of the node of the backend.
    _other: Option<Datapath>,
}

impl Host {
    fn new(world: &Node, way: Way) -> anyhow::Result<Self> {
        let network = Network::new(world, way.short())?;
        datapath::cgroup(world, way.short())?;
        let mut other = None;
        let skep = match way.flags() {
            None => {
                network.route_pods()?;
                None
            }
            Some(flags) => Some(Skep::new(world, way, &network, &flags)?),
        };
        if way == Way::Direct {
            network.answer_directly()?;
            let flags = way.flags().unwrap_or_default();
            other = Some(Datapath::start(
                world,
                &network.backend,
                &of_backend(way),
                &flags,
            )?);
        }
        Ok(Self {
            way,
            network,
            services: Vec::new(),
            skep,
            _other: other,
        })
    }

    fn serve(&mut self, count: u16) -> anyhow::Result<()> {
        let before = self.services.len() as u16;
        self.services.extend((before..count).map(Service::new));
        match self.way {
            Way::Routing => Ok(()),
            Way::Nftables => self.network.node.run(|| {
                datapath::feed("nft", &["-f", "-"], &nftables::ruleset(&self.services))?;
                // As long as ours.
                datapath::set("netfilter/nf_conntrack_tcp_timeout_time_wait", "10")
            }),
            Way::Packets | Way::Sockets | Way::Direct => {
                let skep = self.skep.as_ref().context("no programs")?;
                (before..count).try_for_each(|n| skep.provide(n, Service::new(n)))
            }
        }
    }

    /// What clients of a side ask, and the servers that answer.
    fn targets(&self, side: Side) -> anyhow::Result<Vec<Served>> {
        let of_side = |service: &Service| match side {
            Side::Pod => Some(service.cluster_ip),
            Side::Outside => service.node_port,
        };
        let all: Vec<Target> = self.services.iter().filter_map(of_side).collect();
        let step = (all.len() / USED).max(1);
        let used = all.into_iter().step_by(step).take(USED);
        used.map(|Target { frontend, backend }| {
            let asked = if self.way == Way::Routing {
                backend
            } else {
                frontend
            };
            Ok((asked, self.network.server(backend)?))
        })
        .collect()
    }

    /// The address that a server sees.
    fn source(&self, side: Side) -> IpAddr {
        match (side, self.way) {
            (Side::Pod, _) => CLIENT_POD.into(),
            (Side::Outside, Way::Routing | Way::Direct) => CLIENT.into(),
            (Side::Outside, Way::Nftables) => NODE_INSIDE.into(),
            // The address of the node at the client's side.
            (Side::Outside, Way::Packets | Way::Sockets) => NODE.into(),
        }
    }

    fn measure(&self, world: &Node, options: &Options, side: Side, load: Load) -> anyhow::Result<f64> {
        let client: &Pod = match side {
            Side::Pod => &self.network.client_pod,
            Side::Outside => &self.network.client,
        };
        let targets = self.targets(side)?;
        let cgroup = world.cgroup_root().join(self.way.short());
        client.run(|| {
            usage::pin(options.processor)?;
            let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
            std::fs::write(cgroup.join("cgroup.threads"), thread)
                .with_context(|| cgroup.display().to_string())?;
            let seen = load::source(&targets[0])?.ip();
            let expected = self.source(side);
            ensure!(seen == expected, "the server sees {seen} instead of {expected}");
            let time = Duration::from_millis(options.milliseconds);
            Ok(load::run(load, &targets, time, options.clock)?)
        })
    }
}

/// Programs of a node, and the maps that they read.
struct Skep {
    maps: LbMaps,
    reverse: Map<ReverseNatKey, ReverseNat4>,
    _datapath: Datapath,
}

impl Skep {
    fn new(world: &Node, way: Way, network: &Network, flags: &[&str]) -> anyhow::Result<Self> {
        let datapath = Datapath::start(world, &network.node, way.short(), flags)?;
        let pods = POD_NETWORK.parse()?;
        datapath
            .get::<LocalNodeStore>()?
            .update(|node| node.pod_cidrs = vec![pods])?;
        for endpoint in network.endpoints()? {
            datapath.add_endpoint(&endpoint)?;
        }
        let sizes = *datapath.get::<Arc<SocketDatapath>>()?.settings().sizes;
        let store = datapath.get::<Arc<MapStore>>()?;
        Ok(Self {
            maps: LbMaps::open(&store, sizes)?,
            reverse: store.open_or_create(&REVERSE_NAT4.spec(&sizes.into()))?,
            _datapath: datapath,
        })
    }

    fn provide(&self, n: u16, service: Service) -> anyhow::Result<()> {
        self.write(2 * n + 1, service.cluster_ip, ServiceFlags::empty())?;
        match service.node_port {
            Some(target) => self.write(
                2 * n + 2,
                target,
                ServiceFlags::NODE_PORT | ServiceFlags::ROUTABLE,
            ),
            None => Ok(()),
        }
    }

    fn write(&self, id: u16, target: Target, flags: ServiceFlags) -> anyhow::Result<()> {
        let at = target.frontend;
        if let IpAddr::V4(ip) = at.ip() {
            let value = ReverseNat4::new(ip, at.port());
            self.reverse.update(&ReverseNatKey::new(id), &value)?;
        }
        let frontend = Frontend::new(id, at, TCP, &[target.backend]);
        Ok(self.maps.upsert(&frontend.flags(flags))?)
    }
}
