// SPDX-License-Identifier: Apache-2.0

//! Pools of addresses, and which of them are in conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use skep_k8s_crds::pools::{AllowFirstLastIps, LoadBalancerPoolSpec};
use skep_k8s_crds::shared::{self, SelectorOperator};
use skep_k8s_types::selector::{Selector, SelectorError};
use skep_k8s_types::slim::{LabelSelector, Labels, SelectorRequirement, Str};

use crate::address::{Range, RangeError, count_distinct};

/// Why the specification of a pool cannot be used. Fix the pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A block is no range of addresses.
    #[error("spec.blocks[{index}]: {cause}")]
    Block {
        index: usize,
        /// Why. In the text: conditions have no causes.
        cause: RangeError,
    },
    /// The selector of services is invalid.
    #[error("spec.serviceSelector: {0}")]
    Selector(SelectorError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// When it was created: the older one of two pools in conflict is used.
    pub created: Option<Timestamp>,
    pub ranges: Vec<Range>,
    pub selector: Selector,
    /// Nothing more is allocated; what is in use stays.
    pub is_disabled: bool,
}

impl Pool {
    /// Reads a specification.
    ///
    /// # Errors
    ///
    /// [`PoolError`] with the first fault. No part of the specification is used then.
    pub fn new(spec: &LoadBalancerPoolSpec, created: Option<Timestamp>) -> Result<Self, PoolError> {
        let allow_ends = spec.allow_first_last_ips != Some(AllowFirstLastIps::No);
        let mut ranges = Vec::new();
        for (index, block) in spec.blocks.iter().flatten().enumerate() {
            let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            let range = match (text(&block.cidr), text(&block.start)) {
                (Some(cidr), _) => Range::network(&cidr, allow_ends),
                (None, Some(start)) => Range::from_to(&start, text(&block.stop).as_deref()),
                (None, None) => Err(RangeError::Empty),
            };
            ranges.push(range.map_err(|cause| PoolError::Block { index, cause })?);
        }
        let selector = spec
            .service_selector
            .as_ref()
            .map(slim_selector)
            .unwrap_or_default();
        Ok(Self {
            created,
            ranges,
            selector: Selector::try_from(&selector).map_err(PoolError::Selector)?,
            is_disabled: spec.disabled.unwrap_or_default(),
        })
    }

    /// The range that an address is in.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(address))
    }

    /// A range that overlaps one of `other`, and that one.
    fn overlap(&self, other: &Self) -> Option<(Range, Range)> {
        let pairs = self
            .ranges
            .iter()
            .flat_map(|own| other.ranges.iter().map(move |other| (*own, *other)));
        pairs.into_iter().find(|(own, other)| own.overlaps(other))
    }

    /// Two ranges of the pool that overlap.
    fn own_overlap(&self) -> Option<(Range, Range)> {
        let pairs =
            self.ranges.iter().enumerate().flat_map(|(index, later)| {
                self.ranges[..index].iter().map(move |earlier| (*later, *earlier))
            });
        pairs.into_iter().find(|(later, earlier)| later.overlaps(earlier))
    }
}

fn slim_selector(selector: &shared::LabelSelector) -> LabelSelector {
    let operator = |operator| match operator {
        SelectorOperator::In => "In",
        SelectorOperator::NotIn => "NotIn",
        SelectorOperator::Exists => "Exists",
        SelectorOperator::DoesNotExist => "DoesNotExist",
    };
    LabelSelector {
        match_labels: Labels::from_iter(selector.match_labels.iter().flatten()),
        match_expressions: selector
            .match_expressions
            .iter()
            .flatten()
            .map(|expression| SelectorRequirement {
                key: Str::new(&expression.key),
                operator: Str::new(operator(expression.operator)),
                values: expression.values.iter().flatten().map(Str::new).collect(),
            })
            .collect(),
    }
}

/// An overlap of a pool with an older one, or of two of its own ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub range: Range,
    pub overlapped: Range,
    /// The pool that the overlapped range is of.
    pub owner: Str,
}

/// All pools. Only open ones allocate: those that are neither disabled nor in conflict.
#[derive(Debug, Clone, Default)]
pub struct Pools {
    pools: BTreeMap<Str, Pool>,
    conflicts: BTreeMap<Str, Conflict>,
    /// Whether there are pools whose ranges are not known.
    has_unknown: bool,
}

impl Pools {
    /// Finds the conflicts of pools. `has_unknown` says that there are more pools, whose ranges are not known: then
    /// addresses of no pool stay with services that have them.
    ///
    /// The newer pool is in conflict, by name if both are of the same time. A pool in conflict makes no conflicts.
    pub fn new(pools: BTreeMap<Str, Pool>, has_unknown: bool) -> Self {
        let mut oldest_first: Vec<(&Str, &Pool)> = pools.iter().collect();
        oldest_first.sort_by_key(|(name, pool)| (pool.created, *name));
        let mut conflicts = BTreeMap::new();
        let mut accepted: Vec<(&Str, &Pool)> = Vec::new();
        for (name, pool) in oldest_first {
            let own = pool.own_overlap().map(|overlap| (overlap, name));
            let other = || {
                accepted
                    .iter()
                    .find_map(|(owner, older)| Some((pool.overlap(older)?, *owner)))
            };
            match own.or_else(other) {
                Some(((range, overlapped), owner)) => {
                    let owner = owner.clone();
                    let conflict = Conflict {
                        range,
                        overlapped,
                        owner,
                    };
                    conflicts.insert(name.clone(), conflict);
                }
                None => accepted.push((name, pool)),
            }
        }
        Self {
            pools,
            conflicts,
            has_unknown,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Str, &Pool)> {
        self.pools.iter()
    }

    pub fn conflict(&self, name: &str) -> Option<&Conflict> {
        self.conflicts.get(name)
    }

    pub fn conflicts(&self) -> usize {
        self.conflicts.len()
    }

    pub fn is_open(&self, name: &str) -> bool {
        self.pools.get(name).is_some_and(|pool| !pool.is_disabled) && !self.conflicts.contains_key(name)
    }

    /// Pools that an address is in.
    pub fn containing(&self, address: IpAddr) -> impl Iterator<Item = (&Str, &Pool)> {
        self.iter()
            .filter(move |(_, pool)| pool.range_of(address).is_some())
    }

    /// Whether a pool has an address for a service with these labels.
    pub fn has_for(&self, address: IpAddr, labels: &Labels) -> bool {
        let mut containing = self.containing(address);
        containing.any(|(_, pool)| pool.selector.matches(labels))
    }

    /// Whether a pool may have an address, whatever the service.
    pub fn may_have(&self, address: IpAddr) -> bool {
        self.has_unknown || self.containing(address).next().is_some()
    }

    /// Whether a service with these labels may keep an address: a pool has it for the service.
    pub fn may_keep(&self, address: IpAddr, labels: &Labels) -> bool {
        let is_unknown = self.has_unknown && self.containing(address).next().is_none();
        is_unknown || self.has_for(address, labels)
    }

    /// The pool that an address is of: one that is not in conflict, else the oldest that contains it.
    fn owner(&self, address: IpAddr) -> Option<&Str> {
        let age = |(name, pool): &(&Str, &Pool)| {
            let is_in_conflict = self.conflicts.contains_key(*name);
            (is_in_conflict, pool.created, (*name).clone())
        };
        let owner = self.containing(address).min_by_key(age);
        owner.map(|(name, _)| name)
    }

    /// Addresses of a pool: how many there are, and how many of them are in use or held back. One in use counts for one pool.
    pub fn usage(&self, name: &str, used: impl IntoIterator<Item = IpAddr>) -> Usage {
        let Some(pool) = self.pools.get(name) else {
            return Usage::default();
        };
        let held_back: BTreeSet<IpAddr> = pool.ranges.iter().flat_map(Range::held_back).collect();
        let is_own = |address: &IpAddr| self.owner(*address).is_some_and(|owner| owner == name);
        let in_use = used
            .into_iter()
            .filter(|address| !held_back.contains(address) && is_own(address));
        let count = in_use.count() + held_back.len();
        Usage {
            total: count_distinct(&pool.ranges),
            used: count as u128,
        }
    }
}

/// How many addresses a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub total: u128,
    /// Those in use or held back.
    pub used: u128,
}

impl Usage {
    pub fn available(self) -> u128 {
        self.total.saturating_sub(self.used)
    }
}
