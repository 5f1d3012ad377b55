// SPDX-License-Identifier: Apache-2.0

//! Scenarios: which connections a test makes.

use super::{
    TestOptions,
    environment::{DNS_PORT, Environment, HOST_PORT, NAMES, PORT, Service},
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
    /// Echo requests of ICMP.
    ClientToClientPing,
    PodToHostPing,
    /// Echo requests of the route's MTU.
    PodToPodNoFrag,
    HostToService,
    HostToNodeport,
    /// External addresses by names that the echo pods serve.
    PodToFqdn,
    /// The address of [`super::policies::REDIRECT_ADDRESS`].
    PodToRedirect,
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
            Self::ClientToClientPing => "client-to-client-ping",
            Self::PodToHostPing => "pod-to-host-ping",
            Self::PodToPodNoFrag => "pod-to-pod-no-frag",
            Self::HostToService => "host-to-service",
            Self::HostToNodeport => "host-to-nodeport",
            Self::PodToFqdn => "pod-to-fqdn",
            Self::PodToRedirect => "pod-to-redirect",
            Self::PodToPodWithEndpoints => "pod-to-pod-with-endpoints",
        }
    }

    pub(super) fn is_external(self) -> bool {
        matches!(self, Self::PodToWorld | Self::PodToCidr | Self::PodToFqdn)
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
        let kind = match is_name {
            true => "http-name".to_owned(),
            false => format!("http-ipv{version}"),
        };
        let to = authority(address, port);
        let words = ["get", &url, &self.seconds(), version];
        self.push(from, target, &kind, &to, port, is_same_node, &words);
    }

    /// An echo request.
    fn ping(&mut self, from: &Pod, target: &str, address: &str, is_same_node: bool) {
        let version = family(address);
        if !self.options.ip_families.iter().any(|one| one.ends_with(version)) {
            return;
        }
        let size = if self.scenario == Scenario::PodToPodNoFrag {
            "full"
        } else {
            ""
        };
        let words = ["ping", address, &self.seconds(), size];
        self.push(
            from,
            target,
            &format!("ping-ipv{version}"),
            address,
            0,
            is_same_node,
            &words,
        );
    }

    fn seconds(&self) -> String {
        self.options.connect_timeout.as_secs().max(1).to_string()
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an action")]
    fn push(
        &mut self,
        from: &Pod,
        target: &str,
        kind: &str,
        to: &str,
        port: u16,
        is_same_node: bool,
        words: &[&str],
    ) {
        let source = deployment(from);
        self.actions.push(Action {
            scenario: self.scenario,
            name: format!(
                "{kind}-{}: {}/{source} ({}) -> {target} ({to})",
                self.actions.len(),
                from.namespace,
                from.addresses().first().cloned().unwrap_or_default(),
            ),
            from: from.clone(),
            source,
            target: target.to_owned(),
            port,
            command: std::iter::once("/usr/bin/skep-probe")
                .chain(words.iter().copied())
                .map(str::to_owned)
                .collect(),
            is_same_node,
        });
    }

    /// Requests at the node port of a service, of nodes that answer there.
    fn node_port(
        &mut self,
        from: &Pod,
        service: &Service,
        environment: &Environment,
        nodes: impl Fn(&str) -> bool,
    ) {
        let has_pod = |node: &str| {
            let mut echoes = environment.echoes.iter();
            echoes.any(|echo| echo.node == node && deployment(echo) == service.selects)
        };
        for node in &environment.nodes {
            if !nodes(&node.name) || (service.is_local && !has_pod(&node.name)) {
                continue;
            }
            for address in &node.addresses {
                self.add(
                    from,
                    &service.name,
                    address,
                    service.node_port,
                    node.name == from.node,
                );
            }
        }
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
        Scenario::ClientToClient | Scenario::ClientToClientPing => {
            for (one, other) in clients
                .iter()
                .flat_map(|one| clients.iter().map(move |other| (one, other)))
            {
                if one.name == other.name {
                    continue;
                }
                let (target, same) = each(one, other);
                for address in other.addresses() {
                    match scenario {
                        Scenario::ClientToClient => builder.add(one, &target, &address, PORT, same),
                        _ => builder.ping(one, &target, &address, same),
                    }
                }
            }
        }
        Scenario::PodToPodNoFrag => {
            for (client, echo) in clients
                .iter()
                .flat_map(|client| echoes.iter().map(move |echo| (client, echo)))
            {
                let (target, same) = each(client, echo);
                for address in echo.addresses() {
                    builder.ping(client, &target, &address, same);
                }
            }
        }
        Scenario::PodToHostPing => {
            for (client, node) in clients
                .iter()
                .flat_map(|one| nodes.iter().map(move |node| (one, node)))
            {
                for address in &node.addresses {
                    builder.ping(client, &node.name, address, client.node == node.name);
                }
            }
        }
        Scenario::HostToService => {
            for (host, service) in hosts
                .iter()
                .flat_map(|one| services.iter().map(move |other| (one, other)))
            {
                for address in &service.addresses {
                    builder.add(host, &service.name, address, PORT, false);
                }
            }
        }
        Scenario::HostToNodeport => {
            for (host, service) in hosts
                .iter()
                .flat_map(|one| services.iter().map(move |other| (one, other)))
            {
                builder.node_port(host, service, environment, |_| true);
            }
        }
        Scenario::PodToFqdn => {
            let server = echoes.iter().find(|echo| deployment(echo) == "echo-same-node");
            let Some(server) =
                server.and_then(|echo| echo.addresses().into_iter().find(|one| family(one) == "4"))
            else {
                return builder.actions;
            };
            let server = authority(&server, DNS_PORT);
            for client in clients {
                for name in NAMES {
                    let url = format!("http://{}/", authority(name, options.external_port));
                    let words = ["get-by", &server, &url, &builder.seconds()];
                    builder.push(
                        client,
                        name,
                        "http-name",
                        name,
                        options.external_port,
                        false,
                        &words,
                    );
                }
            }
        }
        Scenario::PodToRedirect => {
            for client in clients {
                let has_backend =
                    |echo: &&Pod| echo.node == client.node && deployment(echo) == "echo-same-node";
                if echoes.iter().any(|echo| has_backend(&echo)) {
                    let address = super::policies::REDIRECT_ADDRESS;
                    builder.add(client, "echo-same-node", address, PORT, true);
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
                builder.node_port(client, service, environment, |node| {
                    (node == client.node) == is_local
                });
            }
        }
        Scenario::PodToItselfViaService => {
            for (echo, service) in echoes
                .iter()
                .flat_map(|one| services.iter().map(move |other| (one, other)))
            {
                if deployment(echo) == service.selects {
                    for address in &service.addresses {
                        builder.add(echo, &service.name, address, PORT, true);
                    }
                }
            }
        }
    }
    builder.actions
}
