// SPDX-License-Identifier: Apache-2.0

//! One pod: what is to run is compared with what runs, step by step.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_cri::v1::{ContainerState, ContainerStatus, PodSandboxConfig, PodSandboxState};
use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, DeleteOptions, Patch, Subresource, WriteOptions};
use skep_k8s_types::Kind;

use crate::{
    container,
    cri::{Cri, CriError},
    env::{self, EnvError},
    node::Node,
    object::{flag, is_deleting, list, now, number, text, texts, time},
    probe::{Probe, Target},
    volumes::{VolumeError, Volumes},
};

/// Delay before the first restart of a container; doubles with each.
const BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);

/// Why a pod is not as it is to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{what}")]
    File {
        what: String,
        #[source]
        cause: std::io::Error,
    },
}

impl PodError {
    /// Reason of a waiting container.
    fn reason(&self) -> &'static str {
        match self {
            Self::Cri(CriError::Call { message, .. }) if message.contains("image") => "ErrImageNeverPull",
            Self::Env(_) => "CreateContainerConfigError",
            Self::Cri(_) => "CreateContainerError",
            _ => "ContainerCreating",
        }
    }
}

/// A container of the pod.
#[derive(Debug, Default)]
struct Run {
    id: Option<String>,
    status: Option<ContainerStatus>,
    restarts: u32,
    /// When it may be started again.
    until: Option<Instant>,
    last: Option<Value>,
    startup: Option<Probe>,
    liveness: Option<Probe>,
    readiness: Option<Probe>,
    /// Why it was not started.
    problem: Option<(&'static str, String)>,
}

impl Run {
    fn is_in(&self, state: ContainerState) -> bool {
        self.status.as_ref().is_some_and(|status| status.state() == state)
    }

    fn has_succeeded(&self) -> bool {
        let exited = self
            .status
            .as_ref()
            .filter(|status| status.state() == ContainerState::ContainerExited);
        exited.is_some_and(|status| status.exit_code == 0)
    }

    fn has_started(&self) -> bool {
        self.is_in(ContainerState::ContainerRunning)
            && self
                .startup
                .as_ref()
                .is_none_or(|probe| probe.outcome == Some(true))
    }

    fn is_ready(&self) -> bool {
        self.has_started()
            && self
                .readiness
                .as_ref()
                .is_none_or(|probe| probe.outcome == Some(true))
    }

    fn back_off(&self) -> Duration {
        (BACK_OFF * 2_u32.saturating_pow(self.restarts.min(10))).min(LONGEST_BACK_OFF)
    }
}

/// What all pods of a node share.
pub(crate) struct Shared {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) cri: Cri,
    pub(crate) node: Node,
}

pub(crate) struct Worker {
    shared: Arc<Shared>,
    pod: Arc<Value>,
    sandbox: Option<(String, PodSandboxConfig)>,
    addresses: Vec<IpAddr>,
    volumes: Volumes,
    runs: BTreeMap<String, Run>,
    is_initialized: bool,
    problem: Option<String>,
    started: String,
    written: Value,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, pod: Arc<Value>) -> Self {
        Self {
            shared,
            pod,
            sandbox: None,
            addresses: Vec::new(),
            volumes: Volumes::default(),
            runs: BTreeMap::new(),
            is_initialized: false,
            problem: None,
            started: now(),
            written: Value::Null,
        }
    }

    pub(crate) fn learn(&mut self, pod: Arc<Value>) {
        self.pod = pod;
    }

    fn is_done(&self) -> bool {
        matches!(text(&self.pod, "/status/phase"), "Succeeded" | "Failed")
    }

    /// Takes the next steps; true if the pod is gone.
    pub(crate) async fn step(&mut self) -> bool {
        if is_deleting(&self.pod) {
            return match self.end().await {
                Ok(()) => true,
                Err(err) => {
                    tracing::warn!(error = %err, pod = self.name(), "Cannot end pod");
                    false
                }
            };
        }
        let result = match self.is_done() {
            true if self.sandbox.is_none() => Ok(()),
            true => self.stop_sandbox().await.map_err(PodError::from),
            false => self.go_on().await,
        };
        if let Err(err) = &result {
            let problem = err.to_string();
            if self.problem.as_ref() != Some(&problem) {
                tracing::warn!(error = %problem, pod = self.name(), "Pod waits");
            }
        }
        self.problem = result.err().map(|err| err.to_string());
        if !self.is_done()
            && let Err(err) = self.write_status().await
        {
            tracing::warn!(error = %err, pod = self.name(), "Cannot write status of pod");
        }
        false
    }

    fn name(&self) -> &str {
        text(&self.pod, "/metadata/name")
    }

    fn uid(&self) -> &str {
        text(&self.pod, "/metadata/uid")
    }

    async fn go_on(&mut self) -> Result<(), PodError> {
        let shared = self.shared.clone();
        let pod = self.pod.clone();
        self.volumes.write(&*shared.client, &shared.node, &pod).await?;
        let config = self.ensure_sandbox().await?;
        self.look().await?;
        if !self.is_initialized {
            for spec in list(&pod, "/spec/initContainers") {
                let run = self.run(spec);
                if run.has_succeeded() {
                    continue;
                }
                if !run.is_in(ContainerState::ContainerRunning) {
                    self.start(&config, spec).await?;
                }
                return Ok(());
            }
            self.is_initialized = true;
        }
        let policy = match text(&pod, "/spec/restartPolicy") {
            "" => "Always",
            policy => policy,
        };
        let mut first = Ok(());
        for spec in list(&pod, "/spec/containers") {
            let run = self.run(spec);
            let wanted = match policy {
                _ if run.is_in(ContainerState::ContainerRunning) => false,
                "Never" => run.status.is_none(),
                "OnFailure" => !run.has_succeeded(),
                _ => true,
            };
            let result = match wanted {
                true => self.start(&config, spec).await,
                false => self.probe(spec).await,
            };
            first = first.and(result);
        }
        first
    }

    fn run(&mut self, spec: &Value) -> &mut Run {
        self.runs.entry(text(spec, "/name").to_owned()).or_default()
    }

    async fn ensure_sandbox(&mut self) -> Result<PodSandboxConfig, PodError> {
        let shared = self.shared.clone();
        let (cri, node) = (&shared.cri, &shared.node);
        if let Some((id, config)) = &self.sandbox {
            let found = cri.sandboxes().await?;
            let is_ready = found
                .iter()
                .any(|sandbox| sandbox.id == *id && sandbox.state() == PodSandboxState::SandboxReady);
            if is_ready {
                return Ok(config.clone());
            }
            self.stop_sandbox().await?;
            self.is_initialized = false;
            for run in self.runs.values_mut() {
                *run = Run {
                    restarts: run.restarts + 1,
                    ..Run::default()
                };
            }
        }
        let config = container::sandbox(node, &self.pod);
        fs::create_dir_all(&config.log_directory).map_err(|cause| PodError::File {
            what: format!("creating {}", config.log_directory),
            cause,
        })?;
        let created = cri.run_sandbox(&config).await;
        if created.is_err() {
            // The runtime keeps the name of one that failed.
            let _ = self.stop_sandbox().await;
        }
        let id = created?;
        self.sandbox = Some((id.clone(), config.clone()));
        self.addresses = match flag(&self.pod, "/spec/hostNetwork") {
            true => node.addresses.clone(),
            false => {
                let status = cri.sandbox_status(&id).await?.status.unwrap_or_default();
                let network = status.network.unwrap_or_default();
                let more = network.additional_ips.into_iter().map(|address| address.ip);
                let all = std::iter::once(network.ip).chain(more);
                let mut all: Vec<IpAddr> = all.filter_map(|address| address.parse().ok()).collect();
                all.sort_by_key(IpAddr::is_ipv6);
                all
            }
        };
        self.write_hosts()?;
        Ok(config)
    }

    /// Writes the file with host names that containers see.
    fn write_hosts(&self) -> Result<(), PodError> {
        let mut text_of = "127.0.0.1\tlocalhost\n::1\tlocalhost\n".to_owned();
        for address in &self.addresses {
            text_of += &format!("{address}\t{}\n", self.name());
        }
        for alias in list(&self.pod, "/spec/hostAliases") {
            text_of += &format!(
                "{}\t{}\n",
                text(alias, "/ip"),
                texts(alias, "/hostnames").join("\t")
            );
        }
        let folder = self.shared.node.pod_folder(self.uid());
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("hosts"), text_of));
        written.map_err(|cause| PodError::File {
            what: format!("writing hosts in {}", folder.display()),
            cause,
        })
    }

    /// Reads the states of all containers.
    async fn look(&mut self) -> Result<(), PodError> {
        for run in self.runs.values_mut() {
            if let Some(id) = &run.id {
                run.status = self.shared.cri.container_status(id).await?;
            }
        }
        Ok(())
    }

    /// Starts a container that does not run, unless it has to wait.
    async fn start(&mut self, config: &PodSandboxConfig, spec: &Value) -> Result<(), PodError> {
        let run = self.run(spec);
        if let Some(status) = run.status.take() {
            run.last = Some(terminated(&status));
            run.until = Some(Instant::now() + run.back_off());
            run.restarts += 1;
            if let Some(id) = run.id.take() {
                self.shared.cri.remove_container(&id).await?;
            }
            self.run(spec).problem = Some((
                "CrashLoopBackOff",
                "back-off restarting failed container".to_owned(),
            ));
            return Ok(());
        }
        if run.until.is_some_and(|until| until > Instant::now()) {
            return Ok(());
        }
        let started = self.try_start(config, spec).await;
        let run = self.run(spec);
        match started {
            Ok(id) => {
                run.id = Some(id);
                run.problem = None;
                run.startup = Probe::of(spec, "startupProbe");
                run.liveness = Probe::of(spec, "livenessProbe");
                run.readiness = Probe::of(spec, "readinessProbe");
                self.look().await
            }
            Err(err) => {
                run.problem = Some((err.reason(), err.to_string()));
                run.until = Some(Instant::now() + BACK_OFF);
                Err(err)
            }
        }
    }

    async fn try_start(&mut self, config: &PodSandboxConfig, spec: &Value) -> Result<String, PodError> {
        let Shared { client, cri, node } = &*self.shared;
        let attempt = self.runs.get(text(spec, "/name")).map_or(0, |run| run.restarts);
        let env = env::read(&**client, &self.pod, spec, &self.addresses, node.api).await?;
        let hosts = node.pod_folder(self.uid()).join("hosts");
        for mount in list(spec, "/volumeMounts")
            .iter()
            .filter(|mount| !text(mount, "/subPath").is_empty())
        {
            let volume = self.volumes.paths.get(text(mount, "/name"));
            let path = volume.map(|volume| node.outside(&volume.join(text(mount, "/subPath"))));
            if let Some(path) = path.filter(|path| !path.exists()) {
                let made = fs::create_dir_all(&path);
                // Any user writes there.
                made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o777)))
                    .map_err(|cause| PodError::File {
                        what: format!("creating {}", path.display()),
                        cause,
                    })?;
            }
        }
        let container = container::config(&self.pod, spec, attempt, &env, &self.volumes.paths, &hosts);
        let sandbox = self
            .sandbox
            .as_ref()
            .map(|(id, _)| id.as_str())
            .unwrap_or_default();
        let id = cri.start_container(sandbox, config, container).await?;
        let hook = texts(spec, "/lifecycle/postStart/exec/command");
        if !hook.is_empty() {
            cri.exec(&id, &hook, LONGEST_BACK_OFF).await?;
        }
        Ok(id)
    }

    async fn probe(&mut self, spec: &Value) -> Result<(), PodError> {
        let shared = self.shared.clone();
        let address = self.addresses.first().copied();
        let grace = self.grace();
        let run = self.run(spec);
        let Some(id) = run
            .id
            .clone()
            .filter(|_| run.is_in(ContainerState::ContainerRunning))
        else {
            return Ok(());
        };
        let target = Target {
            cri: &shared.cri,
            id: &id,
            container: spec,
            address,
            connect: &shared.node.connect,
        };
        let mut is_dead = false;
        if let Some(probe) = run.startup.as_mut().filter(|probe| probe.outcome != Some(true)) {
            probe.run(&target).await;
            is_dead = probe.outcome == Some(false);
        }
        if run.has_started() {
            if let Some(probe) = &mut run.liveness {
                probe.run(&target).await;
                is_dead = probe.outcome == Some(false);
            }
            if let Some(probe) = &mut run.readiness {
                probe.run(&target).await;
            }
        }
        if is_dead {
            tracing::warn!(
                pod = self.name(),
                container = text(spec, "/name"),
                "Probe failed, restarting container"
            );
            shared.cri.stop_container(&id, grace).await?;
            self.look().await?;
        }
        Ok(())
    }

    fn grace(&self) -> Duration {
        let of_deletion = number(&self.pod, "/metadata/deletionGracePeriodSeconds");
        let seconds = of_deletion.or_else(|| number(&self.pod, "/spec/terminationGracePeriodSeconds"));
        Duration::from_secs(seconds.unwrap_or(30))
    }

    /// Stops and removes all sandboxes of the pod, also those that were not created in full.
    async fn stop_sandbox(&mut self) -> Result<(), CriError> {
        let cri = &self.shared.cri;
        for sandbox in cri.sandboxes().await? {
            if sandbox
                .labels
                .get(container::UID_LABEL)
                .is_some_and(|uid| uid == self.uid())
            {
                cri.stop_sandbox(&sandbox.id).await?;
                cri.remove_sandbox(&sandbox.id).await?;
            }
        }
        self.sandbox = None;
        Ok(())
    }

    /// Ends the containers, removes what the pod had, and then the pod from the API server.
    async fn end(&mut self) -> Result<(), PodError> {
        let grace = self.grace();
        let pod = self.pod.clone();
        let shared = self.shared.clone();
        let _ = self.look().await;
        let ends = list(&pod, "/spec/containers").iter().filter_map(|spec| {
            let run = self.runs.get(text(spec, "/name"))?;
            let id = run
                .id
                .clone()
                .filter(|_| run.is_in(ContainerState::ContainerRunning))?;
            let cri = shared.cri.clone();
            Some(async move {
                let hook = texts(spec, "/lifecycle/preStop/exec/command");
                if !hook.is_empty() {
                    let _ = cri.exec(&id, &hook, grace).await;
                }
                cri.stop_container(&id, grace).await
            })
        });
        for ended in futures::future::join_all(ends).await {
            ended?;
        }
        self.stop_sandbox().await?;
        let folders = [
            shared.node.pod_folder(self.uid()),
            shared
                .node
                .logs(text(&pod, "/metadata/namespace"), self.name(), self.uid()),
        ];
        for folder in folders {
            match fs::remove_dir_all(&folder) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(PodError::File {
                        what: format!("removing {}", folder.display()),
                        cause,
                    });
                }
                _ => {}
            }
        }
        let mut options = DeleteOptions::default();
        options.preconditions.uid = self.uid().into();
        options.grace_period = Some(Duration::ZERO);
        let namespace = text(&pod, "/metadata/namespace");
        match shared
            .client
            .delete(&Kind::POD, namespace, self.name(), &options)
            .await
        {
            Err(err) if !err.is_not_found() && !err.is_conflict() => Err(err.into()),
            _ => Ok(()),
        }
    }

    /// Ends a pod that the API server does not have any more.
    pub(crate) async fn end_forgotten(&mut self) {
        while let Err(err) = self.end().await {
            tracing::warn!(error = %err, pod = self.name(), "Cannot end pod");
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    async fn write_status(&mut self) -> Result<(), ApiError> {
        let status = self.status();
        if status == self.written {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"status": &status}));
        let (namespace, options) = (text(&self.pod, "/metadata/namespace"), WriteOptions::default());
        let client = &self.shared.client;
        let written = client
            .patch(
                &Kind::POD,
                namespace,
                self.name(),
                Subresource::Status,
                &patch,
                &options,
            )
            .await;
        match written {
            Err(err) if !err.is_not_found() => return Err(err),
            _ => {}
        }
        self.written = status;
        Ok(())
    }

    fn status(&self) -> Value {
        let specs = list(&self.pod, "/spec/containers");
        let idle = Run::default();
        let runs: Vec<&Run> = specs
            .iter()
            .map(|spec| self.runs.get(text(spec, "/name")).unwrap_or(&idle))
            .collect();
        let policy = text(&self.pod, "/spec/restartPolicy");
        let has_ended = |run: &&Run| run.is_in(ContainerState::ContainerExited);
        let phase = match policy {
            "Never" | "OnFailure" if runs.iter().all(|run| run.has_succeeded()) => "Succeeded",
            "Never" if runs.iter().all(has_ended) => "Failed",
            _ if runs.iter().any(|run| run.status.is_some() || run.last.is_some()) => "Running",
            _ => "Pending",
        };
        let is_ready = phase == "Running" && runs.iter().all(|run| run.is_ready());
        let host = &self.shared.node.addresses;
        let ips = |all: &[IpAddr]| {
            all.iter()
                .map(|ip| json!({"ip": ip.to_string()}))
                .collect::<Vec<_>>()
        };
        let first = |all: &[IpAddr]| all.first().map(IpAddr::to_string);
        json!({
            "phase": phase,
            "message": self.problem,
            "startTime": self.started,
            "hostIP": first(host), "hostIPs": ips(host),
            "podIP": first(&self.addresses), "podIPs": ips(&self.addresses),
            "conditions": [
                self.condition("PodScheduled", true),
                self.condition("Initialized", self.is_initialized),
                self.condition("ContainersReady", is_ready),
                self.condition("Ready", is_ready),
            ],
            "initContainerStatuses": self.statuses("/spec/initContainers"),
            "containerStatuses": self.statuses("/spec/containers"),
        })
    }

    /// A condition, with the time of its last change.
    fn condition(&self, kind: &str, is_met: bool) -> Value {
        let status = if is_met { "True" } else { "False" };
        let before = list(&self.written, "/conditions")
            .iter()
            .find(|condition| condition["type"] == kind);
        let since = before
            .filter(|condition| condition["status"] == status)
            .map_or_else(
                || json!(now()),
                |condition| condition["lastTransitionTime"].clone(),
            );
        json!({"type": kind, "status": status, "lastTransitionTime": since})
    }

    fn statuses(&self, pointer: &str) -> Vec<Value> {
        let idle = Run::default();
        let is_init = pointer == "/spec/initContainers";
        let status = |spec: &Value| {
            let run = self.runs.get(text(spec, "/name")).unwrap_or(&idle);
            let state = match &run.status {
                Some(status) if run.is_in(ContainerState::ContainerExited) => terminated(status),
                Some(status) => json!({"running": {"startedAt": time(status.started_at)}}),
                None => {
                    let (reason, message) = run.problem.clone().unwrap_or_else(|| {
                        let reason = match self.is_initialized || is_init {
                            true => "ContainerCreating",
                            false => "PodInitializing",
                        };
                        (reason, self.problem.clone().unwrap_or_default())
                    });
                    json!({"waiting": {"reason": reason, "message": message}})
                }
            };
            json!({
                "name": spec["name"], "image": spec["image"],
                "imageID": run.status.as_ref().map_or("", |status| status.image_ref.as_str()),
                "containerID": run.id.as_ref().map(|id| format!("containerd://{id}")),
                "ready": if is_init { run.has_succeeded() } else { run.is_ready() },
                "started": run.has_started(),
                "restartCount": run.restarts,
                "state": state,
                "lastState": run.last.clone().unwrap_or_else(|| json!({})),
            })
        };
        list(&self.pod, pointer).iter().map(status).collect()
    }
}

fn terminated(status: &ContainerStatus) -> Value {
    let reason = match (status.exit_code, status.reason.as_str()) {
        (0, _) => "Completed",
        (_, "") => "Error",
        (_, reason) => reason,
    };
    json!({"terminated": {
        "exitCode": status.exit_code, "reason": reason, "message": status.message,
        "startedAt": time(status.started_at), "finishedAt": time(status.finished_at),
    }})
}
