// SPDX-License-Identifier: Apache-2.0

//! Names → addresses → identities.
//!
//! Each endpoint has a cache of the names that it looked up, and the addresses that left it while connections may use them.
//! The addresses of a name that rules select are those of all endpoints. They are claimed in the ipcache with the labels of
//! all selectors that match the name.

mod claims;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use skep_base_settings::AddressFamilies;
use skep_identity::{Label, Labels};
use skep_identity_cache::{LocalIdentities, LocalIdentity};
use skep_ipcache::Writer;
use skep_policy_model::fqdn::{FqdnSelector, NameMatcher, canonical_name};
use skep_policy_repository::{NamePeers, Repository};
use smallvec::SmallVec;
use tokio::sync::watch;

use crate::{
    cache::{DnsName, NameCache},
    config::Config,
    rules::Rules,
    state::{DnsState, SavedAnswer},
    zombies::{Limits, Pass, Zombies},
};

/// An answer to the query of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name that was asked for.
    pub name: String,
    pub addresses: Vec<IpAddr>,
    /// Seconds.
    pub ttl: u32,
}

/// Where a name in a cache comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupSource {
    /// An answer.
    Lookup,
    /// A connection that may still use the address.
    Connection,
}

/// A name in the cache of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub endpoint: u16,
    pub name: DnsName,
    pub addresses: Vec<IpAddr>,
    pub lookup: Timestamp,
    pub expiration: Timestamp,
    pub ttl: u32,
    pub source: LookupSource,
}

/// Names of one endpoint.
#[derive(Debug, Default)]
struct EndpointNames {
    cache: NameCache,
    zombies: Zombies,
    /// The state file lacks something.
    is_dirty: bool,
}

/// A name of any endpoint.
#[derive(Debug, Default)]
struct KnownName {
    addresses: SmallVec<[IpAddr; 1]>,
    /// Labels that its addresses are claimed with; none: they are not.
    labels: Option<Arc<Labels>>,
}

#[derive(Debug)]
struct Selected {
    matcher: NameMatcher,
    label: Label,
    /// Identities of addresses with no other label.
    _identities: Vec<LocalIdentity>,
}

#[derive(Debug, Default)]
struct State {
    endpoints: HashMap<u16, EndpointNames>,
    names: HashMap<DnsName, KnownName>,
    /// Selectors of one name, by this name.
    exact: HashMap<String, BTreeSet<FqdnSelector>>,
    selectors: BTreeMap<FqdnSelector, Selected>,
    /// Generation of the repository's selectors.
    generation: u64,
    pass: Pass,
    /// When the next pass of conntrack's garbage collection is due.
    next_pass: Timestamp,
}

/// What garbage collection has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Names without addresses.
    pub names: Vec<DnsName>,
    /// Addresses that were removed though connections may use them.
    pub evicted: usize,
}

/// Sizes of the caches of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub endpoint: u16,
    pub names: usize,
    pub addresses: usize,
    pub zombies: usize,
}

/// Names that endpoints of this node looked up; cheap to clone.
#[derive(Clone, hive::Value)]
pub struct Names(Arc<Inner>);

struct Inner {
    config: Config,
    /// Addresses of other families are passed on and not kept.
    ipv4: bool,
    ipv6: bool,
    ipcache: Writer,
    identities: Option<LocalIdentities>,
    repository: Repository,
    rules: Rules,
    state: Mutex<State>,
    restored: watch::Sender<bool>,
    is_complete: std::sync::atomic::AtomicBool,
    /// Answers with one of the names of a lock are taken one by one.
    locks: Box<[tokio::sync::Mutex<()>]>,
    timeouts: AtomicU64,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

fn fnv32(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

impl Names {
    pub fn new(
        config: Config,
        families: &AddressFamilies,
        ipcache: Writer,
        identities: Option<LocalIdentities>,
        repository: Repository,
    ) -> Self {
        let locks = (0..config.lock_count.max(1)).map(|_| tokio::sync::Mutex::default());
        Self(Arc::new(Inner {
            ipv4: families.ipv4,
            ipv6: families.ipv6,
            ipcache,
            identities,
            rules: Rules::new(repository.clone(), config.regex_cache()),
            repository,
            state: Mutex::default(),
            restored: watch::Sender::new(false),
            is_complete: Default::default(),
            locks: locks.collect(),
            timeouts: AtomicU64::new(0),
            config,
        }))
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.0.rules
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    /// Hears of selectors before rules with them apply.
    pub(crate) fn register(&self) {
        self.0.repository.set_name_peers(Arc::new(self.clone()));
    }

    /// Answers that were passed on before their addresses were allowed.
    pub fn timeouts(&self) -> u64 {
        self.0.timeouts.load(Ordering::Relaxed)
    }

    /// Takes in an answer to an endpoint, and waits until its policy allows the addresses; false if that took too long.
    pub async fn learn(&self, endpoint: u16, answer: &Answer, now: Timestamp) -> bool {
        let inner = &*self.0;
        let mut answer = answer.clone();
        answer.addresses.retain(|address| match address {
            IpAddr::V4(_) => inner.ipv4,
            IpAddr::V6(_) => inner.ipv6,
        });
        if answer.addresses.is_empty() {
            return true;
        }
        let name = canonical_name(&answer.name);
        let lock = fnv32(&name) as usize % inner.locks.len();
        let before = std::time::Instant::now();
        let _turn = inner.locks[lock].lock().await;
        if before.elapsed() >= inner.config.lock_timeout {
            tracing::warn!(
                name,
                duration = ?before.elapsed(),
                "Answers about one name wait for each other: raise dnsproxy-lock-count"
            );
        }
        let claimed = match inner.take(endpoint, &name, &answer, now) {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::error!(name, %error, "Failed to claim addresses of a name");
                return false;
            }
        };
        if claimed.is_empty() {
            return true;
        }
        let wait = inner.wait_written(&claimed);
        let is_written = tokio::time::timeout(inner.config.response_max_delay, wait)
            .await
            .is_ok();
        if !is_written {
            inner.timeouts.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                name,
                "Answer is passed on before its addresses are allowed: raise tofqdns-proxy-response-max-delay if this repeats"
            );
        }
        is_written
    }

    /// Restores what the state file of an endpoint says.
    pub fn restore(&self, endpoint: u16, saved: &DnsState) {
        let limit = self.0.config.max_ips_per_name;
        let restored = EndpointNames {
            cache: saved.cache(limit),
            zombies: saved.zombies(),
            is_dirty: false,
        };
        self.0.rules.restore(endpoint, &saved.rules);
        let mut state = self.0.state.lock();
        let names: BTreeSet<DnsName> = restored.names();
        state.endpoints.insert(endpoint, restored);
        self.0.refresh_or_log(&mut state, &names);
    }

    /// Takes in answers that no endpoint has asked for.
    pub(crate) fn preload(&self, answers: &[SavedAnswer]) {
        let mut state = self.0.state.lock();
        let preloaded = state.endpoints.entry(0).or_default();
        answers
            .iter()
            .for_each(|answer| answer.load(&mut preloaded.cache));
        let names = preloaded.names();
        self.0.refresh_or_log(&mut state, &names);
    }

    /// All endpoints of the run before are restored.
    pub fn restored(&self) {
        self.0.restored.send_replace(true);
    }

    pub(crate) async fn wait_restored(&self) {
        // The sender is not dropped while this is.
        let _ = self.0.restored.subscribe().wait_for(|restored| *restored).await;
    }

    /// Selectors that are not used any more may go.
    pub(crate) fn complete(&self) {
        self.0.is_complete.store(true, Ordering::Release);
    }

    /// What the state file of an endpoint must have.
    pub fn saved(&self, endpoint: u16) -> DnsState {
        let ipcache = &self.0.ipcache;
        let limit = self.0.config.max_ips_per_rule;
        let rules = self
            .0
            .rules
            .saved(endpoint, ipcache.db(), &ipcache.table(), limit);
        let mut state = self.0.state.lock();
        let names = state.endpoints.entry(endpoint).or_default();
        names.is_dirty = false;
        DnsState::of(&names.cache, &names.zombies, rules)
    }

    /// Endpoints whose state files lack something.
    pub fn dirty(&self) -> Vec<u16> {
        let state = self.0.state.lock();
        let dirty = state
            .endpoints
            .iter()
            .filter(|(id, names)| names.is_dirty && **id != 0);
        dirty.map(|(endpoint, _)| *endpoint).collect()
    }

    /// An endpoint is gone.
    pub fn remove(&self, endpoint: u16) {
        self.0.rules.remove(endpoint);
        let mut state = self.0.state.lock();
        if let Some(gone) = state.endpoints.remove(&endpoint) {
            self.0.refresh_or_log(&mut state, &gone.names());
        }
    }

    /// Follows the selectors of policies.
    pub(crate) fn sync_selectors(&self) {
        self.0.sync(&mut self.0.state.lock());
    }

    pub fn selectors(&self) -> BTreeSet<FqdnSelector> {
        self.0.repository.name_selectors().unwrap_or_default()
    }

    /// A complete pass of conntrack's garbage collection; `alive` are addresses that flows of endpoints go to.
    pub(crate) fn passed(
        &self,
        start: Timestamp,
        next: Timestamp,
        alive: impl IntoIterator<Item = (u16, IpAddr)>,
    ) {
        let grace = self.0.config.idle_grace;
        let mut state = self.0.state.lock();
        let until = start.checked_add(grace).unwrap_or(Timestamp::MAX);
        for (endpoint, address) in alive {
            if let Some(names) = state.endpoints.get_mut(&endpoint) {
                names.zombies.mark_alive(address, until);
            }
        }
        state.pass = Pass {
            number: state.pass.number + 1,
            start,
        };
        state.next_pass = next;
    }

    /// Addresses that connections may still use, by endpoint.
    pub(crate) fn zombies(&self) -> BTreeMap<u16, BTreeSet<IpAddr>> {
        let state = self.0.state.lock();
        let with = state
            .endpoints
            .iter()
            .filter(|(_, names)| !names.zombies.is_empty());
        with.map(|(endpoint, names)| {
            let addresses = names.zombies.iter().map(|(address, _)| address);
            (*endpoint, addresses.collect())
        })
        .collect()
    }

    /// Removes what is due and not in use.
    pub fn collect(&self, now: Timestamp) -> Collected {
        let inner = &*self.0;
        let limits = Limits {
            total: inner.config.max_deferred_deletes,
            per_name: inner.config.max_ips_per_name,
            grace: inner.config.idle_grace,
        };
        let mut collected = Collected::default();
        let endpoints: Vec<u16> = inner.state.lock().endpoints.keys().copied().collect();
        for endpoint in endpoints {
            // Answers are taken meanwhile.
            let mut state = inner.state.lock();
            let state = &mut *state;
            let pass = state.pass;
            let Some(names) = state.endpoints.get_mut(&endpoint) else {
                continue;
            };
            let expired = names.cache.expire(now);
            expired
                .iter()
                .for_each(|expired| names.zombies.insert(expired, &pass));
            let dead = names.zombies.collect(&pass, &limits);
            if expired.is_empty() && dead.removed.is_empty() {
                continue;
            }
            if dead.evicted > 0 {
                tracing::warn!(
                    endpoint,
                    addresses = dead.evicted,
                    "Removed addresses that connections may use: raise tofqdns-max-deferred-connection-deletes or tofqdns-endpoint-max-ip-per-hostname"
                );
            }
            names.is_dirty = true;
            collected.evicted += dead.evicted;
            let affected = dead.removed.into_iter().map(|(name, _)| name).collect();
            collected.names.extend(inner.refresh_or_log(state, &affected));
        }
        collected
    }

    /// Removes names that are selected from all caches.
    pub fn clear(&self, now: Timestamp, is_selected: impl Fn(&str) -> bool) {
        let mut state = self.0.state.lock();
        let mut affected = BTreeSet::new();
        for names in state.endpoints.values_mut() {
            let before = affected.len();
            affected.extend(names.cache.clear(now, &is_selected));
            affected.extend(names.zombies.clear(&is_selected));
            names.is_dirty |= affected.len() > before;
        }
        self.0.refresh_or_log(&mut state, &affected);
    }

    /// Names in caches: of one endpoint, or of all. `None` if there is no such endpoint.
    pub fn lookups(&self, endpoint: Option<u16>) -> Option<Vec<Lookup>> {
        let state = self.0.state.lock();
        let endpoints: Vec<(u16, &EndpointNames)> = match endpoint {
            Some(id) => vec![(id, state.endpoints.get(&id)?)],
            None => state.endpoints.iter().map(|(id, names)| (*id, names)).collect(),
        };
        let mut found = Vec::new();
        for (endpoint, names) in endpoints {
            for (name, records) in names.cache.iter() {
                let mut by_answer: BTreeMap<(Timestamp, u32), Vec<IpAddr>> = BTreeMap::new();
                for record in records {
                    by_answer
                        .entry((record.lookup(), record.ttl))
                        .or_default()
                        .push(record.address);
                }
                for ((lookup, ttl), addresses) in by_answer {
                    let ends = Duration::from_secs(ttl.into());
                    found.push(Lookup {
                        endpoint,
                        name: name.clone(),
                        addresses,
                        lookup,
                        expiration: lookup.checked_add(ends).unwrap_or(Timestamp::MAX),
                        ttl,
                        source: LookupSource::Lookup,
                    });
                }
            }
            for (address, zombie) in names.zombies.iter() {
                found.extend(zombie.names.iter().map(|name| Lookup {
                    endpoint,
                    name: name.clone(),
                    addresses: vec![address],
                    lookup: zombie.alive_at,
                    expiration: state.next_pass,
                    ttl: 0,
                    source: LookupSource::Connection,
                }));
            }
        }
        found.sort_by(|one, other| {
            (one.endpoint, &one.name, one.lookup).cmp(&(other.endpoint, &other.name, other.lookup))
        });
        Some(found)
    }

    pub(crate) fn sizes(&self) -> Vec<Sizes> {
        let state = self.0.state.lock();
        let sizes = state.endpoints.iter().filter(|(id, _)| **id != 0);
        sizes
            .map(|(endpoint, names)| Sizes {
                endpoint: *endpoint,
                names: names.cache.len(),
                addresses: names.cache.addresses(),
                zombies: names.zombies.iter().count(),
            })
            .collect()
    }
}

impl EndpointNames {
    fn names(&self) -> BTreeSet<DnsName> {
        let cached = self.cache.iter().map(|(name, _)| name.clone());
        let zombies = self
            .zombies
            .iter()
            .flat_map(|(_, zombie)| zombie.names.iter().cloned());
        cached.chain(zombies).collect()
    }
}

/// Selectors of rules that are about to apply.
impl NamePeers for Names {
    fn add(&self, selectors: &BTreeSet<FqdnSelector>) {
        let mut state = self.0.state.lock();
        self.0
            .change_selectors(&mut state, selectors.clone(), BTreeSet::new());
    }
}
