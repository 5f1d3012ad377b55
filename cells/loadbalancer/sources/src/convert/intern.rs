// SPDX-License-Identifier: Apache-2.0

//! Shared copies of what thousands of backends repeat: node names, zones, port names.

use std::hash::Hash;
use std::sync::Arc;

use compact_str::CompactString;
use skep_loadbalancer_model::hash::HashSet;
use skep_loadbalancer_model::types::{BackendZone, Names};

/// Values remembered of one sort. Beyond, all are forgotten: new ones are no longer shared with old ones, which
/// costs memory, not correctness.
const LIMIT: usize = 8192;

/// Shares one allocation among equal values.
#[derive(Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    zones: HashSet<Arc<BackendZone>>,
    names: HashSet<Arc<[CompactString]>>,
}

impl Interner {
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        match self.texts.get(text) {
            Some(known) => known.clone(),
            None => remember(&mut self.texts, Arc::from(text)),
        }
    }

    pub(super) fn zone(&mut self, zone: BackendZone) -> Arc<BackendZone> {
        match self.zones.get(&zone) {
            Some(known) => known.clone(),
            None => remember(&mut self.zones, Arc::new(zone)),
        }
    }

    pub(super) fn names(&mut self, names: &[CompactString]) -> Names {
        Names::from(match self.names.get(names) {
            Some(known) => known.clone(),
            None => remember(&mut self.names, names.into()),
        })
    }
}

fn remember<T: Clone + Eq + Hash>(known: &mut HashSet<T>, value: T) -> T {
    if known.len() >= LIMIT {
        known.clear();
    }
    known.insert(value.clone());
    value
}
