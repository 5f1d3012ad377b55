// SPDX-License-Identifier: Apache-2.0

//! Discovery: which groups, versions and resources there are.

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_memory::{Kind, Registry};

/// Groups in the order of a real server; others follow by name.
const ORDER: &[&str] = &[
    "",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
];

/// How good a version is: stable before beta before alpha, then the higher number.
fn rank(version: &str) -> (u8, u32, u32, Reverse<String>) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..end].parse().ok()?;
        let (level, minor) = match &rest[end..] {
            "" => (3, 0),
            rest => match rest.strip_prefix("beta") {
                Some(minor) => (2, minor.parse().ok()?),
                None => (1, rest.strip_prefix("alpha")?.parse().ok()?),
            },
        };
        Some((level, major, minor))
    };
    let (level, major, minor) = parse().unwrap_or((0, 0, 0));
    (level, major, minor, Reverse(version.to_owned()))
}

/// A group and its versions, best first, with their kinds.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) versions: Vec<(String, Vec<Arc<Kind>>)>,
}

pub(super) fn groups(registry: &Registry) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for kind in registry.all() {
        let at = match groups.iter().position(|g| g.name == kind.gvr.group) {
            Some(at) => at,
            None => {
                groups.push(Group {
                    name: kind.gvr.group.to_string(),
                    versions: Vec::new(),
                });
                groups.len() - 1
            }
        };
        let versions = &mut groups[at].versions;
        match versions.iter_mut().find(|(v, _)| *v == kind.gvr.version) {
            Some((_, kinds)) => kinds.push(kind),
            None => versions.push((kind.gvr.version.to_string(), vec![kind])),
        }
    }
    for group in &mut groups {
        group.versions.sort_by_key(|(version, _)| Reverse(rank(version)));
    }
    groups.sort_by_key(|g| {
        (
            ORDER.iter().position(|o| *o == g.name).unwrap_or(ORDER.len()),
            g.name.clone(),
        )
    });
    groups
}

pub(super) fn is_review(kind: &Kind) -> bool {
    matches!(
        kind.gvr.group.as_str(),
        "authentication.k8s.io" | "authorization.k8s.io"
    )
}

fn verbs(kind: &Kind) -> Value {
    if is_review(kind) {
        return json!(["create"]);
    }
    json!([
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch"
    ])
}

/// Sub-resources: name, group, version and kind, verbs.
fn subresources(kind: &Kind) -> Vec<(&'static str, Value, Value)> {
    let own = json!({ "group": kind.gvr.group.as_str(), "version": kind.gvr.version.as_str(), "kind": kind.kind.as_str() });
    let mut found = Vec::new();
    if kind.gvr.group.is_empty() && kind.gvr.resource == "namespaces" {
        found.push(("finalize", own.clone(), json!(["update"])));
    }
    if kind.gvr.group.is_empty() && kind.gvr.resource == "pods" {
        let binding = json!({ "group": "", "version": "v1", "kind": "Binding" });
        found.push(("binding", binding, json!(["create"])));
        let eviction = json!({ "group": "policy", "version": "v1", "kind": "Eviction" });
        found.push(("eviction", eviction, json!(["create"])));
    }
    if kind.gvr.group.is_empty() && kind.gvr.resource == "serviceaccounts" {
        let request = json!({ "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest" });
        found.push(("token", request, json!(["create"])));
    }
    if kind.scale.is_some() {
        let scale = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
        found.push(("scale", scale, json!(["get", "patch", "update"])));
    }
    if kind.has_status {
        found.push(("status", own, json!(["get", "patch", "update"])));
    }
    found
}

/// `/api`.
pub(super) fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": address }],
    })
}

fn group_value(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(
            |(version, _)| json!({ "groupVersion": format!("{}/{version}", group.name), "version": version }),
        )
        .collect();
    json!({ "name": group.name, "preferredVersion": versions.first(), "versions": versions })
}

/// `/apis`.
pub(super) fn group_list(registry: &Registry) -> Value {
    let groups: Vec<Value> = groups(registry)
        .iter()
        .filter(|g| !g.name.is_empty())
        .map(group_value)
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// `/apis/<group>`.
pub(super) fn group(registry: &Registry, name: &str) -> Option<Value> {
    let groups = groups(registry);
    let mut value = group_value(groups.iter().find(|g| g.name == name)?);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    Some(value)
}

/// `/api/v1` and `/apis/<group>/<version>`.
pub(super) fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let groups = groups(registry);
    let group = groups.iter().find(|g| g.name == group)?;
    let (_, kinds) = group.versions.iter().find(|(v, _)| v == version)?;
    let mut resources = Vec::new();
    if group.name.is_empty() {
        resources.push(json!({
            "name": "bindings", "singularName": "binding", "namespaced": true, "kind": "Binding", "verbs": ["create"],
        }));
    }
    for kind in kinds {
        let mut resource = json!({
            "name": kind.gvr.resource.as_str(),
            "singularName": kind.singular.as_str(),
            "namespaced": kind.namespaced,
            "kind": kind.kind.as_str(),
            "verbs": verbs(kind),
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = kind.short_names.iter().map(|s| s.as_str()).collect();
        }
        if !kind.categories.is_empty() {
            resource["categories"] = kind.categories.iter().map(|s| s.as_str()).collect();
        }
        resources.push(resource);
        for (name, response, verbs) in subresources(kind) {
            let mut resource = json!({
                "name": format!("{}/{name}", kind.gvr.resource),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": response["kind"],
                "verbs": verbs,
            });
            if response["group"] != kind.gvr.group.as_str() {
                resource["group"] = response["group"].clone();
                resource["version"] = response["version"].clone();
            }
            resources.push(resource);
        }
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": skep_k8s_memory::api_version(&group.name, version),
        "resources": resources,
    }))
}

/// `/api` or `/apis` in the aggregated form.
pub(super) fn aggregated(registry: &Registry, core: bool, form: &str) -> Value {
    let items: Vec<Value> = groups(registry)
        .iter()
        .filter(|g| g.name.is_empty() == core)
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|(version, kinds)| {
                    let bindings = core.then(|| {
                        json!({
                            "resource": "bindings",
                            "responseKind": { "group": "", "version": version, "kind": "Binding" },
                            "scope": "Namespaced", "singularResource": "binding", "verbs": ["create"],
                        })
                    });
                    let kinds = kinds.iter().map(|kind| aggregated_resource(kind));
                    let resources: Vec<Value> = bindings.into_iter().chain(kinds).collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            let metadata = if core {
                json!({ "creationTimestamp": null })
            } else {
                json!({ "name": group.name, "creationTimestamp": null })
            };
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{form}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(kind: &Kind) -> Value {
    let mut resource = json!({
        "resource": kind.gvr.resource.as_str(),
        "responseKind": {
            "group": kind.gvr.group.as_str(), "version": kind.gvr.version.as_str(), "kind": kind.kind.as_str(),
        },
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular.as_str(),
        "verbs": verbs(kind),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = kind.short_names.iter().map(|s| s.as_str()).collect();
    }
    if !kind.categories.is_empty() {
        resource["categories"] = kind.categories.iter().map(|s| s.as_str()).collect();
    }
    let below: Vec<Value> = subresources(kind)
        .into_iter()
        .map(|(name, response, verbs)| json!({ "subresource": name, "responseKind": response, "verbs": verbs }))
        .collect();
    if !below.is_empty() {
        resource["subresources"] = below.into();
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_versions_as_kubernetes_does() {
        let mut versions = ["v1beta1", "v2", "v1", "v1alpha2", "foo", "v10", "v1beta2"];
        versions.sort_by_key(|v| Reverse(rank(v)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha2", "foo"]
        );
    }

    #[test]
    fn core_comes_first() {
        let groups = groups(&Registry::builtin());
        assert_eq!(groups[0].name, "");
        let list = resource_list(&Registry::builtin(), "", "v1").unwrap();
        let services = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["name"] == "services")
            .unwrap();
        assert_eq!(services["shortNames"], json!(["svc"]));
    }
}
