// SPDX-License-Identifier: Apache-2.0

//! Rules, identities and endpoints, and the maps that follow from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use skep_identity::NumericIdentity;
use skep_identity_cache::SecurityIdentity;
use skep_policy_maps::{Desired, MapState, MapStates};
use skep_policy_model::{IdentityLabels, ObjectError, Policies, PolicySettings, map_state::EndpointFacts};
use statedb::{Db, Revision, RwTable, Table};
use tokio::sync::watch;

use crate::{
    PolicyMode,
    computations::PolicyComputation,
    convert,
    dns::{Names, Proxies},
    ports::{PodPorts, own_ports},
};

/// The policies of the endpoints of this node.
#[derive(Clone, hive::Value)]
pub struct Repository(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) db: Db,
    pub(crate) identities: Table<SecurityIdentity>,
    pub(crate) computations: RwTable<PolicyComputation>,
    pub(crate) state: Mutex<State>,
    pub(crate) names: Names,
    changes: watch::Sender<Revision>,
    /// Revision of the identities that are taken in; 0 until all are listed.
    pub(crate) known: watch::Sender<Revision>,
}

pub(crate) struct State {
    pub(crate) policies: Policies,
    pub(crate) proxies: Proxies,
    /// All objects and identities are listed.
    pub(crate) is_ready: bool,
    /// Objects whose last version is invalid, by key.
    pub(crate) invalid: BTreeMap<String, ObjectError>,
    pub(crate) ports: PodPorts,
    /// Identities whose rows of computations are stale.
    pub(crate) computed: BTreeSet<NumericIdentity>,
    endpoints: BTreeMap<u16, (NumericIdentity, EndpointFacts)>,
    /// Labels of the host endpoint: those of the node besides those of its identity.
    host: Option<Arc<IdentityLabels>>,
    /// States of maps, for as long as they are current.
    maps: BTreeMap<NumericIdentity, BTreeMap<EndpointFacts, Arc<MapState>>>,
}

impl Repository {
    pub(crate) fn new(
        db: Db,
        identities: Table<SecurityIdentity>,
        computations: RwTable<PolicyComputation>,
        settings: PolicySettings,
    ) -> Self {
        Self(Arc::new(Inner {
            db,
            identities,
            computations,
            state: Mutex::new(State {
                policies: Policies::new(settings),
                proxies: Proxies::default(),
                is_ready: false,
                invalid: BTreeMap::new(),
                ports: PodPorts::default(),
                computed: BTreeSet::new(),
                endpoints: BTreeMap::new(),
                host: None,
                maps: BTreeMap::new(),
            }),
            names: Names::default(),
            changes: watch::Sender::new(1),
            known: watch::Sender::new(0),
        }))
    }

    /// Reads policies, without changes meanwhile.
    pub fn with<T>(&self, read: impl FnOnce(&Policies) -> T) -> T {
        read(&self.0.state.lock().policies)
    }

    /// Changes where policies are enforced, until the agent ends.
    pub fn set_enforcement(&self, mode: PolicyMode) -> Result<(), statedb::Error> {
        let mut state = self.0.state.lock();
        if !state.policies.set_enforcement(mode.into()) {
            return Ok(());
        }
        state.refresh();
        drop(state);
        self.0.write_computations()?;
        self.0.publish();
        Ok(())
    }

    /// Objects whose last version is invalid: what they said before counts.
    pub fn invalid(&self) -> Vec<String> {
        self.0
            .state
            .lock()
            .invalid
            .values()
            .map(|error| hive::error_chain(error).to_string())
            .collect()
    }
}

#[cfg(feature = "testing")]
impl Repository {
    /// Begins a revision with the same rules. Returns it.
    pub(crate) fn bump_revision(&self) -> Revision {
        let revision = self.0.state.lock().policies.bump_revision();
        self.0.publish();
        revision
    }

    /// Computes policies that are of earlier revisions: of all identities, or of one.
    pub(crate) fn recompute(&self, only: Option<NumericIdentity>) -> Result<(), statedb::Error> {
        let mut state = self.0.state.lock();
        let current = state.policies.revision();
        let stale: Vec<NumericIdentity> = state
            .policies
            .locals()
            .filter(|(identity, local)| local.revision() < current && only.is_none_or(|one| one == *identity))
            .map(|(identity, _)| identity)
            .collect();
        for identity in stale {
            state.policies.recompute_identity(identity);
        }
        state.refresh();
        drop(state);
        self.0.write_computations()?;
        self.0.publish();
        Ok(())
    }
}

impl Inner {
    /// Desired policies may be others.
    pub(crate) fn publish(&self) {
        let revision = self.state.lock().policies.revision();
        self.changes.send_replace(revision);
    }

    /// Takes in the endpoint of a request, or its new identity; whether its identity is known.
    pub(crate) fn set_endpoint(&self, state: &mut State, endpoint: u16, identity: NumericIdentity) -> bool {
        if state
            .endpoints
            .get(&endpoint)
            .is_some_and(|(known, _)| *known == identity)
        {
            return true;
        }
        let snapshot = self.db.read();
        let key = SecurityIdentity::BY_ID.key(&identity.get());
        let Some(row) = self.identities.get(&snapshot, key) else {
            return false;
        };
        let facts = EndpointFacts {
            ports: own_ports(&row.labels),
            without_redirects: false,
        };
        let labels = match (identity, &state.host) {
            (NumericIdentity::HOST, Some(host)) => host.clone(),
            _ => Arc::new(IdentityLabels::from(&*row.labels)),
        };
        state
            .policies
            .set_endpoint(endpoint, identity, labels, facts.clone());
        state.endpoints.insert(endpoint, (identity, facts));
        self.names.changed(true);
        true
    }
}

impl State {
    pub(crate) fn identity_of(&self, endpoint: u16) -> Option<NumericIdentity> {
        self.endpoints.get(&endpoint).map(|(identity, _)| *identity)
    }

    /// Takes in the labels of the host endpoint.
    pub(crate) fn set_host(&mut self, labels: Option<IdentityLabels>) -> bool {
        if self.host.as_deref() == labels.as_ref() {
            return false;
        }
        self.host = labels.map(Arc::new);
        let Some(labels) = &self.host else { return false };
        for (endpoint, (identity, facts)) in &self.endpoints {
            if *identity == NumericIdentity::HOST {
                self.policies
                    .set_endpoint(*endpoint, *identity, labels.clone(), facts.clone());
            }
        }
        true
    }

    pub(crate) fn remove_endpoint(&mut self, endpoint: u16) {
        if let Some((identity, _)) = self.endpoints.remove(&endpoint) {
            self.computed.insert(identity);
        }
        self.policies.remove_endpoint(endpoint);
    }

    /// Takes in identities.
    pub(crate) fn update_identities(
        &mut self,
        added: Vec<(NumericIdentity, Arc<IdentityLabels>)>,
        deleted: Vec<NumericIdentity>,
    ) -> bool {
        let changes = self.policies.update_identities(added, deleted, &self.proxies);
        for change in &changes {
            self.maps.remove(&change.identity);
        }
        !changes.is_empty()
    }

    /// Computes what is stale.
    pub(crate) fn refresh(&mut self) {
        for identity in self.policies.refresh(&self.proxies) {
            self.maps.remove(&identity);
            self.computed.insert(identity);
        }
    }

    fn desired(&mut self, endpoint: u16) -> Option<Desired> {
        let (identity, facts) = self.endpoints.get(&endpoint)?;
        let map = self.policies.map_of(endpoint)?;
        let maps = self.maps.entry(*identity).or_default();
        let state = match maps.get(facts) {
            Some(state) => state.clone(),
            None => {
                let state = Arc::new(convert::map_state(map));
                maps.insert(facts.clone(), state.clone());
                state
            }
        };
        let policy = self.policies.local(*identity)?.policy();
        Some(Desired {
            state,
            enforced: u8::from(policy.ingress.is_enforced) | u8::from(policy.egress.is_enforced) << 1,
            revision: self.policies.revision(),
        })
    }

    /// Redirects of endpoints to proxies that are missing.
    pub(crate) fn missing_redirects(&self) -> usize {
        let missing = self.endpoints.keys().filter_map(|endpoint| {
            let redirects = self.policies.map_of(*endpoint)?.redirects().iter();
            Some(
                redirects
                    .filter(|redirect| !self.proxies.has(&redirect.class))
                    .count(),
            )
        });
        missing.sum()
    }

    /// What keeps policies from being what objects say.
    pub(crate) fn faults(&self) -> Vec<String> {
        let invalid = self
            .invalid
            .values()
            .map(|error| hive::error_chain(error).to_string());
        let identities: BTreeSet<NumericIdentity> =
            self.endpoints.values().map(|(identity, _)| *identity).collect();
        let unresolved = identities.iter().filter_map(|identity| {
            let error = self.policies.local(*identity)?.error()?;
            Some(format!("identity {identity}: {error}"))
        });
        let dropped = self.endpoints.iter().filter_map(|(endpoint, (identity, _))| {
            let redirects = self.policies.map_of(*endpoint)?.redirects().iter();
            let redirects = redirects.filter(|redirect| !self.proxies.has(&redirect.class)).count();
            (redirects > 0).then(|| format!("endpoint {endpoint}, identity {identity}: {redirects} redirects are dropped, there is no proxy"))
        });
        invalid.chain(unresolved).chain(dropped).collect()
    }
}

impl MapStates for Repository {
    fn desired(&self, endpoint: u16, identity: NumericIdentity) -> Option<Desired> {
        let mut state = self.0.state.lock();
        if !state.is_ready || !self.0.set_endpoint(&mut state, endpoint, identity) {
            return None;
        }
        state.refresh();
        state.desired(endpoint)
    }

    fn changes(&self) -> watch::Receiver<Revision> {
        self.0.changes.subscribe()
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").finish_non_exhaustive()
    }
}
