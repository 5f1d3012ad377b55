// SPDX-License-Identifier: Apache-2.0

//! The Lease object: what the election reads and writes of it. All other fields are kept as they are.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use skep_k8s_types::Kind;

pub(crate) static LEASES: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);

/// What a Lease says about the leader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Identity of the leader; empty if it released the lease.
    pub holder: String,
    /// How long the lease holds after it was renewed.
    pub duration: Duration,
    /// When the leader acquired it, as text.
    pub acquired: String,
    /// When the leader renewed it last, as text. Only compared with earlier ones: clocks of other nodes are not trusted.
    pub renewed: String,
    /// How often the lease passed from one to another.
    pub transitions: i64,
}

impl Record {
    /// Reads a Lease. A field that is missing or malformed is empty: such a lease is free.
    pub(crate) fn read(lease: &Value) -> Self {
        let spec = &lease["spec"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or_default();
        Self {
            holder: text("holderIdentity"),
            // As much as the field can hold: more would overflow an instant.
            duration: Duration::from_secs(seconds.min(u64::from(u32::MAX >> 1))),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: spec["leaseTransitions"].as_i64().unwrap_or_default(),
        }
    }

    /// Writes the record into a Lease, or into a new one.
    pub(crate) fn write(&self, stored: Option<&Value>, namespace: &str, name: &str) -> Value {
        let mut lease = stored.cloned().unwrap_or_else(|| {
            json!({
                "apiVersion": LEASES.api_version(),
                "kind": LEASES.kind.as_str(),
                "metadata": { "name": name, "namespace": namespace },
            })
        });
        if !lease["spec"].is_object() {
            lease["spec"] = Value::Object(Map::new());
        }
        let spec = &mut lease["spec"];
        spec["holderIdentity"] = json!(self.holder);
        spec["leaseDurationSeconds"] = json!(self.duration.as_secs());
        spec["acquireTime"] = json!(self.acquired);
        spec["renewTime"] = json!(self.renewed);
        spec["leaseTransitions"] = json!(self.transitions);
        lease
    }
}

pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
