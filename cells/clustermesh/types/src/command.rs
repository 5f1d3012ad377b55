// SPDX-License-Identifier: Apache-2.0

//! Cell: endpoint slices as JSON in the commands of the key-value store.

use std::sync::Arc;

use hive::{Cell, Member};
use skep_kvstore_client::Cause;
use skep_kvstore_client::command::ValueForm;

use crate::{ClusterEndpointSlice, Kind};

hive::catalogue!(cell);

/// Endpoint slices as JSON in `kvstore/list` and `kvstore/update`.
pub fn cell() -> Cell {
    Cell::module("endpointslice-form", "Endpoint slices as JSON").provide(form)
}

/// All commands on the key-value store, for suites of scripts: in each of them endpoint slices are JSON.
pub fn suite_commands() -> Cell {
    Cell::group([
        skep_kvstore_client::command::cell(),
        skep_kvstore_client::command::write_commands(),
        cell(),
    ])
}

fn form() -> Member<Arc<dyn ValueForm>> {
    Member(Arc::new(Slices))
}

struct Slices;

impl ValueForm for Slices {
    fn covers(&self, key: &str) -> bool {
        let prefixes = [
            Kind::EndpointSlices.state_prefix(),
            Kind::EndpointSlices.cache_prefix(),
        ];
        prefixes
            .into_iter()
            .any(|prefix| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')))
    }

    fn show(&self, value: &[u8]) -> Result<Vec<u8>, Cause> {
        ClusterEndpointSlice::value_to_json(value).map_err(|error| Arc::new(error) as Cause)
    }

    fn read(&self, text: &[u8]) -> Result<Vec<u8>, Cause> {
        ClusterEndpointSlice::value_from_json(text).map_err(|error| Arc::new(error) as Cause)
    }
}
