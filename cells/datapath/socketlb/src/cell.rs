// SPDX-License-Identifier: Apache-2.0

//! Cell: the socket programs.

use std::{error::Error, sync::Arc};

use hive::{Cell, Cfg, Member};
use skep_base_settings::{AddressFamilies, ForwardingConfig};
use skep_bpf_maps::{event, lb::HEALTH_OWNER};
use skep_bpf_programs::map_types;
use skep_bpf_sys::MapTypes;
use skep_datapath_maps::{FieldNames, MapOwner};

use crate::{datapath, terminate};

/// Loads, attaches and watches the socket programs.
///
/// Requires: the settings of [`skep_base_settings`], `Arc<LbMapSizes>`, `Arc<MapStore>`; takes `Arc<dyn MapsWritten>` and
/// `Arc<dyn PodNetworks>` if there are any. Provides: [`SocketDatapath`](crate::SocketDatapath) (status),
/// [`DeadBackends`](crate::DeadBackends), `Arc<dyn SocketTermination>`, and the names of the fields of maps (`Arc<dyn FieldNames>`).
pub fn cell() -> Cell {
    Cell::module("socket-lb", "Socket load balancing")
        .provide(field_names)
        .provide(map_owner)
        .provide(probes_owner)
        .provide(datapath::provide)
        .provide(terminate::provide)
        .provide(terminate::termination)
        .run(datapath::watch)
        .run(terminate::run)
}

/// Names of fields from the debug information of the compiled programs.
struct ProgramTypes;

impl FieldNames for ProgramTypes {
    fn load(&self) -> Result<MapTypes, Box<dyn Error + Send + Sync>> {
        Ok(map_types()?)
    }
}

fn field_names() -> Arc<dyn FieldNames> {
    Arc::new(ProgramTypes)
}

/// The maps of health probes exist only where programs write them.
fn probes_owner(forwarding: Cfg<ForwardingConfig>, families: Cfg<AddressFamilies>) -> Member<MapOwner> {
    let is_on = forwarding.health_probes;
    Member(MapOwner::new(HEALTH_OWNER).ip(is_on && families.ipv4, is_on && families.ipv6))
}

/// The maps that the programs write.
fn map_owner() -> Member<MapOwner> {
    Member(MapOwner::new(event::OWNER))
}
