// SPDX-License-Identifier: Apache-2.0

//! Endpoints made of pods, identities, nodes and namespaces, for `ces-controller-mode: slim`: agents need not write
//! CiliumEndpoints then.
//!
//! An endpoint is known when its pod has addresses, its node a CiliumNode, and its labels an identity. One that was known
//! stays as it was while one of these is missing: the labels of a pod may have changed before their identity exists.

use std::collections::{BTreeSet, HashMap, HashSet};

use skep_identity::Label;
use skep_identity_labels::{LabelFilter, PodLabels, named_port_labels};
use skep_k8s_crds::endpoint::CoreCiliumEndpoint;
use skep_k8s_crds::shared::{AddressPair, EncryptionSpec, EndpointNetworking, Integer, NamedPort};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{CiliumIdentity, CiliumNode, ContainerPort, Labels, Pod, PodPhase, Str};

use crate::objects;
use crate::slices::Slices;

/// What a pod has of an endpoint.
#[derive(Debug)]
struct Known {
    labels: Labels,
    service_account: Str,
    node: Str,
    entry: CoreCiliumEndpoint,
    named_ports: Vec<Label>,
    /// The texts of the labels that its identity may have, the likeliest first: with its named ports, as agents of Cilium 1.20
    /// have it, and without them.
    sets: Vec<String>,
}

/// What a node has of its endpoints.
#[derive(Debug, PartialEq)]
struct Node {
    address: String,
    key: i64,
}

/// Pods and what their endpoints are made of.
#[derive(Debug)]
pub(crate) struct Pods {
    filter: LabelFilter,
    cluster: String,
    pods: HashMap<ObjectKey, Known>,
    namespaces: HashMap<Str, Labels>,
    nodes: HashMap<Str, Node>,
    /// Ids by the text of their labels: identities may exist twice.
    ids: HashMap<String, BTreeSet<i64>>,
    sets: HashMap<Str, String>,
    changed: HashSet<ObjectKey>,
}

impl Pods {
    pub(crate) fn new(cluster: &str, filter: LabelFilter) -> Self {
        Self {
            filter,
            cluster: cluster.to_owned(),
            pods: HashMap::new(),
            namespaces: HashMap::new(),
            nodes: HashMap::new(),
            ids: HashMap::new(),
            sets: HashMap::new(),
            changed: HashSet::new(),
        }
    }

    /// All pods, each with its endpoint if that is known.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (ObjectKey, Option<CoreCiliumEndpoint>)> {
        self.pods.keys().map(|key| (key.clone(), self.entry(key)))
    }

    /// Changes slices to what has changed of pods.
    pub(crate) fn settle(&mut self, slices: &mut Slices) {
        for key in std::mem::take(&mut self.changed) {
            match self.entry(&key) {
                Some(entry) => slices.upsert(key, entry),
                // It stays as it was while its node or its identity is missing.
                None if self.pods.contains_key(&key) => {}
                None => slices.delete(&key),
            }
        }
    }

    /// The endpoint of a pod, if it is known.
    pub(crate) fn entry(&self, key: &ObjectKey) -> Option<CoreCiliumEndpoint> {
        let pod = self.pods.get(key)?;
        let node = self.nodes.get(&pod.node)?;
        let mut ids = pod.sets.iter().filter_map(|set| self.ids.get(set)?.first());
        let id = *ids.next()?;
        let mut entry = pod.entry.clone();
        entry.id = Some(id);
        entry.encryption = Some(EncryptionSpec {
            key: objects::integer(node.key).filter(|key| *key != 0),
        });
        entry.networking.as_mut()?.node = Some(node.address.clone());
        Some(entry)
    }

    pub(crate) fn set_pod(&mut self, key: ObjectKey, pod: &Pod) {
        let Some(entry) = core(pod) else {
            return self.remove_pod(&key);
        };
        let mut known = Known {
            labels: pod.metadata.labels.clone(),
            service_account: pod.spec.service_account_name.clone(),
            node: pod.spec.node_name.clone(),
            entry,
            named_ports: named_port_labels(ports(pod)),
            sets: Vec::new(),
        };
        known.sets = self.labels_of(&key, &known);
        self.changed.insert(key.clone());
        self.pods.insert(key, known);
    }

    pub(crate) fn remove_pod(&mut self, key: &ObjectKey) {
        if self.pods.remove(key).is_some() {
            self.changed.insert(key.clone());
        }
    }

    pub(crate) fn set_namespace(&mut self, name: &Str, labels: &Labels) {
        if self.namespaces.insert(name.clone(), labels.clone()).as_ref() == Some(labels) {
            return;
        }
        let keys: Vec<ObjectKey> = self
            .pods
            .keys()
            .filter(|key| key.namespace == *name)
            .cloned()
            .collect();
        for key in keys {
            let sets = self.pods.get(&key).map(|pod| self.labels_of(&key, pod));
            if let Some(pod) = self.pods.get_mut(&key) {
                pod.sets = sets.unwrap_or_default();
                self.changed.insert(key);
            }
        }
    }

    pub(crate) fn set_node(&mut self, node: &CiliumNode) {
        let name = &node.metadata.name;
        let Some(address) = objects::address(node) else {
            return self.remove_node(name);
        };
        let node = Node {
            address: address.to_owned(),
            key: node.spec.encryption.key,
        };
        if self.nodes.get(name) == Some(&node) {
            return;
        }
        self.nodes.insert(name.clone(), node);
        let of_node = self.pods.iter().filter(|(_, pod)| pod.node == *name);
        self.changed.extend(of_node.map(|(key, _)| key.clone()));
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    pub(crate) fn set_identity(&mut self, identity: &CiliumIdentity) {
        let name = &identity.metadata.name;
        let labels = skep_identity::Labels::from_pairs(identity.security_labels.iter());
        let (Some(id), Ok(labels)) = (identity.id(), labels) else {
            return self.remove_identity(name);
        };
        let set = labels.to_string();
        if self.sets.get(name) == Some(&set) {
            return;
        }
        self.remove_identity(name);
        self.sets.insert(name.clone(), set.clone());
        self.ids.entry(set.clone()).or_default().insert(id.into());
        self.relabelled(&set);
    }

    pub(crate) fn remove_identity(&mut self, name: &str) {
        let Some(set) = self.sets.remove(name) else { return };
        if let (Some(ids), Ok(id)) = (self.ids.get_mut(&set), name.parse()) {
            ids.remove(&id);
            if ids.is_empty() {
                self.ids.remove(&set);
            }
        }
        self.relabelled(&set);
    }

    fn relabelled(&mut self, set: &str) {
        let with_set = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.sets.iter().any(|own| own == set));
        self.changed.extend(with_set.map(|(key, _)| key.clone()));
    }

    /// The labels of the identity of a pod; none as long as its namespace is not known.
    fn labels_of(&self, key: &ObjectKey, pod: &Known) -> Vec<String> {
        let Some(namespace) = self.namespaces.get(&key.namespace) else {
            return Vec::new();
        };
        let namespace: Vec<(&str, &str)> = namespace.iter().collect();
        let own: Vec<(&str, &str)> = pod.labels.iter().collect();
        let labels = PodLabels {
            namespace: &key.namespace,
            namespace_labels: &namespace,
            cluster: &self.cluster,
            service_account: &pod.service_account,
            labels: &own,
        };
        let labels = labels.identity(&self.filter);
        let mut sets = vec![labels.to_string()];
        if !pod.named_ports.is_empty() {
            let with_ports: skep_identity::Labels = labels.iter().chain(&pod.named_ports).cloned().collect();
            sets.insert(0, with_ports.to_string());
        }
        sets
    }
}

/// Name, protocol and number of the ports of the containers of a pod.
fn ports(pod: &Pod) -> impl Iterator<Item = (&str, &str, i32)> {
    let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
    ports.map(|port| (port.name.as_str(), port.protocol.as_str(), port.container_port))
}

/// The part of an endpoint that its pod says; `None` for a pod that has none.
fn core(pod: &Pod) -> Option<CoreCiliumEndpoint> {
    let has_ended = matches!(pod.status.phase, PodPhase::Succeeded | PodPhase::Failed);
    if has_ended || pod.spec.host_network || pod.spec.node_name.is_empty() || pod.addresses().next().is_none()
    {
        return None;
    }
    let mut pair = AddressPair::default();
    for address in pod.addresses() {
        let family = match address.contains(':') {
            true => &mut pair.ipv6,
            false => &mut pair.ipv4,
        };
        family.get_or_insert_with(|| address.to_owned());
    }
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let named = containers
        .flat_map(|container| &container.ports)
        .filter(|port| !port.name.is_empty());
    let mut ports: Vec<NamedPort> = named.filter_map(named_port).collect();
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    Some(CoreCiliumEndpoint {
        name: Some(pod.metadata.name.to_string()),
        id: None,
        networking: Some(EndpointNetworking {
            addressing: vec![pair],
            node: None,
        }),
        encryption: None,
        named_ports: (!ports.is_empty()).then_some(ports),
        pod_uid: objects::text(&pod.metadata.uid),
        service_account: objects::text(&pod.spec.service_account_name),
    })
}

fn named_port(port: &ContainerPort) -> Option<NamedPort> {
    let protocol = match port.protocol.as_str() {
        "" => "TCP",
        protocol => protocol,
    };
    Some(NamedPort {
        name: Some(port.name.to_string()),
        port: Some(Integer::try_from(port.container_port).ok()?),
        protocol: Some(protocol.to_owned()),
    })
}
