// SPDX-License-Identifier: Apache-2.0

//! Which expired addresses connections of endpoints still use.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use skep_bpf_maps::conntrack::{CT_ANY4, CT_ANY6, CT_TCP4, CT_TCP6, CtEntry, key_flags};
use skep_bpf_sys::{Map, MapError};
use skep_datapath_maps::Maps;

use crate::proxy::ProxyEndpoints;

/// The conntrack maps, read after each pass of their garbage collection: what is left is alive.
pub(crate) struct Connections {
    pub(crate) maps: Arc<Maps>,
    pub(crate) endpoints: Arc<dyn ProxyEndpoints>,
}

impl Connections {
    /// Of these addresses of endpoints those that flows go to.
    pub(crate) fn alive(
        &self,
        zombies: &BTreeMap<u16, BTreeSet<IpAddr>>,
    ) -> Result<Vec<(u16, IpAddr)>, MapError> {
        let mut seen = BTreeSet::new();
        let wanted: BTreeSet<IpAddr> = zombies.values().flatten().copied().collect();
        let mut look = |source: IpAddr, to: IpAddr, flags: u8| {
            // Of the first packet of a flow.
            if flags == 0 && wanted.contains(&to) {
                seen.insert((source, to));
            }
        };
        macro_rules! look_at {
            ($is_wanted:expr, $families:expr) => {
                if wanted.iter().any($is_wanted) {
                    for family in $families {
                        let map: Map<_, CtEntry> = self.maps.handle(family);
                        // Addresses are exchanged.
                        map.for_each(|key, _| {
                            let flags = key.flags & !key_flags::RELATED;
                            look(key.daddr.into(), key.saddr.into(), flags);
                        })?;
                    }
                }
            };
        }
        look_at!(IpAddr::is_ipv4, [&CT_TCP4, &CT_ANY4]);
        look_at!(IpAddr::is_ipv6, [&CT_TCP6, &CT_ANY6]);
        let alive = seen.into_iter().filter_map(|(source, to)| {
            // Others than those of endpoints are of the node.
            let endpoint = self
                .endpoints
                .by_address(source)
                .or_else(|| self.endpoints.host())?
                .id;
            let is_zombie = zombies.get(&endpoint).is_some_and(|of| of.contains(&to));
            is_zombie.then_some((endpoint, to))
        });
        Ok(alive.collect())
    }
}
