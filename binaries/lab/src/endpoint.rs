// SPDX-License-Identifier: Apache-2.0

//! Pods as endpoints of the agent on their node: what a CNI plugin does.

use std::{io, net::IpAddr, path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::{link::Identified, plan::PodPlace};

/// How long an answer may take: longer than the agent waits for its own start.
const PATIENCE: Duration = Duration::from_secs(55);

/// Why an agent has not done what a pod needs.
#[derive(Debug, thiserror::Error)]
pub enum AgentApiError {
    /// It does not run, or is starting.
    #[error("the agent of the node does not answer")]
    Unreachable(#[source] io::Error),
    #[error("the agent answered {status} to {request}: {text}")]
    Refused {
        request: String,
        status: u16,
        text: String,
    },
}

/// The agent of a node, over its socket.
#[derive(Debug, Clone, Copy)]
pub struct AgentApi {
    node: u32,
}

impl AgentApi {
    /// The agent in the namespaces of this process.
    #[must_use]
    pub fn of(node: u32) -> Self {
        Self { node }
    }

    async fn connect(self) -> Result<UnixStream, AgentApiError> {
        // What the process sees as its root.
        let root = Path::new("/proc").join(self.node.to_string()).join("root");
        let connected = UnixStream::connect(root.join("run/cilium/cilium.sock")).await;
        connected.map_err(AgentApiError::Unreachable)
    }

    pub async fn listens(self) -> Result<(), AgentApiError> {
        self.connect().await.map(drop)
    }

    /// Makes the link of a pod an endpoint; returns when packets pass. `cookie` is that of the pod's network namespace, by which
    /// programs know its sockets.
    ///
    /// # Errors
    /// When the agent does not answer, or rejects the request.
    pub async fn add(
        self,
        pod: &PodPlace,
        host: &Identified,
        inside: &Identified,
        addresses: [IpAddr; 2],
        cookie: u64,
    ) -> Result<(), AgentApiError> {
        // Left by a run that ended before it had the answer.
        self.remove(pod).await?;
        let [ipv4, ipv6] = addresses;
        let body = json!({
            "container-id": pod.uid, "container-interface-name": inside.name,
            "container-netns-path": format!("/run/netns/{}", pod.id),
            "interface-name": host.name, "interface-index": host.index, "mac": inside.mac, "host-mac": host.mac,
            "addressing": {"ipv4": ipv4, "ipv6": ipv6},
            "k8s-namespace": pod.namespace, "k8s-pod-name": pod.hostname, "k8s-uid": pod.uid,
            "netns-cookie": cookie.to_string(), "labels": [], "sync-build-endpoint": true,
        });
        self.ask("PUT", "endpoint/cilium-local:0", &body, &[201]).await
    }

    /// Deletes the endpoints of a pod; fine if there are none.
    pub async fn remove(self, pod: &PodPlace) -> Result<(), AgentApiError> {
        let body = json!({"container-id": pod.uid});
        self.ask("DELETE", "endpoint", &body, &[200, 404]).await
    }

    async fn ask(
        self,
        method: &str,
        path: &str,
        body: &Value,
        accepted: &[u16],
    ) -> Result<(), AgentApiError> {
        let asked = tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await;
        let late = || AgentApiError::Unreachable(io::ErrorKind::TimedOut.into());
        let (status, text) = asked.map_err(|_| late())??;
        match accepted.contains(&status) {
            true => Ok(()),
            false => Err(AgentApiError::Refused {
                request: format!("{method} /v1/{path}"),
                status,
                text: text.trim().trim_matches('"').to_owned(),
            }),
        }
    }

    /// Status and body of an answer.
    async fn exchange(self, method: &str, path: &str, body: &Value) -> Result<(u16, String), AgentApiError> {
        let mut stream = self.connect().await?;
        let body = body.to_string();
        let request = format!(
            "{method} /v1/{path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let failed = AgentApiError::Unreachable;
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(failed)?;
        let garbled = || AgentApiError::Unreachable(io::ErrorKind::InvalidData.into());
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(garbled)?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Ok((status.ok_or_else(garbled)?, body.to_owned()))
    }
}
