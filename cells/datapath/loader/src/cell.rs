// SPDX-License-Identifier: Apache-2.0

//! Cell: the programs at interfaces.

use std::{future::Future, pin::Pin, sync::Arc};

use hive::{Cell, Cfg, HookCtx, Lifecycle, Member};
use skep_base_settings::{AddressFamilies, MapConfig};
use skep_bpf_maps::conntrack;
use skep_bpf_sys::MapStore;
use skep_datapath_maps::{MapOwner, Maps, packet_map_sizes};

use skep_datapath_hooks::{EndpointHooks, HookError};

use crate::{PacketDatapath, PacketSettings, reconciler};

/// Loads the packet programs, attaches them to the interfaces of the node, and makes `cilium_host` and `cilium_net`.
///
/// Requires: the settings of [`skep_base_settings`], of the load balancer and of Maglev, the maps, the tables of
/// [`skep_node_local`], [`SocketDatapath`](skep_datapath_socketlb::SocketDatapath); takes `Arc<dyn MapsWritten>` if it is
/// there.
/// Provides: `Arc<dyn EndpointHooks>`, [`PacketDatapath`] (status).
pub fn cell() -> Cell {
    Cell::module("datapath-loader", "Programs at interfaces")
        .provide(map_owner)
        .provide(datapath)
        .provide(hooks)
        .run(reconciler::start)
}

/// The maps that the programs write.
fn map_owner(config: Cfg<MapConfig>, families: Cfg<AddressFamilies>) -> Member<MapOwner> {
    let owner = MapOwner::new(conntrack::OWNER)
        .sizes(packet_map_sizes(&config))
        .ip(families.ipv4, families.ipv6);
    Member(owner)
}

fn datapath(
    store: Arc<MapStore>,
    maps: Arc<Maps>,
    settings: PacketSettings,
    lifecycle: Lifecycle,
) -> Arc<PacketDatapath> {
    let datapath = PacketDatapath::new(store, &maps, settings);
    let at_stop = datapath.clone();
    lifecycle.on_stop("hold-maps", move |_cx: HookCtx| {
        at_stop.hold_again();
        async {}
    });
    datapath
}

fn hooks(datapath: Arc<PacketDatapath>) -> Arc<dyn EndpointHooks> {
    datapath
}

impl EndpointHooks for PacketDatapath {
    fn attach(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        self.attach_to_endpoint(endpoint, interface)
    }

    fn attach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        self.attach_egress_to_endpoint(endpoint, interface)
    }

    fn detach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        self.detach_egress_from_endpoint(endpoint, interface)
    }

    fn detach(&self, endpoint: u16) -> Result<(), HookError> {
        self.detach_from_endpoint(endpoint)
    }

    fn loaded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut loaded = self.watch_loaded();
        Box::pin(async move {
            // The sender lives as long as the future borrows from it.
            let _ = loaded.wait_for(|loaded| *loaded).await;
        })
    }
}
