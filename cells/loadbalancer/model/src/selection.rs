// SPDX-License-Identifier: Apache-2.0

//! Which backends of a service a frontend uses.

use crate::node::NodeFacts;
use crate::types::annotation::{self, ServiceAffinity};
use crate::types::{
    Backend, BackendRow, BackendState, Frontend, FrontendKind, FrontendParams, NatPolicy, Service, Source,
    TrafficDistribution, TrafficPolicy,
};

/// What is asked of a backend.
type Question = fn(&Backend) -> bool;

/// Selects among the backends that policies, zones and health left.
pub trait BackendFilter: Send + Sync {
    /// Which backends a service uses at all; `None`: every one.
    fn used(&self, service: &Service) -> Option<Question>;

    /// Which of the backends that a service uses get its new connections; `None`: every one.
    fn preferred(&self, service: &Service, rows: &[BackendRow]) -> Option<Question>;
}

/// Selects all.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllBackends;

impl BackendFilter for AllBackends {
    fn used(&self, _service: &Service) -> Option<Question> {
        None
    }

    fn preferred(&self, _service: &Service, _rows: &[BackendRow]) -> Option<Question> {
        None
    }
}

/// Selects between the clusters of a mesh, by the annotations of the service.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterAffinity;

fn is_remote(row: &Backend) -> bool {
    row.params.source == Source::ClusterMesh
}

fn is_of_this_cluster(row: &Backend) -> bool {
    !is_remote(row)
}

impl BackendFilter for ClusterAffinity {
    fn used(&self, service: &Service) -> Option<Question> {
        (!annotation::is_global(&service.annotations)).then_some(is_of_this_cluster)
    }

    fn preferred(&self, service: &Service, rows: &[BackendRow]) -> Option<Question> {
        let (first, second): (Question, Question) = match annotation::affinity(&service.annotations) {
            ServiceAffinity::None => return None,
            ServiceAffinity::Local => (is_of_this_cluster, is_remote),
            ServiceAffinity::Remote => (is_remote, is_of_this_cluster),
        };
        let has_active = rows.iter().any(|row| first(row) && row.is_active_healthy());
        let is_refuge = rows.iter().any(|row| second(row) && row.is_alive());
        (has_active || !is_refuge).then_some(first)
    }
}

/// The backends of a frontend.
pub(crate) struct Selection {
    /// Those for new connections, as far as their states allow, and for those that they have.
    pub(crate) backends: Vec<BackendRow>,
    /// Others, which new connections do not get, and whose connections stay.
    pub(crate) kept: Vec<BackendRow>,
    /// Those a health checker has to look at, if they are others than the first.
    pub(crate) to_check: Option<Vec<BackendRow>>,
}

impl Selection {
    fn prefer(&mut self, is_preferred: impl Fn(&Backend) -> bool) {
        let kept = &mut self.kept;
        self.backends.retain(|row| {
            let is_preferred = is_preferred(row);
            if !is_preferred {
                kept.push(row.clone());
            }
            is_preferred
        });
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

    /// Selects among the matching backends. Whether new connections may go to one, whether it counts for a preference, and
    /// whether its connections stay are three questions: the last is answered by the backend being there.
    pub(crate) fn select(
        &self,
        service: &Service,
        is_redirected: bool,
        mut rows: Vec<BackendRow>,
    ) -> Selection {
        let to_check = self.is_health_checked.then(|| rows.clone());
        if let Some(is_used) = self.filter.used(service) {
            rows.retain(|row| is_used(row));
        }
        let mut selection = Selection {
            backends: rows,
            kept: Vec::new(),
            to_check,
        };
        let was_checked = |row: &Backend| !self.is_health_checked || row.unhealthy_updated_at.is_some();
        if self.is_health_checked {
            selection.prefer(|row| row.params.state != BackendState::Active || was_checked(row));
        }
        if self.has_topology {
            // Whose place counts: those that take new connections.
            let counts = |row: &Backend| row.is_active_healthy() && was_checked(row);
            let is_local = |row: &Backend| counts(row) && row.is_on_node(&self.node.name);
            let rows = &selection.backends;
            if service.traffic_distribution == TrafficDistribution::PreferSameNode {
                if rows.iter().any(|row| is_local(row)) {
                    selection.prefer(is_local);
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
                    selection.prefer(is_ours);
                }
            }
        }
        if let Some(is_preferred) = self.filter.preferred(service, &selection.backends) {
            selection.prefer(is_preferred);
        }
        selection.kept.sort_by_key(|row| row.params.address);
        selection
    }
}
