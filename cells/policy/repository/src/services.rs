// SPDX-License-Identifier: Apache-2.0

//! Services that rules name.

use std::collections::BTreeMap;

use skep_loadbalancer_model::{
    BACKENDS_BY_KEY, BackendKey,
    types::{Backend, Service},
};
use skep_policy_model::object;
use skep_policy_sources::PolicyRow;
use statedb::{Obj, Revision, Snapshot, Table, Watch};

/// Objects with rules that name services.
pub(crate) type OfServices = BTreeMap<String, Obj<PolicyRow>>;

/// The tables of the load balancer.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) services: Table<Service>,
    pub(crate) backends: Table<Backend>,
}

impl Services {
    pub(crate) fn revision(&self, snapshot: &Snapshot) -> (Revision, Revision) {
        (self.services.revision(snapshot), self.backends.revision(snapshot))
    }

    pub(crate) fn watches(&self, snapshot: &Snapshot) -> [Watch; 2] {
        [
            self.services.table_watch(snapshot),
            self.backends.table_watch(snapshot),
        ]
    }

    /// Services as rules see them.
    pub(crate) fn list(&self, snapshot: &Snapshot) -> Vec<object::Service> {
        let service = |row: &Obj<Service>| {
            let texts = |map: &skep_loadbalancer_model::types::StringMap| {
                map.iter()
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect()
            };
            let selector: BTreeMap<String, String> = texts(&row.selector);
            let backends = match selector.is_empty() {
                true => {
                    let key = BACKENDS_BY_KEY.key(&BackendKey::of_service(&row.name));
                    let rows = self.backends.prefix(snapshot, key);
                    rows.map(|backend| backend.params.address.ip()).collect()
                }
                false => Vec::new(),
            };
            object::Service {
                namespace: row.name.namespace().to_owned(),
                name: row.name.name().to_owned(),
                labels: texts(&row.labels),
                selector,
                backends,
            }
        };
        self.services.all(snapshot).map(service).collect()
    }
}

/// Whether rules of an object name services.
pub(crate) fn names_services(row: &PolicyRow) -> bool {
    let lists = ["/spec/egress", "/spec/egressDeny"].into_iter();
    let specs = row.object.get("specs").and_then(serde_json::Value::as_array);
    let of_specs = specs
        .into_iter()
        .flatten()
        .flat_map(|spec| [spec.get("egress"), spec.get("egressDeny")]);
    let lists = lists.map(|path| row.object.pointer(path)).chain(of_specs);
    let rules = lists.flatten().filter_map(serde_json::Value::as_array).flatten();
    rules.into_iter().any(|rule| rule.get("toServices").is_some())
}
