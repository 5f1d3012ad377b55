// SPDX-License-Identifier: Apache-2.0

//! Pods as endpoints of the agent on their node: what a CNI plugin does.

use std::{net::IpAddr, path::Path, time::Duration};

use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::{EndpointAddressing, EndpointBatchDeleteRequest, EndpointChangeRequest, State};

use crate::{link::Identified, plan::PodPlace};

/// How long an answer may take: longer than the agent waits for its own start.
const PATIENCE: Duration = Duration::from_secs(55);

/// The agent of a node, over its socket.
#[derive(Debug, Clone)]
pub struct AgentApi(Client);

impl AgentApi {
    /// The agent in the namespaces of this process.
    #[must_use]
    pub fn of(node: u32) -> Self {
        // What the process sees as its root.
        let root = Path::new("/proc").join(node.to_string()).join("root");
        Self(Client::at(&root.join("run/cilium/cilium.sock")).with_timeout(PATIENCE))
    }

    /// Whether it answers that its overall state is `Ok`.
    pub async fn is_well(&self) -> bool {
        let client = self.0.clone().with_timeout(Duration::from_secs(2));
        let health = blocking(move || client.health(true)).await;
        health.is_ok_and(|health| health.cilium.state == State::Ok)
    }

    /// An error if it does not answer.
    pub async fn listens(&self) -> Result<(), ClientError> {
        let client = self.0.clone();
        match blocking(move || client.health(true)).await {
            Err(ClientError::Refused { .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Makes the link of a pod an endpoint; returns when packets pass. `cookie` is that of the pod's network namespace, by which
    /// programs know its sockets.
    pub async fn add(
        &self,
        pod: &PodPlace,
        host: &Identified,
        inside: &Identified,
        [ipv4, ipv6]: [IpAddr; 2],
        cookie: u64,
    ) -> Result<(), ClientError> {
        // Left by a run that ended before it had the answer.
        self.remove(pod).await?;
        let request = EndpointChangeRequest {
            container_id: pod.uid.clone(),
            container_interface_name: inside.name.clone(),
            container_netns_path: format!("/run/netns/{}", pod.id),
            netns_cookie: cookie.to_string(),
            interface_name: host.name.clone(),
            interface_index: host.index,
            mac: inside.mac.clone(),
            host_mac: host.mac.clone(),
            addressing: EndpointAddressing {
                ipv4: ipv4.to_string(),
                ipv6: ipv6.to_string(),
                ..EndpointAddressing::default()
            },
            k8s_namespace: pod.namespace.clone(),
            k8s_pod_name: pod.hostname.clone(),
            k8s_uid: pod.uid.clone(),
            sync_build_endpoint: true,
            ..EndpointChangeRequest::default()
        };
        let client = self.0.clone();
        blocking(move || client.put_endpoint(&request)).await.map(drop)
    }

    /// Deletes the endpoints of a pod; fine if there are none.
    pub async fn remove(&self, pod: &PodPlace) -> Result<(), ClientError> {
        let (client, container_id) = (self.0.clone(), pod.uid.clone());
        let request = EndpointBatchDeleteRequest { container_id };
        match blocking(move || client.delete_container(&request)).await {
            Err(error) if error.status() == Some(404) => Ok(()),
            done => done,
        }
    }
}

/// Runs a request off the executor's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
