// SPDX-License-Identifier: Apache-2.0

//! Scenarios: which connections a test makes.

use super::{
    TestOptions,
    environment::{Environment, HOST_PORT, PORT},
};
use crate::access::Pod;

/// A set of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scenario {
    PodToPod,
    ClientToClient,
    PodToService,
    PodToHostport,
    PodToWorld,
    PodToCidr,
    PodToHost,
    HostToPod,
    PodToRemoteNodeport,
    PodToLocalNodeport,
    PodToItselfViaService,
    /// Requests for `/public` and `/private`.
    PodToPodWithEndpoints,
}

impl Scenario {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PodToPod => "pod-to-pod",
            Self::ClientToClient => "client-to-client",
            Self::PodToService => "pod-to-service",
            Self::PodToHostport => "pod-to-hostport",
            Self::PodToWorld => "pod-to-world",
            Self::PodToCidr => "pod-to-cidr",
            Self::PodToHost => "pod-to-host",
            Self::HostToPod => "host-to-pod",
            Self::PodToRemoteNodeport => "pod-to-remote-nodeport",
            Self::PodToLocalNodeport => "pod-to-local-nodeport",
            Self::PodToItselfViaService => "pod-to-itself-via-service",
            Self::PodToPodWithEndpoints => "pod-to-pod-with-endpoints",
        }
    }

    pub(super) fn is_external(self) -> bool {
        matches!(self, Self::PodToWorld | Self::PodToCidr)
    }
}

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct Action {
    pub(super) scenario: Scenario,
    /// Number, families and ends, as it is printed.
    pub(super) name: String,
    pub(super) from: Pod,
    /// Name of the deployment that connects.
    pub(super) source: String,
    /// Name of the deployment, node or address that is connected to.
    pub(super) target: String,
    pub(super) port: u16,
    pub(super) command: Vec<String>,
    pub(super) is_same_node: bool,
}

/// The deployment of a pod: its label `name`.
fn deployment(pod: &Pod) -> String {
    let name = pod.object["metadata"]["labels"]["name"].as_str();
    name.unwrap_or(&pod.name).to_owned()
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "6" } else { "4" }
}

fn authority(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

struct Builder<'a> {
    options: &'a TestOptions,
    scenario: Scenario,
    actions: Vec<Action>,
}

impl Builder<'_> {
    fn add(&mut self, from: &Pod, target: &str, address: &str, port: u16, is_same_node: bool) {
        self.request(from, target, address, port, is_same_node, "");
    }

    fn request(
        &mut self,
        from: &Pod,
        target: &str,
        address: &str,
        port: u16,
        is_same_node: bool,
        path: &str,
    ) {
        let is_name = address.ends_with('.')
            || address
                .chars()
                .any(|letter| letter.is_ascii_alphabetic() && !address.contains(':'));
        let version = if is_name { "" } else { family(address) };
        let wanted = self.options.ip_families.iter().any(|one| one.ends_with(version));
        if !wanted && !is_name {
            return;
        }
        let url = format!("http://{}/{path}", authority(address, port));
        let seconds = self.options.connect_timeout.as_secs().max(1).to_string();
        let source = deployment(from);
        self.actions.push(Action {
            scenario: self.scenario,
            name: format!(
                "http-{}-{}: {}/{source} ({}) -> {target} ({})",
                if is_name {
                    "name".to_owned()
                } else {
                    format!("ipv{version}")
                },
                self.actions.len(),
                from.namespace,
                from.addresses().first().cloned().unwrap_or_default(),
                authority(address, port)
            ),
            from: from.clone(),
            source,
            target: target.to_owned(),
            port,
            command: ["/usr/bin/skep-probe", "get", &url, &seconds, version]
                .map(str::to_owned)
                .to_vec(),
            is_same_node,
        });
    }
}

/// The connections of a scenario.
pub(super) fn actions(environment: &Environment, options: &TestOptions, scenario: Scenario) -> Vec<Action> {
    let mut builder = Builder {
        options,
        scenario,
        actions: Vec::new(),
    };
    let Environment {
        clients,
        echoes,
        hosts,
        services,
        nodes,
        ..
    } = environment;
    let each = |from: &Pod, to: &Pod| (deployment(to), from.node == to.node);
    match scenario {
        Scenario::PodToPod | Scenario::PodToPodWithEndpoints => {
            for (client, echo) in clients
                .iter()
                .flat_map(|client| echoes.iter().map(move |echo| (client, echo)))
            {
                let (target, same) = each(client, echo);
                for address in echo.addresses() {
                    match scenario {
                        Scenario::PodToPod => builder.add(client, &target, &address, PORT, same),
                        _ => {
                            for path in ["public", "private"] {
                                builder.request(
                                    client,
                                    &format!("{target}/{path}"),
                                    &address,
                                    PORT,
                                    same,
                                    path,
                                );
                            }
                        }
                    }
                }
            }
        }
        Scenario::ClientToClient => {
            for (one, other) in clients
                .iter()
                .flat_map(|one| clients.iter().map(move |other| (one, other)))
            {
                if one.name == other.name {
                    continue;
                }
                let (target, same) = each(one, other);
                for address in other.addresses() {
                    builder.add(one, &target, &address, PORT, same);
                }
            }
        }
        Scenario::PodToService => {
            for (client, service) in clients
                .iter()
                .flat_map(|one| services.iter().map(move |other| (one, other)))
            {
                for address in &service.addresses {
                    builder.add(client, &service.name, address, PORT, false);
                }
            }
        }
        Scenario::PodToHostport => {
            for echo in echoes.iter().filter(|echo| deployment(echo) == "echo-same-node") {
                let addresses = nodes
                    .iter()
                    .filter(|node| node.name == echo.node)
                    .flat_map(|node| &node.addresses);
                for address in addresses {
                    for client in clients {
                        builder.add(
                            client,
                            "echo-same-node",
                            address,
                            HOST_PORT,
                            client.node == echo.node,
                        );
                    }
                }
            }
        }
        Scenario::PodToWorld => {
            for client in clients {
                builder.add(
                    client,
                    "world",
                    &options.external_target,
                    options.external_port,
                    false,
                );
            }
        }
        Scenario::PodToCidr => {
            for client in clients {
                for address in [&options.external_ip, &options.external_other_ip] {
                    builder.add(client, address, address, options.external_port, false);
                }
            }
        }
        Scenario::PodToHost => {
            for (client, node) in clients
                .iter()
                .flat_map(|one| nodes.iter().map(move |node| (one, node)))
            {
                for address in &node.addresses {
                    builder.add(
                        client,
                        &node.name,
                        address,
                        super::policies::HOST_NETNS_PORT,
                        client.node == node.name,
                    );
                }
            }
        }
        Scenario::HostToPod => {
            for (host, pod) in hosts
                .iter()
                .flat_map(|host| echoes.iter().chain(clients).map(move |pod| (host, pod)))
            {
                let (target, same) = each(host, pod);
                for address in pod.addresses() {
                    builder.add(host, &target, &address, PORT, same);
                }
            }
        }
        Scenario::PodToRemoteNodeport | Scenario::PodToLocalNodeport => {
            let is_local = scenario == Scenario::PodToLocalNodeport;
            for (client, service) in clients
                .iter()
                .flat_map(|one| services.iter().map(move |other| (one, other)))
            {
                let wanted = nodes.iter().filter(|node| (node.name == client.node) == is_local);
                for address in wanted.flat_map(|node| &node.addresses) {
                    builder.add(client, &service.name, address, service.node_port, is_local);
                }
            }
        }
        Scenario::PodToItselfViaService => {
            for (echo, service) in echoes
                .iter()
                .flat_map(|one| services.iter().map(move |other| (one, other)))
            {
                if deployment(echo) == service.name {
                    for address in &service.addresses {
                        builder.add(echo, &service.name, address, PORT, true);
                    }
                }
            }
        }
    }
    builder.actions
}
