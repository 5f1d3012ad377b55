// SPDX-License-Identifier: Apache-2.0

//! The local node → CiliumNode, and annotations of the Node.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use regex::Regex;
use serde_json::{Map, Value, json};
use skep_base_settings::AddressFamilies;
use skep_endpoint_ipam::{Family, InfrastructureAddress, Mode, NodeOwner};
use skep_k8s_types::slim::{Labels, NodeAddressType};
use skep_node_local::LocalNode;

use super::config::Config;

/// In the order of lists.
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What is known of the node.
pub(super) struct Facts<'a> {
    pub(super) config: &'a Config,
    pub(super) mode: Mode,
    pub(super) families: &'a AddressFamilies,
    pub(super) excluded: &'a [Regex],
    pub(super) local: &'a LocalNode,
    /// Addresses of the node itself.
    pub(super) own: Vec<InfrastructureAddress>,
    /// `own` is complete.
    pub(super) is_complete: bool,
}

/// Member of an object, which is made an object if it is none.
fn member<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    if !object[name].is_object() {
        object[name] = json!({});
    }
    &mut object[name]
}

/// Sets a member, or removes it.
fn set(object: &mut Value, name: &str, value: Option<Value>) {
    match value {
        Some(value) => object[name] = value,
        None => _ = object.as_object_mut().and_then(|object| object.remove(name)),
    }
}

/// Annotations of the Node that are for Cilium's programs: `cilium.io/…` and those of its subdomains.
fn is_ours(annotation: &str) -> bool {
    let domain = annotation.split_once('/').map(|(domain, _)| domain);
    let sub = domain.and_then(|domain| domain.strip_suffix("cilium.io"));
    sub.is_some_and(|sub| {
        let mut labels = sub.split('.');
        let is_label =
            |label: &str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric());
        // Behind each label is a dot.
        labels.next_back() == Some("") && labels.all(is_label)
    })
}

fn texts<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Value> {
    let map: Map<String, Value> = labels
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect();
    (!map.is_empty()).then_some(Value::Object(map))
}

impl Facts<'_> {
    /// Address of the node itself.
    fn own(&self, owner: NodeOwner, family: Family) -> Option<IpAddr> {
        let mut own = self.own.iter();
        own.find(|row| row.owner == owner && Family::of(row.ip) == family)
            .map(|row| row.ip)
    }

    /// Pod CIDRs of the Node, of the enabled families.
    fn pod_cidrs(&self) -> impl Iterator<Item = &IpNet> {
        let cidrs = self.local.pod_cidrs.iter();
        cidrs.filter(|cidr| Family::of(cidr.addr()).is_enabled(self.families))
    }

    /// Changes what the agent owns of a CiliumNode.
    pub(super) fn apply(&self, object: &mut Value) {
        let metadata = member(object, "metadata");
        if !self.local.uid.is_empty() {
            let owner = json!({
                "apiVersion": "v1", "kind": "Node", "name": self.local.name, "uid": self.local.uid,
            });
            metadata["ownerReferences"] = json!([owner]);
        }
        let is_excluded = |key: &str| self.excluded.iter().any(|pattern| pattern.is_match(key));
        let labels = self.local.labels.iter().filter(|(key, _)| !is_excluded(key));
        set(metadata, "labels", texts(labels));
        let annotations = self.local.annotations.iter().filter(|(key, _)| is_ours(key));
        set(metadata, "annotations", texts(annotations));

        let spec = member(object, "spec");
        spec["addresses"] = self.addresses(&spec["addresses"]);
        for name in ["alibaba-cloud", "azure", "encryption", "eni"] {
            member(spec, name);
        }
        spec["bootid"] = json!(self.local.boot_id);
        for (name, owner) in [("health", NodeOwner::Health), ("ingress", NodeOwner::Ingress)] {
            let pair = member(spec, name);
            for family in FAMILIES {
                // Until all are allocated, those of the previous run are to be kept.
                let own = self.own(owner, family);
                if own.is_some() || self.is_complete {
                    set(pair, family.as_str(), own.map(|ip| json!(ip)));
                }
            }
        }
        let ipam = member(spec, "ipam");
        member(ipam, "pools");
        if self.mode.has_node_cidrs() {
            let cidrs: Vec<String> = self.pod_cidrs().map(ToString::to_string).collect();
            if !cidrs.is_empty() {
                ipam["podCIDRs"] = json!(cidrs);
            }
        }
        if matches!(
            self.mode,
            Mode::Crd | Mode::Eni | Mode::Azure | Mode::AlibabaCloud
        ) {
            for (name, count) in [
                ("min-allocate", self.config.ipam_min_allocate),
                ("max-allocate", self.config.ipam_max_allocate),
                ("pre-allocate", self.config.ipam_pre_allocate),
            ] {
                if count > 0 {
                    ipam[name] = json!(count);
                }
            }
        }
    }

    /// Addresses by which others reach the node: the first one of each type and family, and the router's.
    fn addresses(&self, present: &Value) -> Value {
        let mut all: Vec<(NodeAddressType, IpAddr)> = Vec::new();
        for (kind, ip) in &self.local.addresses {
            let is_reachable = matches!(kind, NodeAddressType::InternalIp | NodeAddressType::ExternalIp);
            let is_same = |(other, address): &(NodeAddressType, IpAddr)| {
                other == kind && address.is_ipv4() == ip.is_ipv4()
            };
            if is_reachable && !all.iter().any(is_same) {
                all.push((kind.clone(), *ip));
            }
        }
        for family in FAMILIES {
            let ip = self.own(NodeOwner::Router, family);
            // Another one would take away the address of the previous run before it is restored.
            let ip = ip.or_else(|| router(present, family));
            all.extend(ip.map(|ip| (NodeAddressType::CiliumInternalIp, ip)));
        }
        all.into_iter()
            .map(|(kind, ip)| json!({ "ip": ip, "type": kind }))
            .collect()
    }

    /// Annotations that the Node should have, those of `--annotate-k8s-node`.
    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for family in FAMILIES {
            let name = family.as_str();
            let cidr = self.pod_cidrs().find(|cidr| Family::of(cidr.addr()) == family);
            let of = |owner| self.own(owner, family).map(|ip| ip.to_string());
            let texts = [
                ("pod-cidr", cidr.map(ToString::to_string)),
                ("health-ip", of(NodeOwner::Health)),
                ("Ingress-ip", of(NodeOwner::Ingress)),
                ("cilium-host", of(NodeOwner::Router)),
            ];
            for (suffix, text) in texts {
                all.extend(text.map(|text| (format!("network.cilium.io/{name}-{suffix}"), text)));
            }
        }
        all
    }

    /// Annotations that the Node does not have yet.
    pub(super) fn missing_annotations(&self) -> BTreeMap<String, String> {
        let present: &Labels = &self.local.annotations;
        let mut wanted = self.annotations();
        wanted.retain(|key, value| present.get(key) != Some(value.as_str()));
        wanted
    }
}

/// Address of the router in a list of addresses.
fn router(addresses: &Value, family: Family) -> Option<IpAddr> {
    let mut own = addresses.as_array()?.iter().filter_map(|address| {
        let is_own = address["type"] == "CiliumInternalIP";
        let ip: IpAddr = address["ip"].as_str().filter(|_| is_own)?.parse().ok()?;
        (Family::of(ip) == family).then_some(ip)
    });
    own.next()
}
