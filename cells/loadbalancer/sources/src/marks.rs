// SPDX-License-Identifier: Apache-2.0

//! What is remembered of the endpoints of a slice that changes, so that only those are converted again that changed.
//!
//! The API server sends a slice as a whole, for one endpoint of a hundred. Of each endpoint a number of eight bytes is
//! kept that stands for all that conversion reads of it; what has the number that it had is as it was.

use std::hash::BuildHasher;
use std::ops::Range;

use skep_k8s::slim::{Endpoint, EndpointSlice};
use skep_loadbalancer_model::types::{BackendParams, L3n4Addr};
use smallvec::SmallVec;

use crate::convert::{InOrder, mark_of_endpoint, mark_of_slice};

/// Slices with fewer endpoints are converted as a whole: that costs no more than to compare.
const MARKED_FROM: usize = 4;

/// Marks of a slice whose endpoints have one address each, all of them usable and distinct.
#[derive(Debug)]
pub(super) struct Marks {
    slice: u64,
    /// In the order of the slice.
    endpoints: Box<[u64]>,
    /// Addresses with a port that an endpoint gives.
    width: usize,
    /// Where they are among all that the slice gives, sorted; `width` an endpoint.
    places: Box<[u16]>,
}

/// Endpoints that are not what they were, in a row.
#[derive(Debug)]
pub(super) struct Changed {
    old: Range<usize>,
    pub(super) new: Range<usize>,
    /// Marks of all endpoints there are now.
    marks: Vec<u64>,
}

/// What a slice gives now.
pub(super) struct Given {
    pub(super) addresses: Box<[L3n4Addr]>,
    pub(super) marks: Marks,
    /// Given before, and not any more.
    pub(super) dropped: Vec<L3n4Addr>,
    /// Not given before.
    pub(super) added: Vec<L3n4Addr>,
}

impl Marks {
    /// Marks of a slice that was converted as a whole.
    pub(super) fn new(slice: &EndpointSlice, converted: &InOrder, hasher: &impl BuildHasher) -> Option<Self> {
        let (endpoints, width) = (&slice.endpoints, converted.ports);
        if !are_worth_it(slice) || !is_regular(endpoints, width, &converted.backends) {
            return None;
        }
        let count = u16::try_from(converted.backends.len()).ok()?;
        let address = |at: &u16| converted.backends[usize::from(*at)].address;
        let mut sorted: Vec<u16> = (0..count).collect();
        sorted.sort_by_key(address);
        if !sorted.is_sorted_by(|a, b| address(a) < address(b)) {
            return None;
        }
        let mut places = vec![0; sorted.len()];
        for (place, at) in (0..).zip(sorted) {
            places[usize::from(at)] = place;
        }
        Some(Self {
            slice: mark_of_slice(slice, hasher),
            endpoints: endpoints
                .iter()
                .map(|endpoint| mark_of_endpoint(endpoint, hasher))
                .collect(),
            width,
            places: places.into(),
        })
    }

    /// What of a slice changed; `None` if it is to be converted as a whole.
    pub(super) fn compare(&self, slice: &EndpointSlice, hasher: &impl BuildHasher) -> Option<Changed> {
        if mark_of_slice(slice, hasher) != self.slice {
            return None;
        }
        let count = slice.endpoints.len();
        let mut marks = Vec::with_capacity(count);
        marks.extend(
            slice
                .endpoints
                .iter()
                .map(|endpoint| mark_of_endpoint(endpoint, hasher)),
        );
        let pairs = self.endpoints.iter().zip(&marks);
        let front = pairs.take_while(|(old, new)| old == new).count();
        let pairs = self.endpoints[front..]
            .iter()
            .rev()
            .zip(marks[front..].iter().rev());
        let back = pairs.take_while(|(old, new)| old == new).count();
        Some(Changed {
            old: front..self.endpoints.len() - back,
            new: front..count - back,
            marks,
        })
    }

    /// Puts what the changed endpoints became in the place of what they were, among all addresses of the slice; `None`
    /// if it is to be converted as a whole.
    pub(super) fn put(
        &self,
        addresses: &[L3n4Addr],
        slice: &EndpointSlice,
        changed: Changed,
        converted: &[BackendParams],
    ) -> Option<Given> {
        let Changed { old, new, marks } = changed;
        if !is_regular(&slice.endpoints[new], self.width, converted) {
            return None;
        }
        let span = old.start * self.width..old.end * self.width;
        let mut gone: SmallVec<[u16; 8]> = self.places[span.clone()].into();
        gone.sort_unstable();
        let mut come: SmallVec<[(L3n4Addr, usize); 4]> =
            converted.iter().map(|backend| backend.address).zip(0..).collect();
        come.sort_unstable();

        let count = addresses.len() - gone.len() + come.len();
        u16::try_from(count).ok()?;
        let mut all: Vec<L3n4Addr> = Vec::with_capacity(count);
        // New places of what stays, by the old one, and of what comes.
        let mut stays: Vec<u16> = vec![0; addresses.len()];
        let mut comes: SmallVec<[u16; 8]> = SmallVec::from_elem(0, come.len());
        let mut put = |all: &mut Vec<L3n4Addr>, (address, at): (L3n4Addr, usize)| {
            comes[at] = all.len() as u16;
            all.push(address);
        };
        let (mut going, mut coming) = (gone.iter().peekable(), come.iter().copied().peekable());
        for (place, address) in addresses.iter().enumerate() {
            if going.next_if(|gone| usize::from(**gone) == place).is_some() {
                continue;
            }
            while let Some(next) = coming.next_if(|(other, _)| other < address) {
                put(&mut all, next);
            }
            stays[place] = all.len() as u16;
            all.push(*address);
        }
        coming.for_each(|next| put(&mut all, next));
        if !all.is_sorted_by(|a, b| a < b) {
            return None;
        }

        let stay =
            |places: &[u16]| -> Vec<u16> { places.iter().map(|place| stays[usize::from(*place)]).collect() };
        let mut places = stay(&self.places[..span.start]);
        places.extend_from_slice(&comes);
        places.extend(stay(&self.places[span.end..]));
        let was = |address: &L3n4Addr| addresses.binary_search(address).is_ok();
        let is = |address: &L3n4Addr| all.binary_search(address).is_ok();
        let gone = gone.iter().map(|place| addresses[usize::from(*place)]);
        let come = come.iter().map(|(address, _)| *address);
        Some(Given {
            dropped: gone.filter(|address| !is(address)).collect(),
            added: come.filter(|address| !was(address)).collect(),
            addresses: all.into(),
            marks: Self {
                slice: self.slice,
                endpoints: marks.into(),
                width: self.width,
                places: places.into(),
            },
        })
    }
}

/// Whether a slice has so many endpoints that comparing them costs less than converting them.
pub(super) fn are_worth_it(slice: &EndpointSlice) -> bool {
    slice.endpoints.len() >= MARKED_FROM
}

/// Whether each endpoint gave one address, with every port.
fn is_regular(endpoints: &[Endpoint], ports: usize, backends: &[BackendParams]) -> bool {
    ports > 0
        && backends.len() == endpoints.len() * ports
        && endpoints.iter().all(|endpoint| endpoint.addresses.len() == 1)
}
