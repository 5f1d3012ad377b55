// SPDX-License-Identifier: Apache-2.0

//! What objects become, rule by rule.

mod endpoints;
mod fuzz;
mod hostport;
mod service;

use std::sync::Arc;

use serde_json::Value;
use skep_k8s_types::{RawObject, Resource};

use super::Rules;

/// An object as it arrives.
#[track_caller]
pub(super) fn object<T: Resource>(value: Value) -> Arc<T> {
    RawObject::from_value(Arc::new(value)).decode().unwrap()
}

/// Rules of an agent that replaces kube-proxy and reads every annotation.
pub(super) fn rules() -> Rules {
    Rules {
        replaces_kube_proxy: true,
        forwarding_mode_annotation: true,
        ..Rules::default()
    }
}
