// SPDX-License-Identifier: Apache-2.0

//! The process that runs a lab: API servers, kubelets and agents, until it is stopped.

use std::{path::PathBuf, sync::Arc, time::Duration};

use skep_k8s_client::Client;
use skep_lab_kubelet::Cri;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    agents::{self, Agent, Report},
    containerd::{self, Containerd},
    control_plane::{Access, Assets, ControlPlane},
    install,
    kubelet::Kubelet,
    lab_options::LabOptions,
    machine::{Fabric, Machine},
    mesh::{self, Mesh},
    operators::{self, Operators},
    paths::LabPaths,
    plan::Lab,
    state::{Phase, State},
};

/// How long the agents may take to become healthy.
const READY: Duration = Duration::from_secs(60);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Runs the lab called `name` until `SIGTERM`.
///
/// # Errors
/// Why the lab could not be started; also in the state file.
pub async fn run(name: &str, lab_options: &LabOptions) -> Result<(), AnyError> {
    let lab = Lab::plan(name, lab_options.clusters, lab_options.nodes)?;
    let state = State {
        lab,
        phase: Phase::Starting("starting".to_owned()),
        supervisor: std::process::id(),
        servers: Default::default(),
        nodes: Default::default(),
        outside: 0,
        beyond: 0,
        agents: Default::default(),
    };
    let mut supervisor = Supervisor {
        state,
        stop: CancellationToken::new(),
        tasks: JoinSet::new(),
    };
    let result = supervisor.run(lab_options).await;
    supervisor.stop.cancel();
    while supervisor.tasks.join_next().await.is_some() {}
    if let Err(err) = &result {
        supervisor.state.phase = Phase::Failed(hive::error_chain(&**err));
        supervisor.state.write()?;
    }
    result
}

struct Supervisor {
    state: State,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Supervisor {
    async fn run(&mut self, lab_options: &LabOptions) -> Result<(), AnyError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let (sender, mut reports) = mpsc::unbounded_channel();
        let up = async {
            let agents = self.bring_up(lab_options, sender).await?;
            Ok::<_, AnyError>(agents)
        };
        let agents = tokio::select! {
            agents = up => agents?,
            _ = terminate.recv() => return Ok(()),
        };
        self.say("waiting for the agents")?;
        let deadline = tokio::time::Instant::now() + READY;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                Some(report) = reports.recv() => match report {
                    Report::Started { node, pid } => {
                        self.state.agents.insert(node, pid);
                        self.state.write()?;
                    }
                    // Its next process would end in the same way: most often a setting is wrong.
                    Report::Ended { node, how, tail } if self.state.phase != Phase::Ready => {
                        return Err(format!("the agent of {node} ended ({how}):\n{tail}\n").into());
                    }
                    Report::Ended { .. } => {}
                },
                () = tokio::time::sleep(Duration::from_millis(50)), if self.state.phase != Phase::Ready => {
                    let mut ill = Vec::new();
                    for agent in &agents {
                        if !agent.is_well().await {
                            ill.push(agent.node().to_owned());
                        }
                    }
                    if ill.is_empty() {
                        self.state.phase = Phase::Ready;
                        self.state.write()?;
                    } else if tokio::time::Instant::now() > deadline {
                        return Err(format!("agents are not well: {}", ill.join(", ")).into());
                    }
                }
            }
        }
    }

    async fn bring_up(
        &mut self,
        lab_options: &LabOptions,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Vec<Agent>, AnyError> {
        let lab = self.state.lab.clone();
        let paths = LabPaths::of(&lab.name)?;
        let program = match lab_options.install {
            true => PathBuf::new(),
            false => agents::program(lab_options.agent.as_deref())?,
        };
        let mut images = Vec::new();
        if lab_options.install {
            self.say("making images")?;
            let folder = paths.folder.join("images");
            images = tokio::task::spawn_blocking(move || install::images(&folder)).await??;
        }
        let settings = agents::settings(&lab_options.agent_config)?;
        let assets = lab_options.assets().map(Assets::find).transpose()?;
        self.say("making the network")?;
        let fabric = Fabric::create(&paths, &lab).await?;
        self.state.outside = fabric.pid();
        self.state.beyond = fabric.beyond();
        let mut control_planes = Vec::new();
        for cluster in &lab.clusters {
            self.say(&format!("cluster {}: API server", cluster.name))?;
            let stop = self.stop.clone();
            let control_plane = ControlPlane::start(
                &paths,
                cluster,
                fabric.pid(),
                assets.as_ref(),
                lab_options.install,
                stop,
            )
            .await?;
            self.state
                .servers
                .insert(cluster.name.clone(), control_plane.url.clone());
            control_planes.push((control_plane.access.clone(), control_plane.client.clone()));
            self.tasks.spawn(control_plane.run());
        }
        if lab_options.operator {
            let settings = agents::settings(&lab_options.operator_config)?;
            let operators = Operators {
                paths: &paths,
                program: operators::program()?,
                settings: &settings,
                fabric: fabric.pid(),
            };
            for (cluster, control_plane) in lab.clusters.iter().zip(&control_planes) {
                self.say(&format!("cluster {}: operator", cluster.name))?;
                operators
                    .start(cluster, control_plane, &self.stop, &mut self.tasks)
                    .await?;
            }
        }
        let mesh = self
            .mesh(lab_options, &paths, &control_planes, fabric.pid())
            .await?;
        let mut all = Vec::new();
        for (cluster, (access, client)) in lab.clusters.iter().zip(control_planes) {
            let mut settings = settings.clone();
            // What the user says goes before.
            let meshed = mesh.iter().flat_map(|mesh| mesh.agent_settings(cluster));
            for (key, value) in meshed.chain(lab_options.agent_settings()) {
                settings.entry(key).or_insert(value);
            }
            let (mut machines, mut runtimes) = (Vec::new(), Vec::new());
            for node in &cluster.nodes {
                self.say(&format!("node {}", node.name))?;
                let machine = Arc::new(Machine::create(&paths, &lab, node, &fabric, lab_options).await?);
                self.state.nodes.insert(node.name.clone(), machine.pid());
                if lab_options.has_containerd() {
                    let runtime = Containerd::configure(&paths, &machine, lab_options.install)?;
                    runtimes.push((runtime, machine.clone()));
                }
                machines.push(machine);
            }
            let started = runtimes
                .iter()
                .map(|(runtime, machine)| runtime.start(machine, &images));
            for started in futures::future::try_join_all(started).await? {
                self.tasks.spawn(started.keep(self.stop.clone()));
            }
            let kubelet = Kubelet::new(
                client.clone(),
                machines.clone(),
                lab_options.network(),
                self.stop.clone(),
            );
            kubelet.register_nodes().await?;
            if lab_options.install {
                for machine in machines {
                    let node = install::node(&paths, cluster, &machine);
                    let cri = Cri::at(&containerd::socket(&paths, &machine.node))?;
                    let (client, stop) = (client.clone(), self.stop.clone());
                    self.tasks.spawn(async move {
                        stop.run_until_cancelled(skep_lab_kubelet::run(client, cri, node))
                            .await;
                        drop(machine);
                    });
                }
                continue;
            }
            self.tasks.spawn(kubelet.run());
            for machine in machines {
                let agent = Agent::configure(&paths, &access, machine, program.clone(), &settings)?;
                let (runner, stop, reports) = (agent.clone(), self.stop.clone(), reports.clone());
                self.tasks.spawn(async move {
                    let told = runner.run(stop, |report| {
                        let _ = reports.send(report);
                    });
                    if let Err(err) = told.await {
                        tracing::error!(error = %hive::error_chain(&err), "Cannot start agent");
                    }
                });
                all.push(agent);
            }
        }
        // Its namespace lives as long as the lab.
        self.tasks.spawn({
            let stop = self.stop.clone();
            async move {
                stop.cancelled().await;
                drop(fabric);
            }
        });
        Ok(all)
    }

    /// Starts the cluster mesh, if a cluster is to be in it.
    async fn mesh(
        &mut self,
        lab_options: &LabOptions,
        paths: &LabPaths,
        control_planes: &[(Access, Arc<dyn Client>)],
        fabric: u32,
    ) -> Result<Option<Mesh>, AnyError> {
        let lab = self.state.lab.clone();
        let members = mesh::first_members(&lab, lab_options)?;
        if members.is_empty() {
            return Ok(None);
        }
        self.say("cluster mesh")?;
        let programs = mesh::Programs::find(lab_options.assets())?;
        let mesh = Mesh::create(paths.clone(), lab, lab_options.kvstoremesh)?;
        for member in members {
            mesh.join(&member)?;
        }
        let access: Vec<Access> = control_planes.iter().map(|(access, _)| access.clone()).collect();
        mesh.start(&programs, &access, fabric, &self.stop, &mut self.tasks)
            .await?;
        Ok(Some(mesh))
    }

    fn say(&mut self, what: &str) -> Result<(), AnyError> {
        tracing::info!("{what}");
        self.state.phase = Phase::Starting(what.to_owned());
        Ok(self.state.write()?)
    }
}
