// SPDX-License-Identifier: Apache-2.0

//! Which endpoint is in which slice. Endpoints stay where they are: a change of a few endpoints writes few slices.
//!
//! 1. Each slice keeps its endpoints that are still desired.
//! 2. New endpoints fill slices that are written anyway.
//! 3. The rest goes into the fullest slice that has room for all of it, or into new slices.

use std::collections::{BTreeMap, BTreeSet};

use super::object::Endpoint;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) create: Vec<Vec<Endpoint>>,
    /// New endpoints of slices, by their position.
    pub(crate) update: BTreeMap<usize, Vec<Endpoint>>,
    /// Slices that are not needed any longer.
    pub(crate) delete: Vec<usize>,
}

fn address(endpoint: &Endpoint) -> &str {
    endpoint.addresses.first().map_or("", |address| address.as_str())
}

/// Assigns endpoints to the existing slices, which have room for `most` each, and to new ones. Each address is desired once.
pub(crate) fn assign(existing: &[&[Endpoint]], desired: &[Endpoint], most: usize) -> Changes {
    let mut missing: BTreeMap<&str, &Endpoint> = desired
        .iter()
        .map(|endpoint| (address(endpoint), endpoint))
        .collect();
    let mut slices: Vec<Vec<Endpoint>> = Vec::new();
    let mut changed = BTreeSet::new();
    for (at, endpoints) in existing.iter().enumerate() {
        let mut kept = Vec::with_capacity(endpoints.len());
        for endpoint in *endpoints {
            if kept.len() < most
                && let Some(desired) = missing.remove(address(endpoint))
            {
                kept.push(desired.clone());
            }
        }
        if kept != *endpoints {
            changed.insert(at);
        }
        slices.push(kept);
    }
    let mut rest: Vec<Endpoint> = missing.into_values().cloned().collect();
    for at in &changed {
        let slice = &mut slices[*at];
        // A slice that lost all of its endpoints is only used if there is no other place.
        let room = most.saturating_sub(slice.len());
        if !slice.is_empty() {
            slice.extend(rest.drain(..room.min(rest.len())));
        }
    }
    for at in &changed {
        let slice = &mut slices[*at];
        if slice.is_empty() {
            slice.extend(rest.drain(..most.min(rest.len())));
        }
    }
    // Only the last part of what is left may fit into an existing slice.
    let part = rest.split_off(rest.len() - rest.len() % most);
    let mut create: Vec<Vec<Endpoint>> = rest.chunks(most).map(<[Endpoint]>::to_vec).collect();
    if !part.is_empty() {
        let fits = |slice: &Vec<Endpoint>| !slice.is_empty() && slice.len() + part.len() <= most;
        let fullest = (0..slices.len())
            .filter(|at| fits(&slices[*at]))
            .max_by_key(|at| (slices[*at].len(), std::cmp::Reverse(*at)));
        match fullest {
            Some(at) => {
                slices[at].extend(part);
                changed.insert(at);
            }
            None => create.push(part),
        }
    }
    let mut changes = Changes {
        create,
        ..Changes::default()
    };
    for (at, slice) in slices.into_iter().enumerate() {
        if slice.is_empty() {
            changes.delete.push(at);
        } else if changed.contains(&at) {
            changes.update.insert(at, slice);
        }
    }
    changes
}
