// SPDX-License-Identifier: Apache-2.0

//! Conditions of ServiceExports and ServiceImports.

use jiff::Timestamp;
use skep_k8s_crds::shared::{Condition, ConditionStatus};

/// A condition as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Desired {
    pub(crate) kind: &'static str,
    pub(crate) is_true: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Desired {
    pub(crate) fn new(
        kind: &'static str,
        is_true: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            is_true,
            reason,
            message: message.into(),
        }
    }
}

/// The conditions of an object after a change: those of the kinds in `own` become `desired`, others stay.
pub(crate) fn update(
    current: &[Condition],
    own: &[&str],
    desired: &[Desired],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let others = current
        .iter()
        .filter(|condition| !own.contains(&&*condition.kind));
    let desired = desired.iter().map(|desired| {
        let status = if desired.is_true {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        let old = current
            .iter()
            .find(|condition| condition.kind == desired.kind && condition.status == status);
        Condition {
            last_transition_time: match old {
                Some(old) => old.last_transition_time.clone(),
                None => now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            },
            message: desired.message.clone(),
            observed_generation: generation,
            reason: desired.reason.to_owned(),
            status,
            kind: desired.kind.to_owned(),
        }
    });
    others.cloned().chain(desired).collect()
}
