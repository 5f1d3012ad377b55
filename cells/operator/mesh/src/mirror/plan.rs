// SPDX-License-Identifier: Apache-2.0

//! What has to be written for one Service. No I/O, no state.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use skep_clustermesh_types::SERVICE_NAME_LABEL;
use skep_clustermesh_types::annotation::{GLOBAL_SYNC_ENDPOINT_SLICES, syncs_endpoint_slices};
use skep_k8s_types::slim::{EndpointConditions, Labels, Metadata, Str};
use skep_k8s_types::{ObjectKey, Resource};

use super::assign::assign;
use super::object::{Endpoint, MirroredSlice, Port, TargetRef};
use super::remote::Backend;
use crate::mcsapi::{HEADLESS, MANAGED_BY, MIRROR_MANAGER, SOURCE_CLUSTER};
use crate::object::ServiceObject;

/// On a Service: it is shared, by its new and its old name.
const GLOBAL: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];

/// What is known of a Service.
pub(crate) struct View<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) service: Option<&'a ServiceObject>,
    pub(crate) slices: Vec<&'a MirroredSlice>,
    pub(crate) remotes: &'a BTreeMap<String, Vec<Backend>>,
    /// Whether the services of a cluster are not known.
    pub(crate) is_unknown: &'a dyn Fn(&str) -> bool,
    pub(crate) most: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Create(Value),
    Update(Str, Value),
    /// Deletes a slice if it is still this one.
    Delete(Metadata),
}

/// What has to be written for a Service.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) is_incomplete: bool,
}

/// Whether remote backends of a Service are mirrored.
pub(crate) fn is_mirrored(service: &ServiceObject) -> bool {
    let metadata = &service.metadata;
    let global = GLOBAL.iter().find_map(|name| metadata.annotations.get(name));
    metadata.deletion_timestamp.is_none()
        && service.spec.kind.as_deref() != Some("ExternalName")
        && global.is_some_and(|value| value.eq_ignore_ascii_case("true"))
        && syncs_endpoint_slices(
            metadata.annotations.get(GLOBAL_SYNC_ENDPOINT_SLICES),
            service.spec.is_headless(),
        )
}

/// Plans the writes of a Service.
pub(crate) fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    let live = view
        .slices
        .iter()
        .copied()
        .filter(|slice| slice.metadata.deletion_timestamp.is_none());
    let mut of_cluster: BTreeMap<&str, Vec<&MirroredSlice>> = BTreeMap::new();
    for slice in live {
        let cluster = slice.metadata.labels.get(SOURCE_CLUSTER).unwrap_or_default();
        of_cluster.entry(cluster).or_default().push(slice);
    }
    let Some(service) = view.service.filter(|service| is_mirrored(service)) else {
        let slices = of_cluster.into_values().flatten();
        plan.actions
            .extend(slices.map(|slice| Action::Delete(slice.metadata.clone())));
        return plan;
    };
    for cluster in view.remotes.keys() {
        of_cluster.entry(cluster).or_default();
    }
    for (cluster, slices) in of_cluster {
        match view.remotes.get(cluster) {
            None if (view.is_unknown)(cluster) => plan.is_incomplete = true,
            backends => {
                let backends = backends.map_or(&[][..], Vec::as_slice);
                mirror(view, service, (cluster, backends), &slices, &mut plan.actions);
            }
        }
    }
    plan
}

/// Slices hold endpoints of one family with the same ports.
type Group<'a> = (&'static str, &'a [Port]);

/// Mirrors the backends of a cluster.
fn mirror(
    view: &View<'_>,
    service: &ServiceObject,
    (cluster, backends): (&str, &[Backend]),
    slices: &[&MirroredSlice],
    actions: &mut Vec<Action>,
) {
    let is_headless = service.spec.is_headless();
    let mut desired: BTreeMap<Group<'_>, Vec<Endpoint>> = BTreeMap::new();
    for backend in backends {
        let family = if backend.ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let endpoints = desired.entry((family, &backend.ports)).or_default();
        endpoints.push(endpoint(view.key, cluster, backend, is_headless));
    }
    let mut existing: BTreeMap<(&str, &[Port]), Vec<&MirroredSlice>> = BTreeMap::new();
    for slice in slices {
        let group = (slice.address_type.as_str(), slice.ports.as_slice());
        existing.entry(group).or_default().push(slice);
    }
    let labels = labels(service, cluster);
    let object = |group: &Group<'_>, endpoints: &[Endpoint]| {
        let kind = MirroredSlice::kind();
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "metadata": {
                "namespace": view.key.namespace,
                "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": view.key.name,
                    "uid": service.metadata.uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "addressType": group.0,
            "endpoints": endpoints,
            "ports": group.1,
        })
    };
    for (group, desired) in desired {
        let slices = existing.remove(&group).unwrap_or_default();
        let current: Vec<&[Endpoint]> = slices.iter().map(|slice| slice.endpoints.as_slice()).collect();
        let mut changes = assign(&current, &desired, view.most);
        for endpoints in &changes.create {
            let mut object = object(&group, endpoints);
            object["metadata"]["generateName"] = format!("{}-{cluster}-", view.key.name).into();
            actions.push(Action::Create(object));
        }
        for (at, slice) in slices.iter().enumerate() {
            let metadata = &slice.metadata;
            if changes.delete.contains(&at) {
                actions.push(Action::Delete(metadata.clone()));
                continue;
            }
            let is_owned = metadata
                .owner_references
                .iter()
                .any(|owner| owner.uid == service.metadata.uid);
            let endpoints = changes.update.remove(&at);
            if endpoints.is_some() || !is_owned || metadata.labels != labels {
                let endpoints = endpoints.unwrap_or_else(|| slice.endpoints.clone());
                let mut object = object(&group, &endpoints);
                object["metadata"]["name"] = metadata.name.as_str().into();
                object["metadata"]["resourceVersion"] = metadata.resource_version.as_str().into();
                actions.push(Action::Update(metadata.name.clone(), object));
            }
        }
    }
    // Of groups that no backend has any longer.
    let stale = existing.into_values().flatten();
    actions.extend(stale.map(|slice| Action::Delete(slice.metadata.clone())));
}

/// Labels of the Service, and those that say what a slice is.
fn labels(service: &ServiceObject, cluster: &str) -> Labels {
    let reserved = [SERVICE_NAME_LABEL, MANAGED_BY, SOURCE_CLUSTER, HEADLESS];
    let metadata = &service.metadata;
    let of_service = metadata.labels.iter().filter(|(key, _)| !reserved.contains(key));
    let own = [
        (SERVICE_NAME_LABEL, metadata.name.as_str()),
        (MANAGED_BY, MIRROR_MANAGER),
        (SOURCE_CLUSTER, cluster),
    ];
    let headless = service.spec.is_headless().then_some((HEADLESS, ""));
    of_service.chain(own).chain(headless).collect()
}

fn endpoint(key: &ObjectKey, cluster: &str, backend: &Backend, is_headless: bool) -> Endpoint {
    let ip = backend.ip.to_string();
    Endpoint {
        conditions: EndpointConditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        },
        hostname: backend.hostname.clone().filter(|_| is_headless),
        node_name: Some(Str::new(cluster)),
        zone: Some(Str::new(cluster)),
        target_ref: Some(TargetRef {
            api_version: Str::const_new("cilium.io"),
            kind: Str::const_new("store.ClusterService"),
            name: Str::new(format!("fake-pod-{ip}")),
            namespace: key.namespace.clone(),
        }),
        addresses: vec![Str::new(ip)],
    }
}
