// SPDX-License-Identifier: Apache-2.0

//! Which backends of a service a frontend uses.

use crate::node::NodeFacts;
use crate::types::annotation::{self, ServiceAffinity};
use crate::types::{
    Backend, BackendRow, BackendState, Frontend, FrontendKind, FrontendParams, NatPolicy, Service, Source,
    TrafficDistribution, TrafficPolicy,
};

/// Selects among the backends that policies, zones and health left.
pub trait BackendFilter: Send + Sync {
    /// Keeps the selected ones.
    fn filter(&self, service: &Service, rows: &mut Vec<BackendRow>);
}

/// Selects all.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllBackends;

impl BackendFilter for AllBackends {
    fn filter(&self, _service: &Service, _rows: &mut Vec<BackendRow>) {}
}

/// Selects between the clusters of a mesh, by the annotations of the service.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterAffinity;

impl BackendFilter for ClusterAffinity {
    fn filter(&self, service: &Service, rows: &mut Vec<BackendRow>) {
        let is_remote = |row: &Backend| row.params.source == Source::ClusterMesh;
        if !annotation::is_global(&service.annotations) {
            return rows.retain(|row| !is_remote(row));
        }
        let alive = |remote: bool| rows.iter().any(|row| is_remote(row) == remote && row.is_alive());
        match annotation::affinity(&service.annotations) {
            ServiceAffinity::None => {}
            ServiceAffinity::Local => {
                let has_local = rows.iter().any(|row| !is_remote(row) && row.is_active_healthy());
                if has_local || !alive(true) {
                    rows.retain(|row| !is_remote(row));
                }
            }
            ServiceAffinity::Remote => {
                if alive(true) || !alive(false) {
                    rows.retain(|row| is_remote(row));
                }
            }
        }
    }
}

/// Whether protocol and port name of a backend are those of a frontend.
fn serves(frontend: &FrontendParams, row: &Backend) -> bool {
    let params = &row.params;
    params.address.proto() == frontend.address.proto()
        && (frontend.port_name.is_empty()
            || params.port_names.is_empty()
            || params.port_names.contains(&frontend.port_name))
}

/// What decides for one service.
pub(crate) struct Selector<'a> {
    pub(crate) node: &'a NodeFacts,
    pub(crate) has_topology: bool,
    pub(crate) crosses_families: bool,
    pub(crate) is_health_checked: bool,
    pub(crate) filter: &'a dyn BackendFilter,
}

impl Selector<'_> {
    /// Whether the backends of a frontend are of IPv4: as its address, unless the service has none of that family, or
    /// says so, and families may be crossed.
    pub(crate) fn uses_ipv4(&self, frontend: &Frontend, rows: &[BackendRow]) -> bool {
        let params = &frontend.params;
        let own = params.address.is_ipv4();
        if !self.crosses_families
            || frontend.redirect_to.is_some()
            || params.kind == FrontendKind::LocalRedirect
        {
            return own;
        }
        match frontend.service.nat_policy {
            NatPolicy::Nat46 => false,
            NatPolicy::Nat64 => true,
            NatPolicy::None => own,
            NatPolicy::Unset => {
                let has = |is_ipv4: bool| {
                    rows.iter()
                        .any(|row| serves(params, row) && row.params.address.is_ipv4() == is_ipv4)
                };
                if has(own) || !has(!own) { own } else { !own }
            }
        }
    }

    /// Whether a backend can serve a frontend at all: protocol, family, port name, and place if the policy says local.
    pub(crate) fn matches(
        &self,
        frontend: &FrontendParams,
        policy: Option<TrafficPolicy>,
        is_ipv4: bool,
        row: &Backend,
    ) -> bool {
        serves(frontend, row)
            && row.params.address.is_ipv4() == is_ipv4
            && (policy != Some(TrafficPolicy::Local) || row.is_on_node(&self.node.name))
    }

    /// Filters the matching backends; returns those a health checker has to look at, if they are others.
    pub(crate) fn filter(
        &self,
        service: &Service,
        is_redirected: bool,
        rows: &mut Vec<BackendRow>,
    ) -> Option<Vec<BackendRow>> {
        let to_check = self.is_health_checked.then(|| rows.clone());
        let was_checked = |row: &Backend| row.unhealthy_updated_at.is_some();
        if self.is_health_checked {
            rows.retain(|row| row.params.state != BackendState::Active || was_checked(row));
        }
        // Whose place counts: those that may take new connections.
        let counts = |row: &Backend| match row.params.state {
            BackendState::Terminating | BackendState::TerminatingNotServing => false,
            _ if self.is_health_checked => row.is_active_healthy() && was_checked(row),
            _ => true,
        };
        if self.has_topology {
            let is_local = |row: &Backend| counts(row) && row.is_on_node(&self.node.name);
            if service.traffic_distribution == TrafficDistribution::PreferSameNode {
                if rows.iter().any(|row| is_local(row)) {
                    rows.retain(|row| is_local(row));
                }
            } else if service.prefers_zone()
                && !is_redirected
                && let Some(zone) = &self.node.zone
            {
                let hints = |row: &Backend| {
                    row.params
                        .zone
                        .as_ref()
                        .filter(|zone| !zone.for_zones.is_empty())
                        .cloned()
                };
                let is_ours = |row: &Backend| hints(row).is_some_and(|hints| hints.for_zones.contains(zone));
                let is_hinted = rows
                    .iter()
                    .filter(|row| counts(row))
                    .all(|row| hints(row).is_some());
                if is_hinted && rows.iter().any(|row| counts(row) && is_ours(row)) {
                    rows.retain(|row| is_ours(row));
                }
            }
        }
        self.filter.filter(service, rows);
        to_check
    }
}
