// SPDX-License-Identifier: Apache-2.0

//! Rules for each direction, and their peers.

use std::collections::BTreeMap;

use super::Authentication;
use super::fqdn::FqdnSelector;
use super::ports::{IcmpRule, PortDenyRule, PortRule};
use crate::object::{object, words};
use crate::patterns;
use crate::shared::LabelSelector;

object! {
    /// Ingress traffic that is allowed. A rule has peers of one sort only.
    #[derive(Eq)]
    pub struct IngressRule {
        /// Authentication that peers must pass.
        pub authentication: Option<Authentication>,
        /// Sources outside of the clusters, as networks.
        #[serde(rename = "fromCIDR")]
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub from_cidr: Option<Vec<String>>,
        /// Sources outside of the clusters: networks with exceptions, or groups of networks.
        #[serde(rename = "fromCIDRSet")]
        pub from_cidr_set: Option<Vec<CidrRule>>,
        /// Sources by the labels of pods. An empty list selects no source, an absent one any.
        pub from_endpoints: Option<Vec<LabelSelector>>,
        /// Sources by their nature.
        pub from_entities: Option<Vec<Entity>>,
        /// Sources by groups that a cloud provider knows.
        pub from_groups: Option<Vec<PeerGroup>>,
        /// Sources by the labels of nodes; needs `enable-node-selector-labels`.
        pub from_nodes: Option<Vec<LabelSelector>>,
        /// Without function: must be empty.
        #[schemars(extend("maxItems" = 0))]
        pub from_requires: Option<Vec<String>>,
        /// ICMP messages; not together with `toPorts`.
        pub icmps: Option<Vec<IcmpRule>>,
        /// Ports of the subject.
        pub to_ports: Option<Vec<PortRule>>,
    }

    /// Ingress traffic that is denied.
    #[derive(Eq)]
    pub struct IngressDenyRule {
        /// Sources outside of the clusters, as networks.
        #[serde(rename = "fromCIDR")]
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub from_cidr: Option<Vec<String>>,
        /// Sources outside of the clusters: networks with exceptions, or groups of networks.
        #[serde(rename = "fromCIDRSet")]
        pub from_cidr_set: Option<Vec<CidrRule>>,
        /// Sources by the labels of pods.
        pub from_endpoints: Option<Vec<LabelSelector>>,
        /// Sources by their nature.
        pub from_entities: Option<Vec<Entity>>,
        /// Sources by groups that a cloud provider knows.
        pub from_groups: Option<Vec<PeerGroup>>,
        /// Sources by the labels of nodes; needs `enable-node-selector-labels`.
        pub from_nodes: Option<Vec<LabelSelector>>,
        /// Without function: must be empty.
        #[schemars(extend("maxItems" = 0))]
        pub from_requires: Option<Vec<String>>,
        /// ICMP messages; not together with `toPorts`.
        pub icmps: Option<Vec<IcmpRule>>,
        /// Ports of the subject.
        pub to_ports: Option<Vec<PortDenyRule>>,
    }

    /// Egress traffic that is allowed. A rule has peers of one sort only.
    #[derive(Eq)]
    pub struct EgressRule {
        /// Authentication that peers must pass.
        pub authentication: Option<Authentication>,
        /// ICMP messages; not together with `toPorts`.
        pub icmps: Option<Vec<IcmpRule>>,
        /// Destinations outside of the clusters, as networks.
        #[serde(rename = "toCIDR")]
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub to_cidr: Option<Vec<String>>,
        /// Destinations outside of the clusters: networks with exceptions, or groups of networks.
        #[serde(rename = "toCIDRSet")]
        pub to_cidr_set: Option<Vec<CidrRule>>,
        /// Destinations by the labels of pods. An empty list selects no destination, an absent one any.
        pub to_endpoints: Option<Vec<LabelSelector>>,
        /// Destinations by their nature.
        pub to_entities: Option<Vec<Entity>>,
        /// Destinations by name: addresses that DNS answers had.
        #[serde(rename = "toFQDNs")]
        pub to_fqdns: Option<Vec<FqdnSelector>>,
        /// Destinations by groups that a cloud provider knows.
        pub to_groups: Option<Vec<PeerGroup>>,
        /// Destinations by the labels of nodes; needs `enable-node-selector-labels`.
        pub to_nodes: Option<Vec<LabelSelector>>,
        /// Ports of the destination.
        pub to_ports: Option<Vec<PortRule>>,
        /// Without function: must be empty.
        #[schemars(extend("maxItems" = 0))]
        pub to_requires: Option<Vec<String>>,
        /// Destinations by Service.
        pub to_services: Option<Vec<PeerService>>,
    }

    /// Egress traffic that is denied.
    #[derive(Eq)]
    pub struct EgressDenyRule {
        /// ICMP messages; not together with `toPorts`.
        pub icmps: Option<Vec<IcmpRule>>,
        /// Destinations outside of the clusters, as networks.
        #[serde(rename = "toCIDR")]
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub to_cidr: Option<Vec<String>>,
        /// Destinations outside of the clusters: networks with exceptions, or groups of networks.
        #[serde(rename = "toCIDRSet")]
        pub to_cidr_set: Option<Vec<CidrRule>>,
        /// Destinations by the labels of pods.
        pub to_endpoints: Option<Vec<LabelSelector>>,
        /// Destinations by their nature.
        pub to_entities: Option<Vec<Entity>>,
        /// Destinations by groups that a cloud provider knows.
        pub to_groups: Option<Vec<PeerGroup>>,
        /// Destinations by the labels of nodes; needs `enable-node-selector-labels`.
        pub to_nodes: Option<Vec<LabelSelector>>,
        /// Ports of the destination.
        pub to_ports: Option<Vec<PortDenyRule>>,
        /// Without function: must be empty.
        #[schemars(extend("maxItems" = 0))]
        pub to_requires: Option<Vec<String>>,
        /// Destinations by Service.
        pub to_services: Option<Vec<PeerService>>,
    }

    /// Networks, with exceptions.
    #[derive(Eq)]
    #[schemars(extend("oneOf" = [
        { "required": ["cidr"] },
        { "required": ["cidrGroupRef"] },
        { "required": ["cidrGroupSelector"] },
    ]))]
    pub struct CidrRule {
        /// A network.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// Name of a CiliumCIDRGroup.
        #[schemars(extend("maxLength" = 253, "pattern" = patterns::NAME))]
        pub cidr_group_ref: Option<String>,
        /// CiliumCIDRGroups by their labels.
        pub cidr_group_selector: Option<LabelSelector>,
        /// Networks inside of `cidr` that are left out.
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub except: Option<Vec<String>>,
    }

    /// A group that a cloud provider knows.
    #[derive(Eq)]
    pub struct PeerGroup {
        /// A group of AWS.
        pub aws: Option<AwsGroup>,
    }

    /// Instances of AWS.
    #[derive(Eq)]
    pub struct AwsGroup {
        /// Tags of their interfaces; all must be there.
        pub labels: Option<BTreeMap<String, String>>,
        /// Without function.
        pub region: Option<String>,
        /// Ids of security groups; one is enough.
        pub security_groups_ids: Option<Vec<String>>,
        /// Names of security groups; one is enough, but ids are to match as well.
        pub security_groups_names: Option<Vec<String>>,
    }

    /// Services. The selector has precedence.
    #[derive(Eq)]
    pub struct PeerService {
        /// A Service by name.
        pub k8s_service: Option<KubernetesService>,
        /// Services by label.
        pub k8s_service_selector: Option<KubernetesServiceSelector>,
    }

    /// A Service by name.
    #[derive(Eq)]
    pub struct KubernetesService {
        /// Namespace of the Service; absent for any.
        pub namespace: Option<String>,
        /// Name of the Service.
        pub service_name: Option<String>,
    }

    /// Services by label.
    #[derive(Eq)]
    pub struct KubernetesServiceSelector {
        /// Namespace of the Services; absent for any.
        pub namespace: Option<String>,
        /// Labels of the Services.
        pub selector: LabelSelector,
    }
}

words! {
    /// Peers by their nature.
    pub enum Entity {
        /// Everything.
        All = "all",
        /// What is outside of the clusters.
        World = "world",
        /// What is inside of the cluster.
        Cluster = "cluster",
        /// The node itself.
        Host = "host",
        /// Endpoints whose labels are not known yet.
        Init = "init",
        /// The ingress listener of Envoy.
        Ingress = "ingress",
        /// Pods that Cilium does not manage.
        Unmanaged = "unmanaged",
        /// Other nodes.
        RemoteNode = "remote-node",
        /// Health endpoints.
        Health = "health",
        /// Nothing.
        None = "none",
        /// The Kubernetes API server.
        KubeApiserver = "kube-apiserver",
    }
}
