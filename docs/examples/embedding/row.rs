// SPDX-License-Identifier: Apache-2.0

use serde::{Deserialize, Serialize};
use statedb::reconciler::Status;
use statedb::{Row, Table, row};

/// A route that a reconciler installs.
#[derive(Clone, Table, Serialize, Deserialize)]
#[table(name = "routes")]
#[serde(rename_all(serialize = "PascalCase"))]
pub(crate) struct Route {
    #[index(primary)]
    pub(crate) destination: String,
    /// A row without status is new: it is pending, and the reconciler takes it.
    #[serde(default = "Status::pending")]
    pub(crate) status: Status,
}

impl Row for Route {
    fn header() -> &'static [&'static str] {
        &["Destination", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.destination.clone(), self.status.kind.to_string()]
    }

    fn to_json(&self) -> Result<serde_json::Value, row::BoxError> {
        row::to_json(self)
    }

    /// Without this `db/insert` is refused.
    fn from_yaml(text: &str) -> Result<Self, row::BoxError> {
        row::from_yaml(text)
    }
}
