// SPDX-License-Identifier: Apache-2.0

//! Counters of the features that policies use.

use skep_base_metrics::{CounterVec, Metrics};
use skep_identity::LabelSource;
use skep_policy_model::{
    Policies, ResourceId,
    l7::{L7Rules, PortDemands},
    rule::{Direction, Rule, Verdict},
};
use skep_policy_sources::PolicyRow;

const ADD: &str = "add";
const DELETE: &str = "delete";

/// Added and deleted policies by feature. A changed policy is deleted and added.
#[derive(Debug, Metrics)]
#[metrics(prefix = "feature_network_policies")]
pub(crate) struct FeatureMetrics {
    /// Policies with peers.
    #[metric(name = "l3_policies_total", labels = ["action"])]
    peers: CounterVec,
    /// Policies of nodes.
    #[metric(name = "host_network_policies_total", labels = ["action"])]
    nodes: CounterVec,
    /// Policies with DNS rules.
    #[metric(name = "dns_policies_total", labels = ["action"])]
    dns: CounterVec,
    /// Policies with DNS names as peers.
    #[metric(name = "fqdn_policies_total", labels = ["action"])]
    names: CounterVec,
    /// Policies with HTTP rules.
    #[metric(name = "http_policies_total", labels = ["action"])]
    http: CounterVec,
    /// Policies with HTTP rules that change headers.
    #[metric(name = "http_header_matches_policies_total", labels = ["action"])]
    headers: CounterVec,
    /// Policies that deny traffic.
    #[metric(name = "deny_policies_total", labels = ["action"])]
    deny: CounterVec,
    /// Policies with CIDR groups as sources.
    #[metric(name = "ingress_cidr_group_policies_total", labels = ["action"])]
    cidr_groups: CounterVec,
    /// Policies with authentication.
    #[metric(name = "mutual_auth_policies_total", labels = ["action"])]
    authentication: CounterVec,
    /// Policies with TLS inspection.
    #[metric(name = "tls_inspection_policies_total", labels = ["action"])]
    tls: CounterVec,
    /// Policies with server names.
    #[metric(name = "sni_allow_list_policies_total", labels = ["action"])]
    server_names: CounterVec,
    /// Policies without default deny.
    #[metric(name = "non_defaultdeny_policies_total", labels = ["action"])]
    non_default_deny: CounterVec,
    /// CiliumNetworkPolicies.
    #[metric(name = "cilium_network_policies_total", labels = ["action"])]
    cilium: CounterVec,
    /// CiliumClusterwideNetworkPolicies.
    #[metric(name = "cilium_clusterwide_network_policies_total", labels = ["action"])]
    clusterwide: CounterVec,
}

type Uses = fn(&Rule) -> bool;

fn demands(rule: &Rule, has: impl Fn(&PortDemands) -> bool) -> bool {
    let mut demands = rule
        .traffic
        .iter()
        .filter_map(|traffic| traffic.demands.as_deref());
    demands.any(has)
}

fn has_cidr_group(rule: &Rule) -> bool {
    let prefix = LabelSource::CidrGroup.to_string();
    let mut peers = rule.peers.iter();
    rule.direction == Direction::Ingress && peers.any(|peer| peer.as_str().contains(&prefix))
}

impl FeatureMetrics {
    fn features(&self) -> [(&CounterVec, Uses); 12] {
        [
            (&self.peers, |rule| {
                let listed = rule.listed.as_deref();
                !listed.unwrap_or(&rule.peers).is_empty()
            }),
            (&self.nodes, |rule| rule.subject.is_node),
            (&self.dns, |rule| {
                demands(rule, |demands| matches!(demands.rules, L7Rules::Dns(_)))
            }),
            (&self.names, |rule| {
                rule.peers.iter().any(|peer| peer.names().is_some())
            }),
            (&self.http, |rule| {
                demands(rule, |demands| matches!(demands.rules, L7Rules::Http(_)))
            }),
            (&self.headers, |rule| {
                demands(rule, |demands| match &demands.rules {
                    L7Rules::Http(rules) => rules.iter().any(|rule| !rule.header_matches.is_empty()),
                    _ => false,
                })
            }),
            (&self.deny, |rule| rule.verdict == Verdict::Deny),
            (&self.cidr_groups, has_cidr_group),
            (&self.authentication, |rule| rule.auth.is_some()),
            (&self.tls, |rule| {
                demands(rule, |demands| {
                    demands.terminating_tls.is_some() || demands.originating_tls.is_some()
                })
            }),
            (&self.server_names, |rule| {
                demands(rule, |demands| !demands.server_names.is_empty())
            }),
            (&self.non_default_deny, |rule| !rule.default_deny),
        ]
    }

    /// All series exist from the start, at zero.
    pub(crate) fn init(&self) {
        let features = self.features().into_iter().map(|(counter, _)| counter);
        for counter in features.chain([&self.cilium, &self.clusterwide]) {
            for action in [ADD, DELETE] {
                counter.with([action]).add(0.0);
            }
        }
    }

    /// Counts an object that comes, or goes.
    pub(crate) fn object(&self, row: &PolicyRow, is_gone: bool) {
        let counter = match row.kind {
            "CiliumNetworkPolicy" => &self.cilium,
            "CiliumClusterwideNetworkPolicy" => &self.clusterwide,
            _ => return,
        };
        counter.with([if is_gone { DELETE } else { ADD }]).inc();
    }

    /// Counts the features of a policy that comes, or goes.
    pub(crate) fn rules(&self, policies: &Policies, resource: &ResourceId, is_gone: bool) {
        let action = if is_gone { DELETE } else { ADD };
        for (counter, uses) in self.features() {
            if policies.rules_from(resource).any(|rule| uses(rule)) {
                counter.with([action]).inc();
            }
        }
    }
}
