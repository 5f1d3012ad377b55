// SPDX-License-Identifier: Apache-2.0

//! Filters: what all rules of a subject say about some ports, by peer.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use crate::{
    l7::{L7Rules, ListenerName, Parser, TlsSecret},
    levels,
    ports::{Ports, Protocol},
    rule::{AuthType, Direction, RuleOrigin, Tier, Verdict},
    selector::Selector,
};

/// Rules that say the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<BTreeSet<Arc<RuleOrigin>>>);

impl Origins {
    pub fn of(origin: Arc<RuleOrigin>) -> Self {
        Self(Arc::new(BTreeSet::from([origin])))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<RuleOrigin>> {
        self.0.iter()
    }

    pub fn unite(&mut self, other: &Self) {
        if Arc::ptr_eq(&self.0, &other.0) || other.0.is_subset(&self.0) {
            return;
        }
        Arc::make_mut(&mut self.0).extend(other.0.iter().cloned());
    }

    /// Texts that flows show.
    pub fn logs(&self) -> BTreeSet<&str> {
        self.iter().filter_map(|origin| origin.log.as_deref()).collect()
    }

    /// Label sets of the rules.
    pub fn labels(&self) -> BTreeSet<&[Box<str>]> {
        self.iter().map(|origin| &*origin.labels).collect()
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, origin) in self.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{origin}")?;
        }
        Ok(())
    }
}

/// Ports of a tier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterKey {
    pub tier: Tier,
    pub ports: Ports,
    pub protocol: Protocol,
}

/// What the rules say about the traffic with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPolicy {
    pub verdict: Verdict,
    /// Earlier levels win.
    pub level: u32,
    pub parser: Parser,
    pub listener: Option<ListenerName>,
    pub listener_priority: u8,
    pub auth: Option<AuthType>,
    pub terminating_tls: Option<TlsSecret>,
    pub originating_tls: Option<TlsSecret>,
    pub server_names: BTreeSet<String>,
    pub rules: L7Rules,
    pub origins: Origins,
}

/// Rules contradict each other: none of them applies to the subject until one is changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error("cannot merge conflicting L7 parsers ({0}/{1})")]
    Parsers(&'static str, &'static str),
    #[error(
        "cannot merge conflicting CiliumEnvoyConfig Listeners ({new}/{old}) with the same priority ({priority})"
    )]
    Listeners {
        new: ListenerName,
        old: ListenerName,
        priority: u8,
    },
    #[error("cannot merge conflicting authentication types ({0}/{1})")]
    Auth(&'static str, &'static str),
    #[error("cannot merge conflicting {0} TLS contexts for cached selector {1}")]
    Tls(&'static str, Selector),
    #[error("cannot merge L7 rules for cached selector {0} with SNI filtering without TLS termination")]
    ServerNames(Selector),
}

impl PeerPolicy {
    pub(crate) fn plain(verdict: Verdict, level: u32, origins: Origins) -> Self {
        Self {
            verdict,
            level,
            parser: Parser::None,
            listener: None,
            listener_priority: 0,
            auth: None,
            terminating_tls: None,
            originating_tls: None,
            server_names: BTreeSet::new(),
            rules: L7Rules::None,
            origins,
        }
    }

    pub fn is_redirect(&self) -> bool {
        self.verdict == Verdict::Allow && self.parser != Parser::None
    }

    pub fn precedence(&self) -> u32 {
        let low = match self.verdict {
            Verdict::Deny => levels::DENY,
            Verdict::Pass => levels::PASS,
            Verdict::Allow if self.is_redirect() => levels::redirect(self.listener_priority),
            Verdict::Allow => levels::ALLOW,
        };
        levels::precedence(self.level, low)
    }

    /// Whether map entries are the same. Demands on layer 7 are the proxy's, which has them by peer.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        self.precedence() == other.precedence()
            && (self.parser, &self.listener, self.auth) == (other.parser, &other.listener, other.auth)
    }

    /// Adds what a later rule says about the same peer.
    pub(crate) fn merge(&mut self, selector: &Selector, new: Self) -> Result<(), Conflict> {
        match new.level.cmp(&self.level).then(self.verdict.cmp(&new.verdict)) {
            Ordering::Greater => return Ok(()),
            Ordering::Less => {
                *self = new;
                return Ok(());
            }
            Ordering::Equal => {}
        }
        if self.verdict == Verdict::Allow {
            self.merge_allow(selector, &new)?;
        }
        self.origins.unite(&new.origins);
        Ok(())
    }

    fn merge_allow(&mut self, selector: &Selector, new: &Self) -> Result<(), Conflict> {
        let is_same = |one: &Self, other: &Self| {
            (
                &one.rules,
                &one.server_names,
                &one.terminating_tls,
                &one.originating_tls,
            ) == (
                &other.rules,
                &other.server_names,
                &other.terminating_tls,
                &other.originating_tls,
            )
        };
        if is_same(self, new) && self.is_equivalent(new) {
            return Ok(());
        }
        match (self.parser, new.parser) {
            (one, other) if one == other => {}
            (_, Parser::None) | (Parser::Http, Parser::Tls) => {}
            (Parser::None, _) | (Parser::Tls, Parser::Http) => {
                self.parser = new.parser;
                self.listener_priority = new.listener_priority;
            }
            (one, other) => return Err(Conflict::Parsers(one.name(), other.name())),
        }
        if let Some(listener) = &new.listener {
            match &self.listener {
                Some(own) if own != listener && self.listener_priority == new.listener_priority => {
                    return Err(Conflict::Listeners {
                        new: listener.clone(),
                        old: own.clone(),
                        priority: new.listener_priority,
                    });
                }
                // 0 is the lowest.
                Some(_) if new.listener_priority == 0 || self.listener_priority <= new.listener_priority => {}
                _ => {
                    self.listener = Some(listener.clone());
                    self.listener_priority = new.listener_priority;
                }
            }
        }
        match (self.auth, new.auth) {
            (_, None) => {}
            (None, auth) => self.auth = auth,
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => return Err(Conflict::Auth(mode(other), mode(one))),
        }
        let tls = |own: &mut Option<TlsSecret>, new: &Option<TlsSecret>, name| match (&own, new) {
            (Some(one), Some(other)) if one != other => Err(Conflict::Tls(name, selector.clone())),
            (None, Some(other)) => {
                *own = Some(other.clone());
                Ok(())
            }
            _ => Ok(()),
        };
        tls(&mut self.terminating_tls, &new.terminating_tls, "terminating")?;
        tls(&mut self.originating_tls, &new.originating_tls, "originating")?;
        self.server_names.extend(new.server_names.iter().cloned());
        if !self.server_names.is_empty() && !self.rules.is_empty() && self.terminating_tls.is_none() {
            return Err(Conflict::ServerNames(selector.clone()));
        }
        self.rules.unite(&new.rules);
        Ok(())
    }
}

fn mode(auth: AuthType) -> &'static str {
    match auth {
        AuthType::Disabled => "disabled",
        AuthType::Required => "required",
        AuthType::AlwaysFail => "test-always-fail",
    }
}

/// Peers of some ports. Peers of one rule share what it says.
pub type Filter = BTreeMap<Selector, Arc<PeerPolicy>>;

/// Who gets redirected traffic. Redirects of a direction share one port for each parser, listeners have one each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyClass {
    Http(Direction),
    Tls(Direction),
    Dns,
    Listener(ListenerName),
}

impl ProxyClass {
    pub fn of(policy: &PeerPolicy, direction: Direction) -> Option<Self> {
        if !policy.is_redirect() {
            return None;
        }
        Some(match (policy.parser, &policy.listener) {
            (Parser::None, _) => return None,
            (Parser::Crd, Some(listener)) => Self::Listener(listener.clone()),
            (Parser::Crd, None) => return None,
            (Parser::Http, _) => Self::Http(direction),
            (Parser::Tls, _) => Self::Tls(direction),
            (Parser::Dns, _) => Self::Dns,
        })
    }
}

impl fmt::Display for ProxyClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(direction) => write!(f, "http-{}", direction.name()),
            Self::Tls(direction) => write!(f, "tls-{}", direction.name()),
            Self::Dns => f.write_str("dns"),
            Self::Listener(name) => write!(f, "listener:{name}"),
        }
    }
}
