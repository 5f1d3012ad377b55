// SPDX-License-Identifier: Apache-2.0

//! Which backends frontends have, selected anew when something that decides about it changed.

use compact_str::CompactString;
use statedb::{Obj, WriteTxn};

use super::{Writer, WriterError};
use crate::node::{AddressUse, NodeFacts};
use crate::types::{BackendRow, BackendSet, Frontend, FrontendKind, L4Proto, ServiceName, TrafficPolicy};
use crate::{FRONTENDS_BY_SERVICE, SERVICES_BY_NAME};

/// Backends of a frontend.
#[derive(Clone)]
pub(super) struct Selected {
    backends: BackendSet,
    kept: BackendSet,
    to_check: BackendSet,
}

impl Selected {
    fn is_of(&self, frontend: &Frontend) -> bool {
        self.backends.has_same_rows(&frontend.backends)
            && self.kept.has_same_rows(&frontend.kept_backends)
            && self.to_check.has_same_rows(&frontend.health_check_backends)
    }

    /// Makes them the backends of a frontend.
    pub(super) fn put_into(self, frontend: &mut Frontend) {
        frontend.backends = self.backends;
        frontend.kept_backends = self.kept;
        frontend.health_check_backends = self.to_check;
    }
}

/// Selections made for frontends of one service in a row. Most frontends of a service have the same backends, and share
/// the set: in memory, and for lookup tables that are made of it.
#[derive(Default)]
pub(super) struct Selections(Vec<(Criteria, Selected)>);

/// What decides, of a frontend, about its backends.
#[derive(PartialEq)]
struct Criteria {
    service: ServiceName,
    proto: L4Proto,
    is_ipv4: bool,
    /// Redirects have backends of their own family alone.
    is_redirect: bool,
    port_name: CompactString,
    policy: Option<TrafficPolicy>,
    /// Its own service, if it uses the backends of another one.
    redirected_from: Option<ServiceName>,
}

impl Writer {
    /// Selects again for the frontends that use a service's backends.
    pub(super) fn refresh_frontends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
    ) -> Result<(), WriterError> {
        let frontends = self
            .0
            .tables
            .frontends
            .list(txn, FRONTENDS_BY_SERVICE.key(service));
        let frontends: Vec<Obj<Frontend>> = frontends
            .filter(|frontend| used_service(frontend) == service)
            .cloned()
            .collect();
        let mut selections = Selections::default();
        let mut is_any_changed = false;
        let mut selected = Vec::with_capacity(frontends.len());
        for frontend in frontends {
            let selection = self.select(txn, &frontend, &mut selections);
            let selection = selection.filter(|selected| !selected.is_of(&frontend));
            is_any_changed |= selection.is_some();
            selected.push((frontend, selection));
        }
        for (frontend, selection) in selected {
            // Those without an id stay together, in their order.
            if selection.is_none() && !(is_any_changed && frontend.id == 0) {
                continue;
            }
            let mut changed = Frontend::clone(&frontend);
            if let Some(selected) = selection {
                selected.put_into(&mut changed);
            }
            self.put_frontend(txn, changed)?;
        }
        Ok(())
    }

    /// Backends of a frontend; `None`: keep what it has.
    pub(super) fn select(
        &self,
        txn: &WriteTxn,
        frontend: &Frontend,
        selections: &mut Selections,
    ) -> Option<Selected> {
        let name = used_service(frontend);
        let is_redirected = frontend.redirect_to.is_some();
        let services = &self.0.tables.services;
        if is_redirected && services.get(txn, SERVICES_BY_NAME.key(name)).is_none() {
            return None;
        }
        let policy = frontend.traffic_policy();
        let criteria = Criteria {
            service: name.clone(),
            proto: frontend.params.address.proto(),
            is_ipv4: frontend.params.address.is_ipv4(),
            is_redirect: frontend.params.kind == FrontendKind::LocalRedirect,
            port_name: frontend.params.port_name.clone(),
            policy,
            redirected_from: is_redirected.then(|| frontend.service.name.clone()),
        };
        if let Some((_, selected)) = selections.0.iter().find(|(known, _)| *known == criteria) {
            return Some(selected.clone());
        }
        let selected = self.with_selector(txn, &frontend.service, |selector| {
            let mut rows: Vec<BackendRow> = self.preferred_backends(txn, name);
            let is_ipv4 = selector.uses_ipv4(frontend, &rows);
            rows.retain(|row| selector.matches(&frontend.params, policy, is_ipv4, row));
            let selection = selector.select(&frontend.service, is_redirected, rows);
            let backends = BackendSet::from_sorted(selection.backends);
            let to_check = selection.to_check;
            Selected {
                kept: BackendSet::from_sorted(selection.kept),
                to_check: to_check.map_or_else(|| backends.clone(), BackendSet::from_sorted),
                backends,
            }
        });
        selections.0.push((criteria, selected.clone()));
        Some(selected)
    }

    /// Sets what is known of this node. Frontends that depend on it become pending: those of services that prefer zones
    /// or nodes, node ports, wildcard entries.
    pub fn set_node(&self, txn: &mut WriteTxn, facts: NodeFacts) -> Result<(), WriterError> {
        let old = self.node(txn);
        let (is_renamed, is_moved) = (old.name != facts.name, old.zone != facts.zone);
        self.0.tables.node.insert(txn, facts)?;
        if is_renamed || is_moved {
            let mut frontends = self.all_frontends(txn);
            frontends.retain(|frontend| is_renamed || frontend.service.prefers_zone());
            frontends.sort_by(|a, b| a.service.name.cmp(&b.service.name));
            for of_service in frontends.chunk_by(|a, b| a.service.name == b.service.name) {
                let mut selections = Selections::default();
                for frontend in of_service {
                    let mut changed = Frontend::clone(frontend);
                    if let Some(selected) = self.select(txn, frontend, &mut selections) {
                        selected.put_into(&mut changed);
                    }
                    self.put_again(txn, changed)?;
                }
            }
        }
        self.reevaluate_addresses(txn, AddressUse::NodePorts)?;
        self.reevaluate_addresses(txn, AddressUse::Wildcards)
    }
}

fn used_service(frontend: &Frontend) -> &ServiceName {
    frontend.redirect_to.as_ref().unwrap_or(&frontend.service.name)
}
