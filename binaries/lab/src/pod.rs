// SPDX-License-Identifier: Apache-2.0

//! Pods: the fields that the lab reads, and the status that it writes.

use std::{collections::BTreeSet, ffi::OsString, net::IpAddr, time::Duration};

use serde_json::{Value, json};

use crate::{
    process::own_program,
    volumes::spec::{self, Volume},
};

/// Image of the echo server; serves on the container's ports.
pub const ECHO_IMAGE: &str = "skep-lab/echo";
/// Image that does nothing, to run commands in.
pub const IDLE_IMAGE: &str = "skep-lab/client";
/// Delay before a pod whose process ended is restarted.
pub const RESTART: Duration = Duration::from_secs(1);
/// Annotation that makes a running pod unready: `false`.
pub const READY_ANNOTATION: &str = "skep-lab/ready";

/// Why a pod cannot run in a lab.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Use one of the built-in images.
    #[error(
        "image `{image}` of container `{container}` is not built into the lab; there are {ECHO_IMAGE} and {IDLE_IMAGE}"
    )]
    Image { container: String, image: String },
    #[error("the pod has no container")]
    Empty,
}

/// A container of a pod: they share one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub image: String,
}

/// A pod as the lab sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// Uid: differs between pods of the same name.
    pub uid: String,
    /// Its node; empty until it is scheduled.
    pub node: String,
    pub is_deleting: bool,
    /// Whether it is in the node's own network.
    pub is_on_host_network: bool,
    /// Whether the annotation keeps it unready.
    pub is_held_unready: bool,
    pub phase: String,
    /// Whether its status has condition Ready.
    pub is_ready: bool,
    pub containers: Vec<Container>,
    /// TCP ports of its echo servers, each once.
    pub tcp: Vec<u16>,
    /// UDP ports of its echo servers, each once.
    pub udp: Vec<u16>,
    pub service_account: String,
    /// Its projected volumes that containers mount.
    pub volumes: Vec<Volume>,
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
        let ports = |protocol: &str| -> Vec<u16> {
            // One port may be listed twice, under two names: it is served once.
            let ports: BTreeSet<u16> = containers
                .iter()
                .filter(|container| image(container).starts_with(ECHO_IMAGE))
                .filter_map(|container| container["ports"].as_array())
                .flatten()
                .filter(|port| port["protocol"].as_str().unwrap_or("TCP") == protocol)
                .filter_map(|port| port["containerPort"].as_u64()?.try_into().ok())
                .collect();
            ports.into_iter().collect()
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
            containers: containers
                .iter()
                .map(|container| Container {
                    name: container["name"].as_str().unwrap_or_default().to_owned(),
                    image: image(container),
                })
                .collect(),
            tcp: ports("TCP"),
            udp: ports("UDP"),
            service_account: text("/spec/serviceAccountName"),
            volumes: spec::read(object),
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

/// The last end of a pod's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit code, as a shell reports it.
    pub exit_code: i32,
    /// Time of the end, in the API's form.
    pub at: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Life {
    /// Time of the start; `None` while it does not run.
    pub started: Option<String>,
    pub is_ready: bool,
    pub restarts: u32,
    pub last: Option<Ended>,
}

/// Status of a pod on its node, as a merge patch.
#[must_use]
pub fn status(pod: &Pod, addresses: &[IpAddr], host: &[IpAddr], life: &Life) -> Value {
    let list = |addresses: &[IpAddr]| {
        addresses
            .iter()
            .map(|address| json!({"ip": address.to_string()}))
            .collect::<Vec<_>>()
    };
    let first = |addresses: &[IpAddr]| addresses.first().map(IpAddr::to_string);
    let ready = if life.is_ready { "True" } else { "False" };
    let containers = pod.containers.iter();
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
        "containerStatuses": containers.map(|container| container_status(pod, container, life)).collect::<Vec<_>>(),
    }})
}

fn container_status(pod: &Pod, container: &Container, life: &Life) -> Value {
    let state = match &life.started {
        Some(at) => json!({"running": {"startedAt": at}}),
        None => json!({"waiting": {
            "reason": "CrashLoopBackOff",
            "message": format!(
                "back-off {}s restarting failed container={} pod={}_{}({})",
                RESTART.as_secs(), container.name, pod.name, pod.namespace, pod.uid
            ),
        }}),
    };
    let last = life.last.as_ref().map(|ended| {
        let reason = if ended.exit_code == 0 {
            "Completed"
        } else {
            "Error"
        };
        json!({"terminated": {"exitCode": ended.exit_code, "reason": reason, "finishedAt": ended.at}})
    });
    json!({
        "name": container.name, "image": container.image, "imageID": container.image,
        "ready": life.is_ready, "started": life.started.is_some(), "restartCount": life.restarts,
        "state": state, "lastState": last.unwrap_or_else(|| json!({})),
    })
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
    fn a_port_that_is_listed_twice_is_served_once() {
        let pod = Pod::read(&json!({"spec": {"containers": [
            {"name": "a", "image": "skep-lab/echo", "ports": [
                {"name": "http", "containerPort": 80}, {"name": "metrics", "containerPort": 80}]},
            {"name": "b", "image": "skep-lab/echo", "ports": [{"containerPort": 80}]},
        ]}}));

        assert_eq!(pod.tcp, [80]);
    }

    #[test]
    fn the_status_names_containers_and_says_how_they_ended() {
        let pod = Pod::read(&json!({
            "metadata": {"namespace": "shop", "name": "web-0", "uid": "u1"},
            "spec": {"containers": [
                {"name": "web", "image": "skep-lab/echo:1"}, {"name": "side", "image": "skep-lab/client"}]},
        }));
        let crashed = Life {
            restarts: 2,
            last: Some(Ended {
                exit_code: 137,
                at: "2026-01-01T00:00:00Z".into(),
            }),
            ..Life::default()
        };

        let status = &status(&pod, &[], &[], &crashed)["status"]["containerStatuses"];

        assert_eq!(
            (&status[0]["name"], &status[1]["name"]),
            (&json!("web"), &json!("side"))
        );
        assert_eq!(status[1]["image"], "skep-lab/client");
        assert_eq!(status[0]["restartCount"], 2);
        assert_eq!(status[0]["lastState"]["terminated"]["exitCode"], 137);
        assert_eq!(
            status[0]["state"]["waiting"]["message"],
            "back-off 1s restarting failed container=web pod=web-0_shop(u1)"
        );
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
