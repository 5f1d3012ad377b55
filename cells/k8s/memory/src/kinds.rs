// SPDX-License-Identifier: Apache-2.0

//! The kinds that are served, and what is known about each.

mod extensions;

use std::collections::BTreeMap;
use std::sync::Arc;

use compact_str::CompactString;
use parking_lot::RwLock;
use serde_json::Value;

use crate::gvr::Gvr;
use crate::schema::{Shape, builtin};
use crate::server::Validator;

/// One kind in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Group, version and plural.
    pub gvr: Gvr,
    /// Name of the kind, such as `Service`.
    pub kind: CompactString,
    /// Singular name, such as `service`.
    pub singular: CompactString,
    /// Kind of lists of it, such as `ServiceList`.
    pub list_kind: CompactString,
    /// Objects live in namespaces.
    pub namespaced: bool,
    /// Short names for the command line, such as `svc`.
    pub short_names: Vec<CompactString>,
    /// Groups of kinds it belongs to, such as `all`.
    pub categories: Vec<CompactString>,
    /// It has a status sub-resource, so that plain updates leave the status alone and the other way round.
    pub has_status: bool,
    /// It has a scale sub-resource.
    pub scale: Option<Scale>,
    /// Changes of what is wanted count up `metadata.generation`.
    pub counts_generations: bool,
    /// Known to the clients of the compact core types, Cilium's and extension types (domain `*`).
    pub in_slim_domain: bool,
    /// Known to the ordinary client of the core types (domain `k8s`).
    pub in_core_domain: bool,
    /// Version that objects are stored in.
    pub storage_version: CompactString,
    /// Shape of its objects.
    pub shape: Shape,
    /// What its definition says, if it is a custom resource.
    pub custom: Option<Arc<Custom>>,
}

/// Where a scale sub-resource finds its numbers: paths such as `.spec.replicas`.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Path of the wanted number.
    pub spec_replicas: String,
    /// Path of the number there is.
    pub status_replicas: String,
    /// Path of the label selector as text or object; empty if there is none.
    pub selector: String,
}

/// What the definition of a custom resource says about one version.
#[derive(Debug, Default)]
pub struct Custom {
    /// OpenAPI schema of its objects.
    pub schema: Value,
    /// Columns for printing (`additionalPrinterColumns`).
    pub columns: Vec<Value>,
    /// Paths usable in field selectors, such as `.spec.color`.
    pub selectable_fields: Vec<String>,
    /// The schema has defaults.
    pub has_defaults: bool,
    /// Validates objects; `None` where the server has no [`SchemaCompiler`](crate::SchemaCompiler).
    pub validator: Option<Box<dyn Validator>>,
}

impl Kind {
    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        self.gvr.api_version()
    }

    /// The resource that objects are stored under; differs from `gvr` only in the version.
    pub fn stored(&self) -> Gvr {
        Gvr {
            version: self.storage_version.clone(),
            ..self.gvr.clone()
        }
    }

    /// Name of the Go type of the objects, as the tracker table shows it.
    pub fn go_type(&self) -> String {
        format!("*{}.{}", self.gvr.version, self.kind)
    }
}

/// All kinds that are known at this moment. Cheap to clone; clones share.
#[derive(Clone, Debug)]
pub struct Registry {
    kinds: Arc<RwLock<BTreeMap<Gvr, Arc<Kind>>>>,
}

/// Short names and categories of built-in resources.
#[rustfmt::skip]
const NAMES: &[(&str, &str, &[&str], &[&str])] = &[
    ("", "configmaps", &["cm"], &[]),
    ("", "endpoints", &["ep"], &[]),
    ("", "events", &["ev"], &[]),
    ("", "limitranges", &["limits"], &[]),
    ("", "namespaces", &["ns"], &[]),
    ("", "nodes", &["no"], &[]),
    ("", "persistentvolumes", &["pv"], &[]),
    ("", "persistentvolumeclaims", &["pvc"], &[]),
    ("", "pods", &["po"], &["all"]),
    ("", "replicationcontrollers", &["rc"], &["all"]),
    ("", "resourcequotas", &["quota"], &[]),
    ("", "serviceaccounts", &["sa"], &[]),
    ("", "services", &["svc"], &["all"]),
    ("apps", "daemonsets", &["ds"], &["all"]),
    ("apps", "deployments", &["deploy"], &["all"]),
    ("apps", "replicasets", &["rs"], &["all"]),
    ("apps", "statefulsets", &["sts"], &["all"]),
    ("autoscaling", "horizontalpodautoscalers", &["hpa"], &["all"]),
    ("batch", "cronjobs", &["cj"], &["all"]),
    ("batch", "jobs", &[], &["all"]),
    ("certificates.k8s.io", "certificatesigningrequests", &["csr"], &[]),
    ("apiextensions.k8s.io", "customresourcedefinitions", &["crd", "crds"], &["api-extensions"]),
    ("apiregistration.k8s.io", "apiservices", &[], &["api-extensions"]),
    ("networking.k8s.io", "ingresses", &["ing"], &[]),
    ("networking.k8s.io", "networkpolicies", &["netpol"], &[]),
    ("networking.k8s.io", "ipaddresses", &["ip"], &[]),
    ("policy", "poddisruptionbudgets", &["pdb"], &[]),
    ("scheduling.k8s.io", "priorityclasses", &["pc"], &[]),
    ("storage.k8s.io", "storageclasses", &["sc"], &[]),
];

/// Built-in resources whose changes count up `metadata.generation`.
const GENERATIONS: &[&str] = &[
    "daemonsets",
    "deployments",
    "replicasets",
    "statefulsets",
    "replicationcontrollers",
    "cronjobs",
    "jobs",
    "endpointslices",
    "ingresses",
    "ingressclasses",
    "networkpolicies",
    "poddisruptionbudgets",
    "customresourcedefinitions",
    "priorityclasses",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "flowschemas",
    "prioritylevelconfigurations",
];

/// Core resources that the compact client models too (domain `*`).
const SLIM: &[(&str, &str)] = &[
    ("", "services"),
    ("", "endpoints"),
    ("", "pods"),
    ("", "nodes"),
    ("", "namespaces"),
    ("", "secrets"),
    ("discovery.k8s.io", "endpointslices"),
    ("networking.k8s.io", "networkpolicies"),
    ("networking.k8s.io", "ingresses"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
];

impl Registry {
    /// The built-in kinds of a Kubernetes API server.
    pub fn builtin() -> Self {
        let registry = Registry {
            kinds: Arc::default(),
        };
        for builtin in &builtin().kinds {
            if builtin.version.contains("beta")
                || matches!(builtin.group, "events.k8s.io" | "flowcontrol.apiserver.k8s.io")
                || (builtin.group == "autoscaling" && builtin.version == "v1")
                || builtin.plural == "componentstatuses"
            {
                continue;
            }
            let gvr = Gvr::new(builtin.group, builtin.version, builtin.plural);
            let (short_names, categories) = NAMES
                .iter()
                .find(|(group, plural, ..)| *group == builtin.group && *plural == builtin.plural)
                .map_or((&[][..], &[][..]), |(_, _, short, categories)| {
                    (*short, *categories)
                });
            let shape = Shape::Named(builtin.type_name);
            let has_status = shape.object().is_some_and(|o| o.field("status").is_some())
                && !matches!(builtin.group, "authorization.k8s.io" | "authentication.k8s.io");
            let scale = (matches!(
                builtin.plural,
                "deployments" | "replicasets" | "statefulsets" | "replicationcontrollers"
            ))
            .then(|| Scale {
                spec_replicas: ".spec.replicas".to_owned(),
                status_replicas: ".status.replicas".to_owned(),
                selector: ".spec.selector".to_owned(),
            });
            registry.insert(Kind {
                kind: builtin.kind.into(),
                singular: builtin.kind.to_lowercase().into(),
                list_kind: format!("{}List", builtin.kind).into(),
                namespaced: builtin.namespaced,
                short_names: short_names.iter().map(|s| (*s).into()).collect(),
                categories: categories.iter().map(|s| (*s).into()).collect(),
                has_status,
                scale,
                counts_generations: GENERATIONS.contains(&builtin.plural),
                in_slim_domain: SLIM.contains(&(builtin.group, builtin.plural)),
                in_core_domain: !matches!(builtin.group, "apiextensions.k8s.io" | "apiregistration.k8s.io"),
                storage_version: builtin.version.into(),
                shape,
                custom: None,
                gvr,
            });
        }
        registry
    }

    /// The built-in kinds, and the extension kinds that Cilium's clients know, without any definition.
    pub fn with_extensions() -> Self {
        let registry = Self::builtin();
        for kind in extensions::kinds() {
            registry.insert(kind);
        }
        registry
    }

    /// Adds or replaces a kind.
    pub fn insert(&self, kind: Kind) {
        self.kinds.write().insert(kind.gvr.clone(), Arc::new(kind));
    }

    /// Removes all versions of a resource; returns the kinds that were removed.
    pub fn remove(&self, group: &str, resource: &str) -> Vec<Arc<Kind>> {
        let mut kinds = self.kinds.write();
        let gone: Vec<Gvr> = kinds
            .keys()
            .filter(|g| g.group == group && g.resource == resource)
            .cloned()
            .collect();
        gone.iter().filter_map(|gvr| kinds.remove(gvr)).collect()
    }

    /// The kind that `gvr` names.
    pub fn get(&self, gvr: &Gvr) -> Option<Arc<Kind>> {
        self.kinds.read().get(gvr).cloned()
    }

    /// The kind of objects with this `apiVersion` and `kind`.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let (group, version) = crate::gvr::split_api_version(api_version);
        let kinds = self.kinds.read();
        kinds
            .values()
            .find(|k| k.gvr.group == group && k.gvr.version == version && k.kind == kind)
            .cloned()
    }

    /// The kind whose lists have this `apiVersion` and `kind`, such as `ServiceList`.
    pub(crate) fn by_list_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let (group, version) = crate::gvr::split_api_version(api_version);
        let kinds = self.kinds.read();
        kinds
            .values()
            .find(|k| k.gvr.group == group && k.gvr.version == version && k.list_kind == kind)
            .cloned()
    }

    /// The kind called `kind` in `group`, in the version that its objects are stored in.
    pub fn stored_kind(&self, group: &str, kind: &str) -> Option<Arc<Kind>> {
        let kinds = self.kinds.read();
        kinds
            .values()
            .find(|k| k.gvr.group == group && k.kind == kind && k.gvr.version == k.storage_version)
            .cloned()
    }

    /// All kinds, ordered by group, version and resource.
    pub fn all(&self) -> Vec<Arc<Kind>> {
        self.kinds.read().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_live_in_both_domains_and_deployments_in_one() {
        let registry = Registry::with_extensions();
        let domains = |api_version: &str, kind: &str| {
            let kind = registry.by_kind(api_version, kind).unwrap();
            (kind.in_slim_domain, kind.in_core_domain)
        };

        assert_eq!(domains("v1", "Service"), (true, true));
        assert_eq!(domains("apps/v1", "Deployment"), (false, true));
        assert_eq!(domains("v1", "ConfigMap"), (false, true));
        assert_eq!(domains("cilium.io/v2", "CiliumNode"), (true, false));
    }
}
