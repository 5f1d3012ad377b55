// SPDX-License-Identifier: Apache-2.0

use serde::{Deserialize, Serialize};
use statedb::reconciler::Status;
use statedb::{Db, Error, Index, Row, RwTable, row};

/// A route that a reconciler installs.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase"))]
pub(crate) struct Route {
    pub(crate) destination: String,
    /// A row without status is new: it is pending, and the reconciler takes it.
    #[serde(default = "Status::pending")]
    pub(crate) status: Status,
}

impl Route {
    pub(crate) const BY_DESTINATION: Index<Self, str> =
        Index::new("destination", |route, keys| keys.add(&route.destination));

    pub(crate) fn table(db: &Db) -> Result<RwTable<Self>, Error> {
        RwTable::builder("routes").primary(Self::BY_DESTINATION).build(db)
    }
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
