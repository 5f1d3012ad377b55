// SPDX-License-Identifier: Apache-2.0

//! Ordered writes to several maps, gathered over many objects and carried out stage by stage.
//!
//! Programs read the maps while they are written, and must never follow a reference to an entry that does not exist. So an
//! object is written in an order: what others refer to first, what leads to it last; and deleted the other way round. A
//! [`Transaction`] keeps that order for many objects at once with few system calls: it carries out one *stage* for all of
//! them before the next.
//!
//! - A stage is a batch of [`Updates`] of a map or of [`Deletions`] from it. A map is a handle that
//!   [`Maps`](crate::Maps) returns: a [`Map`](skep_bpf_sys::Map), a [`NestedMap`](skep_bpf_sys::NestedMap), or an
//!   [`IpPair`](crate::IpPair) of them. What is on another handle implements [`BatchMap`].
//! - Every entry has an [`Owner`], the object it is for. An owner of which an entry fails takes no part in the stages that
//!   follow; all others do.
//! - The [`Phase`] in which an owner failed says what the maps hold of it: what they held before, something in between,
//!   or what was staged.
//! - Stages keep their memory from round to round, for some thousands of entries at most.
//!
//! # A domain that uses it
//!
//! 1. A struct with a handle for each map, and with [`stages!`](crate::stages) one with a stage for each step of the order.
//!    The struct of stages lives as long as the domain's reconciler.
//! 2. A function that runs the stages: its text is the order.
//! 3. A round: one owner for each object, its entries pushed to the stages, the function, then the errors by owner.
//!
//! Endpoints have policies, and programs find the policy by the endpoint. A policy is written before the endpoint that
//! leads to it:
//!
//! ```
//! use skep_bpf_maps::{MapFamily, Size, register};
//! use skep_bpf_sys::{Map, MapKind};
//! use skep_datapath_maps::Maps;
//! use skep_datapath_maps::transaction::{Deletions, Phase, Stage, Transaction, Updates};
//!
//! static POLICIES: MapFamily<u32, u64> =
//!     MapFamily::new("cilium_example_policies", MapKind::Hash, Size::Fixed(2), "example").written_by_agent();
//! static ENDPOINTS: MapFamily<u64, u32> =
//!     MapFamily::new("cilium_example_endpoints", MapKind::Hash, Size::Fixed(64), "example").written_by_agent();
//! register!(POLICIES, ENDPOINTS);
//!
//! type Policies = Map<u32, u64>;
//! type Endpoints = Map<u64, u32>;
//!
//! struct EndpointMaps {
//!     policies: Policies,
//!     endpoints: Endpoints,
//! }
//!
//! skep_datapath_maps::stages! {
//!     struct Stages {
//!         policies: Updates<Policies>,
//!         endpoints: Updates<Endpoints>,
//!         stale_policies: Deletions<Policies>,
//!     }
//! }
//!
//! impl Stages {
//!     fn run(&mut self, maps: &EndpointMaps, txn: &mut Transaction) {
//!         txn.run(&mut self.policies, &maps.policies);
//!         txn.enter(Phase::Change);
//!         txn.run(&mut self.endpoints, &maps.endpoints);
//!         txn.enter(Phase::CleanUp);
//!         txn.run(&mut self.stale_policies, &maps.policies);
//!     }
//! }
//!
//! let maps = Maps::in_memory([])?;
//! let maps = EndpointMaps { policies: maps.handle(&POLICIES), endpoints: maps.handle(&ENDPOINTS) };
//! let (mut stages, mut txn) = (Stages::default(), Transaction::default());
//!
//! // Three endpoints, with room for two policies.
//! for (endpoint, policy) in [(10, 1), (20, 2), (30, 3)] {
//!     let owner = txn.add_owner();
//!     stages.policies.push(owner, (policy, 0xff));
//!     stages.endpoints.push(owner, (endpoint, policy));
//! }
//! stages.run(&maps, &mut txn);
//! stages.clear();
//!
//! assert_eq!(txn.failed_in(2), Some(Phase::Add));
//! let errors: Vec<Option<String>> = txn.finish().map(|error| Some(error?.to_string())).collect();
//! assert_eq!(errors, [None, None, Some("map cilium_example_policies is full (2 entries)".to_owned())]);
//! // Nothing leads to the policy that did not fit.
//! assert_eq!(maps.endpoints.lookup(&30)?, None);
//! assert_eq!(maps.endpoints.lookup(&20)?, Some(2));
//! # Ok::<(), skep_bpf_sys::MapError>(())
//! ```

mod stage;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use skep_bpf_sys::MapError;

pub use self::stage::{BatchMap, Delete, Deletions, MapStage, Stage, StagedMap, Update, Updates, Write};

/// Declares the stages of a domain: a struct of [`Updates`] and [`Deletions`], all empty by default, with a method `clear`
/// for all of them. [The module](crate::transaction) has an example.
#[macro_export]
macro_rules! stages {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_stage:meta])* $stage_visibility:vis $stage:ident: $type:ty),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        $visibility struct $name {
            $($(#[$of_stage])* $stage_visibility $stage: $type,)*
        }

        impl $name {
            /// Forgets the entries of all stages. Memory for some thousands of each is kept for the next round.
            $visibility fn clear(&mut self) {
                $($crate::transaction::Stage::clear(&mut self.$stage);)*
            }
        }
    };
}

/// Index of an object in a transaction.
pub type Owner = u32;

/// Why an entry was not written or deleted. Clones share the cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// No room for a new entry. Raise the setting of the map's size, or remove what fills it.
    #[error("map {} is full ({max} entries{})", cause.map(), setting(cause.map()))]
    Full {
        /// Most entries that it holds.
        max: u32,
        /// What the map said.
        cause: Arc<MapError>,
    },
    /// Another reason.
    #[error(transparent)]
    Failed(Arc<MapError>),
}

/// The setting of the size of a map, if it has one, for a message.
fn setting(map: &str) -> String {
    let setting = skep_bpf_maps::find(map).and_then(|family| family.size_setting());
    setting
        .map(|setting| format!(", see {setting}"))
        .unwrap_or_default()
}

impl WriteError {
    /// The failure of an operation on a map that holds at most so many entries.
    pub fn new(error: MapError, max: u32) -> Self {
        let is_full = error.is_full();
        let cause = Arc::new(error);
        match is_full {
            true => Self::Full { max, cause },
            false => Self::Failed(cause),
        }
    }

    /// What the map said.
    pub fn cause(&self) -> &MapError {
        match self {
            Self::Full { cause, .. } | Self::Failed(cause) => cause,
        }
    }

    /// Name of the map.
    pub fn map(&self) -> &str {
        self.cause().map()
    }

    /// Whether the map had no room.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// What the stages of a transaction do to what programs rely on. A transaction starts with [`Add`](Self::Add).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Entries are added; nothing is overwritten or deleted that the maps held before. An owner that fails *early* can be
    /// restored to what it was.
    #[default]
    Add,
    /// Entries that programs rely on are replaced and deleted. An owner that fails is in between, and is written in full
    /// at the next try.
    Change,
    /// Entries are deleted that nothing refers to. An owner that fails *late* is as staged, with a deletion to be retried.
    CleanUp,
}

/// Carries stages out in order, and keeps the errors of the owners.
#[derive(Debug)]
pub struct Transaction<E = WriteError> {
    owners: Vec<Option<Failure<E>>>,
    failed: usize,
    phase: Phase,
}

#[derive(Debug)]
struct Failure<E> {
    phase: Phase,
    error: E,
}

impl<E> Default for Transaction<E> {
    fn default() -> Self {
        Self {
            owners: Vec::new(),
            failed: 0,
            phase: Phase::default(),
        }
    }
}

impl<E> Transaction<E> {
    /// A transaction with so many owners, of which none failed.
    pub fn with_owners(count: usize) -> Self {
        let mut transaction = Self::default();
        transaction.owners.resize_with(count, || None);
        transaction
    }

    /// Adds an owner.
    pub fn add_owner(&mut self) -> Owner {
        stage::bound(&mut self.owners);
        self.owners.push(None);
        (self.owners.len() - 1) as Owner
    }

    /// Number of owners.
    pub fn owners(&self) -> usize {
        self.owners.len()
    }

    /// Begins a phase: failures from now on belong to it.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Takes an owner out of the stages that follow. Of several errors of an owner the first is kept.
    ///
    /// # Panics
    ///
    /// If there is no such owner, as all methods with an owner do.
    pub fn fail(&mut self, owner: Owner, error: E) {
        let slot = &mut self.owners[owner as usize];
        if slot.is_none() {
            let phase = self.phase;
            *slot = Some(Failure { phase, error });
            self.failed += 1;
        }
    }

    /// Whether any owner failed.
    pub const fn has_failures(&self) -> bool {
        self.failed > 0
    }

    /// The error of an owner.
    pub fn error(&self, owner: Owner) -> Option<&E> {
        self.owners[owner as usize].as_ref().map(|failure| &failure.error)
    }

    /// The phase in which an owner failed.
    pub fn failed_in(&self, owner: Owner) -> Option<Phase> {
        self.owners[owner as usize].as_ref().map(|failure| failure.phase)
    }

    /// Whether the entries of an owner are not as staged: it failed, and not only in [`Phase::CleanUp`].
    pub fn is_incomplete(&self, owner: Owner) -> bool {
        self.failed_in(owner).is_some_and(|phase| phase < Phase::CleanUp)
    }

    /// Owners whose entries are not as staged, with their errors.
    pub fn incomplete(&self) -> impl Iterator<Item = (Owner, &E)> {
        let failures = (0..).zip(&self.owners);
        let failures = failures.filter_map(|(owner, failure)| Some((owner, failure.as_ref()?)));
        let incomplete = failures.filter(|(_, failure)| failure.phase < Phase::CleanUp);
        incomplete.map(|(owner, failure)| (owner, &failure.error))
    }

    /// Returns the error of each owner, in the order in which they were added. The transaction is then as new.
    pub fn finish(&mut self) -> impl Iterator<Item = Option<E>> {
        self.failed = 0;
        self.phase = Phase::default();
        self.owners.drain(..).map(|failure| Some(failure?.error))
    }
}

impl<E: From<WriteError>> Transaction<E> {
    /// Carries out a stage, without the entries of owners that failed: these are dropped from it.
    pub fn run<S: Stage>(&mut self, stage: &mut S, map: &S::Map) {
        if self.failed > 0 {
            stage.retain_owners(|owner| self.error(owner).is_none());
        }
        self.run_shared(stage, map);
    }

    /// Carries out a stage of entries that other owners rely on, too: also those of owners that failed.
    pub fn run_shared<S: Stage>(&mut self, stage: &mut S, map: &S::Map) {
        stage.write(map, |owner, error| self.fail(owner, error.into()));
    }
}
