// SPDX-License-Identifier: Apache-2.0

//! `skep bpf`: entries of pinned maps, without the agent.

use std::{error::Error, io::Write, path::Path};

use clap::Subcommand;
use skep_base_api_client::Client;
use skep_bpf_maps::{event::RATELIMIT, lb::MAGLEV4};

use crate::{
    bpf_policy::{self, PolicyCommand},
    command::ListCommand,
    datapath::{self, CounterCommand, IpcacheCommand, LxcCommand},
    failure::Failure,
    features::{
        self, AuthCommand, Feature, FeatureCommand, FsCommand, GroupCommand, HashCommand, SegmentCommand,
        VtepCommand,
    },
    flows::{self, ConnectionCommand, FlowTableCommand, FlowsError, TranslationCommand},
    maps::{Entry, MapsError, Pinned},
    print::{self, Format},
};

#[derive(Debug, Subcommand)]
pub(crate) enum BpfCommand {
    /// Load-balancing maps.
    #[command(subcommand)]
    Lb(LbCommand),
    /// The ipcache map.
    #[command(subcommand)]
    Ipcache(IpcacheCommand),
    /// The endpoint map.
    #[command(subcommand)]
    Endpoint(LxcCommand),
    /// Policy maps of endpoints.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Conntrack maps.
    #[command(subcommand)]
    Ct(ConnectionCommand),
    /// NAT maps.
    #[command(subcommand)]
    Nat(TranslationCommand),
    /// Fragment tracking maps.
    #[command(subcommand)]
    Frag(ListCommand),
    /// Flow table.
    #[command(subcommand)]
    Flows(FlowTableCommand),
    /// Networks of the ip-masq-agent.
    #[command(subcommand)]
    Ipmasq(ListCommand),
    /// The node id map.
    #[command(subcommand, alias = "node-id")]
    Nodeid(ListCommand),
    /// Reverse NAT maps of sockets.
    #[command(subcommand)]
    Socknat(ListCommand),
    /// Metrics of the BPF programs.
    #[command(subcommand)]
    Metrics(CounterCommand),
    /// Rate limits of events.
    #[command(subcommand)]
    Ratelimit(ListCommand),
    /// Authentication map.
    #[command(subcommand)]
    Auth(AuthCommand),
    /// Bandwidth manager.
    #[command(subcommand)]
    Bandwidth(FeatureCommand),
    /// Egress gateway.
    #[command(subcommand)]
    Egress(FeatureCommand),
    /// Values of the datapath's configuration.
    #[command(subcommand)]
    Config(FeatureCommand),
    /// Multicast groups.
    #[command(subcommand)]
    Multicast(GroupCommand),
    /// Hashes of the datapath.
    #[command(subcommand)]
    Sha(HashCommand),
    /// Segment routing.
    #[command(subcommand)]
    Srv6(SegmentCommand),
    /// VXLAN tunnel endpoints.
    #[command(subcommand)]
    Vtep(VtepCommand),
    /// The BPF file system.
    #[command(subcommand)]
    Fs(FsCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum LbCommand {
    /// List service entries with their backends.
    #[command(alias = "ls")]
    List {
        /// Raw service entries.
        #[arg(long, group = "what")]
        frontends: bool,
        /// Backends.
        #[arg(long, group = "what")]
        backends: bool,
        /// Frontend addresses by service id.
        #[arg(long, group = "what")]
        revnat: bool,
        /// Source ranges.
        #[arg(long, group = "what")]
        source_ranges: bool,
    },
    /// Maglev tables.
    #[command(subcommand)]
    Maglev(MaglevCommand),
    /// Session affinity.
    #[command(subcommand)]
    Affinity(ListCommand),
    /// Skip-redirect entries of redirect policies.
    #[command(subcommand)]
    Skip(ListCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum MaglevCommand {
    /// List all tables.
    #[command(alias = "ls")]
    List,
    /// Show the tables of a service.
    Get {
        /// Id.
        id: u16,
    },
}

/// Runs a command on maps, and prints what it finds.
pub(crate) fn run(
    pinned: &Pinned,
    agent: &Client,
    root: &Path,
    command: &BpfCommand,
    format: Format,
) -> Result<(), Box<dyn Error>> {
    if !rustix::process::geteuid().is_root() && !matches!(command, BpfCommand::Fs(_)) {
        let text = "Please run \"skep bpf\" command(s) with root privileges.";
        return Err(Failure::Bare(text.to_owned()).into());
    }
    let text = match command {
        BpfCommand::Fs(FsCommand::Show) => features::file_system(root)?,
        BpfCommand::Ipcache(command) => datapath::ipcache(pinned, command, format)?,
        BpfCommand::Policy(command) => bpf_policy::run(pinned, agent, command, format)?,
        BpfCommand::Auth(command) => features::authentication(pinned, *command)?,
        BpfCommand::Bandwidth(_) => datapath::bandwidth(pinned, format)?,
        BpfCommand::Config(_) => features::list(pinned, Feature::Config)?,
        BpfCommand::Egress(_) => features::list(pinned, Feature::EgressGateway)?,
        BpfCommand::Multicast(_) => features::list(pinned, Feature::Multicast)?,
        BpfCommand::Sha(HashCommand::List) => features::list(pinned, Feature::Hashes)?,
        BpfCommand::Sha(HashCommand::Get { sha }) => return Err(features::template(sha.as_deref()).into()),
        BpfCommand::Srv6(command) => features::list(pinned, Feature::Srv6(*command))?,
        BpfCommand::Vtep(command) => features::vtep(pinned, command)?,
        command => return streamed(|out| entries(pinned, command, format, out)),
    };
    print!("{text}");
    Ok(())
}

/// Writes what is too large to be one text.
fn streamed(write: impl FnOnce(&mut dyn Write) -> Result<(), FlowsError>) -> Result<(), Box<dyn Error>> {
    // Pieces of the size of a pipe.
    let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    let result = write(&mut out).and_then(|()| Ok(out.flush()?));
    match result {
        // A closed pipe (`skep … | head`) is no error.
        Err(FlowsError::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn entries(
    pinned: &Pinned,
    command: &BpfCommand,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), FlowsError> {
    const BACKEND: &str = "BACKEND ADDRESS (REVNAT_ID) (SLOT)";
    let (entries, titles): (Vec<Entry>, [&str; 2]) = match command {
        BpfCommand::Lb(LbCommand::List { frontends: true, .. }) => {
            (pinned.frontends()?, ["SERVICE ADDRESS", "BACKEND ID"])
        }
        BpfCommand::Lb(LbCommand::List { backends: true, .. }) => (pinned.backends()?, ["ID", BACKEND]),
        BpfCommand::Lb(LbCommand::List { revnat: true, .. }) => (pinned.reverse_nat()?, ["ID", BACKEND]),
        BpfCommand::Lb(LbCommand::List {
            source_ranges: true, ..
        }) => (pinned.source_ranges()?, ["SOURCE RANGE (REVNAT_ID)", ""]),
        BpfCommand::Lb(LbCommand::List { .. }) => (pinned.services()?, ["SERVICE ADDRESS", BACKEND]),
        BpfCommand::Lb(LbCommand::Maglev(command)) => {
            let mut tables = pinned.maglev()?;
            if let MaglevCommand::Get { id } = command {
                let of = [format!("[{id}]/v4"), format!("[{id}]/v6")];
                tables.retain(|(service, _)| of.contains(service));
                if tables.is_empty() {
                    return Err(MapsError::NoEntry {
                        map: MAGLEV4.name,
                        key: id.to_string(),
                    }
                    .into());
                }
            }
            (tables, ["SVC ID", "LOOKUP TABLE"])
        }
        BpfCommand::Lb(LbCommand::Affinity(ListCommand::List)) => (
            pinned.affinities()?,
            ["CLIENT (REVNAT_ID)", "BACKEND_ID LAST_USED"],
        ),
        BpfCommand::Lb(LbCommand::Skip(ListCommand::List)) => {
            (pinned.skipped()?, ["NAMESPACE AND FRONTEND", ""])
        }
        BpfCommand::Ratelimit(ListCommand::List) => (
            pinned.entries(RATELIMIT.name)?,
            ["USAGE IFINDEX", "TOKENS LAST_TOPUP"],
        ),
        BpfCommand::Endpoint(command) => {
            return Ok(out.write_all(datapath::endpoints(pinned, command, format)?.as_bytes())?);
        }
        BpfCommand::Ipmasq(ListCommand::List) => {
            return Ok(out.write_all(datapath::unmasqueraded(pinned, format)?.as_bytes())?);
        }
        BpfCommand::Frag(ListCommand::List) => {
            return Ok(out.write_all(datapath::fragments(pinned, format)?.as_bytes())?);
        }
        BpfCommand::Metrics(command) => {
            return Ok(out.write_all(datapath::metrics(pinned, command, format)?.as_bytes())?);
        }
        BpfCommand::Nodeid(ListCommand::List) => {
            return Ok(out.write_all(datapath::node_ids(pinned, format)?.as_bytes())?);
        }
        BpfCommand::Socknat(ListCommand::List) => (pinned.sockets()?, ["BACKEND -> COOKIE", "FRONTEND"]),
        // Elsewhere: they write little.
        BpfCommand::Ipcache(_)
        | BpfCommand::Policy(_)
        | BpfCommand::Auth(_)
        | BpfCommand::Bandwidth(_)
        | BpfCommand::Egress(_)
        | BpfCommand::Config(_)
        | BpfCommand::Multicast(_)
        | BpfCommand::Sha(_)
        | BpfCommand::Srv6(_)
        | BpfCommand::Vtep(_)
        | BpfCommand::Fs(_) => return Ok(()),
        BpfCommand::Ct(command) => return flows::connections(pinned, command, format, out),
        BpfCommand::Nat(command) => return flows::translations(pinned, command, format, out),
        BpfCommand::Flows(FlowTableCommand::Flush) => return Ok(pinned.flush_flow_table()?),
        BpfCommand::Flows(FlowTableCommand::List) => (pinned.flow_table()?, ["FLOW", "RESULT"]),
        BpfCommand::Flows(FlowTableCommand::Stats) => (pinned.flow_counters()?, ["COUNTER", "PACKETS"]),
    };
    // An empty table of Maglev has its titles.
    if entries.is_empty()
        && format == Format::Text
        && !matches!(command, BpfCommand::Lb(LbCommand::Maglev(_)))
    {
        datapath::no_entries();
        return Ok(());
    }
    Ok(out.write_all(print::entries(&entries, titles, format).as_bytes())?)
}
