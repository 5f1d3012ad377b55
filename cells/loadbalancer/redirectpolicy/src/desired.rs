// SPDX-License-Identifier: Apache-2.0

//! What policies ask for, given the pods of this node and the frontends there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use compact_str::CompactString;
use skep_k8s_types::slim::Pod;
use skep_loadbalancer_model::{BackendParams, FrontendKind, FrontendParams, L3n4Addr, Service, Source};

use crate::Policy;

/// A pseudo-service with its frontends and backends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Redirect {
    pub(crate) service: Service,
    /// Addresses of an address policy; none for a service policy.
    pub(crate) frontends: Vec<FrontendParams>,
    /// Pods that take the traffic, sorted by address.
    pub(crate) backends: Vec<BackendParams>,
}

/// Pods of a policy: their addresses with the policy's ports.
pub(crate) struct Selected {
    pub(crate) backends: Vec<BackendParams>,
    /// `namespace/name` of the pods.
    pub(crate) pods: BTreeSet<CompactString>,
}

/// Backends of a policy among the pods of this node.
pub(crate) fn select<'a>(
    policy: &Policy,
    pods: impl Iterator<Item = &'a Pod>,
    allows: impl Fn(IpAddr) -> bool,
) -> Selected {
    let mut backends: BTreeMap<L3n4Addr, BackendParams> = BTreeMap::new();
    let mut selected = BTreeSet::new();
    for pod in pods.filter(|pod| policy.selects(pod)) {
        selected.insert(compact_str::format_compact!(
            "{}/{}",
            pod.metadata.namespace,
            pod.metadata.name
        ));
        let ports = policy.pod_ports(pod);
        let ips = pod.addresses().filter_map(|ip| ip.parse::<IpAddr>().ok());
        for ip in ips.map(|ip| ip.to_canonical()).filter(|&ip| allows(ip)) {
            for &(number, proto, name) in &ports {
                let address = L3n4Addr::new(ip, number, proto);
                let backend = backends
                    .entry(address)
                    .or_insert_with(|| BackendParams::new(address, Source::Kubernetes));
                if let Some(name) = name.filter(|name| !backend.port_names.contains(name)) {
                    backend.port_names = backend.port_names.iter().chain([name.as_str()]).collect();
                }
            }
        }
    }
    Selected {
        backends: backends.into_values().collect(),
        pods: selected,
    }
}

/// The pseudo-service of a policy for which there are pods.
pub(crate) fn redirect(
    policy: &Policy,
    backends: Vec<BackendParams>,
    allows: impl Fn(IpAddr) -> bool,
) -> Redirect {
    let named = policy.frontend_ports.len() > 1;
    let frontend = |(address, name): (L3n4Addr, &CompactString)| FrontendParams {
        address,
        kind: FrontendKind::LocalRedirect,
        port_name: if named {
            name.clone()
        } else {
            CompactString::default()
        },
        service_port: address.port(),
    };
    let mut frontends: Vec<FrontendParams> = policy
        .addresses()
        .filter(|(address, _)| allows(address.ip()))
        .map(frontend)
        .collect();
    frontends.sort_by_key(|frontend| frontend.address);
    frontends.dedup_by_key(|frontend| frontend.address);
    Redirect {
        service: Service::new(policy.redirect_service(), Source::Kubernetes),
        frontends,
        backends,
    }
}
