// SPDX-License-Identifier: Apache-2.0

//! Which backends frontends have, made anew when something that decides about it changed.

use compact_str::CompactString;
use statedb::reconciler::Status;
use statedb::{Obj, WriteTxn};

use super::{Writer, WriterError, log_error};
use crate::selection::{NodeFacts, Selector};
use crate::types::{
    Backend, BackendRow, BackendSet, Frontend, FrontendKind, L3n4Addr, L4Proto, Scope, ServiceName,
    TrafficPolicy,
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
                // Those without a number keep their order, in which numbers are given out.
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

    /// Notes what is new of this node. Frontends that depend on it become pending: those of services that prefer zones
    /// or nodes, node ports, wildcard entries.
    pub fn set_node(&self, txn: &mut WriteTxn, facts: NodeFacts) {
        let old = self.node(txn);
        let new = facts.clone();
        log_error(self.0.tables.node.insert(txn, facts));
        let is_moved = old.zone != new.zone || old.name != new.name;
        let has_ports = old.node_port_addresses != new.node_port_addresses;
        let has_addresses = old.addresses != new.addresses;
        let all: Vec<Obj<Frontend>> = if is_moved || has_ports || has_addresses {
            self.0.tables.frontends.all(txn).cloned().collect()
        } else {
            Vec::new()
        };
        let is_affected = |frontend: &Frontend| {
            let reselects = is_moved && (old.name != new.name || frontend.service.prefers_zone());
            let is_wild = matches!(
                frontend.params.kind,
                FrontendKind::ClusterIp | FrontendKind::LoadBalancer
            ) && frontend.params.address.scope() == Scope::External;
            let ip = frontend.params.address.ip();
            let changes_wildcard = is_wild && old.addresses.contains(&ip) != new.addresses.contains(&ip);
            let is_expanded = frontend.params.kind == FrontendKind::NodePort
                || (frontend.params.kind == FrontendKind::HostPort
                    && frontend.params.address.is_unspecified());
            let changes_ports = has_ports && is_expanded;
            (reselects || changes_wildcard || changes_ports).then_some(reselects)
        };
        // Those without a number keep their order, in which numbers are given out.
        let mut all = all;
        all.sort_by_key(|frontend| {
            if frontend.id == 0 {
                Some(frontend.revision())
            } else {
                None
            }
        });
        let is_new_affected = all
            .iter()
            .any(|frontend| frontend.id == 0 && is_affected(frontend).is_some());
        let mut cache = Cache::default();
        for frontend in all {
            let reselects = match is_affected(&frontend) {
                Some(reselects) => reselects,
                None if frontend.id == 0 && is_new_affected => false,
                None => continue,
            };
            let mut changed = Frontend::clone(&frontend);
            if reselects
                && let Some((backends, to_check)) =
                    self.select(txn, &frontend, &Cause::Everything, &mut cache)
            {
                (changed.backends, changed.health_check_backends) = (backends, to_check);
            }
            log_error(self.put_frontend(txn, changed));
        }
    }

    /// Makes frontends pending again, for what happened outside the tables.
    pub fn mark_pending(&self, txn: &mut WriteTxn, addresses: &[L3n4Addr]) {
        for address in addresses {
            let frontend = self
                .0
                .tables
                .frontends
                .get(txn, crate::FRONTENDS_BY_ADDRESS.key(address))
                .cloned();
            if let Some(frontend) = frontend {
                let changed = Frontend {
                    status: Status::pending(),
                    ..Frontend::clone(&frontend)
                };
                log_error(self.put_frontend(txn, changed));
            }
        }
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
