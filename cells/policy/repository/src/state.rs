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
use skep_policy_model::{
    IdentityLabels, ObjectError, Policies, PolicySettings,
    filter::ProxyClass,
    map_state::{EndpointFacts, ProxyPorts},
};
use statedb::{Db, Revision, RwTable, Table};
use tokio::sync::watch;

use crate::{
    computations::PolicyComputation,
    convert,
    ports::{PodPorts, own_ports},
};

/// Redirects have a port so that their entries are there; [`convert`] denies them.
pub(crate) struct Dropped;

impl ProxyPorts for Dropped {
    fn port(&self, _: &ProxyClass) -> Option<u16> {
        Some(1)
    }
}

/// The policies of the endpoints of this node.
#[derive(Clone, hive::Value)]
pub struct Repository(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) db: Db,
    pub(crate) identities: Table<SecurityIdentity>,
    pub(crate) computations: RwTable<PolicyComputation>,
    pub(crate) state: Mutex<State>,
    changes: watch::Sender<Revision>,
    /// Revision of the identities that are taken in; 0 until all are listed.
    pub(crate) known: watch::Sender<Revision>,
}

pub(crate) struct State {
    pub(crate) policies: Policies,
    /// All objects and identities are listed.
    pub(crate) is_ready: bool,
    /// Objects whose last version is invalid, by key.
    pub(crate) invalid: BTreeMap<String, ObjectError>,
    pub(crate) ports: PodPorts,
    /// Identities whose rows of computations are stale.
    pub(crate) computed: BTreeSet<NumericIdentity>,
    endpoints: BTreeMap<u16, (NumericIdentity, EndpointFacts)>,
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
                is_ready: false,
                invalid: BTreeMap::new(),
                ports: PodPorts::default(),
                computed: BTreeSet::new(),
                endpoints: BTreeMap::new(),
                maps: BTreeMap::new(),
            }),
            changes: watch::Sender::new(1),
            known: watch::Sender::new(0),
        }))
    }

    /// Reads policies, without changes meanwhile.
    pub fn with<T>(&self, read: impl FnOnce(&Policies) -> T) -> T {
        read(&self.0.state.lock().policies)
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
        let labels = Arc::new(IdentityLabels::from(&*row.labels));
        state
            .policies
            .set_endpoint(endpoint, identity, labels, facts.clone());
        state.endpoints.insert(endpoint, (identity, facts));
        true
    }
}

impl State {
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
        let changes = self.policies.update_identities(added, deleted, &Dropped);
        for change in &changes {
            self.maps.remove(&change.identity);
        }
        !changes.is_empty()
    }

    /// Computes what is stale.
    pub(crate) fn refresh(&mut self) {
        for identity in self.policies.refresh(&Dropped) {
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
        Some(Desired {
            state,
            revision: self.policies.revision(),
        })
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
            let redirects = self.policies.map_of(*endpoint)?.redirects().len();
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
