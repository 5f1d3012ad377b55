// SPDX-License-Identifier: Apache-2.0

//! A pod as Go prints its structures in YAML: names of fields in lower case, and all fields, those that are zero as
//! well.

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_k8s_types::slim::{Container, ContainerStatus, Metadata, Pod, PodCondition};

/// The zero of a time that is no pointer.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

pub(super) fn pod(pod: &Pod) -> Value {
    let (spec, status) = (&pod.spec, &pod.status);
    let ips: Vec<Value> = status.pod_ips.iter().map(|ip| json!({"ip": ip.ip})).collect();
    json!({
        "typemeta": {"kind": "Pod", "apiversion": "v1"},
        "objectmeta": metadata(&pod.metadata),
        "spec": {
            "initcontainers": all(&spec.init_containers, container),
            "containers": all(&spec.containers, container),
            "serviceaccountname": spec.service_account_name,
            "nodename": spec.node_name,
            "hostnetwork": spec.host_network,
        },
        "status": {
            "phase": status.phase,
            "conditions": all(&status.conditions, condition),
            "hostip": status.host_ip,
            "podip": status.pod_ip,
            "podips": ips,
            "starttime": status.start_time.map(text),
            "containerstatuses": all(&status.container_statuses, container_status),
            "qosclass": status.qos_class,
        },
    })
}

fn all<T>(items: &[T], one: fn(&T) -> Value) -> Vec<Value> {
    items.iter().map(one).collect()
}

fn text(time: Timestamp) -> String {
    time.to_string()
}

fn text_or_zero(time: Option<Timestamp>) -> String {
    time.map_or_else(|| NO_TIME.to_owned(), text)
}

fn metadata(metadata: &Metadata) -> Value {
    let owners: Vec<Value> = metadata
        .owner_references
        .iter()
        .map(|owner| {
            json!({
                "apiversion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": owner.controller,
            })
        })
        .collect();
    json!({
        "name": metadata.name,
        "generatename": metadata.generate_name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceversion": metadata.resource_version,
        "deletiontimestamp": metadata.deletion_timestamp.map(text),
        "labels": metadata.labels,
        "annotations": metadata.annotations,
        "ownerreferences": owners,
    })
}

fn container(container: &Container) -> Value {
    let ports: Vec<Value> = container
        .ports
        .iter()
        .map(|port| {
            json!({
                "name": port.name,
                "hostport": port.host_port,
                "containerport": port.container_port,
                "protocol": port.protocol,
                "hostip": port.host_ip,
            })
        })
        .collect();
    let mounts: Vec<Value> = container
        .volume_mounts
        .iter()
        .map(|mount| json!({"mountpath": mount.mount_path}))
        .collect();
    json!({"name": container.name, "image": container.image, "ports": ports, "volumemounts": mounts})
}

fn condition(condition: &PodCondition) -> Value {
    json!({
        "type": condition.kind,
        "status": condition.status,
        "lastprobetime": text_or_zero(condition.last_probe_time),
        "lasttransitiontime": text_or_zero(condition.last_transition_time),
        "reason": condition.reason,
        "message": condition.message,
    })
}

fn container_status(status: &ContainerStatus) -> Value {
    let running = status
        .state
        .running
        .as_ref()
        .map(|running| json!({"startedat": text_or_zero(running.started_at)}));
    json!({"state": {"running": running}, "containerid": status.container_id})
}
