// SPDX-License-Identifier: Apache-2.0

//! Pods and services of the test.

use std::{error::Error, time::Duration};

use serde_json::{Value, json};

use super::EnvironmentOptions;
use crate::{
    access::{Access, Pod, Settings, text},
    chain, failure,
};

/// Port of echo pods.
pub(super) const PORT: u16 = 8080;
/// Port of measurements.
pub(super) const PERF_PORT: u16 = 8081;
/// Port of the DNS server in echo pods.
pub(super) const DNS_PORT: u16 = 8053;
/// Names of the external addresses, in that server.
pub(super) const NAMES: [&str; 2] = ["one.cilium-test.", "two.cilium-test."];
/// Port of the echo pod on its node.
pub(super) const HOST_PORT: u16 = 4000;

/// A service of the test.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) addresses: Vec<String>,
    pub(super) node_port: u16,
    /// Name of the echo pods.
    pub(super) selects: String,
    /// Whether only nodes with a pod answer at its node port.
    pub(super) is_local: bool,
}

/// A node of the cluster.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) addresses: Vec<String>,
}

/// What there is to test with.
pub(super) struct Environment {
    pub(super) access: Access,
    pub(super) remote: Option<Access>,
    pub(super) namespace: String,
    pub(super) settings: Settings,
    pub(super) agents: Vec<Pod>,
    pub(super) clients: Vec<Pod>,
    pub(super) echoes: Vec<Pod>,
    pub(super) hosts: Vec<Pod>,
    pub(super) services: Vec<Service>,
    pub(super) nodes: Vec<Node>,
}

/// Name, kind, further labels, on which node.
type Deployment = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    Place,
);

const DEPLOYMENTS: [Deployment; 5] = [
    ("client", "client", &[], Place::First),
    ("client2", "client", &[("other", "client")], Place::First),
    ("client3", "client", &[], Place::Other),
    ("echo-same-node", "echo", &[("other", "echo")], Place::First),
    ("echo-other-node", "echo", &[("first", "echo")], Place::Other),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Other,
}

fn pod_spec(options: &EnvironmentOptions, name: &str, place: Place, names: &[String]) -> Value {
    let mut container = json!({
        "name": name,
        "image": options.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/skep-probe", "serve", PORT.to_string(), PERF_PORT.to_string()],
        "ports": [{ "name": "http-8080", "containerPort": PORT, "protocol": "TCP" }],
        "readinessProbe": { "tcpSocket": { "port": PORT }, "periodSeconds": 1 },
    });
    if name == "echo-same-node" {
        container["ports"][0]["hostPort"] = HOST_PORT.into();
    }
    let mut spec = json!({
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": 1,
        // Pings without privileges.
        "securityContext": { "sysctls": [{ "name": "net.ipv4.ping_group_range", "value": "0 2147483647" }] },
        "containers": [container],
    });
    if name.starts_with("echo") {
        let port = DNS_PORT.to_string();
        let words = ["/usr/bin/skep-probe", "names", &port].map(str::to_owned);
        let command: Vec<String> = words.into_iter().chain(names.iter().cloned()).collect();
        let server = json!({ "name": "dns", "image": options.image, "imagePullPolicy": "IfNotPresent", "command": command });
        if let Some(containers) = spec["containers"].as_array_mut() {
            containers.push(server);
        }
    }
    let here = json!({ "labelSelector": { "matchLabels": { "name": "client" } }, "topologyKey": "kubernetes.io/hostname" });
    let rule = |rule: Value| json!({ "requiredDuringSchedulingIgnoredDuringExecution": [rule] });
    let is_apart = place == Place::Other && !options.single_node && options.multi_cluster.is_none();
    if is_apart {
        spec["affinity"]["podAntiAffinity"] = rule(here);
    } else if name != "client" && place == Place::First {
        spec["affinity"]["podAffinity"] = rule(here);
    }
    place_on(options, &mut spec);
    spec
}

fn place_on(options: &EnvironmentOptions, spec: &mut Value) {
    let labels: serde_json::Map<String, Value> = options
        .node_selector
        .iter()
        .filter_map(|label| label.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    if !labels.is_empty() {
        spec["nodeSelector"] = labels.into();
    }
    if options.tolerate_all {
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
    }
}

/// Objects of the test, each with the path that creates it.
fn objects(options: &EnvironmentOptions, namespace: &str, names: &[String]) -> Vec<(String, Value)> {
    let core = format!("/api/v1/namespaces/{namespace}");
    let apps = format!("/apis/apps/v1/namespaces/{namespace}");
    let mut all = Vec::new();
    for (name, kind, more, place) in DEPLOYMENTS {
        let mut labels = json!({ "kind": kind, "name": name });
        for (key, value) in more {
            labels[*key] = (*value).into();
        }
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace } });
        all.push((format!("{core}/serviceaccounts"), account));
        all.push((
            format!("{apps}/deployments"),
            json!({
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": { "name": name, "namespace": namespace, "labels": labels },
                "spec": {
                    "replicas": 1,
                    "selector": { "matchLabels": { "name": name } },
                    "template": { "metadata": { "labels": labels }, "spec": pod_spec(options, name, place, names) },
                },
            }),
        ));
        let services: &[(&str, &str)] = match name {
            "echo-same-node" => &[(name, "Cluster"), ("echo-same-node-local", "Local")],
            _ if kind == "echo" => &[(name, "Cluster")],
            _ => &[],
        };
        for (service_name, policy) in services {
            let mut service = json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": service_name, "namespace": namespace, "labels": { "kind": "echo" } },
                "spec": {
                    "type": "NodePort",
                    "externalTrafficPolicy": policy,
                    "selector": { "name": name },
                    "ipFamilyPolicy": "PreferDualStack",
                    "ports": [{ "name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP" }],
                },
            });
            if options.multi_cluster.is_some() && name == "echo-other-node" {
                service["metadata"]["annotations"] = json!({ "service.cilium.io/global": "true" });
            }
            all.push((format!("{core}/services"), service));
        }
    }
    let mut spec = json!({
        "hostNetwork": true,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{ "operator": "Exists" }],
        "containers": [{
            "name": "host-netns",
            "image": options.image,
            "imagePullPolicy": "IfNotPresent",
            // A port that nothing else of a node has.
            "command": ["/usr/bin/skep-probe", "serve", "41000"],
        }],
    });
    place_on(options, &mut spec);
    all.push((
        format!("{apps}/daemonsets"),
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": { "name": "host-netns", "namespace": namespace },
            "spec": {
                "selector": { "matchLabels": { "name": "host-netns" } },
                "template": { "metadata": { "labels": { "kind": "host-netns", "name": "host-netns" } }, "spec": spec },
            },
        }),
    ));
    all
}

pub(super) fn namespace(options: &EnvironmentOptions) -> String {
    format!("{}-1", options.test_namespace)
}

/// Removes the namespace of the test, in both clusters.
pub(super) async fn remove(access: &Access, options: &EnvironmentOptions) -> Result<(), Box<dyn Error>> {
    let namespace = namespace(options);
    let mut clusters = vec![access.clone()];
    if let Some(context) = &options.multi_cluster {
        clusters.push(access.other(context).await?);
    }
    for access in &clusters {
        println!("🧹 [{}] Deleting namespace {namespace}...", access.context);
        access.delete(&format!("/api/v1/namespaces/{namespace}")).await?;
    }
    let deadline = tokio::time::Instant::now() + options.deploy_timeout;
    for access in &clusters {
        while access
            .get(&format!("/api/v1/namespaces/{namespace}"))
            .await?
            .is_some()
        {
            if tokio::time::Instant::now() > deadline {
                return Err(failure(format!("namespace {namespace} is not gone in time")));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}

impl Environment {
    /// Creates what is missing, and waits until all of it is ready.
    /// `external` are the addresses of [`NAMES`].
    pub(super) async fn deploy(
        access: &Access,
        options: &EnvironmentOptions,
        external: &[&str],
    ) -> Result<Self, Box<dyn Error>> {
        let namespace = namespace(options);
        if options.force_deploy {
            remove(access, options).await?;
        }
        let settings = access.settings().await?;
        if settings.0.is_null() {
            return Err(failure(format!(
                "Skep is not installed: there is no ConfigMap cilium-config in namespace {}",
                access.namespace()
            )));
        }
        let mut options = options.clone();
        let nodes = nodes(access).await?;
        if nodes.len() == 1 && options.multi_cluster.is_none() && !options.single_node {
            println!("ℹ️  Single-node environment detected, enabling single-node connectivity test");
            options.single_node = true;
        }
        let remote = match &options.multi_cluster {
            Some(context) => Some(access.other(context).await?),
            None => None,
        };
        println!(
            "ℹ️  Namespace {namespace} with Deployments, Services and a DaemonSet is created; `--cleanup` removes it"
        );
        let place = |name: &str, access: &Access| match (&remote, name) {
            (Some(remote), "client3" | "echo-other-node") => remote.clone(),
            _ => access.clone(),
        };
        let mut clusters = vec![access.clone()];
        clusters.extend(remote.clone());
        for access in &clusters {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            create(access, "/api/v1/namespaces", &object).await?;
        }
        let pairs = NAMES.iter().zip(external);
        let names: Vec<String> = pairs.map(|(name, address)| format!("{name}={address}")).collect();
        for (path, object) in objects(&options, &namespace, &names) {
            let (kind, name) = (text(&object, "/kind"), text(&object, "/metadata/name"));
            let target = place(name, access);
            // Services are on both sides.
            if kind == "Service" && target.context != access.context {
                create(access, &path, &object).await?;
            }
            if create(&target, &path, &object).await? && kind != "ServiceAccount" {
                println!(
                    "✨ [{}] Deploying {name} {}...",
                    target.context,
                    kind.to_lowercase()
                );
            }
        }
        let mut environment = Self {
            access: access.clone(),
            remote,
            namespace,
            settings,
            agents: access.agents().await?,
            clients: Vec::new(),
            echoes: Vec::new(),
            hosts: Vec::new(),
            services: Vec::new(),
            nodes,
        };
        environment.wait(options.deploy_timeout).await?;
        Ok(environment)
    }

    async fn wait(&mut self, limit: Duration) -> Result<(), Box<dyn Error>> {
        let deadline = tokio::time::Instant::now() + limit;
        let mut said = String::new();
        loop {
            let waits = self.missing().await?;
            let Some(waits) = waits else { return Ok(()) };
            if tokio::time::Instant::now() > deadline {
                return Err(failure(format!("timeout while waiting for {waits}")));
            }
            if waits != said {
                println!("⌛ [{}] Waiting for {waits}...", self.access.context);
                said = waits;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// What is not ready yet.
    async fn missing(&mut self) -> Result<Option<String>, Box<dyn Error>> {
        let (mut clients, mut echoes) = (Vec::new(), Vec::new());
        for (name, kind, _, _) in DEPLOYMENTS {
            let mut pods = self.access.pods(&self.namespace, &format!("name={name}")).await?;
            if let Some(remote) = &self.remote {
                pods.extend(remote.pods(&self.namespace, &format!("name={name}")).await?);
            }
            let ready = pods.into_iter().find(|pod| {
                pod.is_ready()
                    && !pod.addresses().is_empty()
                    && pod.object["metadata"]["deletionTimestamp"].is_null()
            });
            let Some(pod) = ready else {
                return Ok(Some(format!("deployment {name} to become ready")));
            };
            if kind == "client" {
                &mut clients
            } else {
                &mut echoes
            }
            .push(pod);
        }
        let hosts = self.access.pods(&self.namespace, "name=host-netns").await?;
        if hosts.is_empty() || hosts.iter().any(|pod| pod.phase() != "Running") {
            return Ok(Some("DaemonSet host-netns to become ready".to_owned()));
        }
        let path = format!("/api/v1/namespaces/{}/services", self.namespace);
        let services = self.access.list(&path).await?;
        let services = services.iter().map(|service| {
            let addresses = service["spec"]["clusterIPs"].as_array();
            let addresses: Vec<String> = addresses
                .into_iter()
                .flatten()
                .filter_map(|address| address.as_str().map(str::to_owned))
                .collect();
            let port = service.pointer("/spec/ports/0/nodePort").and_then(Value::as_u64);
            Service {
                name: text(service, "/metadata/name").to_owned(),
                addresses,
                node_port: port.and_then(|port| u16::try_from(port).ok()).unwrap_or_default(),
                selects: text(service, "/spec/selector/name").to_owned(),
                is_local: text(service, "/spec/externalTrafficPolicy") == "Local",
            }
        });
        self.services = services.collect();
        self.clients = clients;
        self.echoes = echoes;
        self.hosts = hosts;
        Ok(None)
    }

    /// The cluster that a pod of the test is in.
    pub(super) fn access_of(&self, pod: &Pod) -> &Access {
        match &self.remote {
            Some(remote) if pod.name.starts_with("client3-") || pod.name.starts_with("echo-other-node-") => {
                remote
            }
            _ => &self.access,
        }
    }
}

/// Creates an object unless there is one; whether it was created.
async fn create(access: &Access, path: &str, object: &Value) -> Result<bool, Box<dyn Error>> {
    match access.create(path, object).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(failure(format!(
            "{} {}: {}",
            text(object, "/kind"),
            text(object, "/metadata/name"),
            chain(&error)
        ))),
    }
}

async fn nodes(access: &Access) -> Result<Vec<Node>, Box<dyn Error>> {
    let nodes = access.list("/api/v1/nodes").await?;
    let nodes = nodes.iter().map(|node| {
        let all = node["status"]["addresses"].as_array();
        let addresses = all
            .into_iter()
            .flatten()
            .filter(|one| text(one, "/type") == "InternalIP");
        Node {
            name: text(node, "/metadata/name").to_owned(),
            addresses: addresses.map(|one| text(one, "/address").to_owned()).collect(),
        }
    });
    Ok(nodes.collect())
}
