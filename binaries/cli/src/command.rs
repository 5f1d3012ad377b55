// SPDX-License-Identifier: Apache-2.0

//! The command line, and what each command does.

use std::{
    error::Error, io::Write, os::unix::process::CommandExt as _, path::PathBuf, process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory, Parser, Subcommand};
use jiff::Timestamp;
use serde_json::Value;
use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::{LrpSpec, StatusResponse};
use skep_bpf_maps::{event::RATELIMIT, lb::MAGLEV4};
use skep_shell::Remote;

use crate::{
    address::{self, IpCommand},
    agent,
    cleanup::{self, CleanupOptions},
    config::{self, ConfigOptions},
    datapath::{self, CounterCommand, IpcacheCommand, LxcCommand, PolicyCommand},
    debuginfo::{self, DebugInfoOptions},
    duration::duration,
    endpoint::{self, EndpointCommand},
    failure::{Failure, fatal, usage},
    features::{self, Feature, FeatureCommand, FsCommand},
    flows::{self, ConnectionCommand, FlowsError, TranslationCommand},
    fqdn::{self, FqdnCommand},
    health::{self, HealthCommand},
    identity::{self, IdentityCommand},
    inventory, lrp,
    maps::{Entry, MapsError, Pinned},
    mesh,
    monitor::{self, MonitorCommand, MonitorError},
    own::Own,
    policy,
    print::{self, Format},
    service,
    status::{self, Details, Sources},
    sysdump::{self, SysdumpOptions},
};

/// Inspects a node's agent and its BPF maps.
#[derive(Debug, Parser)]
#[command(name = "skep", version, arg_required_else_help = true)]
pub(crate) struct Line {
    /// The agent's API socket.
    #[arg(
        short = 'H',
        long,
        global = true,
        env = "CILIUM_SOCK",
        default_value = "unix:///var/run/cilium/cilium.sock"
    )]
    host: String,
    /// The agent's shell socket.
    #[arg(long, global = true, default_value = "/var/run/cilium/shell.sock")]
    shell_sock_path: PathBuf,
    /// Mount point of the BPF file system, for commands on pinned maps.
    #[arg(long, global = true, default_value = "/sys/fs/bpf")]
    bpf_root: PathBuf,
    /// Output format: text, json, yaml or jsonpath=TEMPLATE. Default: text.
    #[arg(short, long, global = true, value_name = "FORMAT")]
    output: Vec<Format>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the status of the agent.
    Status {
        /// Print OK or errors only; the exit status is 0 if the agent is healthy.
        #[arg(long)]
        brief: bool,
        /// Print all details.
        #[arg(long)]
        verbose: bool,
        /// Print all allocated addresses.
        #[arg(long)]
        all_addresses: bool,
        /// Print details of all remote clusters, including ready ones.
        #[arg(long)]
        all_clusters: bool,
        /// Print all background jobs, including healthy ones.
        #[arg(long)]
        all_controllers: bool,
        /// Print the health of all modules.
        #[arg(long)]
        all_health: bool,
        /// Print all nodes, including reachable ones.
        #[arg(long)]
        all_nodes: bool,
        /// Print all redirects to proxies.
        #[arg(long)]
        all_redirects: bool,
        /// Whether the agent is unhealthy without connectivity to the API server.
        #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
            action = clap::ArgAction::Set)]
        require_k8s_connectivity: bool,
        /// Timeout of the request.
        #[arg(long, default_value = "30s", value_parser = duration)]
        timeout: Duration,
    },
    /// Show the connectivity between nodes.
    #[command(subcommand)]
    Health(HealthCommand),
    /// List services or show one.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// List the local redirect policies of the agent.
    #[command(subcommand)]
    Lrp(ListCommand),
    /// List, show and delete endpoints of the node.
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// List security identities or show one.
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// List ipcache entries of the agent or show one.
    #[command(subcommand)]
    Ip(IpCommand),
    /// Check connections, step by step.
    #[command(subcommand)]
    Troubleshoot(TroubleshootCommand),
    /// Show remote clusters of the cluster mesh, or connect to one.
    #[command(subcommand)]
    Clustermesh(ClusterMeshCommand),
    /// List the nodes of all clusters, with addresses and pod CIDRs.
    #[command(subcommand)]
    Node(ListCommand),
    /// List node ids.
    #[command(subcommand)]
    Nodeid(ListCommand),
    /// List and change entries of pinned BPF maps, without the agent.
    #[command(subcommand)]
    Bpf(BpfCommand),
    /// Read and write keys of the key-value store: the agent's, or that of --kvstore-opt.
    #[cfg(feature = "kvstore")]
    Kvstore(crate::kvstore::KvstoreCommand),
    /// Show BPF maps by name: from the agent, or pinned maps without it.
    #[command(subcommand)]
    Map(MapCommand),
    /// Show or change the agent's configuration.
    Config(ConfigOptions),
    /// Show policies and their selectors, wait for endpoints to have them.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show and delete the names that endpoints looked up.
    #[command(subcommand)]
    Fqdn(FqdnCommand),
    /// Show the encryption of traffic between nodes.
    #[command(subcommand)]
    Encrypt(EncryptCommand),
    /// List the networks that XDP drops.
    #[command(subcommand)]
    Prefilter(ListCommand),
    /// List the control groups of the node's pods.
    #[command(subcommand)]
    Cgroups(ListCommand),
    /// Run a command in the agent, or open a prompt.
    Shell {
        /// Command and arguments, or a command line as one argument; default: a prompt.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print events of BPF programs and of the agent.
    Monitor(MonitorCommand),
    /// Show the agent's cells, hooks and jobs.
    Hive,
    /// List the agent's metrics.
    #[command(subcommand)]
    Metrics(MetricsCommand),
    /// Print the agent's tables, as JSON.
    Statedb,
    /// Show what helps to find a fault: as markdown, html or json.
    Debuginfo(DebugInfoOptions),
    /// Collect what helps to find a fault on this node in one archive, without secrets.
    Sysdump(SysdumpOptions),
    /// Remove what an agent left on the node: programs, maps, interfaces, routes, state, CNI configuration.
    #[command(alias = "post-uninstall-cleanup")]
    Cleanup(CleanupOptions),
    /// Write the configuration of this node in the cluster to a directory: `skep-agent build-config`.
    #[command(disable_help_flag = true)]
    BuildConfig {
        /// Arguments of `skep-agent build-config`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Print the completion script of a shell.
    Completion {
        /// Shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// List all services.
    #[command(alias = "ls")]
    List {
        /// Mark preferred backends.
        #[arg(long)]
        clustermesh_affinity: bool,
    },
    /// Show one service.
    Get {
        /// Id.
        id: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum TroubleshootCommand {
    /// Check the connections of the agent to remote clusters. The exit status is 1 if a check fails.
    Clustermesh {
        /// Names of the clusters; default: all.
        names: Vec<String>,
        /// Timeout of each check.
        #[arg(long, default_value = "5s", value_parser = duration)]
        timeout: Duration,
    },
    /// Check the connection to the local etcd. The exit status is 1 if a check fails.
    #[cfg(feature = "kvstore")]
    Kvstore(crate::kvstore::TroubleshootOptions),
}

#[derive(Debug, Subcommand)]
enum ClusterMeshCommand {
    /// Show the status of each remote cluster.
    Status,
    /// Connect to a remote cluster: configure the agent of this node, or print the Secret for all of them.
    EnableConfig(Box<mesh::enable::EnableOptions>),
}

#[derive(Debug, Subcommand)]
enum BpfCommand {
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
    Auth(FeatureCommand),
    /// Bandwidth manager.
    #[command(subcommand)]
    Bandwidth(FeatureCommand),
    /// Egress gateway.
    #[command(subcommand)]
    Egress(FeatureCommand),
    /// Hashes of the datapath.
    #[command(subcommand)]
    Sha(FeatureCommand),
    /// VXLAN tunnel endpoints.
    #[command(subcommand)]
    Vtep(FeatureCommand),
    /// The BPF file system.
    #[command(subcommand)]
    Fs(FsCommand),
}

#[derive(Debug, Subcommand)]
enum EncryptCommand {
    /// Show the state of the encryption.
    Status,
    /// List the states of IPsec.
    DumpXfrm,
}

#[derive(Debug, Subcommand)]
enum ListCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
}

#[derive(Debug, Subcommand)]
enum MetricsCommand {
    /// List all metrics.
    #[command(alias = "ls")]
    List {
        /// Filter by a regular expression on name and labels.
        #[arg(short = 'p', long)]
        match_pattern: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum LbCommand {
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
enum MaglevCommand {
    /// List all tables.
    #[command(alias = "ls")]
    List,
    /// Show the tables of a service.
    Get {
        /// Id.
        id: u16,
    },
}

#[derive(Debug, Subcommand)]
enum MapCommand {
    /// List all maps.
    #[command(alias = "ls")]
    List {
        /// Show entries.
        #[arg(long)]
        verbose: bool,
    },
    /// Show the entries of one map.
    Get {
        /// Name of the map.
        name: Option<String>,
    },
    /// Show the event buffer of one map (bpf-map-event-buffers).
    Events {
        /// Name of the map.
        name: Option<String>,
        /// Follow new writes.
        #[arg(short, long)]
        follow: bool,
    },
}

/// Where the API serves all tables. Not the shell: that holds its output as one text.
const TABLES: &str = "debug/db/dump";

/// Runs a command; returns its exit status.
pub(crate) fn run(line: Line) -> Result<ExitCode, Box<dyn Error>> {
    let agent = Client::new(&line.host)?;
    let shell = Remote::new("the agent", &line.shell_sock_path);
    let pinned = Pinned::below(&line.bpf_root);
    let own = Own::new([
        "--host".into(),
        line.host.clone().into(),
        "--shell-sock-path".into(),
        line.shell_sock_path.clone().into(),
        "--bpf-root".into(),
        line.bpf_root.clone().into(),
    ]);
    if let Command::Debuginfo(options) = &line.command {
        let text = debuginfo::run(&agent, &own, options, &line.output)?;
        let mut out = std::io::stdout().lock();
        let written_all = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        return written(written_all.map_err(ClientError::Write), ExitCode::SUCCESS);
    }
    let format = line.output.last().copied().unwrap_or_default();
    if matches!(format, Format::Unknown(_)) && matches!(line.command, Command::Status { .. }) {
        return Ok(ExitCode::FAILURE);
    }
    if matches!(format, Format::Unknown(_)) {
        return Err(Failure::Bare("couldn't find output printer".to_owned()).into());
    }
    let mut code = ExitCode::SUCCESS;
    let text = match line.command {
        Command::Status {
            brief,
            verbose,
            all_addresses,
            all_clusters,
            all_controllers,
            all_health,
            all_nodes,
            all_redirects,
            require_k8s_connectivity,
            timeout,
        } => {
            let of_bool = |is_on| if is_on { "true" } else { "false" };
            let headers = [
                ("brief", of_bool(brief)),
                ("require-k8s-connectivity", of_bool(require_k8s_connectivity)),
            ];
            let agent = agent.with_timeout(timeout);
            let answer: Value = agent::get_with(&agent, &agent::GET_HEALTH, &headers)
                .map_err(|error| health::unreachable(&error, brief))?;
            if format == Format::Text {
                let answer: StatusResponse = serde_json::from_value(answer)?;
                let failure = status::failure(&answer);
                if !status::is_well(&answer) || brief && failure.is_some() {
                    code = ExitCode::FAILURE;
                }
                let details = match verbose {
                    true => Details::all(),
                    false => Details {
                        addresses: all_addresses,
                        controllers: all_controllers,
                        nodes: all_nodes,
                        redirects: all_redirects,
                        clusters: all_clusters,
                        health: all_health,
                        verbose: false,
                    },
                };
                let sources = Sources {
                    health: &|| health::results(&line.host, timeout),
                    tree: &|| shell.ask("health").ok(),
                };
                match (brief, failure) {
                    (true, failure) => failure.unwrap_or_else(|| "OK".to_owned()) + "\n",
                    (false, _) => status::text(&answer, details, &sources),
                }
            } else {
                print::api(&answer, "StatusResponse", format)
            }
        }
        Command::Health(command) => health::run(&line.host, &command, format)?,
        Command::Service(command) => services(&agent, &command, format)?,
        Command::Lrp(ListCommand::List) => {
            let policies: Vec<LrpSpec> = agent.get("lrp", &[])?;
            match format {
                Format::Text => lrp::list(&policies),
                _ => print::document(&policies, format)?,
            }
        }
        Command::Clustermesh(ClusterMeshCommand::Status) => {
            let answer: StatusResponse = agent.get("healthz", &[])?;
            let mesh = answer.cluster_mesh;
            match format {
                Format::Text => match &mesh {
                    Some(mesh) => mesh::clusters(mesh, true, Timestamp::now()),
                    None => "ClusterMesh:\tDisabled\n".to_owned(),
                },
                _ => print::document(&mesh, format)?,
            }
        }
        Command::Endpoint(command) => endpoint::run(&agent, &command, format)?,
        Command::Identity(command) => identity::run(&agent, &command, format)?,
        Command::Clustermesh(ClusterMeshCommand::EnableConfig(options)) => {
            let (text, is_ready) = mesh::enable::run(&agent, *options, format)?;
            if !is_ready {
                code = ExitCode::FAILURE;
            }
            text
        }
        Command::Ip(command) => address::run(&agent, &command, format)?,
        Command::Node(ListCommand::List) => address::nodes(&agent, format)?,
        Command::Nodeid(ListCommand::List) => address::node_ids(&agent, format)?,
        Command::Cgroups(ListCommand::List) => address::cgroups(&agent, format)?,
        Command::Bpf(BpfCommand::Fs(FsCommand::Show)) => features::file_system(&line.bpf_root)?,
        Command::Bpf(_) if !rustix::process::geteuid().is_root() => {
            let text = "Please run \"skep bpf\" command(s) with root privileges.";
            return Err(Failure::Bare(text.to_owned()).into());
        }
        Command::Bpf(BpfCommand::Ipcache(command)) => datapath::ipcache(&pinned, &command, format)?,
        Command::Bpf(BpfCommand::Policy(command)) => datapath::policy(&pinned, &command, format)?,
        Command::Bpf(command) => {
            let feature = match command {
                BpfCommand::Auth(FeatureCommand::List) => Some(Feature::Authentication),
                BpfCommand::Bandwidth(FeatureCommand::List) => Some(Feature::Bandwidth),
                BpfCommand::Egress(FeatureCommand::List) => Some(Feature::EgressGateway),
                BpfCommand::Sha(FeatureCommand::List) => Some(Feature::Hashes),
                BpfCommand::Vtep(FeatureCommand::List) => Some(Feature::Vtep),
                _ => None,
            };
            if let Some(feature) = feature {
                print!("{}", features::list(&pinned, feature)?);
                return Ok(code);
            }
            let printed = streamed(|out| bpf(&pinned, &command, format, out));
            return printed.map(|()| code);
        }
        #[cfg(feature = "kvstore")]
        Command::Kvstore(command) => {
            let found = crate::kvstore::run(command, &agent, format)?;
            let mut out = std::io::stdout().lock();
            let written_all = out.write_all(&found).and_then(|()| out.flush());
            return written(written_all.map_err(ClientError::Write), code);
        }
        Command::Map(MapCommand::List { verbose }) => inventory::list(&agent, &pinned, verbose, format)?,
        Command::Map(MapCommand::Get { name }) => {
            let name = name.ok_or_else(|| fatal("map name must be specified"))?;
            inventory::get(&agent, &pinned, &name, format)?
        }
        Command::Map(MapCommand::Events { name, follow }) => {
            let name = name.ok_or_else(|| fatal("map name must be specified"))?;
            let mut out = std::io::stdout().lock();
            let written_all = inventory::events(&agent, &name, follow, format, |line| {
                out.write_all(line)?;
                out.flush()
            });
            return written(written_all, code);
        }
        Command::Policy(command) => policy::run(&agent, &command, format)?,
        Command::Encrypt(EncryptCommand::Status) => encryption(&agent, format)?,
        // This agent has no IPsec.
        Command::Encrypt(EncryptCommand::DumpXfrm) => "null\n".to_owned(),
        Command::Prefilter(ListCommand::List) => {
            let found: Value = agent::get(&agent, &agent::GET_PREFILTER, "")
                .map_err(|error| fatal(format!("Cannot get CIDR list: {error}")))?;
            print::value(&found, format)
        }
        Command::Fqdn(command) => fqdn::run(&agent, &command, format)?,
        Command::Config(options) => config::run(&agent, &options, format)?,
        Command::Troubleshoot(TroubleshootCommand::Clustermesh { names, timeout }) => {
            let words = [
                "clustermesh/troubleshoot".to_owned(),
                format!("--timeout={}", skep_duration::format_duration(timeout)),
            ];
            let words: Vec<String> = words.into_iter().chain(names).collect();
            return in_agent(&shell, &words);
        }
        #[cfg(feature = "kvstore")]
        Command::Troubleshoot(TroubleshootCommand::Kvstore(options)) => {
            let findings = crate::kvstore::check(options, &agent)?;
            if !findings.is_healthy {
                code = ExitCode::FAILURE;
            }
            findings.text
        }
        Command::Shell { words } => return in_agent(&shell, &words),
        Command::Monitor(_) if matches!(format, Format::Yaml | Format::JsonPath(_)) => {
            return Err("monitor prints text or JSON".into());
        }
        Command::Monitor(command) => {
            return match monitor::run(&command, &agent, format == Format::Json) {
                // A closed pipe (`skep monitor | head`) is no error.
                Err(MonitorError::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(code),
                ended => Ok(ended.map(|()| code)?),
            };
        }
        Command::Hive if format == Format::Text => shell.ask("hive")?,
        Command::Hive => document(&shell.ask("hive/state")?, format)?,
        Command::Statedb if matches!(format, Format::Yaml | Format::JsonPath(_)) => {
            print::value(&agent.get::<Value>(TABLES, &[])?, format)
        }
        Command::Statedb => {
            let mut out = std::io::stdout().lock();
            let copied = agent.copy(TABLES, &[], |piece| out.write_all(piece));
            return written(copied, code);
        }
        Command::Metrics(MetricsCommand::List { match_pattern }) => {
            let mut words = vec!["metrics".to_owned()];
            if format != Format::Text {
                words.push("--format=json".to_owned());
            }
            words.extend(match_pattern);
            let metrics = shell.ask(&skep_shell::line(&words))?;
            match format {
                Format::Text | Format::Json => metrics,
                _ => document(&metrics, format)?,
            }
        }
        // Above: it has forms of its own.
        Command::Debuginfo(_) => String::new(),
        Command::Sysdump(options) => sysdump::run(&agent, &own, &options)?,
        Command::Cleanup(options) => cleanup::run(&options, &line.bpf_root)?,
        Command::BuildConfig { arguments } => return Err(build_config(&arguments)),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Line::command(), "skep", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
        Command::Version => version(&agent, format),
    };
    let mut out = std::io::stdout().lock();
    let written_all = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written(written_all.map_err(ClientError::Write), code)
}

/// The exit status after the output was written.
fn written(result: Result<(), ClientError>, code: ExitCode) -> Result<ExitCode, Box<dyn Error>> {
    match result {
        // A closed pipe (`skep … | head`) is no error.
        Err(ClientError::Write(err)) if err.kind() == std::io::ErrorKind::BrokenPipe => Ok(code),
        Err(err) => Err(err.into()),
        Ok(()) => Ok(code),
    }
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

/// Converts JSON of the agent to the output format.
fn document(text: &str, format: Format) -> Result<String, Box<dyn Error>> {
    Ok(print::value(&serde_json::from_str(text)?, format))
}

fn in_agent(shell: &Remote, words: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    Ok(match shell.run(words)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn services(agent: &Client, command: &ServiceCommand, format: Format) -> Result<String, Box<dyn Error>> {
    let id = match command {
        ServiceCommand::List { .. } => None,
        ServiceCommand::Get { id: None } => return Err(usage("service get", "Missing service id").into()),
        ServiceCommand::Get { id: Some(id) } => {
            let number = id.parse::<u64>();
            let number = number.map_err(|_| fatal(format!("unable to parse service id {id:?}")))?;
            Some(number)
        }
    };
    let mut found: Vec<Value> = agent::get(agent, &agent::LIST_SERVICES, "")
        .map_err(|error| Failure::Bare(format!("Cannot get services list: {error}")))?;
    if let Some(id) = id {
        found.retain(|service| service["spec"]["id"] == id);
        if found.is_empty() {
            return Err(fatal(format!("no service has the id {id}")).into());
        }
    }
    let found = Value::Array(found);
    Ok(match format {
        Format::Text => {
            let affinity = matches!(
                command,
                ServiceCommand::List {
                    clustermesh_affinity: true
                }
            );
            service::list(serde_json::from_value(found)?, affinity)
        }
        _ => print::api(&found, "[Service]", format),
    })
}

fn bpf(pinned: &Pinned, command: &BpfCommand, format: Format, out: &mut dyn Write) -> Result<(), FlowsError> {
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
        | BpfCommand::Sha(_)
        | BpfCommand::Vtep(_)
        | BpfCommand::Fs(_) => return Ok(()),
        BpfCommand::Ct(command) => return flows::connections(pinned, command, format, out),
        BpfCommand::Nat(command) => return flows::translations(pinned, command, format, out),
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

fn encryption(agent: &Client, format: Format) -> Result<String, Box<dyn Error>> {
    let answer: Value = agent::get(agent, &agent::GET_HEALTH, "")
        .map_err(|error| fatal(format!("Cannot get daemon encryption status: {error}")))?;
    let found = &answer["encryption"];
    if format != Format::Text {
        return Ok(print::api(found, "?", format));
    }
    let mode = found["mode"].as_str().unwrap_or("Disabled");
    let mut out = format!("Encryption: {mode:<26}\n");
    for interface in found["wireguard"]["interfaces"].as_array().into_iter().flatten() {
        let text = |name: &str| interface[name].as_str().unwrap_or_default();
        out.push_str(&format!(
            "Interface: {}\n\tPublic key: {}\n\tNumber of peers: {}\n",
            text("name"),
            text("public-key"),
            interface["peer-count"].as_u64().unwrap_or_default()
        ));
    }
    Ok(out)
}

/// Becomes `skep-agent build-config`, which has a client of Kubernetes. Returns only if it cannot be run.
fn build_config(arguments: &[String]) -> Box<dyn Error> {
    const AGENT: &str = "skep-agent";
    let beside = std::env::current_exe().map(|path| path.with_file_name(AGENT));
    let program = beside.ok().filter(|path| path.exists());
    let program = program.unwrap_or_else(|| PathBuf::from(AGENT));
    let error = std::process::Command::new(&program)
        .arg("build-config")
        .args(arguments)
        .exec();
    fatal(format!("cannot run {}: {error}", program.display())).into()
}

fn version(agent: &Client, format: Format) -> String {
    let client = env!("CARGO_PKG_VERSION");
    let answer = agent.get::<StatusResponse>("healthz", &[("brief", "true")]);
    let daemon = answer.map(|answer| answer.cilium.msg).ok();
    match format {
        Format::Text => {
            let daemon = daemon.map_or_else(|| "Not responding".to_owned(), |daemon| format!(" {daemon}"));
            format!("Client:  {client}\nDaemon: {}\n", daemon.trim_end())
        }
        _ => {
            let arch = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
            let version = |version: &str, arch: &str| {
                serde_json::json!({
                    "Version": version, "Revision": "", "GoRuntimeVersion": "", "Arch": arch, "AuthorDate": "",
                })
            };
            let daemon = daemon.map(|daemon| version(&daemon, ""));
            let both = serde_json::json!({ "Client": version(client, &arch), "Daemon": daemon });
            print::value(&both, format)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn version_of_an_agent_that_is_away_is_null_for_programs() {
        let agent = Client::at(Path::new("/nonexistent/agent.sock"));

        let text = version(&agent, Format::Json);

        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["Client"]["Version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(value["Daemon"], Value::Null);
        assert!(version(&agent, Format::Text).ends_with("\nDaemon: Not responding\n"));
    }

    #[test]
    fn completions_name_the_commands() {
        let mut script = Vec::new();
        clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut Line::command(),
            "skep",
            &mut script,
        );
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("source-ranges") && script.contains("completion"));
    }
}
