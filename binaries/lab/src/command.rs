// SPDX-License-Identifier: Apache-2.0

//! What users do with a lab: bring it up, look into it, take it down.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use clap::Args;
use tokio::process::Command;

use crate::{
    agents::{self, AgentError},
    cgroup::{self, CgroupError},
    control_plane::{Assets, RealError},
    enter::{Placement, is_placing},
    install::{self, InstallError},
    lab_options::LabOptions,
    mesh::{self, Mesh, MeshError},
    operators::{self, OperatorError},
    paths::LabPaths,
    plan::{BEYOND, Lab, OUTSIDE, PlanError},
    process::{self, Process, ProcessError, own_program},
    state::{Phase, State, StateError},
};

/// How long starting a lab may take.
const UP: Duration = Duration::from_secs(120);
/// How long starting a lab with containers may take, which copies images to each node.
const UP_WITH_CONTAINERS: Duration = Duration::from_secs(600);
/// How long removing it may take.
const DOWN: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("a lab needs namespaces and control groups: run skep-lab as root")]
    NotRoot,
    /// The arguments do not describe a possible lab.
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    State(#[from] StateError),
    /// Its control group cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Remove it first, or choose another name.
    #[error("a lab called `{name}` is up; take it down (skep-lab down --name {name}) or use another --name")]
    Exists { name: String },
    /// The folder has no real API server.
    #[error(transparent)]
    Real(#[from] RealError),
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// The chart is not installed; the lab is left as it is.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// A setting of agents or operators is none.
    #[error(transparent)]
    Setting(#[from] AgentError),
    /// Nothing of the lab is left.
    #[error("interrupted")]
    Interrupted,
    /// The reason, and where to read more.
    #[error("the lab did not come up: {reason} (logs: {})", logs.display())]
    NotUp { reason: String, logs: PathBuf },
    /// Neither a node nor a pod.
    #[error("lab `{lab}` has no node or running pod called `{target}`; it has {known}")]
    NoTarget {
        lab: String,
        /// The name of the node or pod.
        target: String,
        known: String,
    },
    /// A file or process of this machine.
    #[error("{what}")]
    Io {
        /// What was done.
        what: String,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
}

/// Which lab.
#[derive(Debug, Clone, Args)]
pub struct Which {
    /// Name of the lab.
    #[arg(long, default_value = "lab", global = true)]
    pub name: String,
}

/// Starts a lab; returns when every agent is ready. Interrupted or failed, it leaves nothing behind.
///
/// # Errors
/// When the lab exists already or does not start.
pub async fn up(
    name: &str,
    lab_options: &LabOptions,
    progress: impl Fn(&str),
) -> Result<State, CommandError> {
    let lab = Lab::plan(name, lab_options.clusters, lab_options.nodes)?;
    need_root()?;
    if let Some(folder) = lab_options.assets() {
        Assets::find(folder)?;
    }
    if lab_options.operator {
        operators::program()?;
        agents::settings(&lab_options.operator_config)?;
    }
    if !mesh::first_members(&lab, lab_options)?.is_empty() {
        mesh::Programs::find(lab_options.assets())?;
    }
    let paths = LabPaths::of(name)?;
    match State::read(name) {
        Ok(state) if is_supervised(&paths) && state.phase == Phase::Ready => {
            return Err(CommandError::Exists {
                name: name.to_owned(),
            });
        }
        // Left by a lab that crashed, or whose start was interrupted.
        _ => down(name)?,
    }
    tokio::select! {
        result = up_to_ready(name, &paths, lab_options, progress) => {
            if result.is_err() {
                // The logs are kept; everything else is removed.
                remove_processes(&paths)?;
                let _ = std::fs::remove_file(paths.folder.join("state.json"));
            }
            result
        }
        waited = process::interrupted() => {
            down(name)?;
            waited.map_err(|cause| CommandError::Io {
                what: "waiting for signals".to_owned(),
                cause,
            })?;
            Err(CommandError::Interrupted)
        }
    }
}

/// Installs the chart in the clusters of a lab that is up; how long that took until all agents were ready.
///
/// # Errors
/// When helm refuses, or agents do not become ready.
pub async fn install(state: &State, lab_options: &LabOptions) -> Result<Duration, CommandError> {
    Ok(install::install(state, lab_options).await?)
}

/// Fails with what is missing before the first file is opened.
fn need_root() -> Result<(), CommandError> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(CommandError::NotRoot)
    }
}

/// Whether the process that runs a lab is there. Without it nothing that ends is started again, and there is no
/// embedded API server.
fn is_supervised(paths: &LabPaths) -> bool {
    !cgroup::processes(&paths.cgroup.join("supervisor")).is_empty()
}

/// Returns the state of a lab.
pub fn status(name: &str) -> Result<State, CommandError> {
    let mut state = State::read(name)?;
    if !is_supervised(&LabPaths::of(name)?) {
        state.phase = Phase::Failed(format!(
            "the process that ran it is gone; clean up with skep-lab down --name {name}"
        ));
    }
    Ok(state)
}

/// The cluster mesh of a lab.
///
/// # Errors
/// When there is no such lab, or it has no mesh.
pub fn mesh(name: &str) -> Result<Mesh, CommandError> {
    need_root()?;
    Ok(Mesh::open(LabPaths::of(name)?, State::read(name)?.lab)?)
}

/// Ends all processes of a lab, and removes its control groups.
fn remove_processes(paths: &LabPaths) -> Result<(), CgroupError> {
    cgroup::remove(&paths.cgroup, DOWN)?;
    if let Some(parent) = paths.cgroup.parent() {
        // Unless another lab is in it.
        let _ = std::fs::remove_dir(parent);
    }
    Ok(())
}

async fn up_to_ready(
    name: &str,
    paths: &LabPaths,
    lab_options: &LabOptions,
    progress: impl Fn(&str),
) -> Result<State, CommandError> {
    let group = paths.cgroup.join("supervisor");
    cgroup::create(&group)?;
    let mut program: Vec<OsString> = vec![own_program(), "supervise".into(), "--name".into(), name.into()];
    program.extend(lab_options.arguments());
    let placement = Placement {
        cgroup: Some(group),
        program,
        ..Placement::default()
    };
    let log = paths.log("supervisor");
    let mut supervisor = Process::place_detached("supervisor", &placement, &log)?;
    let limit = match lab_options.has_containerd() {
        true => UP_WITH_CONTAINERS,
        false => UP,
    };
    let deadline = Instant::now() + limit;
    let mut said = String::new();
    let not_up = |reason: String| CommandError::NotUp {
        reason,
        logs: paths.folder.join("logs"),
    };
    loop {
        match State::read(name) {
            Ok(State {
                phase: Phase::Starting(what),
                ..
            }) if what != said => {
                progress(&what);
                said = what;
            }
            Ok(
                state @ State {
                    phase: Phase::Ready, ..
                },
            ) => {
                return Ok(state);
            }
            Ok(State {
                phase: Phase::Failed(reason),
                ..
            }) => return Err(not_up(reason)),
            Ok(_) | Err(StateError::Missing { .. }) => {}
            Err(err) => return Err(err.into()),
        }
        if supervisor.has_ended() {
            return Err(not_up(process::last_line(&log)));
        }
        if Instant::now() > deadline {
            return Err(not_up(format!("still {said} after {} s", limit.as_secs())));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Removes a lab: ends all its processes and removes everything it created. A lab that is not there, or only
/// in parts, is fine.
///
/// # Errors
/// When a process cannot be ended or a folder not removed.
pub fn down(name: &str) -> Result<(), CommandError> {
    need_root()?;
    let paths = LabPaths::of(name)?;
    remove_processes(&paths)?;
    match std::fs::remove_dir_all(&paths.folder) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            return Err(CommandError::Io {
                what: format!("removing {}", paths.folder.display()),
                cause,
            });
        }
        _ => {}
    }
    if let Some(parent) = paths.folder.parent() {
        // Unless another lab is in it.
        let _ = std::fs::remove_dir(parent);
    }
    Ok(())
}

/// Names of the labs of which something is left on this machine.
pub fn leftovers() -> Result<Vec<String>, CommandError> {
    let probe = LabPaths::of("x")?;
    let mut names = std::collections::BTreeSet::new();
    for folder in [probe.cgroup.parent(), probe.folder.parent()]
        .into_iter()
        .flatten()
    {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        let folders = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        names.extend(folders.filter_map(|entry| entry.file_name().into_string().ok()));
    }
    Ok(names.into_iter().collect())
}

/// How to start a program on a node (`c1-n1`, `n1`), in a pod (`namespace/name`), [outside of them](OUTSIDE), or
/// [behind a router](BEYOND).
pub fn placement(name: &str, target: &str, program: Vec<OsString>) -> Result<Placement, CommandError> {
    need_root()?;
    let state = State::read(name)?;
    let paths = LabPaths::of(name)?;
    if let Some(node) = state.lab.node(target) {
        let group = paths.node_cgroup(node).join("tools");
        cgroup::create(&group)?;
        return Ok(Placement {
            cgroup: Some(group),
            beside: state.nodes.get(&node.name).copied(),
            program,
            ..Placement::default()
        });
    }
    let clients = [(OUTSIDE, state.outside), (BEYOND, state.beyond)];
    if let Some((place, beside)) = clients.into_iter().find(|(place, _)| *place == target) {
        let group = paths.cgroup.join(place);
        cgroup::create(&group)?;
        return Ok(Placement {
            cgroup: Some(group),
            beside: Some(beside),
            program,
            ..Placement::default()
        });
    }
    let mut known: Vec<String> = clients.map(|(place, _)| place.to_owned()).to_vec();
    let wanted = target.replacen('/', ".", 1);
    for node in state.lab.clusters.iter().flat_map(|cluster| &cluster.nodes) {
        known.push(node.name.clone());
        let pods = paths.node_cgroup(node).join("pods");
        let Ok(entries) = std::fs::read_dir(&pods) else {
            continue;
        };
        for pod in entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
        {
            let group = pods.join(&pod);
            let Some(process) = cgroup::processes(&group)
                .into_iter()
                .find(|process| !is_placing(*process))
            else {
                continue;
            };
            if pod == wanted || pod == format!("default.{target}") {
                let beside = u32::try_from(process).ok();
                return Ok(Placement {
                    cgroup: Some(group),
                    beside,
                    program,
                    ..Placement::default()
                });
            }
            if pod.contains('.') {
                known.push(pod.replacen('.', "/", 1));
            }
        }
    }
    Err(CommandError::NoTarget {
        lab: name.to_owned(),
        target: target.to_owned(),
        known: known.join(", "),
    })
}

/// Runs a program on a node or in a pod, with this terminal as its input and output.
///
/// # Errors
/// When there is no such node or pod, or the program cannot be started.
pub async fn exec(name: &str, target: &str, program: Vec<OsString>) -> Result<ExitStatus, CommandError> {
    in_place(name, target, program)?
        .status()
        .await
        .map_err(|cause| CommandError::Io {
            what: format!("running a program on `{target}`"),
            cause,
        })
}

/// As [`exec`], for callers that want the output.
///
/// # Errors
/// As [`exec`].
pub fn in_place(name: &str, target: &str, program: Vec<OsString>) -> Result<Command, CommandError> {
    Ok(process::placed(&placement(name, target, program)?))
}

#[must_use]
pub fn describe(state: &State) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "lab {}: {}\n",
        state.lab.name,
        match &state.phase {
            Phase::Starting(what) => format!("starting ({what})"),
            Phase::Ready => "ready".to_owned(),
            Phase::Failed(why) => format!("failed ({why})"),
        }
    );
    for cluster in &state.lab.clusters {
        let server = state
            .servers
            .get(&cluster.name)
            .map_or("no API server", String::as_str);
        let _ = writeln!(text, "cluster {}: {server}", cluster.name);
        for node in &cluster.nodes {
            let agent = state
                .agents
                .get(&node.name)
                .map_or_else(|| "no agent".to_owned(), |pid| format!("agent process {pid}"));
            let addresses = node
                .addresses()
                .map(|(address, _)| address.to_string())
                .join(", ");
            let _ = writeln!(text, "  node {}: {addresses}, {agent}", node.name);
        }
    }
    if let Ok(mesh) = mesh(&state.lab.name) {
        let _ = writeln!(text, "cluster mesh: {}", mesh.members().join(", "));
        let stopped = mesh.stopped();
        if !stopped.is_empty() {
            let _ = writeln!(text, "  stopped etcd: {}", stopped.join(", "));
        }
    }
    text
}

/// Exit status of a program that ran in a lab, as ours.
#[must_use]
pub fn exit_code(status: ExitStatus) -> ExitCode {
    u8::try_from(process::shell_code(status)).map_or(ExitCode::FAILURE, ExitCode::from)
}
