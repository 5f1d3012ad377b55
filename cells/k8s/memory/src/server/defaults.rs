// SPDX-License-Identifier: Apache-2.0

//! Values that a server fills in. Services are in `service`.

use serde_json::{Map, Value, json};

use super::{schema, service};
use crate::kinds::Kind;
use crate::object;

type Fields = Map<String, Value>;

fn or(map: &mut Fields, key: &str, value: impl Into<Value>) {
    if !map.contains_key(key) {
        map.insert(key.to_owned(), value.into());
    }
}

fn each(value: &mut Value, key: &str, f: impl FnMut(&mut Fields)) {
    if let Some(items) = value.get_mut(key).and_then(Value::as_array_mut) {
        items.iter_mut().filter_map(Value::as_object_mut).for_each(f);
    }
}

/// What the server sets in new objects, whatever was sent.
pub(super) fn on_create(kind: &Kind, object: &mut Value) {
    match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "namespaces") => {
            let spec = object::map_mut(object, "spec");
            spec.insert("finalizers".to_owned(), json!(["kubernetes"]));
            object::map_mut(object, "status").insert("phase".to_owned(), "Active".into());
        }
        ("", "pods") => {
            let quality = quality(object);
            let status = object::map_mut(object, "status");
            status.insert("phase".to_owned(), "Pending".into());
            status.insert("qosClass".to_owned(), quality.into());
        }
        ("", "services") => {
            object::map_mut(object, "status").insert("loadBalancer".to_owned(), json!({}));
        }
        ("networking.k8s.io", "ingresses") => {
            object::map_mut(object, "status").insert("loadBalancer".to_owned(), json!({}));
        }
        ("apps" | "batch" | "policy", _) if kind.has_status => {
            let status = object::map_mut(object, "status");
            if kind.gvr.resource == "replicasets" || kind.gvr.resource == "statefulsets" {
                status.insert("replicas".to_owned(), 0.into());
            }
        }
        ("", "persistentvolumeclaims") => {
            object::map_mut(object, "status").insert("phase".to_owned(), "Pending".into());
        }
        _ => {}
    }
}

/// What the server keeps or resets in objects that change, whatever was sent.
pub(super) fn on_update(kind: &Kind, old: &Value, object: &mut Value) {
    if kind.gvr.group.is_empty() && kind.gvr.resource == "namespaces" {
        let finalizers = object::at(old, &["spec", "finalizers"]).cloned();
        let spec = object::map_mut(object, "spec");
        match finalizers {
            Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
            None => spec.shift_remove("finalizers"),
        };
    }
    if kind.gvr.group.is_empty()
        && kind.gvr.resource == "services"
        && object::text(old, &["spec", "type"]) == "LoadBalancer"
        && object::text(object, &["spec", "type"]) != "LoadBalancer"
    {
        // The addresses were those of a load balancer that is no more.
        object::map_mut(object, "status").insert("loadBalancer".to_owned(), json!({}));
    }
}

/// Fills in what a client may leave out. Belongs to the client, as if it had sent it.
pub(super) fn fill_in(kind: &Kind, object: &mut Value) {
    if let Some(definition) = &kind.custom {
        schema::fill(&definition.schema, object);
    }
    match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "namespaces") => {
            let name = object::name(object).to_owned();
            let metadata = object::metadata_mut(object);
            let labels = metadata.entry("labels").or_insert_with(|| json!({}));
            if let Some(labels) = labels.as_object_mut() {
                labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
            }
        }
        ("", "pods") => {
            if let Some(spec) = object.get_mut("spec") {
                pod_spec(spec, true);
            }
        }
        ("", "secrets") => secret(object),
        ("", "services") => {
            if service::default_spec(object) == "LoadBalancer"
                && let Some(status) = object.pointer_mut("/status/loadBalancer")
            {
                // Kubernetes 1.30.
                each(status, "ingress", |ingress| {
                    let has_address = ingress.get("ip").and_then(Value::as_str);
                    if has_address.is_some_and(|ip| !ip.is_empty()) {
                        or(ingress, "ipMode", "VIP");
                    }
                });
            }
        }
        ("", "endpoints") => {
            if let Some(subsets) = object.get_mut("subsets").and_then(Value::as_array_mut) {
                for subset in subsets {
                    each(subset, "ports", |port| or(port, "protocol", "TCP"));
                }
            }
        }
        ("", "persistentvolumeclaims") => {
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                or(spec, "volumeMode", "Filesystem");
            }
        }
        ("discovery.k8s.io", "endpointslices") => each(object, "ports", |port| {
            or(port, "name", "");
            or(port, "protocol", "TCP");
        }),
        ("networking.k8s.io", "networkpolicies") => network_policy(object),
        ("apps" | "batch", _) => workload(&kind.gvr.resource, object),
        ("policy", "poddisruptionbudgets") | ("autoscaling", _) => {}
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            each(object, "subjects", |subject| {
                let group = match subject.get("kind").and_then(Value::as_str) {
                    Some("User" | "Group") => "rbac.authorization.k8s.io",
                    _ => return,
                };
                or(subject, "apiGroup", group);
            });
        }
        ("storage.k8s.io", "storageclasses") => {
            if let Some(map) = object.as_object_mut() {
                or(map, "reclaimPolicy", "Delete");
                or(map, "volumeBindingMode", "Immediate");
            }
        }
        _ => {}
    }
}

fn secret(object: &mut Value) {
    use base64::Engine;
    let Some(map) = object.as_object_mut() else { return };
    or(map, "type", "Opaque");
    if let Some(Value::Object(texts)) = map.shift_remove("stringData") {
        let data = object::map_mut(object, "data");
        for (key, value) in texts {
            let bytes = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(key, bytes.into());
        }
    }
}

fn network_policy(object: &mut Value) {
    let Some(spec) = object.get_mut("spec") else {
        return;
    };
    for direction in ["ingress", "egress"] {
        if let Some(rules) = spec.get_mut(direction).and_then(Value::as_array_mut) {
            for rule in rules {
                each(rule, "ports", |port| or(port, "protocol", "TCP"));
            }
        }
    }
    let has_egress = spec.get("egress").is_some();
    if let Some(spec) = spec.as_object_mut() {
        or(spec, "podSelector", json!({}));
        or(
            spec,
            "policyTypes",
            if has_egress {
                json!(["Ingress", "Egress"])
            } else {
                json!(["Ingress"])
            },
        );
    }
}

fn workload(resource: &str, object: &mut Value) {
    let Some(spec) = object.get_mut("spec") else {
        return;
    };
    let template_spec = match resource {
        "cronjobs" => spec.pointer_mut("/jobTemplate/spec/template/spec"),
        _ => spec.pointer_mut("/template/spec"),
    };
    if let Some(pod) = template_spec {
        pod_spec(pod, !resource.ends_with("jobs"));
    }
    let Some(spec) = spec.as_object_mut() else { return };
    match resource {
        "deployments" => {
            or(spec, "replicas", 1);
            or(spec, "revisionHistoryLimit", 10);
            or(spec, "progressDeadlineSeconds", 600);
            or(spec, "strategy", json!({}));
            if let Some(strategy) = spec.get_mut("strategy").and_then(Value::as_object_mut) {
                or(strategy, "type", "RollingUpdate");
                rolling_update(strategy, json!({ "maxSurge": "25%", "maxUnavailable": "25%" }));
            }
        }
        "replicasets" => or(spec, "replicas", 1),
        "statefulsets" => {
            or(spec, "replicas", 1);
            or(spec, "revisionHistoryLimit", 10);
            or(spec, "podManagementPolicy", "OrderedReady");
            or(spec, "updateStrategy", json!({}));
            if let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) {
                or(strategy, "type", "RollingUpdate");
                rolling_update(strategy, json!({ "partition": 0 }));
            }
        }
        "daemonsets" => {
            or(spec, "revisionHistoryLimit", 10);
            or(spec, "updateStrategy", json!({}));
            if let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) {
                or(strategy, "type", "RollingUpdate");
                rolling_update(strategy, json!({ "maxSurge": 0, "maxUnavailable": 1 }));
            }
        }
        "jobs" => {
            or(spec, "parallelism", 1);
            or(spec, "completions", 1);
            or(spec, "backoffLimit", 6);
            or(spec, "completionMode", "NonIndexed");
            or(spec, "suspend", false);
        }
        "cronjobs" => {
            or(spec, "concurrencyPolicy", "Allow");
            or(spec, "suspend", false);
            or(spec, "successfulJobsHistoryLimit", 3);
            or(spec, "failedJobsHistoryLimit", 1);
        }
        _ => {}
    }
}

fn rolling_update(strategy: &mut Fields, defaults: Value) {
    if strategy.get("type").and_then(Value::as_str) != Some("RollingUpdate") {
        return;
    }
    or(strategy, "rollingUpdate", json!({}));
    let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut) else {
        return;
    };
    for (key, value) in defaults.as_object().into_iter().flatten() {
        or(rolling, key, value.clone());
    }
}

/// Defaults of a pod, alone or in a template. Jobs must say when to restart.
fn pod_spec(spec: &mut Value, restarts: bool) {
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    let Some(map) = spec.as_object_mut() else { return };
    if restarts {
        or(map, "restartPolicy", "Always");
    }
    or(map, "dnsPolicy", "ClusterFirst");
    or(map, "terminationGracePeriodSeconds", 30);
    or(map, "schedulerName", "default-scheduler");
    or(map, "securityContext", json!({}));
    // Two names of one field: the first is the one in use.
    for (from, to) in [
        ("serviceAccountName", "serviceAccount"),
        ("serviceAccount", "serviceAccountName"),
    ] {
        if let Some(account) = map.get(from).cloned() {
            or(map, to, account);
        }
    }
    for list in ["containers", "initContainers"] {
        each(spec, list, |container| self::container(container, host_network));
    }
    each(spec, "volumes", |volume| {
        for (source, mode) in [
            ("configMap", 420),
            ("secret", 420),
            ("projected", 420),
            ("downwardAPI", 420),
        ] {
            if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
                or(source, "defaultMode", mode);
            }
        }
        if let Some(path) = volume.get_mut("hostPath").and_then(Value::as_object_mut) {
            or(path, "type", "");
        }
    });
}

fn container(container: &mut Fields, host_network: bool) {
    or(container, "terminationMessagePath", "/dev/termination-log");
    or(container, "terminationMessagePolicy", "File");
    or(container, "resources", json!({}));
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !last.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    or(
        container,
        "imagePullPolicy",
        if latest { "Always" } else { "IfNotPresent" },
    );
    if let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            or(port, "protocol", "TCP");
            if host_network && let Some(number) = port.get("containerPort").cloned() {
                or(port, "hostPort", number);
            }
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            or(probe, "timeoutSeconds", 1);
            or(probe, "periodSeconds", 10);
            or(probe, "successThreshold", 1);
            or(probe, "failureThreshold", 3);
            if let Some(http) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
                or(http, "path", "/");
                or(http, "scheme", "HTTP");
            }
        }
    }
}

/// Quality of service of a pod, by what its containers ask for.
fn quality(pod: &Value) -> &'static str {
    let (mut asks, mut guaranteed) = (false, true);
    for list in ["containers", "initContainers"] {
        for container in object::items(pod, &["spec", list]) {
            let part = |kind: &str, name: &str| object::at(container, &["resources", kind, name]);
            for name in ["cpu", "memory"] {
                let (request, limit) = (part("requests", name), part("limits", name));
                asks |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && (request.is_none() || request == limit);
            }
        }
    }
    match (asks, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
