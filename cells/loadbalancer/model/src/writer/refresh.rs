// SPDX-License-Identifier: Apache-2.0

//! Which backends frontends have, made anew when something that decides about it changed.

use compact_str::CompactString;
use statedb::{Obj, WriteTxn};

use super::{Writer, WriterError, log_error};
use crate::node::{AddressUse, NodeFacts};
use crate::selection::Selector;
use crate::types::{
    Backend, BackendRow, BackendSet, Frontend, L3n4Addr, L4Proto, ServiceName, TrafficPolicy,
};
use crate::{BACKENDS_BY_KEY, BackendKey, FRONTENDS_BY_SERVICE, SERVICES_BY_NAME};

/// What made selection necessary.
pub(super) enum Cause<'a> {
    /// Service or frontend are new or changed.
    Everything,
    /// These backends of the service changed, came or went.
    Backends(&'a [L3n4Addr]),
}

/// Selections made for frontends of one service in a row: most frontends of a service have the same backends, and
/// share the set.
#[derive(Default)]
pub(super) struct Cache {
    entries: Vec<(Question, BackendSet, BackendSet)>,
}

struct Question {
    service: ServiceName,
    proto: L4Proto,
    is_ipv4: bool,
    port_name: CompactString,
    policy: Option<TrafficPolicy>,
    is_redirected: bool,
    // Set that changes were applied to.
    old: Option<BackendSet>,
}

impl Question {
    fn new(frontend: &Frontend, policy: Option<TrafficPolicy>, old: Option<BackendSet>) -> Self {
        Self {
            service: used_service(frontend).clone(),
            proto: frontend.params.address.proto(),
            is_ipv4: frontend.params.address.is_ipv4(),
            port_name: frontend.params.port_name.clone(),
            policy,
            is_redirected: frontend.redirect_to.is_some(),
            old,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_old_same = match (&self.old, &other.old) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is_same(b),
            _ => false,
        };
        is_old_same
            && self.proto == other.proto
            && self.is_ipv4 == other.is_ipv4
            && self.policy == other.policy
            && self.is_redirected == other.is_redirected
            && self.port_name == other.port_name
            && self.service == other.service
    }
}

impl Writer {
    /// Selects again for the frontends that use a service's backends.
    pub(super) fn refresh_frontends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        cause: &Cause<'_>,
    ) -> Result<(), WriterError> {
        let frontends = self
            .0
            .tables
            .frontends
            .list(txn, FRONTENDS_BY_SERVICE.key(service));
        let frontends: Vec<Obj<Frontend>> = frontends.cloned().collect();
        let mut cache = Cache::default();
        let mut is_any_changed = false;
        let mut selected = Vec::with_capacity(frontends.len());
        for frontend in frontends {
            if used_service(&frontend) != service {
                continue;
            }
            let selection = self
                .select(txn, &frontend, cause, &mut cache)
                .filter(|(backends, to_check)| {
                    !backends.has_same_rows(&frontend.backends)
                        || !to_check.has_same_rows(&frontend.health_check_backends)
                });
            is_any_changed |= selection.is_some();
            selected.push((frontend, selection));
        }
        for (frontend, selection) in selected {
            let changed = match selection {
                Some((backends, health_check_backends)) => Frontend {
                    backends,
                    health_check_backends,
                    ..Frontend::clone(&frontend)
                },
                // Those without an id stay together, in their order.
                None if is_any_changed && frontend.id == 0 => Frontend::clone(&frontend),
                None => continue,
            };
            self.put_frontend(txn, changed)?;
        }
        Ok(())
    }

    /// Backends of a new frontend, and those to be checked, out of all rows of its service.
    pub(super) fn select_first(
        &self,
        txn: &WriteTxn,
        frontend: &Frontend,
        rows: &[BackendRow],
        cache: Option<&mut Cache>,
    ) -> (BackendSet, BackendSet) {
        let policy = frontend.traffic_policy();
        let select = || {
            self.with_selector(txn, &frontend.service, |selector| {
                let rows = rows.iter();
                let rows = rows.filter(|row| selector.suits(&frontend.params, policy, row));
                narrowed(selector, frontend, rows.cloned().collect())
            })
        };
        let Some(cache) = cache else {
            return select();
        };
        let question = Question::new(frontend, policy, None);
        if let Some((_, backends, to_check)) =
            cache.entries.iter().find(|(known, ..)| known.is_same(&question))
        {
            return (backends.clone(), to_check.clone());
        }
        let (backends, to_check) = select();
        cache.entries.push((question, backends.clone(), to_check.clone()));
        (backends, to_check)
    }

    /// Backends of a frontend, and those to be checked; `None`: keep what it has.
    pub(super) fn select(
        &self,
        txn: &WriteTxn,
        frontend: &Frontend,
        cause: &Cause<'_>,
        cache: &mut Cache,
    ) -> Option<(BackendSet, BackendSet)> {
        let name = used_service(frontend);
        let is_redirected = frontend.redirect_to.is_some();
        if is_redirected
            && self
                .0
                .tables
                .services
                .get(txn, SERVICES_BY_NAME.key(name))
                .is_none()
        {
            return None;
        }
        self.with_selector(txn, &frontend.service, |selector| {
            let few = match cause {
                Cause::Backends(addresses)
                    if !is_redirected
                        && selector.is_pointwise(&frontend.service)
                        && (addresses.len() <= 4 || addresses.len() * 8 < frontend.backends.len()) =>
                {
                    Some(*addresses)
                }
                _ => None,
            };
            let policy = frontend.traffic_policy();
            let question = Question::new(frontend, policy, few.map(|_| frontend.backends.clone()));
            if let Some((_, backends, to_check)) =
                cache.entries.iter().find(|(known, ..)| known.is_same(&question))
            {
                return Some((backends.clone(), to_check.clone()));
            }
            let suits = |row: &Backend| selector.suits(&frontend.params, policy, row);
            let (backends, to_check) = match few {
                Some(addresses) => {
                    let mut set = frontend.backends.clone();
                    for address in addresses {
                        let query = BACKENDS_BY_KEY.key(&BackendKey::of_address(name, address));
                        let row = self.0.tables.backends.prefix(txn, query).next();
                        set = match row.filter(|row| suits(row)) {
                            Some(row) => set.with(row.clone()),
                            None => set.without(address),
                        };
                    }
                    (set.clone(), set)
                }
                None => {
                    let mut rows: Vec<BackendRow> = self.preferred_backends(txn, name);
                    rows.retain(|row| suits(row));
                    narrowed(selector, frontend, rows)
                }
            };
            cache.entries.push((question, backends.clone(), to_check.clone()));
            Some((backends, to_check))
        })
    }

    /// Sets what is known of this node. Frontends that depend on it become pending: those of services that prefer zones
    /// or nodes, node ports, wildcard entries.
    pub fn set_node(&self, txn: &mut WriteTxn, facts: NodeFacts) {
        let old = self.node(txn);
        let (is_renamed, is_moved) = (old.name != facts.name, old.zone != facts.zone);
        log_error(self.0.tables.node.insert(txn, facts));
        if is_renamed || is_moved {
            let mut cache = Cache::default();
            for frontend in self.all_frontends(txn) {
                if (is_renamed || frontend.service.prefers_zone())
                    && let Some((backends, health_check_backends)) =
                        self.select(txn, &frontend, &Cause::Everything, &mut cache)
                {
                    let changed = Frontend {
                        backends,
                        health_check_backends,
                        ..Frontend::clone(&frontend)
                    };
                    log_error(self.put_again(txn, changed));
                }
            }
        }
        self.reevaluate_addresses(txn, AddressUse::NodePorts);
        self.reevaluate_addresses(txn, AddressUse::Wildcards);
    }
}

fn narrowed(
    selector: &Selector<'_>,
    frontend: &Frontend,
    mut rows: Vec<BackendRow>,
) -> (BackendSet, BackendSet) {
    let to_check = selector.narrow(&frontend.service, frontend.redirect_to.is_some(), &mut rows);
    let backends = BackendSet::from_sorted(rows);
    let to_check = to_check.map_or_else(|| backends.clone(), BackendSet::from_sorted);
    (backends, to_check)
}

fn used_service(frontend: &Frontend) -> &ServiceName {
    frontend.redirect_to.as_ref().unwrap_or(&frontend.service.name)
}
