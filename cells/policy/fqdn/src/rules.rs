// SPDX-License-Identifier: Apache-2.0

//! Names that endpoints may ask for: the rules of their policies, and until these are computed those of the run before.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use regex::Regex;
use skep_identity::NumericIdentity;
use skep_ipcache::{IpcacheEntry, lookup};
use skep_policy_model::fqdn::{FqdnSelector, is_star, pattern_regex};
use skep_policy_repository::{DnsRule, Repository};
use statedb::{Db, Table};

use crate::state::{Empty, SavedRule, SavedRules, port_key};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Expression that every name matches.
const ANY: &str = "(?:)";

/// A DNS server, and how it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// IP protocol.
    pub protocol: u8,
    pub address: IpAddr,
    pub port: u16,
    pub identity: NumericIdentity,
}

struct Rule {
    protocol: u8,
    ports: RangeInclusive<u16>,
    servers: Option<BTreeSet<NumericIdentity>>,
    names: Regex,
}

struct RestoredRule {
    names: Regex,
    servers: Option<BTreeSet<IpAddr>>,
}

/// Rules of an endpoint, with the generation of the repository that they are of.
type Current = (u64, Arc<Vec<Rule>>);

/// DNS rules of endpoints.
pub struct Rules {
    repository: Repository,
    /// Maximum number of compiled expressions.
    size: usize,
    compiled: Mutex<HashMap<String, Regex>>,
    current: RwLock<HashMap<u16, Current>>,
    restored: RwLock<HashMap<u16, Arc<Restored>>>,
    /// Servers that have answered.
    used: Mutex<BTreeSet<IpAddr>>,
}

struct Restored {
    saved: SavedRules,
    by_port: BTreeMap<u32, Vec<RestoredRule>>,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules").finish_non_exhaustive()
    }
}

/// The expression of the names of a rule: every name if there are none.
pub(crate) fn names_regex(names: &[FqdnSelector]) -> String {
    if names.is_empty() || names.iter().any(|name| is_star(name.match_pattern.trim())) {
        return ANY.to_owned();
    }
    let patterns: Vec<String> = names
        .iter()
        .filter_map(
            |name| match (name.match_name.as_str(), name.match_pattern.as_str()) {
                ("", "") => None,
                ("", pattern) => Some(pattern_regex(pattern)),
                (name, _) => Some(pattern_regex(&name.replace('*', ""))),
            },
        )
        .map(|regex| {
            let regex = regex.strip_prefix('^').unwrap_or(&regex);
            regex.strip_suffix('$').unwrap_or(regex).to_owned()
        })
        .collect();
    format!("^(?:{})$", patterns.join("|"))
}

impl Rules {
    pub(crate) fn new(repository: Repository, size: usize) -> Self {
        Self {
            repository,
            size,
            compiled: Mutex::default(),
            current: RwLock::default(),
            restored: RwLock::default(),
            used: Mutex::default(),
        }
    }

    /// Whether an endpoint may ask a server for a name, in lower case with a final dot.
    pub fn allow(&self, endpoint: u16, server: &Server, name: &str) -> bool {
        if let Some(rules) = self.current(endpoint) {
            return rules.iter().any(|rule| {
                (rule.protocol == 0 || rule.protocol == server.protocol)
                    && rule.ports.contains(&server.port)
                    && rule
                        .servers
                        .as_ref()
                        .is_none_or(|servers| servers.contains(&server.identity))
                    && rule.names.is_match(name)
            });
        }
        let Some(restored) = self.restored.read().get(&endpoint).cloned() else {
            return false;
        };
        let rules = restored.by_port.get(&port_key(server.protocol, server.port));
        rules.into_iter().flatten().any(|rule| {
            rule.servers
                .as_ref()
                .is_none_or(|servers| servers.contains(&server.address))
                && rule.names.is_match(name)
        })
    }

    /// A server has answered.
    pub(crate) fn used(&self, server: IpAddr) {
        self.used.lock().insert(server);
    }

    fn compile(&self, text: String) -> Option<Regex> {
        let mut compiled = self.compiled.lock();
        if let Some(regex) = compiled.get(&text) {
            return Some(regex.clone());
        }
        match Regex::new(&text) {
            Ok(regex) => {
                if compiled.len() >= self.size {
                    compiled.clear();
                }
                compiled.insert(text, regex.clone());
                Some(regex)
            }
            Err(error) => {
                tracing::info!(regex = text, %error, "Disregarding a DNS rule whose expression does not compile");
                None
            }
        }
    }

    /// Rules of the policy of an endpoint, once it is computed.
    fn current(&self, endpoint: u16) -> Option<Arc<Vec<Rule>>> {
        let generation = self.repository.generation();
        if let Some((known, rules)) = self.current.read().get(&endpoint)
            && *known == generation
        {
            return Some(rules.clone());
        }
        let rules = self.repository.dns_rules(endpoint)?;
        let compiled = |rule: DnsRule| {
            Some(Rule {
                protocol: rule.protocol,
                ports: rule.ports,
                servers: rule.servers,
                names: self.compile(names_regex(&rule.names))?,
            })
        };
        let rules: Arc<Vec<Rule>> = Arc::new(rules.into_iter().filter_map(compiled).collect());
        self.current.write().insert(endpoint, (generation, rules.clone()));
        self.restored.write().remove(&endpoint);
        Some(rules)
    }

    pub(crate) fn restore(&self, endpoint: u16, saved: &SavedRules) {
        let compiled = |rule: &SavedRule| {
            let servers = rule.servers.as_ref().map(|servers| {
                let addresses = servers.keys().filter_map(|text| text.parse().ok());
                addresses.collect()
            });
            Some(RestoredRule {
                names: self.compile(rule.names.clone())?,
                servers,
            })
        };
        let by_port = saved
            .iter()
            .map(|(key, rules)| (*key, rules.iter().filter_map(compiled).collect()));
        let restored = Restored {
            by_port: by_port.collect(),
            saved: saved.clone(),
        };
        self.restored.write().insert(endpoint, Arc::new(restored));
    }

    pub(crate) fn remove(&self, endpoint: u16) {
        self.current.write().remove(&endpoint);
        self.restored.write().remove(&endpoint);
    }

    /// The rules of an endpoint for its state file: with at most `limit` servers each.
    pub(crate) fn saved(
        &self,
        endpoint: u16,
        db: &Db,
        ipcache: &Table<IpcacheEntry>,
        limit: usize,
    ) -> SavedRules {
        let Some(rules) = self.current(endpoint) else {
            let restored = self.restored.read();
            return restored
                .get(&endpoint)
                .map(|restored| restored.saved.clone())
                .unwrap_or_default();
        };
        let mut saved = SavedRules::new();
        for rule in rules.iter() {
            let servers = rule
                .servers
                .as_ref()
                .map(|identities| self.servers(identities, db, ipcache, limit));
            let protocols: &[u8] = match rule.protocol {
                0 => &[TCP, UDP],
                TCP => &[TCP],
                _ => &[UDP],
            };
            for protocol in protocols {
                let key = port_key(*protocol, *rule.ports.start());
                saved.entry(key).or_default().push(SavedRule {
                    names: rule.names.as_str().to_owned(),
                    servers: servers.clone(),
                });
            }
        }
        saved
    }

    /// Addresses with these identities: of servers that have answered, once one has.
    fn servers(
        &self,
        identities: &BTreeSet<NumericIdentity>,
        db: &Db,
        ipcache: &Table<IpcacheEntry>,
        limit: usize,
    ) -> BTreeMap<String, Empty> {
        let used = self.used.lock().clone();
        let snapshot = db.read();
        let is_server = |row: &IpcacheEntry| {
            row.resolve()
                .is_some_and(|resolved| identities.contains(&resolved.identity))
        };
        let of_used: Vec<IpAddr> = used
            .into_iter()
            .filter(|address| lookup(ipcache, &snapshot, *address, 0).is_some_and(|row| is_server(row)))
            .collect();
        let found: Vec<IpAddr> = match of_used.is_empty() && !identities.is_empty() {
            false => of_used,
            true => {
                let is_single = |row: &&statedb::Obj<IpcacheEntry>| {
                    row.prefix.net().prefix_len() == row.prefix.net().max_prefix_len()
                };
                let rows = ipcache.all(&snapshot).filter(is_single);
                rows.filter(|row| is_server(row))
                    .map(|row| row.prefix.net().addr())
                    .take(limit + 1)
                    .collect()
            }
        };
        if found.len() > limit {
            tracing::warn!(limit, "Too many IPs for a DNS rule, skipping the rest");
        }
        let found = found.into_iter().take(limit);
        found.map(|address| (address.to_string(), Empty {})).collect()
    }
}
