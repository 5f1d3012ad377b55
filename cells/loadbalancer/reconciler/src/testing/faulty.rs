// SPDX-License-Identifier: Apache-2.0

//! Maps that fail now and then, to show that everything is retried.

use std::sync::Arc;

use skep_bpf_maps::lb::{SOURCE_RANGE4, SOURCE_RANGE6};
use skep_bpf_sys::map::{Faults, FaultyMap, Plain};
use skep_bpf_sys::{Map, NestedMap, RawMap};
use skep_datapath_maps::IpPair;

use crate::maps::LoadBalancerMaps;

/// The same maps with a layer above each.
///
/// # Panics
/// If a layer says that its keys and values have other sizes.
pub fn decorated(
    maps: &LoadBalancerMaps,
    layer: impl Fn(Arc<dyn RawMap>) -> Arc<dyn RawMap>,
) -> LoadBalancerMaps {
    const SIZES: &str = "a layer does not change the sizes of a map";
    fn map<K: Plain, V: Plain>(
        below: &Map<K, V>,
        layer: &impl Fn(Arc<dyn RawMap>) -> Arc<dyn RawMap>,
    ) -> Map<K, V> {
        Map::from_raw(layer(below.raw().clone())).expect(SIZES)
    }
    fn tables<K: Plain, E: Plain>(
        below: &NestedMap<K, E>,
        layer: &impl Fn(Arc<dyn RawMap>) -> Arc<dyn RawMap>,
    ) -> NestedMap<K, E> {
        NestedMap::from_raw(layer(below.raw().clone())).expect(SIZES)
    }
    let LoadBalancerMaps {
        services,
        backends,
        reverse_nat,
        affinity,
        source_ranges,
        maglev,
        id_marks,
        flows,
    } = maps;
    LoadBalancerMaps {
        services: IpPair::new(map(&services.v4, &layer), map(&services.v6, &layer)),
        backends: IpPair::new(map(&backends.v4, &layer), map(&backends.v6, &layer)),
        reverse_nat: IpPair::new(map(&reverse_nat.v4, &layer), map(&reverse_nat.v6, &layer)),
        affinity: map(affinity, &layer),
        source_ranges: IpPair::new(map(&source_ranges.v4, &layer), map(&source_ranges.v6, &layer)),
        maglev: IpPair::new(tables(&maglev.v4, &layer), tables(&maglev.v6, &layer)),
        id_marks: id_marks.clone(),
        flows: flows.clone(),
    }
}

/// The same maps with random faults: writes of all of them fail, and reads of the client networks, which stand for all
/// reads.
pub fn with_faults(maps: &LoadBalancerMaps, faults: &Arc<Faults>) -> LoadBalancerMaps {
    decorated(maps, |below| {
        let is_read = [SOURCE_RANGE4.name, SOURCE_RANGE6.name].contains(&below.name());
        let faulty = FaultyMap::with(below, faults.clone());
        Arc::new(if is_read { faulty } else { faulty.readable() })
    })
}
