// SPDX-License-Identifier: Apache-2.0

//! Cells: the store of pinned maps, and the socket programs that use them.

use std::{convert::Infallible, sync::Arc};

use hive::{Cell, Cfg, HookCtx, Lifecycle};
use skep_bpf::{
    MapStore,
    mount::{self, MountError},
};

use crate::{Config, MapsConfig, datapath, terminate};

/// Loads, attaches and watches the socket programs.
///
/// Needs: [`LbSettings`](crate::LbSettings), `Arc<MapStore>`; takes `Arc<dyn MapsWritten>` and
/// `Arc<dyn PodNetworks>` if there are any. Gives: [`SocketDatapath`](crate::SocketDatapath) (status) and
/// [`DeadBackends`](crate::DeadBackends).
pub fn cell() -> Cell {
    Cell::module("socket-lb", "Socket load balancing")
        .config::<Config>()
        .provide(datapath::provide)
        .provide(terminate::provide)
        .run(datapath::watch)
        .run(terminate::run)
}

/// Gives the store of pinned maps; its BPF file system is found or mounted at start.
pub fn maps_cell() -> Cell {
    Cell::module("bpf-maps", "Pinned BPF maps")
        .config::<MapsConfig>()
        .provide(new_store)
}

fn new_store(config: Cfg<MapsConfig>, lifecycle: Lifecycle) -> Result<Arc<MapStore>, Infallible> {
    let store = MapStore::new(&config.bpf_root);
    let (root, mounted) = (config.bpf_root.clone(), store.clone());
    lifecycle.on_start("bpf-file-system", move |cx: HookCtx| {
        let (root, store) = (root.clone(), mounted.clone());
        async move {
            let found = mount::bpffs(&root)?;
            cx.health.ok(format!("Maps are pinned below {}", found.display()));
            store.set_root(found);
            Ok::<(), MountError>(())
        }
    });
    Ok(store)
}
