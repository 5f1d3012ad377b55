// SPDX-License-Identifier: Apache-2.0

//! Client of a container runtime, by CRI over its unix socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_cri::v1::{
    ContainerConfig, ContainerStatus, ContainerStatusRequest, ContainerStatusResponse,
    CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, ListImagesRequest, ListPodSandboxRequest,
    PodSandbox, PodSandboxConfig, PodSandboxStatusRequest, PodSandboxStatusResponse, RemoveContainerRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopContainerRequest,
    StopPodSandboxRequest, VersionRequest, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};

/// containerd namespace of what CRI knows.
const NAMESPACE: &str = "k8s.io";

/// Why the runtime did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The path of the socket is invalid.
    #[error("container runtime at {}", socket.display())]
    Socket {
        socket: PathBuf,
        #[source]
        cause: tonic::transport::Error,
    },
    /// The runtime does not run, or returned an error.
    #[error("{call}: {message}")]
    Call { call: &'static str, message: String },
    /// Install the package of containerd.
    #[error("cannot run ctr")]
    Ctr(#[source] io::Error),
    #[error("importing {}: {message}", archive.display())]
    Import { archive: PathBuf, message: String },
}

/// A container runtime.
#[derive(Debug, Clone)]
pub struct Cri {
    socket: PathBuf,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

fn failed(call: &'static str) -> impl FnOnce(tonic::Status) -> CriError {
    move |status| CriError::Call {
        call,
        message: status.message().to_owned(),
    }
}

impl Cri {
    /// The runtime that listens on `socket`; connects with the first call, and again after it restarted.
    pub fn at(socket: &Path) -> Result<Self, CriError> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let channel = endpoint.map(|endpoint| endpoint.connect_lazy());
        let channel = channel.map_err(|cause| CriError::Socket {
            socket: socket.to_owned(),
            cause,
        })?;
        Ok(Self {
            socket: socket.to_owned(),
            runtime: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
        })
    }

    /// Calls of `RuntimeService`.
    #[must_use]
    pub fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    /// Calls of `ImageService`.
    #[must_use]
    pub fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<String, CriError> {
        let answer = self.runtime().version(VersionRequest::default()).await;
        let answer = answer.map_err(failed("Version"))?.into_inner();
        Ok(format!("{}://{}", answer.runtime_name, answer.runtime_version))
    }

    /// Imports an OCI archive.
    pub async fn import(&self, archive: &Path) -> Result<(), CriError> {
        let mut command = tokio::process::Command::new("ctr");
        command
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", NAMESPACE, "images", "import"])
            .arg(archive);
        let output = command.output().await.map_err(CriError::Ctr)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(CriError::Import {
                archive: archive.to_owned(),
                message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    /// Names of all images.
    pub async fn image_names(&self) -> Result<Vec<String>, CriError> {
        let answer = self.images().list_images(ListImagesRequest::default()).await;
        let images = answer.map_err(failed("ListImages"))?.into_inner().images;
        Ok(images.into_iter().flat_map(|image| image.repo_tags).collect())
    }

    /// Creates and starts a sandbox, connected by the CNI plugin; its id.
    pub async fn run_sandbox(&self, config: &PodSandboxConfig) -> Result<String, CriError> {
        let request = RunPodSandboxRequest {
            config: Some(config.clone()),
            ..RunPodSandboxRequest::default()
        };
        let answer = self.runtime().run_pod_sandbox(request).await;
        Ok(answer
            .map_err(failed("RunPodSandbox"))?
            .into_inner()
            .pod_sandbox_id)
    }

    /// Creates and starts a container in a sandbox; its id.
    pub async fn start_container(
        &self,
        sandbox: &str,
        sandbox_config: &PodSandboxConfig,
        config: ContainerConfig,
    ) -> Result<String, CriError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let created = self.runtime().create_container(request).await;
        let container_id = created
            .map_err(failed("CreateContainer"))?
            .into_inner()
            .container_id;
        let request = StartContainerRequest {
            container_id: container_id.clone(),
        };
        let started = self.runtime().start_container(request).await;
        started.map_err(failed("StartContainer"))?;
        Ok(container_id)
    }

    /// Runs a program in a container.
    pub async fn exec(
        &self,
        container: &str,
        command: &[String],
        limit: Duration,
    ) -> Result<ExecSyncResponse, CriError> {
        let request = ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        };
        let answer = self.runtime().exec_sync(request).await;
        Ok(answer.map_err(failed("ExecSync"))?.into_inner())
    }

    /// State of a container; `None` if there is none of this id.
    pub async fn container_status(&self, id: &str) -> Result<Option<ContainerStatus>, CriError> {
        Ok(self.verbose_status(id).await?.and_then(|answer| answer.status))
    }

    async fn verbose_status(&self, id: &str) -> Result<Option<ContainerStatusResponse>, CriError> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        match self.runtime().container_status(request).await {
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            answer => Ok(Some(answer.map_err(failed("ContainerStatus"))?.into_inner())),
        }
    }

    /// First process of a container that runs.
    pub async fn container_process(&self, id: &str) -> Result<Option<u32>, CriError> {
        let answer = self.verbose_status(id).await?.unwrap_or_default();
        let info: Value = answer
            .info
            .get("info")
            .and_then(|info| serde_json::from_str(info).ok())
            .unwrap_or_default();
        let process = info["pid"].as_u64().and_then(|process| process.try_into().ok());
        Ok(process.filter(|process| *process > 0))
    }

    /// Ends a container: asks it to, and kills it after `grace`.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        let answer = self.runtime().stop_container(request).await;
        answer.map(drop).map_err(failed("StopContainer"))
    }

    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let answer = self.runtime().remove_container(request).await;
        answer.map(drop).map_err(failed("RemoveContainer"))
    }

    pub async fn sandboxes(&self) -> Result<Vec<PodSandbox>, CriError> {
        let answer = self
            .runtime()
            .list_pod_sandbox(ListPodSandboxRequest::default())
            .await;
        Ok(answer.map_err(failed("ListPodSandbox"))?.into_inner().items)
    }

    /// State of a sandbox, with its runtime specification.
    pub async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatusResponse, CriError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: true,
        };
        let answer = self.runtime().pod_sandbox_status(request).await;
        Ok(answer.map_err(failed("PodSandboxStatus"))?.into_inner())
    }

    /// Ends all processes of a sandbox and disconnects it.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let answer = self.runtime().stop_pod_sandbox(request).await;
        answer.map(drop).map_err(failed("StopPodSandbox"))
    }

    /// Removes a sandbox and its containers.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let answer = self.runtime().remove_pod_sandbox(request).await;
        answer.map(drop).map_err(failed("RemovePodSandbox"))
    }
}
