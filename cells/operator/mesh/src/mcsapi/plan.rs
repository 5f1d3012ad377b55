// SPDX-License-Identifier: Apache-2.0

//! What has to be written for one service, by what is known of it. No I/O, no state.
//!
//! What depends on the answer to a write follows in the next pass: a plan that is carried out leads to one that is empty.

use std::collections::BTreeMap;

use serde_json::json;
use skep_clustermesh_types::annotation::{GLOBAL_SYNC_ENDPOINT_SLICES, syncs_endpoint_slices};
use skep_clustermesh_types::{ExportPort, ServiceExport};
use skep_k8s_client::Subresource;
use skep_k8s_crds::mcs::{EndpointSliceObjects, ExportingCluster, ServiceImportStatus, ServiceImportType};
use skep_k8s_types::slim::Metadata;

use super::condition::{self, Desired as DesiredCondition};
use super::desired::{Desired, is_headless};
use super::local::local_export;
use super::merge::{Merged, merge};
use super::names;
use super::slices;
use super::view::{Action, Plan, Target, View};
use crate::namespace::NamespaceState;
use crate::object::{ExportObject, ImportObject, ServiceObject};

/// Plans the writes of a service.
pub(crate) fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    if view.namespace == NamespaceState::Absent {
        return plan;
    }
    let local = view
        .export
        .filter(|export| export.metadata.common.deletion_timestamp.is_none())
        .map(|export| local_export(view.cluster, view.namespace, export, view.service));
    let local_valid = local.as_ref().and_then(|local| local.as_ref().ok());
    let exports: Vec<&ServiceExport> = view
        .remotes
        .iter()
        .map(|export| &**export)
        .chain(local_valid)
        .collect();
    let waits_for = waits_for(view, &exports);
    plan.is_incomplete = !waits_for.is_empty();
    let kept = plan
        .is_incomplete
        .then(|| view.import.and_then(kept_export))
        .flatten();
    let merged = merge(&exports, kept.as_ref()).map(|mut merged| {
        merged.clusters.extend(waits_for.iter().cloned());
        merged.clusters.sort();
        merged
    });
    if let (Some(export), Some(local)) = (view.export, &local) {
        let conditions = match local {
            Err(invalid) => invalid.conditions().to_vec(),
            Ok(_) => export_conditions(merged.as_ref(), plan.is_incomplete),
        };
        plan.actions.extend(export_status(view, export, &conditions));
    }
    match merged {
        Some(merged) if view.namespace == NamespaceState::Global => {
            import(view, &merged, local_valid, &mut plan)
        }
        merged => withdraw(view, merged.is_some(), &mut plan),
    }
    plan
}

/// Clusters that export the service by its import, and whose exports are not known.
fn waits_for(view: &View<'_>, exports: &[&ServiceExport]) -> Vec<String> {
    let status = view.import.and_then(|import| import.status.as_ref());
    let clusters = status.and_then(|status| status.clusters.as_ref());
    let is_unknown = |cluster: &&String| {
        exports.iter().all(|export| export.cluster != **cluster) && (view.is_unknown)(cluster)
    };
    let names = clusters.into_iter().flatten().map(|cluster| &cluster.cluster);
    names.filter(is_unknown).cloned().collect()
}

/// What was merged before, by the import.
fn kept_export(import: &ImportObject) -> Option<ServiceExport> {
    let spec = import.spec.as_ref()?;
    let metadata = &import.metadata.common;
    let port = |port: &skep_k8s_crds::mcs::ServiceImportPort| ExportPort {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
        port: port.port,
    };
    let pairs = |labels: &skep_k8s_types::slim::Labels| -> BTreeMap<String, String> {
        let own = [names::DERIVED_SERVICE, names::SUPPORTED_IP_FAMILIES];
        let pairs = labels.iter().filter(|(key, _)| !own.contains(key));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let mut kept = ServiceExport::default();
    kept.name = metadata.name.to_string();
    kept.namespace = metadata.namespace.to_string();
    kept.labels = pairs(&metadata.labels);
    kept.annotations = pairs(&metadata.annotations);
    kept.ports = Some(spec.ports.iter().map(port).collect());
    kept.kind = match spec.kind {
        ServiceImportType::ClusterSetIp => "ClusterSetIP".to_owned(),
        ServiceImportType::Headless => "Headless".to_owned(),
    };
    kept.session_affinity = spec.session_affinity.clone().unwrap_or_else(|| "None".to_owned());
    kept.session_affinity_config = spec
        .session_affinity_config
        .as_ref()
        .and_then(|config| serde_json::from_value(serde_json::to_value(config).ok()?).ok());
    kept.ip_families = spec.ip_families.clone().unwrap_or_default();
    kept.internal_traffic_policy = spec.internal_traffic_policy.clone();
    kept.traffic_distribution = spec.traffic_distribution.clone();
    Some(kept)
}

const EXPORT_CONDITIONS: [&str; 3] = ["Valid", "Ready", "Conflict"];

/// The conditions of a valid export.
fn export_conditions(merged: Option<&Merged>, is_incomplete: bool) -> Vec<DesiredCondition> {
    let mut conditions = vec![
        DesiredCondition::new("Valid", true, "Valid", "The Service can be exported"),
        DesiredCondition::new("Ready", true, "Ready", "The Service is exported"),
    ];
    // What others export is not known: the condition stays as it is.
    let Some(merged) = merged.filter(|_| !is_incomplete) else {
        return conditions;
    };
    conditions.push(match merged.conflicts.first() {
        None => DesiredCondition::new("Conflict", false, "NoConflicts", "All clusters agree"),
        Some(first) => {
            let total = merged.clusters.len();
            let oldest = &merged.export.cluster;
            let conflicts = merged.conflicts.iter().map(|conflict| {
                format!(
                    "conflicting {}: {}/{total} clusters disagree",
                    conflict.property, conflict.disagree
                )
            });
            let message = format!(
                "Using the properties of the oldest export, of cluster `{oldest}`; {}",
                conflicts.collect::<Vec<_>>().join("; ")
            );
            DesiredCondition::new("Conflict", true, first.property.reason(), message)
        }
    });
    conditions
}

fn export_status(view: &View<'_>, export: &ExportObject, desired: &[DesiredCondition]) -> Option<Action> {
    let metadata = &export.metadata;
    let current = export
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    let current = current.unwrap_or_default();
    // While clusters are waited for, a condition about them stays.
    let own: Vec<&str> = match desired.len() {
        2 if desired[0].is_true => EXPORT_CONDITIONS[..2].to_vec(),
        _ => EXPORT_CONDITIONS.to_vec(),
    };
    let mut conditions = condition::update(current, &own, desired, metadata.generation, view.now);
    let mut sorted = current.to_vec();
    let by_kind =
        |a: &skep_k8s_crds::shared::Condition, b: &skep_k8s_crds::shared::Condition| a.kind.cmp(&b.kind);
    sorted.sort_by(by_kind);
    conditions.sort_by(by_kind);
    (sorted != conditions).then(|| {
        let patch = json!({
            "metadata": { "resourceVersion": metadata.common.resource_version },
            "status": { "conditions": conditions },
        });
        Action::Patch(
            Target::Export,
            metadata.common.name.clone(),
            Subresource::Status,
            patch,
        )
    })
}

/// Whether an import was written for merged exports.
fn is_own_import(view: &View<'_>, import: &ImportObject) -> bool {
    import.metadata.common.annotations.get(names::DERIVED_SERVICE) == Some(names::derived(view.key).as_str())
}

fn is_own_service(view: &View<'_>, service: &ServiceObject) -> bool {
    let metadata = &service.metadata;
    metadata.annotations.get(names::DERIVED_SERVICE) == Some(metadata.name.as_str())
        || metadata
            .owner_references
            .iter()
            .any(|owner| owner.kind == "ServiceImport" && owner.name == view.key.name)
}

fn is_deleted(metadata: &Metadata) -> bool {
    metadata.deletion_timestamp.is_some()
}

fn import(view: &View<'_>, merged: &Merged, local: Option<&ServiceExport>, plan: &mut Plan) {
    let desired = Desired {
        key: view.key,
        export: &merged.export,
    };
    let derived_name = names::derived(view.key);
    let is_foreign = view.derived.is_some_and(|service| !is_own_service(view, service));
    if is_foreign {
        plan.fault = Some(format!(
            "Service `{}/{derived_name}` exists and is not derived: rename it",
            view.key.namespace
        ));
    }
    let derived = view
        .derived
        .filter(|service| !is_foreign && !is_deleted(&service.metadata));
    let addresses: Vec<&str> = derived.map_or_else(Vec::new, |service| service.spec.addresses());
    let families = &merged.export.ip_families;
    let is_supported = |address: &&str| {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        families.is_empty() || families.iter().any(|supported| supported == family)
    };
    let ips: Vec<String> = addresses
        .iter()
        .copied()
        .filter(is_supported)
        .map(str::to_owned)
        .collect();
    let Some(import) = view.import else {
        plan.actions
            .push(Action::Create(Target::Import, desired.import(Vec::new())));
        return;
    };
    if is_deleted(&import.metadata.common) {
        return;
    }
    let is_headless = is_headless(&merged.export);
    let ready = match derived {
        _ if is_foreign => pending("The name of the derived Service is taken"),
        None => pending("The derived Service does not exist yet"),
        Some(service) if service.spec.is_headless() != is_headless => {
            pending("The derived Service has another type")
        }
        Some(_) if is_headless || !ips.is_empty() => {
            DesiredCondition::new("Ready", true, "Ready", "The derived Service is there")
        }
        Some(_) if addresses.is_empty() => pending("The derived Service has no address yet"),
        Some(_) => DesiredCondition::new(
            "Ready",
            false,
            "IPFamilyNotSupported",
            format!("This cluster has no IP family of {}", families.join(",")),
        ),
    };
    let sync = merged.export.annotations.get(GLOBAL_SYNC_ENDPOINT_SLICES);
    let slices = match syncs_endpoint_slices(sync.map(String::as_str), is_headless) {
        true => EndpointSliceObjects::Present,
        false => EndpointSliceObjects::Absent,
    };
    match desired.import_patch(import, ips) {
        Some(patch) => plan.actions.push(Action::Patch(
            Target::Import,
            view.key.name.clone(),
            Subresource::None,
            patch,
        )),
        // The status is about the generation that is written first.
        None => plan
            .actions
            .extend(import_status(view, import, &merged.clusters, ready, slices)),
    }
    if !is_foreign {
        derive(view, &desired, import, is_headless, plan);
    }
    match (derived, local) {
        (Some(service), Some(_)) => slices::plan(view, &desired, service, plan),
        _ => delete_copies(view, plan),
    }
}

fn pending(message: &str) -> DesiredCondition {
    DesiredCondition::new("Ready", false, "Pending", message)
}

/// Creates, changes or replaces the derived Service.
fn derive(view: &View<'_>, desired: &Desired<'_>, import: &ImportObject, is_headless: bool, plan: &mut Plan) {
    match view.derived {
        None => plan
            .actions
            .push(Action::Create(Target::Service, desired.service(import))),
        Some(service) if is_deleted(&service.metadata) => {}
        // Whether it has an address cannot be changed.
        Some(service) if service.spec.is_headless() != is_headless => {
            plan.actions
                .push(Action::Delete(Target::Service, service.metadata.clone()));
        }
        Some(service) => {
            if let Some(patch) = desired.service_patch(service, import) {
                let name = service.metadata.name.clone();
                plan.actions
                    .push(Action::Patch(Target::Service, name, Subresource::None, patch));
            }
        }
    }
}

fn import_status(
    view: &View<'_>,
    import: &ImportObject,
    clusters: &[String],
    ready: DesiredCondition,
    slices: EndpointSliceObjects,
) -> Option<Action> {
    let current = import.status.clone().unwrap_or_default();
    let conditions = current.conditions.as_deref().unwrap_or_default();
    let conditions = condition::update(
        conditions,
        &["Ready"],
        &[ready],
        import.metadata.generation,
        view.now,
    );
    let exporting = clusters.iter().map(|cluster| ExportingCluster {
        cluster: cluster.clone(),
    });
    let desired = ServiceImportStatus {
        clusters: Some(exporting.collect()),
        conditions: Some(conditions),
        endpoint_slice_objects: Some(slices),
    };
    (desired != current).then(|| {
        let patch = json!({
            "metadata": { "resourceVersion": import.metadata.common.resource_version },
            "status": desired,
        });
        Action::Patch(Target::Import, view.key.name.clone(), Subresource::Status, patch)
    })
}

/// The service is not imported: nothing exports it, or its namespace is not shared.
fn withdraw(view: &View<'_>, is_exported: bool, plan: &mut Plan) {
    delete_copies(view, plan);
    if let Some(service) = view.derived
        && is_own_service(view, service)
        && !is_deleted(&service.metadata)
    {
        plan.actions
            .push(Action::Delete(Target::Service, service.metadata.clone()));
    }
    let Some(import) = view.import else { return };
    let metadata = &import.metadata.common;
    if !is_own_import(view, import) || is_deleted(metadata) {
        return;
    }
    if !is_exported && !plan.is_incomplete {
        plan.actions
            .push(Action::Delete(Target::Import, metadata.clone()));
        return;
    }
    if import.spec.as_ref().is_some_and(|spec| spec.ips.is_some()) {
        let patch = json!({
            "metadata": { "resourceVersion": metadata.resource_version },
            "spec": { "ips": null },
        });
        plan.actions.push(Action::Patch(
            Target::Import,
            metadata.name.clone(),
            Subresource::None,
            patch,
        ));
        return;
    }
    let status = import.status.as_ref();
    let clusters = status
        .and_then(|status| status.clusters.clone())
        .unwrap_or_default();
    let clusters: Vec<String> = clusters.into_iter().map(|cluster| cluster.cluster).collect();
    let ready = DesiredCondition::new(
        "Ready",
        false,
        "NamespaceNotGlobal",
        "The namespace is not shared with other clusters",
    );
    let slices = EndpointSliceObjects::Absent;
    plan.actions
        .extend(import_status(view, import, &clusters, ready, slices));
}

fn delete_copies(view: &View<'_>, plan: &mut Plan) {
    let copies = view.copies.iter().filter(|copy| !is_deleted(&copy.metadata));
    plan.actions
        .extend(copies.map(|copy| Action::Delete(Target::Slice, copy.metadata.clone())));
}
