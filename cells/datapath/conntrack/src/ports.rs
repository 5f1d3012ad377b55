// SPDX-License-Identifier: Apache-2.0

//! Source ports of SNAT: whether packets found none, and which flows have taken them.
//!
//! Programs count tries in `cilium_snat_v*_alloc_retries`, which costs nothing to read. Only when the count of packets
//! without a port has grown is the NAT map walked, for the destinations that have taken the ports.

use std::{collections::HashMap, io, ops::RangeInclusive, sync::Arc};

use parking_lot::Mutex;
use skep_base_settings::PortRange;
use skep_bpf_maps::{
    MapFamily,
    nat::{NAT_ATTEMPTS, NAT_RETRIES4, NAT_RETRIES6, NAT4, NAT6, NatKey, NatTuple},
    text::protocol,
};
use skep_bpf_sys::{
    MapError,
    map::{PerCpuMap, Plain},
};
use skep_datapath_maps::Maps;

use crate::metrics::{ConntrackMetrics, family};

const NAMED: usize = 3;
/// A destination whose flows have this part of the ports is named: random tries rarely find one of the rest.
const PERCENT: u32 = 75;

/// Why packets found no source port, or why that is not known.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    #[error(transparent)]
    Map(#[from] MapError),
    /// The thread that does the work ended.
    #[error("source ports were not checked")]
    Interrupted(#[from] tokio::task::JoinError),
    /// Packets of new flows are dropped (reason 167). Source ports are those above `node-port-range`: a lower range leaves
    /// more of them. Or send from more addresses, or to more than one address.
    #[error(
        "SNAT found no source port for {} (`node-port-range` leaves {ports}), packets of new flows dropped: {dropped}{}",
        .families.join(" and "), destinations(.taken, *.ports)
    )]
    Exhausted {
        /// The address families: `ipv4`, `ipv6`.
        families: Vec<&'static str>,
        dropped: u64,
        /// Source ports that there are for a destination.
        ports: u32,
        /// Destinations whose flows have taken most of them.
        taken: Vec<TakenPorts>,
    },
}

/// Source ports of an address of this node that flows to one destination have taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenPorts {
    pub tuple: NatTuple,
    pub ports: u32,
}

fn destinations(taken: &[TakenPorts], ports: u32) -> String {
    let texts = taken.iter().map(|taken| {
        let TakenPorts { tuple, ports: of } = taken;
        let (source, destination) = (tuple.source, tuple.destination);
        let protocol = protocol(tuple.protocol);
        format!("; {protocol} from {source} to {destination} has {of} of {ports}")
    });
    texts.collect()
}

/// Watches the source ports of SNAT.
pub(crate) struct SourcePorts {
    maps: Arc<Maps>,
    range: RangeInclusive<u16>,
    metrics: Arc<ConntrackMetrics>,
    /// Packets without a port, by address family, as the last check counted them.
    counted: Mutex<[Option<u64>; 2]>,
}

impl SourcePorts {
    pub(crate) fn new(maps: Arc<Maps>, node_ports: PortRange, metrics: Arc<ConntrackMetrics>) -> Self {
        Self {
            maps,
            range: node_ports.snat_ports(),
            metrics,
            counted: Mutex::default(),
        }
    }

    /// Compares with the last check. May block.
    ///
    /// # Errors
    ///
    /// [`PortsError::Exhausted`] if packets found no source port since then.
    pub(crate) fn check(&self) -> Result<(), PortsError> {
        let (mut families, mut dropped, mut taken) = (Vec::new(), 0, Vec::new());
        for is_ipv6 in [false, true] {
            let failures = self.new_failures(is_ipv6)?;
            self.metrics.port_failures(is_ipv6, failures);
            if failures == 0 {
                continue;
            }
            families.push(family(is_ipv6));
            dropped += failures;
            if is_ipv6 {
                self.add_taken(&NAT6, &mut taken)?;
            } else {
                self.add_taken(&NAT4, &mut taken)?;
            }
        }
        if families.is_empty() {
            return Ok(());
        }
        taken.sort_by_key(|taken: &TakenPorts| (std::cmp::Reverse(taken.ports), taken.tuple.destination));
        taken.truncate(NAMED);
        Err(PortsError::Exhausted {
            families,
            dropped,
            ports: self.ports(),
            taken,
        })
    }

    fn ports(&self) -> u32 {
        u32::from(self.range.end() - self.range.start()) + 1
    }

    /// Packets without a port since the last check; none at the first, as it is unknown when they were.
    fn new_failures(&self, is_ipv6: bool) -> Result<u64, MapError> {
        let retries = if is_ipv6 { &NAT_RETRIES6 } else { &NAT_RETRIES4 };
        let Some(map) = self.maps.get(retries.name) else {
            return Ok(0);
        };
        let values = PerCpuMap::<u32, u32>::from_raw(map.raw())?.lookup(&NAT_ATTEMPTS)?;
        let count = values.into_iter().map(u64::from).sum();
        let last = self.counted.lock()[usize::from(is_ipv6)].replace(count);
        // Less than before: it was reset.
        Ok(last.map_or(0, |last| count.checked_sub(last).unwrap_or(count)))
    }

    fn add_taken<K: NatKey, E: Plain>(
        &self,
        nat: &MapFamily<K, E>,
        taken: &mut Vec<TakenPorts>,
    ) -> Result<(), MapError> {
        let Some(map) = self.maps.get(nat.name) else {
            return Ok(());
        };
        let mut ports: HashMap<NatTuple, u32> = HashMap::new();
        let mut count = |key: &[u8], _: &[u8]| {
            if let Ok(key) = K::read_from_bytes(key)
                && let Some((tuple, port)) = key.answers()
                && self.range.contains(&port)
            {
                *ports.entry(tuple).or_default() += 1;
            }
        };
        let walked = map.raw().walk(&mut count);
        walked.map_err(|source: io::Error| MapError::Walk {
            map: nat.name.to_owned(),
            source,
        })?;
        let most = ports
            .into_iter()
            .filter(|(_, ports)| ports * 100 >= self.ports() * PERCENT);
        taken.extend(most.map(|(tuple, ports)| TakenPorts { tuple, ports }));
        Ok(())
    }
}
