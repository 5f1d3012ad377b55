// SPDX-License-Identifier: Apache-2.0

//! The cluster of a recording, as far as it differs from the scene: pods, labels of pods and namespaces, nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::{Map, Value, json};

use crate::bindings::Bindings;

type Labels = Map<String, Value>;

const NAMESPACE: &str = "io.cilium.k8s.namespace.labels.";
/// Labels of pods that are in no identity.
const IRRELEVANT: [&str; 4] = [
    "pod-template-hash",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
    "topology.kubernetes.io/",
];

#[derive(Debug, Default)]
pub(crate) struct Scene {
    /// Pods with endpoints; `None` if the recording does not have all.
    pods: Option<BTreeSet<String>>,
    /// All labels of pods.
    labels: BTreeMap<String, Labels>,
    /// Labels in identities of pods.
    identities: BTreeMap<String, Labels>,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    /// Changes of nodes.
    pub(crate) nodes: Vec<Value>,
    /// CiliumNodes of other nodes.
    pub(crate) remotes: Vec<Value>,
    /// Identities of earlier scenarios, with their labels.
    identities_before: BTreeMap<u64, Vec<String>>,
}

/// The name of a pod in names of values.
fn key(pod: &str) -> String {
    pod.to_uppercase().replace(['-', '.'], "_")
}

fn labels(object: &Value) -> Labels {
    object.as_object().cloned().unwrap_or_default()
}

impl Scene {
    pub(crate) fn of(recording: &Value) -> Self {
        let mut scene = Self::default();
        if let Some(objects) = recording["steps"][0]["objects"].as_array() {
            let mut bindings = Bindings::of(recording);
            scene.objects(objects, &mut bindings);
        }
        let names: BTreeMap<String, String> = recording["bindings"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), ToOwned::to_owned);
                Some((text, name.strip_prefix("ID_")?.to_owned()))
            })
            .collect();
        let commands = ["commands", "commands_"].map(|key| recording[key].as_array().into_iter().flatten());
        let texts: Vec<&str> = commands
            .into_iter()
            .flatten()
            .filter_map(|command| command["stdout"].as_str())
            .collect();
        if !texts.is_empty() {
            let bound = recording["bindings"].as_object().into_iter().flatten();
            let pods = bound.filter_map(|(name, _)| Some(name.strip_prefix("EP_")?.to_owned()));
            scene.pods = Some(pods.collect());
        }
        for text in &texts {
            scene.text(text, &names);
        }
        scene.addresses(&texts, recording);
        // Later steps show what changed.
        match recording["steps"][0].get("objects") {
            Some(objects) => scene.walk(objects),
            None => scene.walk(recording),
        }
        scene
    }

    /// Objects of a full dump.
    fn objects(&mut self, objects: &[Value], bindings: &mut Bindings) {
        let mut pods = BTreeSet::new();
        for object in objects {
            let object = bindings.fill(object);
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let annotations = object["metadata"]["annotations"]
                .as_object()
                .into_iter()
                .flatten();
            let annotations: Labels = annotations
                .filter(|(key, _)| key.starts_with("network.cilium.io/"))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            match object["kind"].as_str().unwrap_or_default() {
                "Pod" => {
                    pods.insert(key(&name));
                    self.labels.insert(key(&name), labels(&object["metadata"]["labels"]));
                }
                "Node" => self.nodes.push(json!({
                    "metadata": {"name": name, "labels": object["metadata"]["labels"], "annotations": annotations},
                    "status": {"addresses": object["status"]["addresses"]},
                })),
                "CiliumNode" if name != "n1" => {
                    let mut node = object.clone();
                    node["metadata"] = json!({
                        "name": name, "labels": object["metadata"]["labels"], "annotations": annotations,
                    });
                    self.remotes.push(node);
                }
                _ => {}
            }
        }
        self.pods = Some(pods);
    }

    /// Label sets of any JSON: maps, and lists beside an id.
    fn walk(&mut self, value: &Value) {
        match value {
            Value::Array(list) => list.iter().for_each(|value| self.walk(value)),
            Value::Object(object) => {
                if let Some(set) = object.get("security-labels").and_then(Value::as_object) {
                    let texts = set
                        .iter()
                        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
                    self.set("", &texts.collect::<Vec<_>>());
                }
                let named = object.get("id").and_then(Value::as_str);
                let named = named.and_then(|id| id.strip_prefix("${ID_")?.strip_suffix('}'));
                if let (Some(pod), Some(Value::Array(list))) = (named, object.get("labels")) {
                    let texts = list
                        .iter()
                        .filter_map(|label| label.as_str().map(ToOwned::to_owned));
                    self.set(pod, &texts.collect::<Vec<_>>());
                }
                object.values().for_each(|value| self.walk(value));
            }
            _ => {}
        }
    }

    /// Label sets behind ids of identities: one label a line.
    fn text(&mut self, text: &str, names: &BTreeMap<String, String>) {
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut set: Vec<String> = words
                .iter()
                .filter(|word| word.contains(":") && word.contains('='))
                .map(|word| (*word).to_owned())
                .collect();
            let pod = words.iter().find_map(|word| names.get(*word));
            if set.len() != 1 || !(set[0].starts_with("k8s:") || set[0].starts_with("gen:")) {
                continue;
            }
            while let Some(next) = lines.next_if(|next| next.starts_with([' ', '\t'])) {
                set.extend(next.split_whitespace().next().map(ToOwned::to_owned));
            }
            // Rows of a list of identities.
            let number = words[0].parse::<u64>();
            if let (None, Ok(number @ 256..=65_535), 2) = (pod, number, words.len()) {
                self.identities_before.insert(number, set.clone());
            }
            self.set(pod.map_or("", String::as_str), &set);
        }
    }

    fn set(&mut self, pod: &str, texts: &[String]) {
        let (mut own, mut of_namespace, mut namespace) = (Labels::new(), Labels::new(), String::new());
        for text in texts {
            let Some((key, value)) = text.strip_prefix("k8s:").and_then(|label| label.split_once('=')) else {
                continue;
            };
            match key.strip_prefix(NAMESPACE) {
                Some(key) => _ = of_namespace.insert(key.to_owned(), value.into()),
                None if key == "io.kubernetes.pod.namespace" => namespace = value.to_owned(),
                None if key.starts_with("io.cilium.k8s.") => {}
                None => _ = own.insert(key.to_owned(), value.into()),
            }
        }
        if namespace.is_empty() {
            return;
        }
        if !of_namespace.is_empty() && (!pod.is_empty() || !self.namespaces.contains_key(&namespace)) {
            self.namespaces.insert(namespace, of_namespace);
        }
        if !pod.is_empty() {
            self.identities.entry(pod.to_owned()).or_insert(own);
        }
    }

    /// Addresses of the second node in the ipcache.
    fn addresses(&mut self, texts: &[&str], recording: &Value) {
        let (mut internal, mut health) = (BTreeSet::new(), BTreeSet::new());
        let bound: Vec<&str> = recording["bindings"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, value)| value.as_str())
            .collect();
        for line in texts.iter().flat_map(|text| text.lines()) {
            let mut words = line.split_whitespace();
            let (Some(prefix), Some(identity)) = (words.next(), words.next()) else {
                continue;
            };
            let Some(address) = prefix.strip_suffix("/32").or_else(|| prefix.strip_suffix("/128")) else {
                continue;
            };
            let Ok(ip) = address.parse::<IpAddr>() else {
                continue;
            };
            let is_of_the_network = ["172.30.40.", "fd00:30:40:", "fe80:"]
                .iter()
                .any(|start| address.starts_with(start));
            if is_of_the_network || bound.contains(&address) {
                continue;
            }
            match identity {
                "reserved:remote-node" | "6" => internal.insert(ip),
                "reserved:health" | "4" => health.insert(ip),
                _ => continue,
            };
        }
        let family = |list: &BTreeSet<IpAddr>, is_ipv4: bool| {
            let found = list.iter().find(|ip| ip.is_ipv4() == is_ipv4);
            found.map(ToString::to_string)
        };
        if !internal.is_empty() {
            let own = ["172.30.40.2".to_owned(), "fd00:30:40::2".to_owned()].map(|ip| ("InternalIP", ip));
            let internal = internal.iter().map(|ip| ("CiliumInternalIP", ip.to_string()));
            let all: Value = own
                .into_iter()
                .chain(internal)
                .map(|(kind, ip)| json!({"type": kind, "ip": ip}))
                .collect();
            self.remotes.push(json!({
                "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "n2"},
                "spec": {
                    "addresses": all, "encryption": {}, "ingress": {},
                    "health": {"ipv4": family(&health, true), "ipv6": family(&health, false)},
                    "ipam": {"podCIDRs": ["10.2.0.0/29", "fd00:10:2::/125"]},
                },
            }));
        }
    }

    /// Objects of identities that no pod of the scene has.
    pub(crate) fn identities_before(&self) -> Vec<Value> {
        let identity = |(number, labels): (&u64, &Vec<String>)| {
            let pairs = labels.iter().filter_map(|label| label.split_once('='));
            let bare = labels.iter().filter(|label| !label.contains('='));
            let all = pairs.chain(bare.map(|label| (label.as_str(), "")));
            let all: Labels = all.map(|(key, value)| (key.to_owned(), value.into())).collect();
            let namespace = &all.get("k8s:io.kubernetes.pod.namespace");
            json!({
                "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity",
                "metadata": {"name": number.to_string(), "labels": {"io.kubernetes.pod.namespace": namespace}},
                "security-labels": all,
            })
        };
        self.identities_before.iter().map(identity).collect()
    }

    /// A pod of the scene as in this recording; `None` if it was not there.
    pub(crate) fn pod(&self, mut pod: Value) -> Option<Value> {
        let name = key(pod["metadata"]["name"].as_str().unwrap_or_default());
        let is_there = self.pods.as_ref().is_none_or(|pods| pods.contains(&name));
        if !is_there && pod["spec"]["hostNetwork"] != true {
            return None;
        }
        if let Some(all) = self.labels.get(&name) {
            pod["metadata"]["labels"] = Value::Object(all.clone());
        } else if let (Some(relevant), Some(own)) = (
            self.identities.get(&name),
            pod["metadata"]["labels"].as_object_mut(),
        ) {
            own.retain(|key, _| IRRELEVANT.iter().any(|start| key.starts_with(start)));
            own.extend(relevant.clone());
        }
        Some(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_labels_are_those_of_the_commands() {
        let list = "IDENTITY LABELS\n49092 k8s:app=cart3\n      \
                    k8s:io.cilium.k8s.namespace.labels.team=green\n      k8s:io.kubernetes.pod.namespace=gc-shop\n\
                    10.2.0.3/32 6\n";
        let scene = Scene::of(&json!({
            "bindings": {"EP_CART_0": "7", "ID_CART_0": "49092"}, "commands": [{"stdout": list}],
        }));
        let pod = |name: &str| json!({"metadata": {"name": name, "labels": {"app": "cart", "pod-template-hash": "1"}}});

        assert_eq!(scene.pod(pod("db-0")), None);
        let cart = scene.pod(pod("cart-0")).unwrap();
        assert_eq!(
            cart["metadata"]["labels"],
            json!({"app": "cart3", "pod-template-hash": "1"})
        );
        assert_eq!(scene.namespaces["gc-shop"]["team"], "green");
        assert_eq!(scene.remotes[0]["spec"]["addresses"][2]["ip"], "10.2.0.3");
    }
}
