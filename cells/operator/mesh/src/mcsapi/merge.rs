// SPDX-License-Identifier: Apache-2.0

//! What exports of the same service in several clusters are together.
//!
//! The oldest export wins where they conflict; of two as old the one of the cluster whose name is first. Ports are united: a
//! port that shares its name, or protocol and number, with another one of an older export is that one. The IP families are those that
//! all exports have.

use std::fmt;

use skep_clustermesh_types::{ExportPort, ServiceExport};

/// A property that exports have in conflict, in the order in which the first one is the reason of the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    Port,
    Type,
    SessionAffinity,
    SessionAffinityConfig,
    Labels,
    Annotations,
    InternalTrafficPolicy,
    TrafficDistribution,
    IpFamily,
}

impl Property {
    /// Reason of the condition `Conflict`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Port => "PortConflict",
            Self::Type => "TypeConflict",
            Self::SessionAffinity => "SessionAffinityConflict",
            Self::SessionAffinityConfig => "SessionAffinityConfigConflict",
            Self::Labels => "LabelsConflict",
            Self::Annotations => "AnnotationsConflict",
            Self::InternalTrafficPolicy => "InternalTrafficPolicyConflict",
            Self::TrafficDistribution => "TrafficDistributionConflict",
            Self::IpFamily => "IPFamilyConflict",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Port => "ports",
            Self::Type => "type",
            Self::SessionAffinity => "session affinity",
            Self::SessionAffinityConfig => "session affinity config",
            Self::Labels => "labels",
            Self::Annotations => "annotations",
            Self::InternalTrafficPolicy => "internal traffic policy",
            Self::TrafficDistribution => "traffic distribution",
            Self::IpFamily => "IP families",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub property: Property,
    /// How many clusters disagree with what is used.
    pub disagree: usize,
}

/// The exports of a service together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// What is used of the oldest export; ports and IP families are those of all.
    pub export: ServiceExport,
    /// Names of the clusters that export the service, sorted.
    pub clusters: Vec<String>,
    pub conflicts: Vec<Conflict>,
}

/// Merges exports of one service. `kept` is what was merged before, if some of its exports are not known yet: it counts as
/// the oldest, and is no cluster. Returns `None` if there is no export.
pub fn merge(exports: &[&ServiceExport], kept: Option<&ServiceExport>) -> Option<Merged> {
    let mut sorted: Vec<&ServiceExport> = exports.to_vec();
    sorted.sort_by(|a, b| {
        let age = |export: &ServiceExport| export.export_creation_timestamp;
        (age(a), &a.cluster).cmp(&(age(b), &b.cluster))
    });
    let mut clusters: Vec<String> = sorted.iter().map(|export| export.cluster.clone()).collect();
    clusters.sort();
    clusters.dedup();
    sorted.splice(..0, kept);
    let oldest = *sorted.first()?;
    let mut conflicts = Vec::new();
    let mut note = |property, disagree: usize| {
        if disagree > 0 {
            conflicts.push(Conflict { property, disagree });
        }
    };
    let differing = |differs: fn(&ServiceExport, &ServiceExport) -> bool| {
        sorted.iter().filter(|export| differs(export, oldest)).count()
    };
    let (ports, disagree) = unite_ports(&sorted);
    note(Property::Port, disagree);
    note(Property::Type, differing(|a, b| a.kind != b.kind));
    note(
        Property::SessionAffinity,
        differing(|a, b| a.session_affinity != b.session_affinity),
    );
    note(
        Property::SessionAffinityConfig,
        differing(|a, b| a.session_affinity_config != b.session_affinity_config),
    );
    note(Property::Labels, differing(|a, b| a.labels != b.labels));
    note(
        Property::Annotations,
        differing(|a, b| a.annotations != b.annotations),
    );
    note(
        Property::InternalTrafficPolicy,
        differing(|a, b| traffic_policy(a) != traffic_policy(b)),
    );
    note(
        Property::TrafficDistribution,
        differing(|a, b| a.traffic_distribution != b.traffic_distribution),
    );
    let (ip_families, disagree) = common_families(&sorted);
    note(Property::IpFamily, disagree);
    let mut export = oldest.clone();
    export.ports = Some(ports);
    export.ip_families = ip_families;
    Some(Merged {
        export,
        clusters,
        conflicts,
    })
}

/// An export without a policy has the default.
fn traffic_policy(export: &ServiceExport) -> &str {
    export.internal_traffic_policy.as_deref().unwrap_or("Cluster")
}

/// The ports of all exports, and how many exports have one that is in conflict with an older one.
fn unite_ports(sorted: &[&ServiceExport]) -> (Vec<ExportPort>, usize) {
    let mut ports: Vec<ExportPort> = Vec::new();
    let mut disagree = 0;
    for export in sorted {
        let mut is_in_conflict = false;
        for port in export.ports.iter().flatten() {
            if ports.contains(port) {
                continue;
            }
            let excludes = |other: &ExportPort| {
                other.name == port.name
                    || (&other.protocol, other.port) == (&port.protocol, port.port)
                    // A port without a name is the only one.
                    || other.name.is_empty()
                    || port.name.is_empty()
            };
            if ports.iter().any(excludes) {
                is_in_conflict = true;
            } else {
                ports.push(port.clone());
            }
        }
        disagree += usize::from(is_in_conflict);
    }
    (ports, disagree)
}

/// The families that all exports have, in the order of the oldest one that says which it has. If there is none: those of
/// that one, and how many exports have none of them. Older versions of Cilium do not export families.
fn common_families(sorted: &[&ServiceExport]) -> (Vec<String>, usize) {
    let mut known = sorted
        .iter()
        .map(|export| &export.ip_families)
        .filter(|families| !families.is_empty());
    let Some(first) = known.next() else {
        return (Vec::new(), 0);
    };
    let others: Vec<&Vec<String>> = known.collect();
    let is_common = |family: &&String| others.iter().all(|families| families.contains(*family));
    let common: Vec<String> = first.iter().filter(is_common).cloned().collect();
    if !common.is_empty() {
        return (common, 0);
    }
    let has_none = |families: &&&Vec<String>| families.iter().all(|family| !first.contains(family));
    // Each may share one with the first, but no one is shared by all.
    let disagree = others.iter().filter(has_none).count().max(1);
    (first.clone(), disagree)
}
