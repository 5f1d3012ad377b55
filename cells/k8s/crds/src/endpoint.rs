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
    #[derive(Eq)]
    pub struct EndpointStatus {
        /// Controllers of the endpoint. Not written.
        pub controllers: Option<Vec<ControllerStatus>>,
        /// Encryption; an empty object for none.
        pub encryption: Option<EncryptionSpec>,
        pub external_identifiers: Option<EndpointIdentifiers>,
        pub health: Option<EndpointHealth>,
        /// Id of the endpoint on its node.
        pub id: Option<i64>,
        pub identity: Option<EndpointIdentity>,
        /// Last changes of state. Not written.
        pub log: Option<Vec<EndpointStatusChange>>,
        /// Ports of the pod's containers by name, sorted.
        pub named_ports: Option<Vec<NamedPort>>,
        pub networking: Option<EndpointNetworking>,
        pub policy: Option<EndpointPolicy>,
        pub service_account: Option<String>,
        pub state: Option<EndpointState>,
    }

    #[derive(Eq)]
    pub struct ControllerStatus {
        pub configuration: Option<ControllerConfiguration>,
        pub name: Option<String>,
        pub status: Option<ControllerRuns>,
        pub uuid: Option<String>,
    }

    /// How a controller runs. Durations are nanoseconds.
    #[derive(Eq)]
    pub struct ControllerConfiguration {
        pub error_retry: Option<bool>,
        /// First time to wait before a failed run is repeated.
        pub error_retry_base: Option<i64>,
        pub interval: Option<i64>,
    }

    /// How the runs of a controller end.
    #[derive(Eq)]
    pub struct ControllerRuns {
        /// Failed runs since the last success.
        pub consecutive_failure_count: Option<i64>,
        pub failure_count: Option<i64>,
        /// Error of the last failed run.
        pub last_failure_msg: Option<String>,
        /// When the last failed run ended.
        pub last_failure_timestamp: Option<String>,
        /// When the last successful run ended.
        pub last_success_timestamp: Option<String>,
        pub success_count: Option<i64>,
    }

    #[derive(Eq)]
    pub struct EndpointIdentifiers {
        /// Id of the container, with the interface if it has several: `id:interface`.
        pub cni_attachment_id: Option<String>,
        /// Id of the container; use `cni-attachment-id`.
        pub container_id: Option<String>,
        pub container_name: Option<String>,
        /// Id of the endpoint in Docker.
        pub docker_endpoint_id: Option<String>,
        /// Id of the network in Docker.
        pub docker_network_id: Option<String>,
        pub k8s_namespace: Option<String>,
        pub k8s_pod_name: Option<String>,
        /// Pod as `namespace/name`; use `k8s-namespace` and `k8s-pod-name`.
        pub pod_name: Option<String>,
    }

    #[derive(Eq)]
    pub struct EndpointHealth {
        pub bpf: Option<String>,
        pub connected: Option<bool>,
        #[serde(rename = "overallHealth")]
        pub overall_health: Option<String>,
        pub policy: Option<String>,
    }

    #[derive(Eq)]
    pub struct EndpointIdentity {
        pub id: Option<i64>,
        /// Labels as `source:key=value`, sorted.
        pub labels: Option<Vec<String>>,
    }

    /// A change of the state of an endpoint.
    #[derive(Eq)]
    pub struct EndpointStatusChange {
        pub code: Option<String>,
        pub message: Option<String>,
        pub state: Option<String>,
        pub timestamp: Option<String>,
    }

    /// Policy in force on an endpoint.
    #[derive(Eq)]
    pub struct EndpointPolicy {
        pub egress: Option<EndpointPolicyDirection>,
        pub ingress: Option<EndpointPolicyDirection>,
    }

    /// Policy in force on the traffic of one direction.
    #[derive(Eq)]
    pub struct EndpointPolicyDirection {
        pub adding: Option<Vec<IdentityTuple>>,
        pub allowed: Option<Vec<IdentityTuple>>,
        pub denied: Option<Vec<IdentityTuple>>,
        /// Traffic that no rule allows is denied.
        pub enforcing: bool,
        pub removing: Option<Vec<IdentityTuple>>,
        /// `enforcing`, `non-enforcing` or `disabled`.
        pub state: Option<String>,
    }

    #[derive(Eq)]
    pub struct IdentityTuple {
        pub dest_port: Option<Integer>,
        pub identity: Option<i64>,
        pub identity_labels: Option<BTreeMap<String, String>>,
        pub protocol: Option<Integer>,
    }

    #[derive(Eq)]
    pub struct CoreCiliumEndpoint {
        /// Encryption; an empty object for none.
        pub encryption: Option<EncryptionSpec>,
        /// Security identity, not the id of the endpoint.
        pub id: Option<i64>,
        pub name: Option<String>,
        /// Ports of the pod's containers by name, sorted.
        pub named_ports: Option<Vec<NamedPort>>,
        pub networking: Option<EndpointNetworking>,
        pub pod_uid: Option<String>,
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
