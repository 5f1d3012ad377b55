// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoint and CiliumEndpointSlice.

use std::collections::BTreeMap;

use crate::object::{kind, object, words};
use crate::shared::{EncryptionSpec, EndpointNetworking, Integer, NamedPort};

kind! {
    /// What an agent says about the endpoint of a pod.
    CiliumEndpoint, "cilium.io", "v2", "ciliumendpoints", true, {
        /// State of the endpoint; no sub-resource.
        pub status: Option<EndpointStatus>,
    }
}

kind! {
    /// Endpoints of one namespace, as the operator gathers them.
    CiliumEndpointSlice, "cilium.io", "v2alpha1", "ciliumendpointslices", false, {
        /// The endpoints.
        pub endpoints: Vec<CoreCiliumEndpoint>,
        /// Namespace of the endpoints. The object itself is in none.
        pub namespace: Option<String>,
    }
}

object! { "kebab-case",
    /// State of an endpoint.
    #[derive(Eq)]
    pub struct EndpointStatus {
        /// Controllers of the endpoint. Not written.
        pub controllers: Option<Vec<ControllerStatus>>,
        /// Encryption; an empty object for none.
        pub encryption: Option<EncryptionSpec>,
        /// How others name the endpoint.
        pub external_identifiers: Option<EndpointIdentifiers>,
        /// Health. Not written.
        pub health: Option<EndpointHealth>,
        /// Id of the endpoint on its node.
        pub id: Option<i64>,
        /// Security identity.
        pub identity: Option<EndpointIdentity>,
        /// Last changes of state. Not written.
        pub log: Option<Vec<EndpointStatusChange>>,
        /// Ports of the pod's containers by name, sorted.
        pub named_ports: Option<Vec<NamedPort>>,
        /// Addresses.
        pub networking: Option<EndpointNetworking>,
        /// Policy in force. Not written.
        pub policy: Option<EndpointPolicy>,
        /// Service account of the pod.
        pub service_account: Option<String>,
        /// State of the endpoint.
        pub state: Option<EndpointState>,
    }

    /// A controller of an endpoint.
    #[derive(Eq)]
    pub struct ControllerStatus {
        /// How it runs.
        pub configuration: Option<ControllerConfiguration>,
        /// Name of the controller.
        pub name: Option<String>,
        /// How its runs end.
        pub status: Option<ControllerRuns>,
        /// Unique id of the controller.
        pub uuid: Option<String>,
    }

    /// How a controller runs. Durations are nanoseconds.
    #[derive(Eq)]
    pub struct ControllerConfiguration {
        /// A failed run is repeated.
        pub error_retry: Option<bool>,
        /// First time to wait before a failed run is repeated.
        pub error_retry_base: Option<i64>,
        /// Time between runs.
        pub interval: Option<i64>,
    }

    /// How the runs of a controller end.
    #[derive(Eq)]
    pub struct ControllerRuns {
        /// Failed runs since the last success.
        pub consecutive_failure_count: Option<i64>,
        /// Failed runs.
        pub failure_count: Option<i64>,
        /// Error of the last failed run.
        pub last_failure_msg: Option<String>,
        /// When the last failed run ended.
        pub last_failure_timestamp: Option<String>,
        /// When the last successful run ended.
        pub last_success_timestamp: Option<String>,
        /// Successful runs.
        pub success_count: Option<i64>,
    }

    /// How others name an endpoint.
    #[derive(Eq)]
    pub struct EndpointIdentifiers {
        /// Id of the container, with the interface if it has several: `id:interface`.
        pub cni_attachment_id: Option<String>,
        /// Id of the container; use `cni-attachment-id`.
        pub container_id: Option<String>,
        /// Name of the container.
        pub container_name: Option<String>,
        /// Id of the endpoint in Docker.
        pub docker_endpoint_id: Option<String>,
        /// Id of the network in Docker.
        pub docker_network_id: Option<String>,
        /// Namespace of the pod.
        pub k8s_namespace: Option<String>,
        /// Name of the pod.
        pub k8s_pod_name: Option<String>,
        /// Pod as `namespace/name`; use `k8s-namespace` and `k8s-pod-name`.
        pub pod_name: Option<String>,
    }

    /// Health of an endpoint.
    #[derive(Eq)]
    pub struct EndpointHealth {
        /// Health of its datapath.
        pub bpf: Option<String>,
        /// It is reachable.
        pub connected: Option<bool>,
        /// Health as a whole.
        #[serde(rename = "overallHealth")]
        pub overall_health: Option<String>,
        /// Health of its policy.
        pub policy: Option<String>,
    }

    /// Security identity of an endpoint.
    #[derive(Eq)]
    pub struct EndpointIdentity {
        /// The identity.
        pub id: Option<i64>,
        /// Labels as `source:key=value`, sorted.
        pub labels: Option<Vec<String>>,
    }

    /// A change of the state of an endpoint.
    #[derive(Eq)]
    pub struct EndpointStatusChange {
        /// Kind of change.
        pub code: Option<String>,
        /// Details for people.
        pub message: Option<String>,
        /// State since then.
        pub state: Option<String>,
        /// When it was.
        pub timestamp: Option<String>,
    }

    /// Policy in force on an endpoint.
    #[derive(Eq)]
    pub struct EndpointPolicy {
        /// Policy of egress traffic.
        pub egress: Option<EndpointPolicyDirection>,
        /// Policy of ingress traffic.
        pub ingress: Option<EndpointPolicyDirection>,
    }

    /// Policy in force on the traffic of one direction.
    #[derive(Eq)]
    pub struct EndpointPolicyDirection {
        /// Deprecated.
        pub adding: Option<Vec<IdentityTuple>>,
        /// Allowed peers.
        pub allowed: Option<Vec<IdentityTuple>>,
        /// Denied peers.
        pub denied: Option<Vec<IdentityTuple>>,
        /// Traffic that no rule allows is denied.
        pub enforcing: bool,
        /// Deprecated.
        pub removing: Option<Vec<IdentityTuple>>,
        /// `enforcing`, `non-enforcing` or `disabled`.
        pub state: Option<String>,
    }

    /// A peer and a port.
    #[derive(Eq)]
    pub struct IdentityTuple {
        /// Destination port.
        pub dest_port: Option<Integer>,
        /// Identity of the peer.
        pub identity: Option<i64>,
        /// Labels of the peer.
        pub identity_labels: Option<BTreeMap<String, String>>,
        /// Number of the protocol.
        pub protocol: Option<Integer>,
    }

    /// An endpoint in a slice.
    #[derive(Eq)]
    pub struct CoreCiliumEndpoint {
        /// Encryption; an empty object for none.
        pub encryption: Option<EncryptionSpec>,
        /// Security identity, not the id of the endpoint.
        pub id: Option<i64>,
        /// Name of the CiliumEndpoint.
        pub name: Option<String>,
        /// Ports of the pod's containers by name, sorted.
        pub named_ports: Option<Vec<NamedPort>>,
        /// Addresses.
        pub networking: Option<EndpointNetworking>,
        /// Unique id of the pod.
        pub pod_uid: Option<String>,
        /// Service account of the pod.
        pub service_account: Option<String>,
    }
}

words! {
    /// State of an endpoint. Agents write only some of them: see the documentation of Cilium.
    pub enum EndpointState {
        /// It is being created.
        Creating = "creating",
        /// It has no identity yet.
        WaitingForIdentity = "waiting-for-identity",
        /// A part of it has failed.
        NotReady = "not-ready",
        /// Its datapath is to be regenerated.
        WaitingToRegenerate = "waiting-to-regenerate",
        /// Its datapath is being regenerated.
        Regenerating = "regenerating",
        /// It is being restored after a restart of the agent.
        Restoring = "restoring",
        /// It is in service.
        Ready = "ready",
        /// It is being removed.
        Disconnecting = "disconnecting",
        /// It is removed.
        Disconnected = "disconnected",
        /// It could not be created.
        Invalid = "invalid",
    }
}
