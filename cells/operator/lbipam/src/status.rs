// SPDX-License-Identifier: Apache-2.0

//! The status of Services and pools.

use std::collections::HashSet;
use std::net::IpAddr;

use jiff::Timestamp;
use skep_k8s_crds::shared::{self, ConditionStatus, ConditionsStatus};
use skep_k8s_types::slim::{Condition, LoadBalancerIngress, ServiceStatus, Str};

use crate::allocator::Refusal;
use crate::pool::{Conflict, Usage};

/// Condition of Services: whether they have all addresses that they want.
pub const SATISFIED: &str = "cilium.io/IPAMRequestSatisfied";
/// Condition of pools: whether one overlaps an older one.
pub const CONFLICT: &str = "cilium.io/PoolConflict";
/// Condition of pools whose specification cannot be used, there since the first fault.
pub const INVALID: &str = "cilium.io/PoolInvalid";
const TOTAL: &str = "cilium.io/IPsTotal";
const AVAILABLE: &str = "cilium.io/IPsAvailable";
const USED: &str = "cilium.io/IPsUsed";

/// The addresses in the status of a service.
pub(crate) fn shown(status: &ServiceStatus) -> Vec<IpAddr> {
    let ingress = status.load_balancer.ingress.iter();
    ingress.filter_map(|ingress| ingress.ip.parse().ok()).collect()
}

/// Whether LB-IPAM has written the status of a service.
pub(crate) fn is_marked(status: &ServiceStatus) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.kind == SATISFIED)
}

/// Whether the addresses in the status of a service were the ones that LB-IPAM had allocated, when it wrote last.
pub(crate) fn is_satisfied(status: &ServiceStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.kind == SATISFIED && condition.status == "True")
}

/// A status with these addresses. Entries of addresses that stay are kept as they are, and their order as well; of the others
/// those that are kept, by their address; one without has a host name.
pub(crate) fn with_addresses(
    status: &ServiceStatus,
    addresses: &[IpAddr],
    is_kept: impl Fn(Option<IpAddr>) -> bool,
) -> ServiceStatus {
    let mut missing = addresses.to_vec();
    let mut ingress = Vec::new();
    for entry in &status.load_balancer.ingress {
        let address = entry.ip.parse::<IpAddr>().ok();
        let position = missing.iter().position(|missing| Some(*missing) == address);
        if let Some(position) = position {
            missing.remove(position);
            ingress.push(entry.clone());
        } else if is_kept(address) {
            ingress.push(entry.clone());
        }
    }
    ingress.extend(missing.into_iter().map(|address| LoadBalancerIngress {
        ip: Str::new(address.to_string()),
        ..LoadBalancerIngress::default()
    }));
    let mut changed = status.clone();
    changed.load_balancer.ingress = ingress.into_boxed_slice();
    changed
}

/// Sets the condition of a service of this generation.
pub(crate) fn set_satisfied(
    status: &mut ServiceStatus,
    refusal: Option<&Refusal>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let (word, reason, message) = match refusal {
        None => ("True", "satisfied".to_owned(), ""),
        Some(refusal) => ("False", refusal.reason.to_string(), refusal.message.as_str()),
    };
    let mut conditions = std::mem::take(&mut status.conditions).into_vec();
    let position = conditions
        .iter()
        .position(|condition| condition.kind == SATISFIED);
    let position = position.unwrap_or_else(|| {
        conditions.push(Condition {
            kind: Str::const_new(SATISFIED),
            ..Condition::default()
        });
        conditions.len() - 1
    });
    let condition = &mut conditions[position];
    if condition.status != word || condition.last_transition_time.is_none() {
        condition.last_transition_time = Some(whole_seconds(now));
    }
    condition.observed_generation = generation.unwrap_or_default();
    condition.status = Str::const_new(word);
    condition.reason = Str::new(reason);
    condition.message = Str::new(message);
    status.conditions = conditions.into_boxed_slice();
}

/// A status without the condition of LB-IPAM, and without the addresses that are not kept.
pub(crate) fn cleared(status: &ServiceStatus, is_kept: impl Fn(Option<IpAddr>) -> bool) -> ServiceStatus {
    let mut status = with_addresses(status, &[], is_kept);
    let conditions = std::mem::take(&mut status.conditions).into_vec();
    status.conditions = conditions
        .into_iter()
        .filter(|condition| condition.kind != SATISFIED)
        .collect();
    status
}

/// What the status of a pool says.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoolReport<'a> {
    pub(crate) error: Option<String>,
    pub(crate) generation: Option<i64>,
    /// None if no valid specification is known.
    pub(crate) known: Option<KnownPool<'a>>,
}

/// Conflict and usage of a valid specification, and its generation.
#[derive(Debug, Clone)]
pub(crate) struct KnownPool<'a> {
    pub(crate) conflict: Option<&'a Conflict>,
    pub(crate) usage: Usage,
    pub(crate) generation: Option<i64>,
}

pub(crate) fn pool_status(
    current: Option<&ConditionsStatus>,
    report: &PoolReport<'_>,
    now: Timestamp,
) -> ConditionsStatus {
    let mut conditions = current
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let mut set = |kind: &str, status: ConditionStatus, reason: &str, message: String, generation| {
        let condition = shared::Condition {
            last_transition_time: whole_seconds(now).to_string(),
            message,
            observed_generation: generation,
            reason: reason.to_owned(),
            status,
            kind: kind.to_owned(),
        };
        set_condition(&mut conditions, condition);
    };
    if let Some(known) = &report.known {
        let (usage, generation) = (known.usage, known.generation);
        match known.conflict {
            Some(conflict) => {
                let message = format!(
                    "Pool conflicts since range '{}' overlaps range '{}' from IP Pool '{}'",
                    conflict.range, conflict.overlapped, conflict.owner
                );
                set(
                    CONFLICT,
                    ConditionStatus::True,
                    "cidr_overlap",
                    message,
                    generation,
                );
            }
            None => set(
                CONFLICT,
                ConditionStatus::False,
                "resolved",
                String::new(),
                generation,
            ),
        }
        for (kind, count) in [
            (TOTAL, usage.total),
            (AVAILABLE, usage.available()),
            (USED, usage.used),
        ] {
            let count = count.to_string();
            set(kind, ConditionStatus::Unknown, "noreason", count, generation);
        }
    }
    let had_fault = current
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| conditions.iter().any(|condition| condition.kind == INVALID));
    let invalid = match &report.error {
        Some(error) => Some((ConditionStatus::True, "invalid_spec", error.clone())),
        None => had_fault.then(|| (ConditionStatus::False, "resolved", String::new())),
    };
    if let Some((status, reason, message)) = invalid {
        set(INVALID, status, reason, message, report.generation);
    }
    ConditionsStatus {
        conditions: Some(conditions),
    }
}

/// The time stays while the status does.
fn set_condition(conditions: &mut Vec<shared::Condition>, mut condition: shared::Condition) {
    match conditions.iter_mut().find(|old| old.kind == condition.kind) {
        Some(old) => {
            if old.status == condition.status {
                condition
                    .last_transition_time
                    .clone_from(&old.last_transition_time);
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The addresses that a set has and the other one does not.
pub(crate) fn without(addresses: &[IpAddr], others: &[IpAddr]) -> Vec<IpAddr> {
    let others: HashSet<&IpAddr> = others.iter().collect();
    addresses
        .iter()
        .filter(|address| !others.contains(address))
        .copied()
        .collect()
}
