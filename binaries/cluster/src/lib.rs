// SPDX-License-Identifier: Apache-2.0

//! Commands of `skep` on a whole cluster: installation by Helm with a chart that this program carries, status, connectivity,
//! cluster mesh, migration. `skep` starts this program: it links no client of Kubernetes itself.

mod access;
mod chart;
mod config;
mod connectivity;
mod detect;
mod exec;
mod install;
mod mesh;
mod migrate;
mod preflight;
mod status;
mod sysdump;

use std::{error::Error, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};

use access::{Access, ClusterOptions};

/// Installs, checks and meshes clusters.
#[derive(Debug, Parser)]
#[command(name = "skep", bin_name = "skep", version, arg_required_else_help = true)]
struct Line {
    #[command(flatten)]
    cluster: ClusterOptions,
    #[command(subcommand)]
    command: Command,
}

/// Commands on a cluster.
#[derive(Debug, Subcommand)]
enum Command {
    /// Install Skep in the cluster, by Helm.
    Install(Box<install::InstallOptions>),
    /// Upgrade the installation, or change its values.
    Upgrade(Box<install::UpgradeOptions>),
    /// Remove the installation from the cluster.
    Uninstall(install::UninstallOptions),
    /// Show the status of the installation. The exit status is 1 if it cannot be collected.
    Status(status::StatusOptions),
    /// Check whether the cluster and its nodes are ready for Skep.
    Preflight(preflight::PreflightOptions),
    /// Show or change ConfigMap cilium-config.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Test and measure the connectivity of pods.
    #[command(subcommand)]
    Connectivity(connectivity::ConnectivityCommand),
    /// Mesh clusters.
    #[command(subcommand)]
    Clustermesh(mesh::MeshCommand),
    /// Collect what helps to find a fault in the cluster, without secrets.
    Sysdump(sysdump::SysdumpOptions),
    /// Replace another CNI plugin or kube-proxy, node by node.
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    /// Print the context in use, its cluster and namespace.
    Context,
    /// Print versions: of this program, and of the agents.
    Version {
        /// Only of this program.
        #[arg(long)]
        client: bool,
    },
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let line = Line::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(&line)),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nError: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The commands, for documentation and completion.
#[must_use]
pub fn command() -> clap::Command {
    Line::command()
}

/// Runs a command line; the exit status of an error is 1.
async fn run(line: &Line) -> Result<(), Box<dyn Error>> {
    if let Command::Version { client: true } = line.command {
        println!("skep: v{}", chart::VERSION);
        return Ok(());
    }
    let access = Access::connect(&line.cluster).await?;
    // Prints what the kubeconfig says: no server is needed.
    let access = match line.command {
        Command::Context => access,
        _ => access.with_release().await?,
    };
    let access = &access;
    match &line.command {
        Command::Install(options) => install::install(access, options).await,
        Command::Upgrade(options) => install::upgrade(access, options).await,
        Command::Uninstall(options) => install::uninstall(access, options).await,
        Command::Status(options) => status::run(access, options).await.map(|_| ()),
        Command::Preflight(options) => preflight::run(access, options).await,
        Command::Config(command) => config::run(access, command).await,
        Command::Connectivity(command) => connectivity::run(access, command).await,
        Command::Clustermesh(command) => mesh::run(access, command).await,
        Command::Sysdump(options) => sysdump::run(access, options).await,
        Command::Migrate(command) => migrate::run(access, command).await,
        Command::Context => {
            println!(
                "Context: {}\nCluster: {}\nNamespace: {}",
                access.context,
                access.cluster,
                access.namespace()
            );
            Ok(())
        }
        Command::Version { .. } => version(access).await,
    }
}

async fn version(access: &Access) -> Result<(), Box<dyn Error>> {
    println!("skep: v{0}\nskep chart (default): {0}", chart::VERSION);
    let mut versions: Vec<String> = Vec::new();
    for agent in access.agents().await? {
        versions.push(match access.agent_json(&agent, &["version"]).await {
            Ok(found) => access::text(&found, "/Daemon/Version").to_owned(),
            Err(error) => format!("unknown ({error})"),
        });
    }
    versions.sort();
    versions.dedup();
    let running = if versions.is_empty() {
        "unknown. There is no agent".to_owned()
    } else {
        versions.join(", ")
    };
    println!("skep image (running): {running}");
    Ok(())
}

/// A text as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failure(String);

fn failure(text: impl Into<String>) -> Box<dyn Error> {
    Box::new(Failure(text.into()))
}

/// An error and its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        // Clients of HTTP repeat their causes.
        if !text.ends_with(&next_text) {
            text.push_str(&format!(": {next_text}"));
        }
        cause = next.source();
    }
    text
}
