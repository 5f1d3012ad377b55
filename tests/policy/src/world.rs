// SPDX-License-Identifier: Apache-2.0

//! The node of a scenario: what the agent knows beside policies, and the operations that change it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use serde_json::Value;
use skep_identity::{Label, LabelSource, Labels, NumericIdentity, Reserved, Scope};
use skep_policy_model::{
    Content, Context, Direction, EndpointFacts, IdentityLabels, ObjectError, Policies, PolicyObject,
    PolicySettings, Protocol, ResourceId, filter::ProxyClass, fqdn::canonical_name, l7::SecretName,
    object::Service, settings::Enforcement,
};

use crate::{
    format::{Endpoint, Metadata, NamedPort, Operation, Pod, Scenario},
    networks::{LabelSet, Mode, Networks, labels_of_networks},
};

/// Ports of proxies that are always there.
const FIRST_LISTENER: u16 = 20_000;

pub(crate) struct World {
    pub policies: Policies,
    settings: PolicySettings,
    cidr_of_nodes: bool,
    /// Names have identities before the first answer.
    preallocates: bool,
    networks: Networks,
    /// Numbers of identities of this node, by labels.
    pub local: BTreeMap<String, NumericIdentity>,
    last: BTreeMap<bool, u32>,
    pub ipcache: BTreeMap<IpNet, NumericIdentity>,
    /// All identities of peers.
    known: BTreeMap<NumericIdentity, Arc<IdentityLabels>>,
    pods: BTreeMap<IpAddr, Pod>,
    pub endpoints: BTreeMap<String, Endpoint>,
    services: Vec<Service>,
    names: BTreeMap<String, BTreeSet<IpAddr>>,
    listeners: Vec<String>,
    pub proxies: BTreeMap<ProxyClass, u16>,
    objects: BTreeMap<ResourceId, (Value, PolicyObject)>,
}

pub(crate) fn label(text: &str) -> Label {
    text.parse().unwrap_or_else(|_| Label::from(Reserved::Unmanaged))
}

fn labels(texts: &[String]) -> Arc<IdentityLabels> {
    Arc::new(texts.iter().map(|text| label(text)).collect())
}

/// The text of a set of labels.
pub(crate) fn text_of<'a>(labels: impl IntoIterator<Item = &'a Label>) -> String {
    let mut texts: Vec<String> = labels.into_iter().map(ToString::to_string).collect();
    texts.sort_unstable();
    texts.join(",")
}

impl World {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let option = |name: &str| scenario.options.get(name);
        let is_on = |name: &str, default: bool| match option(name) {
            Some(Value::Bool(value)) => *value,
            Some(Value::String(text)) => text == "true",
            _ => default,
        };
        let word = |name: &str| {
            option(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let defaults = PolicySettings::default().cilium_corners();
        let settings = PolicySettings {
            cluster: scenario.cluster.as_str().into(),
            enforcement: match word("enable-policy").as_str() {
                "always" => Enforcement::Always,
                "never" => Enforcement::Never,
                _ => Enforcement::Default,
            },
            allow_localhost: !matches!(word("allow-localhost").as_str(), "policy"),
            l7_proxy: is_on("enable-l7-proxy", true),
            icmp_rules: is_on("enable-icmp-rules", true),
            extended_protocols: is_on("enable-extended-ip-protocols", false),
            node_selector_labels: is_on("enable-node-selector-labels", false),
            host_firewall: is_on("enable-host-firewall", false),
            default_local_cluster: is_on("policy-default-local-cluster", true),
            non_default_deny: is_on("enable-non-default-deny-policies", true),
            ipv4: is_on("enable-ipv4", true),
            dual_stack: is_on("enable-ipv6", false) && is_on("enable-ipv4", true),
            ..defaults
        };
        let proxies = [
            ProxyClass::Http(Direction::Ingress),
            ProxyClass::Http(Direction::Egress),
            ProxyClass::Tls(Direction::Ingress),
            ProxyClass::Tls(Direction::Egress),
            ProxyClass::Dns,
        ];
        let mut world = Self {
            policies: Policies::new(settings.clone()),
            settings,
            cidr_of_nodes: scenario
                .options
                .get("policy-cidr-match-mode")
                .is_some_and(|mode| mode.to_string().contains("nodes")),
            preallocates: is_on("tofqdns-preallocate-identities", true),
            networks: Networks::default(),
            local: BTreeMap::new(),
            last: BTreeMap::new(),
            ipcache: BTreeMap::new(),
            known: BTreeMap::new(),
            pods: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            services: scenario.services.iter().map(service).collect(),
            names: BTreeMap::new(),
            listeners: scenario.listeners.clone(),
            proxies: proxies.into_iter().zip(10_000..).collect(),
            objects: BTreeMap::new(),
        };
        if let Some(secrets) = &scenario.secrets {
            let named = secrets.iter().map(|(name, items)| {
                let (namespace, name) = name.split_once('/').unwrap_or(("", name));
                let secret = SecretName {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                };
                (secret, items.clone())
            });
            world.policies.set_secrets(named.collect());
        }
        for reserved in Reserved::ALL {
            world.learn(reserved.identity(), reserved_labels(reserved));
        }
        for (number, texts) in &scenario.identities {
            world.learn(NumericIdentity::new(*number), labels(texts));
        }
        for metadata in &scenario.ipcache {
            world.upsert_metadata(metadata);
        }
        for pod in &scenario.pods {
            world.upsert_pod(pod);
        }
        world.open_listeners();
        world.settle();
        for endpoint in &scenario.endpoints {
            world.add_endpoint(endpoint.clone());
        }
        world.settle();
        world
    }

    fn learn(&mut self, identity: NumericIdentity, labels: Arc<IdentityLabels>) {
        self.known.insert(identity, labels.clone());
        self.policies
            .update_identities([(identity, labels)], [], &self.proxies);
    }

    fn forget(&mut self, identities: &[NumericIdentity]) {
        for identity in identities {
            self.known.remove(identity);
        }
        self.policies
            .update_identities([], identities.iter().copied(), &self.proxies);
    }

    fn upsert_metadata(&mut self, metadata: &Metadata) {
        let labels = metadata.labels.iter().map(|text| label(text)).collect();
        self.networks.set(metadata.prefix, &metadata.resource, labels);
    }

    fn upsert_pod(&mut self, pod: &Pod) {
        self.delete_pod(pod.ip);
        for (name, protocol, port) in named_ports(&pod.named_ports) {
            self.policies
                .add_named_port(NumericIdentity::new(pod.identity), name, protocol, port);
        }
        self.pods.insert(pod.ip, pod.clone());
    }

    fn delete_pod(&mut self, ip: IpAddr) {
        let Some(pod) = self.pods.remove(&ip) else { return };
        for (name, protocol, port) in named_ports(&pod.named_ports) {
            self.policies
                .remove_named_port(NumericIdentity::new(pod.identity), name, protocol, port);
        }
    }

    fn add_endpoint(&mut self, mut endpoint: Endpoint) {
        if let Some(known) = self.endpoints.get(&endpoint.name) {
            endpoint.named_ports = endpoint.named_ports.or_else(|| known.named_ports.clone());
            if endpoint.kind.is_empty() {
                endpoint.kind = known.kind.clone();
            }
        }
        let identity = NumericIdentity::new(endpoint.identity);
        let labels = match &endpoint.labels {
            Some(texts) => labels(texts),
            None => self.known.get(&identity).cloned().unwrap_or_default(),
        };
        let ports = named_ports(endpoint.named_ports.as_deref().unwrap_or_default());
        let facts = EndpointFacts {
            ports: ports
                .map(|(name, protocol, port)| ((name.to_ascii_lowercase(), protocol), port))
                .collect(),
            without_redirects: endpoint.kind == "ingress",
        };
        self.policies.set_endpoint(endpoint.id, identity, labels, facts);
        self.endpoints.insert(endpoint.name.clone(), endpoint);
    }

    fn open_listeners(&mut self) {
        self.proxies
            .retain(|class, _| !matches!(class, ProxyClass::Listener(_)));
        for (name, port) in self.listeners.iter().zip(FIRST_LISTENER..) {
            self.proxies
                .insert(ProxyClass::Listener(name.as_str().into()), port);
        }
    }

    /// Carries an operation out, and everything that follows from it.
    pub(crate) fn run(&mut self, operation: &Operation) -> Result<(), ObjectError> {
        let outcome = self.start(operation);
        self.settle();
        outcome
    }

    fn start(&mut self, operation: &Operation) -> Result<(), ObjectError> {
        match operation {
            Operation::Apply { yaml } => return self.apply(&parse(yaml)),
            Operation::Delete { yaml } => {
                if let Some(resource) = PolicyObject::resource_of(&parse(yaml)) {
                    self.networks.replace(resource.as_str(), BTreeMap::new());
                    self.objects.remove(&resource);
                    self.policies.replace(&resource, None);
                }
            }
            Operation::IdentityAdd { identity } => {
                self.learn(NumericIdentity::new(identity.id), labels(&identity.labels));
            }
            Operation::IdentityDelete { identity } => self.forget(&[NumericIdentity::new(identity.number())]),
            Operation::Identities { add, delete } => {
                let delete: Vec<_> = delete.iter().copied().map(NumericIdentity::new).collect();
                self.forget(&delete);
                for identity in add {
                    self.learn(NumericIdentity::new(identity.id), labels(&identity.labels));
                }
            }
            Operation::IpcacheUpsert { ipcache } => self.upsert_metadata(ipcache),
            Operation::IpcacheRemove { ipcache } => {
                self.networks.set(ipcache.prefix, &ipcache.resource, Vec::new())
            }
            Operation::PodUpsert { pod } => self.upsert_pod(pod),
            Operation::PodDelete { pod } => self.delete_pod(pod.ip),
            Operation::ServiceUpsert { service: changed } => {
                self.services
                    .retain(|known| (&known.namespace, &known.name) != (&changed.namespace, &changed.name));
                self.services.push(service(changed));
                self.resolve_services();
            }
            Operation::ServiceDelete { service } => {
                self.services
                    .retain(|known| (&known.namespace, &known.name) != (&service.namespace, &service.name));
                self.resolve_services();
            }
            Operation::DnsAnswer { name, ips } => {
                self.names.entry(canonical_name(name)).or_default().extend(ips);
            }
            Operation::DnsExpire { name } => {
                let matcher = skep_policy_model::fqdn::FqdnSelector::pattern(name).matcher();
                self.names.retain(|known, _| !matcher.matches(known));
            }
            Operation::ListenerAdd { listener } => {
                self.listeners.push(listener.name().to_owned());
                self.open_listeners();
                self.policies.recompute_maps();
            }
            Operation::ListenerDelete { listener } => {
                self.listeners.retain(|known| known != listener.name());
                self.open_listeners();
                self.policies.recompute_maps();
            }
            Operation::EndpointAdd { endpoint }
            | Operation::EndpointIdentity { endpoint }
            | Operation::EndpointPorts { endpoint } => self.add_endpoint(endpoint.clone()),
            Operation::Recompute => self.policies.recompute(),
        }
        Ok(())
    }

    fn apply(&mut self, value: &Value) -> Result<(), ObjectError> {
        let context = Context {
            settings: &self.settings,
            services: &self.services,
        };
        let object = PolicyObject::parse(value, &context)?;
        let known = self.objects.get(&object.resource);
        if object.generation > 0 && known.is_some_and(|(_, known)| known.generation == object.generation) {
            return Ok(());
        }
        self.import(&object);
        self.objects
            .insert(object.resource.clone(), (value.clone(), object));
        Ok(())
    }

    fn import(&mut self, object: &PolicyObject) {
        match &object.content {
            Content::Rules(set) => {
                self.networks
                    .replace(object.resource.as_str(), labels_of_networks(&set.networks));
                self.allocate();
                self.policies.replace(&object.resource, Some(set));
            }
            Content::CidrGroup(group) => {
                let networks = group.networks.iter().map(|net| (*net, group.labels.clone()));
                self.networks
                    .replace(object.resource.as_str(), networks.collect());
            }
        }
    }

    /// Rules of objects that name Services follow them.
    fn resolve_services(&mut self) {
        let context = Context {
            settings: &self.settings,
            services: &self.services,
        };
        let mut changed = Vec::new();
        for (resource, (value, known)) in &self.objects {
            if let Ok(object) = PolicyObject::parse(value, &context)
                && object.content != known.content
            {
                changed.push((resource.clone(), value.clone(), object));
            }
        }
        for (resource, value, object) in changed {
            self.import(&object);
            self.objects.insert(resource, (value, object));
        }
    }

    /// Lets everything follow from what changed: identities of networks and names, policies, maps.
    fn settle(&mut self) {
        loop {
            self.policies.refresh(&self.proxies);
            let before = self.local.clone();
            self.name_addresses();
            self.allocate();
            if self.local == before {
                break;
            }
        }
        self.policies.refresh(&self.proxies);
        self.release();
    }

    /// Addresses of names have the labels of the selectors that match them.
    fn name_addresses(&mut self) {
        const RESOURCE: &str = "daemon/fqdn-name-manager/";
        self.networks.remove_like(RESOURCE);
        let selectors: Vec<_> = self
            .policies
            .fqdn_selectors()
            .into_iter()
            .map(|one| (one.matcher(), one))
            .collect();
        for (name, addresses) in &self.names {
            let matching = selectors.iter().filter(|(matcher, _)| matcher.matches(name));
            let labels: Vec<Label> = matching
                .filter_map(|(_, selector)| Label::new(LabelSource::Fqdn, selector.label_key(), "").ok())
                .collect();
            for address in addresses {
                self.networks.set(
                    IpNet::from(*address),
                    &format!("{RESOURCE}{name}"),
                    labels.clone(),
                );
            }
        }
    }

    /// Label sets that need an identity of this node, and prefixes with theirs.
    fn wanted(&self) -> (BTreeMap<String, LabelSet>, Vec<(IpNet, LabelSet)>, LabelSet) {
        let mode = Mode {
            settings: &self.settings,
            cidr_of_nodes: self.cidr_of_nodes,
        };
        let prefixes = self.networks.identities(mode);
        let mut host = LabelSet::new();
        let mut wanted = BTreeMap::new();
        for (_, labels) in &prefixes {
            let is_host = labels
                .values()
                .any(|label| label.reserved() == Some(Reserved::Host));
            match is_host {
                true => host.extend(labels.clone()),
                false if self.reserved(labels).is_some() => {}
                false => {
                    wanted.insert(text_of(labels.values()), labels.clone());
                }
            }
        }
        let worlds: &[Reserved] = match self.settings.dual_stack {
            true => &[Reserved::WorldIpv4, Reserved::WorldIpv6],
            false => &[Reserved::World],
        };
        for selector in self
            .policies
            .fqdn_selectors()
            .into_iter()
            .filter(|_| self.preallocates)
        {
            let Ok(name) = Label::new(LabelSource::Fqdn, selector.label_key(), "") else {
                continue;
            };
            for world in worlds {
                let labels = [name.clone(), Label::from(*world)];
                let labels: LabelSet = labels
                    .into_iter()
                    .map(|label| (label.key().to_owned(), label))
                    .collect();
                wanted.insert(text_of(labels.values()), labels);
            }
        }
        if host.is_empty() {
            host.insert("host".to_owned(), Label::from(Reserved::Host));
        }
        (wanted, prefixes, host)
    }

    fn reserved(&self, labels: &LabelSet) -> Option<NumericIdentity> {
        let set: Labels = labels.values().cloned().collect();
        let reserved = set.reserved_identity()?;
        // Where nodes have more labels than their reserved ones, they have identities of their own.
        let is_node = set.scope() == Scope::RemoteNode && reserved != NumericIdentity::HOST;
        let has_more = self.cidr_of_nodes || self.settings.node_selector_labels;
        (!is_node || !has_more).then_some(reserved)
    }

    fn allocate(&mut self) {
        let (wanted, prefixes, host) = self.wanted();
        let host: Arc<IdentityLabels> = Arc::new(host.into_values().collect());
        if self.known.get(&NumericIdentity::HOST) != Some(&host) {
            self.learn(NumericIdentity::HOST, host);
        }
        for (text, labels) in wanted {
            if self.local.contains_key(&text) {
                continue;
            }
            let set: Labels = labels.values().cloned().collect();
            let is_node = set.scope() == Scope::RemoteNode;
            let last = self
                .last
                .entry(is_node)
                .or_insert(if is_node { 0x0200_0000 } else { 0x0100_0000 });
            *last += 1;
            let identity = NumericIdentity::new(*last);
            self.local.insert(text, identity);
            self.learn(identity, Arc::new(labels.into_values().collect()));
        }
        self.ipcache = self
            .pods
            .iter()
            .map(|(ip, pod)| (IpNet::from(*ip), NumericIdentity::new(pod.identity)))
            .collect();
        for (prefix, labels) in prefixes {
            let identity = match self.reserved(&labels) {
                Some(reserved) => reserved,
                None => self
                    .local
                    .get(&text_of(labels.values()))
                    .copied()
                    .unwrap_or(NumericIdentity::UNKNOWN),
            };
            self.ipcache.entry(prefix).or_insert(identity);
        }
    }

    fn release(&mut self) {
        let (wanted, ..) = self.wanted();
        let gone: Vec<_> = self
            .local
            .iter()
            .filter(|(text, _)| !wanted.contains_key(*text))
            .collect();
        let identities: Vec<NumericIdentity> = gone.into_iter().map(|(_, identity)| *identity).collect();
        self.local.retain(|text, _| wanted.contains_key(text));
        self.forget(&identities);
    }

    /// The identity of an address: of the longest prefix, else the world's.
    pub(crate) fn identity_of(&self, address: IpAddr) -> NumericIdentity {
        let covering = self.ipcache.iter().filter(|(net, _)| net.contains(&address));
        let longest = covering.max_by_key(|(net, _)| net.prefix_len());
        longest.map_or_else(
            || Reserved::world(address, self.settings.dual_stack).identity(),
            |(_, identity)| *identity,
        )
    }

    /// Labels of the identities of this node, and of the host.
    pub(crate) fn host_labels(&self) -> String {
        let host = self.known.get(&NumericIdentity::HOST);
        host.map(|labels| text_of(labels.iter())).unwrap_or_default()
    }
}

fn reserved_labels(reserved: Reserved) -> Arc<IdentityLabels> {
    let more = (reserved == Reserved::KubeApiserver).then(|| Label::from(Reserved::RemoteNode));
    Arc::new([Label::from(reserved)].into_iter().chain(more).collect())
}

fn service(service: &crate::format::Service) -> Service {
    let address = |backend: &String| {
        let text = backend
            .rsplit_once(':')
            .map_or(backend.as_str(), |(address, _)| address);
        text.trim_matches(['[', ']']).parse().ok()
    };
    let mut backends: Vec<IpAddr> = service.backends.iter().filter_map(address).collect();
    backends.sort_unstable();
    backends.dedup();
    Service {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        labels: service.labels.clone(),
        selector: service.selector.clone(),
        backends,
    }
}

fn named_ports(ports: &[NamedPort]) -> impl Iterator<Item = (&str, Protocol, u16)> {
    ports.iter().filter_map(|port| {
        let protocol = if port.protocol.is_empty() {
            "TCP"
        } else {
            &port.protocol
        };
        Some((port.name.as_str(), Protocol::from_name(protocol)?, port.port))
    })
}

fn parse(yaml: &str) -> Value {
    serde_norway::from_str(yaml).unwrap_or_default()
}
