// SPDX-License-Identifier: Apache-2.0

//! `skep-lab`: clusters of network namespaces on one machine.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use skep_lab::{
    command::{self, Which},
    demo,
    echo::{Calls, EchoServer},
    enter::{self, Placement},
    lab_options::LabOptions,
    state::{Phase, State},
    supervisor,
};

/// Clusters of network namespaces on one machine.
#[derive(Debug, Parser)]
#[command(name = "skep-lab", version)]
struct Line {
    #[command(flatten)]
    which: Which,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a lab: its network, API servers, nodes and agents.
    Up(LabOptions),
    /// Remove a lab, also a partial one.
    Down {
        /// All labs on this machine.
        #[arg(long)]
        all: bool,
    },
    /// Show the state of a lab.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a program on a node (`c1-n1`, `n1`) or in a pod (`namespace/name`).
    Exec {
        /// Node or pod.
        target: String,
        /// Program and arguments.
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Print a kubeconfig for a cluster.
    Kubeconfig {
        /// Name of the cluster.
        #[arg(default_value = "c1")]
        cluster: String,
    },
    /// Change the cluster mesh of a running lab.
    Mesh {
        /// What to change.
        #[command(subcommand)]
        change: MeshChange,
    },
    /// Show load balancing, check it, and remove the lab again.
    Demo(demo::Options),
    /// Run a lab (used by `up`).
    #[command(hide = true)]
    Supervise(LabOptions),
    /// Call an echo server and count answers by server.
    Call(Calls),
    /// Serve as an echo server (what pods of the lab run).
    Echo(EchoServer),
    /// Start a program in namespaces of the lab (used by the lab itself).
    #[command(hide = true)]
    Place(Placement),
    /// Hold namespaces open until killed (used by the lab itself).
    #[command(hide = true)]
    Hold,
    /// Remove the pin of a network namespace (used by the lab itself).
    #[command(hide = true)]
    Unpin {
        /// The pin.
        path: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum MeshChange {
    /// Connect a cluster to the mesh.
    Join {
        /// Name of the cluster.
        cluster: String,
    },
    /// Disconnect a cluster from all others.
    Leave {
        /// Name of the cluster.
        cluster: String,
    },
    /// Stop etcd of a cluster until `start`.
    Stop {
        /// Name of the cluster.
        cluster: String,
    },
    /// Restart etcd of a cluster.
    Start {
        /// Name of the cluster.
        cluster: String,
    },
}

fn main() -> ExitCode {
    let line = Line::parse();
    match run(&line.which.name, line.command) {
        Ok(code) => code,
        Err(err) => {
            eprintln!("skep-lab: {}", hive::error_chain(&*err));
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        // Before any thread exists: namespaces are entered by a process of one thread.
        Command::Place(placement) => match placement.become_program() {
            Ok(never) => match never {},
            Err(err) => {
                eprintln!("skep-lab: {}", hive::error_chain(&err));
                Ok(ExitCode::from(err.exit_code()))
            }
        },
        Command::Hold => loop {
            std::thread::park();
        },
        Command::Unpin { path } => {
            enter::unpin(&path);
            Ok(ExitCode::SUCCESS)
        }
        other => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(run_async(name, other)),
    }
}

async fn run_async(name: &str, command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        Command::Up(lab_options) => {
            let state = command::up(name, &lab_options, |what| eprintln!("… {what}")).await?;
            if lab_options.install {
                eprintln!("… helm install");
                let took = command::install(&state, &lab_options).await?;
                println!("agents are ready {:.1} s after helm install", took.as_secs_f64());
            }
            print!("{}", command::describe(&state));
        }
        Command::Down { all: true } => {
            for lab in command::leftovers()? {
                command::down(&lab)?;
                println!("{lab} is down");
            }
        }
        Command::Down { all: false } => command::down(name)?,
        Command::Status { json } => {
            let state = command::status(name)?;
            if json {
                println!("{}", serde_json::to_string_pretty(&state)?);
            } else {
                print!("{}", command::describe(&state));
            }
            if matches!(state.phase, Phase::Failed(_)) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Exec { target, program } => {
            return Ok(command::exit_code(command::exec(name, &target, program).await?));
        }
        Command::Kubeconfig { cluster } => {
            let path = State::read(name)?
                .kubeconfig(&cluster)
                .ok_or_else(|| format!("lab `{name}` has no cluster called `{cluster}`"))?;
            let text = std::fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))?;
            print!("{text}");
        }
        Command::Mesh { change } => {
            let mesh = command::mesh(name)?;
            match change {
                MeshChange::Join { cluster } => mesh.join(&cluster)?,
                MeshChange::Leave { cluster } => mesh.leave(&cluster)?,
                MeshChange::Stop { cluster } => mesh.stop_etcd(&cluster)?,
                MeshChange::Start { cluster } => mesh.restart_etcd(&cluster)?,
            }
        }
        Command::Demo(options) => return demo::run(name, &options).await,
        Command::Supervise(lab_options) => {
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(std::io::stderr)
                .init();
            supervisor::run(name, &lab_options)
                .await
                .map_err(|err| -> Box<dyn std::error::Error> { err })?;
        }
        Command::Call(calls) => {
            let outcome = calls.run().await?;
            if calls.json {
                println!("{}", serde_json::to_string(&outcome)?);
            } else {
                println!("{outcome}");
            }
            return Ok(if outcome.failed == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Command::Echo(server) => server.serve().await?,
        Command::Place(_) | Command::Hold | Command::Unpin { .. } => return Ok(ExitCode::FAILURE),
    }
    Ok(ExitCode::SUCCESS)
}
