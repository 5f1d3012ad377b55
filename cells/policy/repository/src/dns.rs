// SPDX-License-Identifier: Apache-2.0

//! What policies say about DNS, for the proxy and for who knows the addresses of names.

use std::{
    collections::BTreeSet,
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use skep_identity::NumericIdentity;
use skep_policy_model::{
    Content, Direction,
    filter::ProxyClass,
    fqdn::FqdnSelector,
    l7::{L7Rules, Parser},
    map_state::ProxyPorts,
    ports::{Ports, Protocol},
    rule::Verdict,
};

use crate::Repository;

/// Ports of proxies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    pub(crate) dns: Option<u16>,
}

impl Proxies {
    /// Whether there is a proxy: without, its traffic is denied.
    pub(crate) fn has(&self, class: &ProxyClass) -> bool {
        *class == ProxyClass::Dns && self.dns.is_some()
    }
}

/// Redirects without a proxy have port 0: their entries are there, and deny.
impl ProxyPorts for Proxies {
    fn port(&self, class: &ProxyClass) -> Option<u16> {
        let port = self.dns.filter(|_| *class == ProxyClass::Dns);
        Some(port.unwrap_or_default())
    }
}

/// Knows the addresses of names.
pub trait NamePeers: Send + Sync {
    /// Rules with these selectors are about to apply: addresses of their names must have identities by then.
    fn add(&self, selectors: &BTreeSet<FqdnSelector>);
}

/// Who knows the addresses of names.
#[derive(Default)]
pub(crate) struct Names {
    peers: Mutex<Option<std::sync::Arc<dyn NamePeers>>>,
    /// Changes with the selectors of policies.
    pub(crate) selectors: AtomicU64,
    /// Changes with everything that queries depend on.
    pub(crate) generation: AtomicU64,
}

impl Names {
    /// The selectors of objects are about to apply.
    pub(crate) fn announce<'a>(&self, contents: impl Iterator<Item = &'a Content>) {
        let rules = contents.flat_map(|content| match content {
            Content::Rules(set) => set.rules.as_slice(),
            Content::CidrGroup(_) => &[],
        });
        let selectors: BTreeSet<FqdnSelector> = rules
            .flat_map(|rule| &rule.peers)
            .filter_map(|peer| peer.names())
            .cloned()
            .collect();
        let peers = self.peers.lock().clone();
        if let Some(peers) = peers.filter(|_| !selectors.is_empty()) {
            peers.add(&selectors);
        }
    }

    pub(crate) fn changed(&self, selectors: bool) {
        if selectors {
            self.selectors.fetch_add(1, Ordering::AcqRel);
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// Names that an endpoint may ask some servers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsRule {
    /// IP protocol.
    pub protocol: u8,
    pub ports: RangeInclusive<u16>,
    /// Servers; `None`: any.
    pub servers: Option<BTreeSet<NumericIdentity>>,
    /// Names; none: any.
    pub names: Vec<FqdnSelector>,
}

impl Repository {
    /// Sets who knows the addresses of names.
    pub fn set_name_peers(&self, peers: std::sync::Arc<dyn NamePeers>) {
        *self.0.names.peers.lock() = Some(peers);
    }

    /// Changes whenever [`dns_rules`](Self::dns_rules) may have changed.
    pub fn generation(&self) -> u64 {
        self.0.names.generation.load(Ordering::Acquire)
    }

    /// Changes whenever the selectors of names may have changed.
    pub fn selector_generation(&self) -> u64 {
        self.0.names.selectors.load(Ordering::Acquire)
    }

    /// Selectors of names of the policies of local endpoints; `None` until all objects are listed.
    pub fn name_selectors(&self) -> Option<BTreeSet<FqdnSelector>> {
        let state = self.0.state.lock();
        state.is_ready.then(|| state.policies.fqdn_selectors())
    }

    /// The port of the DNS proxy: without one, what rules redirect to it is dropped.
    pub fn set_dns_port(&self, port: Option<u16>) {
        {
            let mut state = self.0.state.lock();
            if state.proxies.dns == port {
                return;
            }
            state.proxies.dns = port;
            state.policies.recompute_maps();
            state.refresh();
        }
        self.0.names.changed(false);
        self.0.publish();
    }

    /// Ids of the redirects to the DNS proxy.
    pub fn dns_redirects(&self) -> Vec<String> {
        let state = self.0.state.lock();
        let maps = state
            .policies
            .endpoints()
            .filter_map(|(endpoint, _)| Some((endpoint, state.policies.map_of(endpoint)?)));
        let mut ids = Vec::new();
        for (endpoint, map) in maps {
            let redirects = map.redirects().iter();
            let of_dns = redirects.filter(|redirect| redirect.class == ProxyClass::Dns);
            ids.extend(of_dns.map(|redirect| redirect.id(endpoint)));
        }
        ids
    }

    /// The port of the DNS proxy, if there is one.
    pub fn dns_port(&self) -> Option<u16> {
        self.0.state.lock().proxies.dns
    }

    /// Rules about the DNS queries of an endpoint; `None` while its policy is not known.
    pub fn dns_rules(&self, endpoint: u16) -> Option<Vec<DnsRule>> {
        let state = self.0.state.lock();
        if !state.is_ready {
            return None;
        }
        let identity = state.identity_of(endpoint)?;
        let local = state.policies.local(identity)?;
        let peers = state.policies.peers();
        let mut rules = Vec::new();
        for (key, filter) in &local.policy().direction(Direction::Egress).filters {
            let policies = filter
                .iter()
                .filter(|(_, policy)| policy.verdict == Verdict::Allow && policy.parser == Parser::Dns);
            for (selector, policy) in policies {
                let selection: Option<BTreeSet<NumericIdentity>> = match selector.is_wildcard() {
                    true => None,
                    false => Some(
                        peers
                            .id_of(selector)
                            .into_iter()
                            .flat_map(|id| peers.selection(id))
                            .collect(),
                    ),
                };
                let names = match &policy.rules {
                    L7Rules::Dns(names) => names.clone(),
                    _ => Vec::new(),
                };
                let mut add = |ports, servers| {
                    rules.push(DnsRule {
                        protocol: key.protocol.0,
                        ports,
                        servers,
                        names: names.clone(),
                    });
                };
                match &key.ports {
                    Ports::Number { port: 0, .. } => add(0..=u16::MAX, selection),
                    Ports::Number { port, end } | Ports::Exact { port, end } => {
                        add(*port..=(*end).max(*port), selection);
                    }
                    Ports::Name { name, .. } => {
                        for (port, servers) in state.named_servers(name, key.protocol, selection.as_ref()) {
                            add(port..=port, Some(servers));
                        }
                    }
                }
            }
        }
        Some(rules)
    }
}

impl crate::state::State {
    /// Identities with a port of this name, by port.
    fn named_servers(
        &self,
        name: &str,
        protocol: Protocol,
        selection: Option<&BTreeSet<NumericIdentity>>,
    ) -> Vec<(u16, BTreeSet<NumericIdentity>)> {
        let ports = self.policies.named_ports();
        let mut found = std::collections::BTreeMap::<u16, BTreeSet<NumericIdentity>>::new();
        let selected =
            |identity: &NumericIdentity| selection.is_none_or(|selection| selection.contains(identity));
        for identity in ports.identities(name, protocol).filter(selected) {
            if let Some(port) = ports.get(identity, name, protocol) {
                found.entry(port).or_default().insert(identity);
            }
        }
        found.into_iter().collect()
    }
}
