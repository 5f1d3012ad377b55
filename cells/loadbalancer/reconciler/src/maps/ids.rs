// SPDX-License-Identifier: Apache-2.0

//! Ids of services and backends in the maps: how far they were allocated, and which of them entries bear.

use roaring::RoaringBitmap;
use skep_bpf_maps::conntrack::{CT_ANY4, CT_ANY6, CT_TCP4, CT_TCP6, CtEntry, CtKey4, CtKey6, key_flags};
use skep_bpf_maps::lb::{
    AFFINITY4, AFFINITY6, Affinity, Affinity4Key, Affinity6Key, BACKEND_IDS, IdMark, REVERSE_SK4,
    REVERSE_SK6, ReverseSk4, ReverseSk4Key, ReverseSk6, ReverseSk6Key, SERVICE_IDS,
};
use skep_bpf_maps::{MapFamily, layout::Layout, text::Text};
use skep_bpf_sys::map::Plain;
use skep_bpf_sys::{Map, MapError};
use skep_datapath_maps::{IpPair, Maps};

use super::LoadBalancerMaps;

/// Maps in which programs remember flows: their entries bear ids of services and backends.
#[derive(Clone, Debug)]
pub struct FlowMaps {
    conntrack: Vec<IpPair<Map<CtKey4, CtEntry>, Map<CtKey6, CtEntry>>>,
    affinity: IpPair<Map<Affinity4Key, Affinity>, Map<Affinity6Key, Affinity>>,
    sockets: IpPair<Map<ReverseSk4Key, ReverseSk4>, Map<ReverseSk6Key, ReverseSk6>>,
}

/// Ids that entries of maps bear.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct BorneIds {
    /// Of services.
    pub services: RoaringBitmap,
    /// Of backends.
    pub backends: RoaringBitmap,
}

impl FlowMaps {
    /// Takes the handles of the maps. Those of conntrack are there if programs at interfaces are part of the agent.
    pub(super) fn new(maps: &Maps) -> Self {
        let tcp = (of_others(maps, &CT_TCP4), of_others(maps, &CT_TCP6));
        let any = (of_others(maps, &CT_ANY4), of_others(maps, &CT_ANY6));
        Self {
            conntrack: [tcp, any]
                .into_iter()
                .filter_map(|(v4, v6)| Some(IpPair::new(v4?, v6?)))
                .collect(),
            affinity: IpPair::new(maps.handle(&AFFINITY4), maps.handle(&AFFINITY6)),
            sockets: IpPair::new(maps.handle(&REVERSE_SK4), maps.handle(&REVERSE_SK6)),
        }
    }

    fn read(&self, borne: &mut BorneIds) -> Result<(), MapError> {
        for maps in &self.conntrack {
            maps.v4.for_each(|key, entry| borne.add_flow(key.flags, &entry))?;
            maps.v6.for_each(|key, entry| borne.add_flow(key.flags, &entry))?;
        }
        let BorneIds { services, backends } = borne;
        let mut sticky = |service: u16, value: Affinity| {
            services.insert(service.into());
            backends.insert(value.backend_id);
        };
        let affinity = &self.affinity;
        affinity
            .v4
            .for_each(|key, value| sticky(key.rev_nat.get(), value))?;
        affinity
            .v6
            .for_each(|key, value| sticky(key.rev_nat.get(), value))?;
        let mut socket = |service: u16| {
            services.insert(service.into());
        };
        self.sockets.v4.for_each(|_, value| socket(value.rev_nat.get()))?;
        self.sockets.v6.for_each(|_, value| socket(value.rev_nat.get()))
    }
}

/// The map of a family of another owner, if that is part of the program.
fn of_others<K, V>(maps: &Maps, family: &'static MapFamily<K, V>) -> Option<Map<K, V>>
where
    K: Plain + Ord + Text + Layout,
    V: Plain + Text + Layout,
{
    maps.get(family.name).map(|_| maps.handle(family))
}

impl BorneIds {
    fn add_flow(&mut self, flags: u8, entry: &CtEntry) {
        self.services.insert(entry.rev_nat.get().into());
        if flags & key_flags::SERVICE != 0 {
            // The field is wider than ids are.
            self.backends.insert(entry.backend_id() as u32);
        }
    }
}

impl LoadBalancerMaps {
    /// Ids that entries bear: those of flows, whose object may be long gone, and those of what is, or was, served.
    ///
    /// # Errors
    /// The first map that cannot be read.
    pub fn borne_ids(&self) -> Result<BorneIds, MapError> {
        let mut borne = BorneIds::default();
        self.flows.read(&mut borne)?;
        let BorneIds { services, backends } = &mut borne;
        let mut service = |id: u16| {
            services.insert(id.into());
        };
        self.each_service(|_, _, value| service(value.rev_nat.get()))?;
        self.each_reverse_nat(|id, _| service(id))?;
        self.each_source_range(|id, _| service(id))?;
        self.each_backend(|id, _| {
            backends.insert(id);
        })?;
        for ipv6 in [false, true] {
            let keys = self.maglev.of(ipv6).keys()?;
            services.extend(keys.iter().map(|key| u32::from(key.rev_nat.get())));
        }
        self.each_affinity(|id, backend| {
            services.insert(id.into());
            backends.insert(backend);
        })?;
        services.remove(0);
        backends.remove(0);
        Ok(borne)
    }

    /// How far ids of services and of backends were allocated.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn id_marks(&self) -> Result<[IdMark; 2], MapError> {
        let mark = |index| Ok(self.id_marks.lookup(&index)?.unwrap_or_default());
        Ok([mark(SERVICE_IDS)?, mark(BACKEND_IDS)?])
    }

    /// Notes how far ids of services and of backends were allocated.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn write_id_marks(&self, [services, backends]: [IdMark; 2]) -> Result<(), MapError> {
        self.id_marks.update(&SERVICE_IDS, &services)?;
        self.id_marks.update(&BACKEND_IDS, &backends)
    }
}
