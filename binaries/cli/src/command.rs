// SPDX-License-Identifier: Apache-2.0

//! The command line, and what each command does.

use std::{
    error::Error,
    io::Write,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory, Parser, Subcommand};
use jiff::Timestamp;
use serde_json::Value;
use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::{LrpSpec, StatusResponse};
use skep_shell::Remote;

use crate::{
    address::{self, IpCommand},
    agent, bpf,
    cleanup::{self, CleanupOptions},
    cluster,
    config::{self, ConfigOptions},
    debuginfo::{self, DebugInfoOptions},
    duration::duration,
    encrypt,
    endpoint::{self, EndpointCommand},
    failure::{Failure, fatal},
    fqdn::{self, FqdnCommand},
    health::{self, HealthCommand},
    identity::{self, IdentityCommand},
    inventory, load, lrp,
    maps::Pinned,
    mesh,
    monitor::{self, MonitorCommand, MonitorError},
    own::Own,
    policy, prefilter,
    preflight::{self, PreflightCommand},
    print::{self, Format},
    service,
    status::{self, Details, Sources},
    sysdump::{self, SysdumpOptions},
    version,
};

/// The agent's API socket, unless it is given.
pub(crate) const SOCKET: &str = "unix:///var/run/cilium/cilium.sock";

/// Inspects a node's agent and its BPF maps.
#[derive(Debug, Parser)]
#[command(name = "skep", version, arg_required_else_help = true, after_help = cluster::HELP)]
pub(crate) struct Line {
    /// The agent's API socket.
    #[arg(
        short = 'H',
        long,
        global = true,
        env = "CILIUM_SOCK",
        default_value = SOCKET
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
    Service(service::ServiceCommand),
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
    Bpf(bpf::BpfCommand),
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
    Encrypt(encrypt::EncryptCommand),
    /// List and change the networks that XDP drops.
    #[command(subcommand)]
    Prefilter(prefilter::PrefilterCommand),
    /// Show load and memory of the node.
    Loadinfo,
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
    /// Check whether an agent can run on this node; validate policies and settings.
    #[command(subcommand)]
    Preflight(PreflightCommand),
    /// Print the completion script of a shell.
    Completion {
        /// Shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version,
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
pub(crate) enum ListCommand {
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
        Command::Service(command) => service::run(&agent, &command, format)?,
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
        Command::Bpf(command) => {
            bpf::run(&pinned, &agent, &line.bpf_root, &command, format)?;
            return Ok(code);
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
        Command::Encrypt(command) => encrypt::run(&agent, command, format)?,
        Command::Prefilter(command) => prefilter::run(&agent, &command, format)?,
        Command::Loadinfo => load::text(Path::new("/proc"))?,
        Command::Fqdn(command) => fqdn::run(&agent, &command, format)?,
        Command::Config(options) => config::run(&agent, &options, format)?,
        Command::Troubleshoot(TroubleshootCommand::Clustermesh { .. }) if !mesh::is_configured(&agent) => {
            mesh::DISABLED.to_owned()
        }
        Command::Troubleshoot(TroubleshootCommand::Clustermesh { names, timeout }) => {
            let words = [
                "clustermesh/troubleshoot".to_owned(),
                format!("--timeout={}", skep_duration::format_duration(timeout)),
            ];
            let words: Vec<String> = words.into_iter().chain(names).collect();
            return Ok(status_of(shell.check(&words)?));
        }
        #[cfg(feature = "kvstore")]
        Command::Troubleshoot(TroubleshootCommand::Kvstore(options)) => {
            match crate::kvstore::check(options, &agent) {
                Err(crate::kvstore::KvstoreError::NoStore { .. }) => crate::kvstore::DISABLED.to_owned(),
                findings => {
                    let findings = findings?;
                    if !findings.is_healthy {
                        code = ExitCode::FAILURE;
                    }
                    findings.text
                }
            }
        }
        Command::Shell { words } => return Ok(status_of(shell.run(&words)?)),
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
        Command::Preflight(command) => preflight::run(&command, format)?,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Line::command(), "skep", &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
        Command::Version => version::text(&agent, format),
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

/// Converts JSON of the agent to the output format.
fn document(text: &str, format: Format) -> Result<String, Box<dyn Error>> {
    Ok(print::value(&serde_json::from_str(text)?, format))
}

fn status_of(is_success: bool) -> ExitCode {
    match is_success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
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
