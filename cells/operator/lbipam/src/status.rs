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

/// A status with these addresses. Entries of addresses that stay are kept as they are, and their order as well.
pub(crate) fn with_addresses(status: &ServiceStatus, addresses: &[IpAddr]) -> ServiceStatus {
    let mut missing = addresses.to_vec();
    let mut ingress = Vec::new();
    for entry in &status.load_balancer.ingress {
        let address = entry.ip.parse::<IpAddr>().ok();
        let position = missing.iter().position(|missing| Some(*missing) == address);
        if let Some(position) = position {
            missing.remove(position);
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

/// Sets the condition of a service.
pub(crate) fn set_satisfied(status: &mut ServiceStatus, refusal: Option<&Refusal>, now: Timestamp) {
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
    condition.status = Str::const_new(word);
    condition.reason = Str::new(reason);
    condition.message = Str::new(message);
    status.conditions = conditions.into_boxed_slice();
}

/// A status without addresses and without the condition of LB-IPAM.
pub(crate) fn cleared(status: &ServiceStatus) -> ServiceStatus {
    let mut status = with_addresses(status, &[]);
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
    /// Conflict and usage; none if no valid specification is known.
    pub(crate) known: Option<(Option<&'a Conflict>, Usage)>,
}

/// The status of a pool.
pub(crate) fn pool_status(
    current: Option<&ConditionsStatus>,
    report: &PoolReport<'_>,
    now: Timestamp,
) -> ConditionsStatus {
    let mut conditions = current
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let mut set = |kind: &str, status: ConditionStatus, reason: &str, message: String| {
        set_condition(&mut conditions, kind, status, reason, message, now);
    };
    if let Some((conflict, usage)) = &report.known {
        match conflict {
            Some(conflict) => {
                let message = format!(
                    "Pool conflicts since range '{}' overlaps range '{}' from IP Pool '{}'",
                    conflict.range, conflict.overlapped, conflict.owner
                );
                set(CONFLICT, ConditionStatus::True, "cidr_overlap", message);
            }
            None => set(CONFLICT, ConditionStatus::False, "resolved", String::new()),
        }
        for (kind, count) in [
            (TOTAL, usage.total),
            (AVAILABLE, usage.available()),
            (USED, usage.used),
        ] {
            set(kind, ConditionStatus::Unknown, "noreason", count.to_string());
        }
    }
    let had_fault = current
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| conditions.iter().any(|condition| condition.kind == INVALID));
    match &report.error {
        Some(error) => set(INVALID, ConditionStatus::True, "invalid_spec", error.clone()),
        None if had_fault => set(INVALID, ConditionStatus::False, "resolved", String::new()),
        None => {}
    }
    ConditionsStatus {
        conditions: Some(conditions),
    }
}

fn set_condition(
    conditions: &mut Vec<shared::Condition>,
    kind: &str,
    status: ConditionStatus,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let time = whole_seconds(now).to_string();
    let reason = reason.to_owned();
    match conditions.iter_mut().find(|condition| condition.kind == kind) {
        Some(condition) => {
            if condition.status != status {
                condition.last_transition_time = time;
            }
            condition.status = status;
            condition.reason = reason;
            condition.message = message;
        }
        None => conditions.push(shared::Condition {
            last_transition_time: time,
            message,
            reason,
            status,
            kind: kind.to_owned(),
            ..shared::Condition::default()
        }),
    }
}

/// Kubernetes writes times without fractions.
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
