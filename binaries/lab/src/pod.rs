// SPDX-License-Identifier: Apache-2.0

//! What the lab reads of a Pod, and what it writes into its status.

use std::{ffi::OsString, net::IpAddr};

use serde_json::{Value, json};

use crate::process::own_program;

/// Image of the echo server; serves on the container's ports.
pub const ECHO_IMAGE: &str = "skep-lab/echo";
/// Image that does nothing: a place to run commands in.
pub const IDLE_IMAGE: &str = "skep-lab/client";
/// Annotation by which a user makes a running pod unready: `false`.
pub const READY_ANNOTATION: &str = "skep-lab/ready";

/// Why a pod cannot run in a lab.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Use one of the built-in images.
    #[error(
        "image `{image}` of container `{container}` is not built into the lab; there are {ECHO_IMAGE} and {IDLE_IMAGE}"
    )]
    Image {
        /// The container.
        container: String,
        /// Its image.
        image: String,
    },
    /// Give the pod a container.
    #[error("the pod has no container")]
    Empty,
}

/// A pod as the lab sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Tells two pods of one name apart.
    pub uid: String,
    /// Its node; empty until it is scheduled.
    pub node: String,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether it is in the node's own network.
    pub is_on_host_network: bool,
    /// Whether its user keeps it unready.
    pub is_held_unready: bool,
    /// Phase in its status.
    pub phase: String,
    /// Whether its status says that it is ready.
    pub is_ready: bool,
    /// TCP ports of its echo servers.
    pub tcp: Vec<u16>,
    /// UDP ports of its echo servers.
    pub udp: Vec<u16>,
    /// What is wrong with it.
    pub problem: Option<PodError>,
}

impl Pod {
    /// Reads a Pod; anything missing or of the wrong type counts as absent.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let text = |path: &str| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let containers = object.pointer("/spec/containers").and_then(Value::as_array);
        let containers = containers.map(Vec::as_slice).unwrap_or_default();
        let image = |container: &Value| container["image"].as_str().unwrap_or_default().to_owned();
        let known = |image: &str| {
            // A tag after the name is fine: the image is built in, in one version.
            let name = image.split(':').next().unwrap_or_default();
            name == ECHO_IMAGE || name == IDLE_IMAGE
        };
        let unknown = containers.iter().find(|container| !known(&image(container)));
        let problem = match unknown {
            Some(container) => Some(PodError::Image {
                container: container["name"].as_str().unwrap_or_default().to_owned(),
                image: image(container),
            }),
            None if containers.is_empty() => Some(PodError::Empty),
            None => None,
        };
        let ports = |protocol: &str| {
            containers
                .iter()
                .filter(|container| image(container).starts_with(ECHO_IMAGE))
                .filter_map(|container| container["ports"].as_array())
                .flatten()
                .filter(|port| port["protocol"].as_str().unwrap_or("TCP") == protocol)
                .filter_map(|port| port["containerPort"].as_u64()?.try_into().ok())
                .collect()
        };
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let is_ready = conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        });
        let annotation = object
            .pointer("/metadata/annotations")
            .map(|all| &all[READY_ANNOTATION]);
        Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            node: text("/spec/nodeName"),
            is_deleting: object
                .pointer("/metadata/deletionTimestamp")
                .is_some_and(|time| !time.is_null()),
            is_on_host_network: object
                .pointer("/spec/hostNetwork")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            is_held_unready: annotation.and_then(Value::as_str) == Some("false"),
            phase: text("/status/phase"),
            is_ready,
            tcp: ports("TCP"),
            udp: ports("UDP"),
            problem,
        }
    }

    /// `namespace.name`: names its control group, log and network pin. Neither part can hold a dot twice
    /// in one way, so two pods never share it: a namespace has no dot.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}.{}", self.namespace, self.name)
    }

    /// The program that runs in it.
    #[must_use]
    pub fn program(&self) -> Vec<OsString> {
        let ports = |list: &[u16]| list.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let mut program: Vec<OsString> = vec![
            own_program(),
            "echo".into(),
            "--name".into(),
            self.name.clone().into(),
        ];
        for (option, list) in [("--tcp", &self.tcp), ("--udp", &self.udp)] {
            if !list.is_empty() {
                program.push(option.into());
                program.push(ports(list).into());
            }
        }
        program
    }
}

/// Status of a running pod, as a merge patch.
#[must_use]
pub fn running(pod: &Pod, addresses: &[IpAddr], host: &[IpAddr], is_ready: bool, restarts: u32) -> Value {
    let list = |addresses: &[IpAddr]| {
        addresses
            .iter()
            .map(|address| json!({"ip": address.to_string()}))
            .collect::<Vec<_>>()
    };
    let first = |addresses: &[IpAddr]| addresses.first().map(IpAddr::to_string);
    let ready = if is_ready { "True" } else { "False" };
    json!({"status": {
        "phase": "Running",
        "podIP": first(addresses),
        "podIPs": list(addresses),
        "hostIP": first(host),
        "hostIPs": list(host),
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": "True"},
            {"type": "ContainersReady", "status": ready},
            {"type": "Ready", "status": ready},
        ],
        "containerStatuses": [{
            "name": pod.name, "image": ECHO_IMAGE, "imageID": ECHO_IMAGE, "ready": is_ready, "started": true,
            "restartCount": restarts, "state": {"running": {}},
        }],
    }})
}

/// Status of a pod that cannot run, as a merge patch.
#[must_use]
pub fn failed(problem: &str) -> Value {
    json!({"status": {"phase": "Failed", "reason": "CannotRun", "message": problem}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ports_by_protocol() {
        let pod = Pod::read(&json!({
            "metadata": {"namespace": "shop", "name": "web-0"},
            "spec": {"nodeName": "c1-n1", "containers": [{"name": "web", "image": "skep-lab/echo:1", "ports": [
                {"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 70000}]}]},
        }));

        assert_eq!((pod.tcp.as_slice(), pod.udp.as_slice()), (&[80][..], &[53][..]));
        assert_eq!(pod.problem, None);
        assert_eq!(pod.id(), "shop.web-0");
    }

    #[test]
    fn names_an_image_that_is_not_built_in() {
        let pod = Pod::read(&json!({"spec": {"containers": [{"name": "db", "image": "postgres:17"}]}}));
        assert!(pod.problem.unwrap().to_string().contains("postgres:17"));
    }

    #[test]
    fn garbage_reads_as_an_empty_pod() {
        for object in [
            json!(null),
            json!([1]),
            json!({"spec": 3, "metadata": {"annotations": "x"}}),
        ] {
            assert_eq!(Pod::read(&object).problem, Some(PodError::Empty), "{object}");
        }
    }
}
