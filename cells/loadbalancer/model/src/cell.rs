// SPDX-License-Identifier: Apache-2.0

//! Cells: the tables of the load balancer and their writer.
//! Requires: a database; name and addresses of the node, if there are any. Provides: [`Writer`], the three tables
//! (read-only), settings.

use std::sync::Arc;

use hive::{Cell, Cfg};
use skep_base_settings::{AddressFamilies, ForwardingConfig, NodePorts};
use statedb::{Db, Table};

use crate::config::Config;
use crate::node::{NoAddresses, NodeAddresses};
use crate::table::Tables;
use crate::types::{Backend, Frontend, Service};
use crate::writer::{Writer, WriterSettings};

/// Tables, writer and settings of the load balancer.
pub fn cell() -> Cell {
    Cell::group([config_cell(), tables_cell()])
}

/// Settings alone: what cells without tables need to know.
pub fn config_cell() -> Cell {
    Cell::module("loadbalancer-config", "Settings of the load balancer").config::<Config>()
}

fn tables_cell() -> Cell {
    Cell::module("loadbalancer-tables", "Tables of services frontends and backends").provide(writer)
}

type ReadTables = (Table<Service>, Table<Frontend>, Table<Backend>);

fn writer(
    db: Db,
    config: Cfg<Config>,
    node_ports: Cfg<NodePorts>,
    families: Cfg<AddressFamilies>,
    forwarding: Cfg<ForwardingConfig>,
    node: Option<Arc<dyn NodeAddresses>>,
) -> Result<(Writer, ReadTables), statedb::Error> {
    let tables = Tables::new(&db)?;
    let readers = tables.readers();
    let settings = WriterSettings {
        has_topology: config.topology,
        crosses_families: forwarding.nat46x64_of_services(&families).is_some(),
        node_ports: node_ports.range,
        ..WriterSettings::default()
    };
    let node = node.unwrap_or_else(|| Arc::new(NoAddresses));
    Ok((Writer::on_node(db, tables, settings, node), readers))
}
