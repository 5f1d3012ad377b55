// SPDX-License-Identifier: Apache-2.0

//! Cells: devices, node addresses and the local node.
//! Requires: `NodeName`, optionally a Kubernetes client. Provides: read-only tables, `LocalNodeStore`.

use hive::Cell;

/// Everything about the local node.
pub fn cell() -> Cell {
    Cell::group([
        cells::devices(),
        cells::addresses(),
        cells::local_node(),
        cells::local_node_sync(),
    ])
}

/// The parts, for programs that replace some.
pub mod cells {
    use std::sync::Arc;

    use hive::Cell;
    use statedb::{Db, Error, RwTable, Table};

    use crate::address::NodeAddress;
    use crate::config::{AddressConfig, DeviceConfig};
    use crate::device::Device;
    use crate::local::LocalNode;
    use crate::neighbor::Neighbor;
    use crate::netlink::Netlink;
    use crate::route::Route;
    use crate::source::DeviceSource;
    use crate::store::LocalNodeStore;
    use crate::{reflector, sync};
    use skep_base_settings::NodeName;

    /// Tables `devices`, `routes` and `neighbors`, kept in sync with the kernel.
    pub fn devices() -> Cell {
        Cell::module("devices-controller", "Network devices of the node")
            .config::<DeviceConfig>()
            .provide(new_source)
            .provide_private(new_devices)
            .provide_private(new_routes)
            .provide_private(new_neighbors)
            .provide(statedb::read_only::<Device>)
            .provide(statedb::read_only::<Route>)
            .provide(statedb::read_only::<Neighbor>)
            .run(reflector::reflect_devices)
            .library() // programs require some of the tables
    }

    /// Table `node-addresses`, kept in sync with the devices.
    pub fn addresses() -> Cell {
        Cell::module("node-address", "Addresses of the node")
            .config::<AddressConfig>()
            .provide_private(new_addresses)
            .provide(statedb::read_only::<NodeAddress>)
            .run(reflector::reflect_addresses)
    }

    /// Table `node-addresses` without a writer, for tests that insert rows by name. The settings are those of
    /// [`addresses`], and have no effect.
    pub fn empty_addresses() -> Cell {
        Cell::module("node-address", "Addresses of the node")
            .config::<AddressConfig>()
            .provide_private(new_addresses)
            .provide(statedb::read_only::<NodeAddress>)
    }

    /// Table `local-node` and its owner. Only name, boot and network namespace are filled in.
    pub fn local_node() -> Cell {
        Cell::module("local-node-store", "State of the local node")
            .provide(new_store)
            .provide(read_local_node)
    }

    /// Keeps `local-node` in sync with the Kubernetes Node, or with the devices without Kubernetes.
    pub fn local_node_sync() -> Cell {
        Cell::module("local-node-sync", "Keeps the local node up to date").run(sync::sync_local_node)
    }

    fn new_source() -> Arc<dyn DeviceSource> {
        Arc::new(Netlink)
    }

    fn new_devices(db: Db) -> Result<RwTable<Device>, Error> {
        RwTable::builder("devices")
            .primary(Device::BY_INDEX)
            .index(Device::BY_NAME)
            .index(Device::BY_SELECTED)
            .build(&db)
    }

    fn new_routes(db: Db) -> Result<RwTable<Route>, Error> {
        RwTable::builder("routes")
            .primary(Route::BY_ID)
            .index(Route::BY_LINK)
            .build(&db)
    }

    fn new_neighbors(db: Db) -> Result<RwTable<Neighbor>, Error> {
        RwTable::builder("neighbors")
            .primary(Neighbor::BY_ID)
            .index(Neighbor::BY_LINK)
            .index(Neighbor::BY_ADDRESS)
            .build(&db)
    }

    fn new_addresses(db: Db) -> Result<RwTable<NodeAddress>, Error> {
        RwTable::builder("node-addresses")
            .primary(NodeAddress::BY_ID)
            .index(NodeAddress::BY_DEVICE)
            .index(NodeAddress::BY_NODE_PORT)
            .build(&db)
    }

    fn new_store(db: Db, name: NodeName) -> Result<LocalNodeStore, Error> {
        LocalNodeStore::new(&db, &name)
    }

    fn read_local_node(store: LocalNodeStore) -> Table<LocalNode> {
        store.table()
    }
}
