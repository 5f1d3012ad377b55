// SPDX-License-Identifier: Apache-2.0

//! A node with pods, as facts say, for tests that send packets of their own.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use clap::ValueEnum as _;
use skep_bpf_programs::{
    NodeOptions,
    testing::run::{FromQueue, FromTunnel, SkBuff},
};
use skep_bpf_sys::{KernelMap, MapStore, RawMap as _, testing::Node};

pub use crate::world::Called;
use crate::{
    Error,
    options::options,
    twins::{self, FlowTable},
    vectors::Facts,
    world::{World, content, small, write},
};

pub struct PacketNode {
    world: World,
}

/// Name of the variable with the flow table of nodes, unless a test chooses it.
const TABLE: &str = "SKEP_FLOW_TABLE";

/// Makes the node of files of facts, and runs `work` on it.
///
/// # Errors
///
/// [`Error`] if a file cannot be read or the node cannot be made, and those of `work`.
pub fn with_node<T: Send>(
    files: &[impl AsRef<Path>],
    work: impl FnOnce(&PacketNode) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    with_options(files, |_| {}, work)
}

/// As [`with_node`], after `change` to the options of the programs.
///
/// # Errors
///
/// As [`with_node`].
pub fn with_options<T: Send>(
    files: &[impl AsRef<Path>],
    change: impl FnOnce(&mut NodeOptions),
    work: impl FnOnce(&PacketNode) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let table = std::env::var(TABLE).ok();
    let table = table.and_then(|name| FlowTable::from_str(&name, true).ok());
    with_table(files, table.unwrap_or(FlowTable::Off), change, work)
}

/// As [`with_options`], with a flow table: of twins, each packet of a known flow is compared to what it does without.
///
/// # Errors
///
/// As [`with_node`].
pub fn with_table<T: Send>(
    files: &[impl AsRef<Path>],
    table: FlowTable,
    change: impl FnOnce(&mut NodeOptions),
    work: impl FnOnce(&PacketNode) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let facts = Facts::read_all(files)?;
    let mut options = options(&facts, "")?;
    change(&mut options);
    options.packets.flows = table != FlowTable::Off;
    Node::run("node", |node| {
        let mut world = World::with_options(node, facts, "", &options, &small())?;
        world.flow_table = table;
        work(&PacketNode { world })
    })
}

impl PacketNode {
    /// Runs a program on a packet at an interface.
    ///
    /// # Errors
    ///
    /// [`Error::Facts`] if there is no such program, [`Error::Kernel`] with what the kernel says of the packet,
    /// [`Error::Twins`].
    pub fn run(&self, program: &str, frame: &[u8], context: &SkBuff) -> Result<Called, Error> {
        match self.world.flow_table {
            FlowTable::Twins => {}
            FlowTable::Cold => {
                self.world.store.raise_epoch();
                return self.world.run(program, frame, context);
            }
            FlowTable::Off | FlowTable::Warm => return self.world.run(program, frame, context),
        }
        let (ran, differences) = twins::run(&self.world, program, frame, context)?;
        if differences.is_empty() {
            return Ok(ran);
        }
        Err(Error::Twins {
            what: differences.join("\n    "),
        })
    }

    /// Writes an entry of a map, or deletes it, as a process that is killed before it raises the epoch.
    ///
    /// # Errors
    ///
    /// As [`PacketNode::write`].
    pub fn write_and_die(&self, map: &str, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let store = &self.world.store;
        if let Some((epoch, writers)) = store.epoch().zip(store.writers()) {
            twins::set_epoch(&self.world, epoch, writers + 1)?;
        }
        let map = twins::quiet(&self.world, map)?;
        match value {
            Some(value) => write(&map, key, value),
            None => {
                map.delete(key);
                Ok(())
            }
        }
    }

    pub fn has(&self, program: &str) -> bool {
        self.world.program(program).is_some()
    }

    /// A program that runs another one on packets as if the tunnel with this id had encapsulated them.
    ///
    /// # Errors
    ///
    /// [`Error::Facts`] if there is no such program, [`Error::Io`] with what the kernel says.
    pub fn in_tunnel(&self, program: &str, tunnel_id: u32) -> Result<FromTunnel, Error> {
        let found = self.world.program(program).ok_or_else(|| Error::Facts {
            what: format!("program {program}"),
        })?;
        Ok(FromTunnel::new(tunnel_id, Some(found))?)
    }

    /// A program that runs another one on packets with this queue mapping.
    ///
    /// # Errors
    ///
    /// As [`PacketNode::in_tunnel`].
    pub fn in_queue(&self, program: &str, queue: u16) -> Result<FromQueue, Error> {
        let found = self.world.program(program).ok_or_else(|| Error::Facts {
            what: format!("program {program}"),
        })?;
        Ok(FromQueue::new(queue, found)?)
    }

    /// Writes an entry of a map.
    ///
    /// # Errors
    ///
    /// [`Error::Facts`] if no program uses the map, [`Error::Kernel`] with what the kernel says of the entry.
    pub fn write(&self, map: &str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        write(self.map(map)?, key, value)
    }

    /// All entries of a map.
    ///
    /// # Errors
    ///
    /// [`Error::Facts`] if no program uses the map, [`Error::Kernel`] if it cannot be read.
    pub fn entries(&self, map: &str) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        content(self.map(map)?)
    }

    /// Deletes an entry of a map.
    ///
    /// # Errors
    ///
    /// As [`PacketNode::write`].
    pub fn delete(&self, map: &str, key: &[u8]) -> Result<(), Error> {
        match self.map(map)?.delete(key).failures.pop() {
            None => Ok(()),
            Some(failure) => Err(Error::Kernel {
                what: format!("delete an entry of {map}"),
                source: failure.error,
            }),
        }
    }

    fn map(&self, name: &str) -> Result<&KernelMap, Error> {
        self.world.map(name).ok_or_else(|| Error::Facts {
            what: format!("map {name}"),
        })
    }

    /// The store of the maps, which are pinned.
    pub fn store(&self) -> Arc<MapStore> {
        self.world.store.clone()
    }

    /// Forgets all flows.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if a map cannot be read.
    pub fn forget_flows(&self) -> Result<(), Error> {
        self.world.forget_flows()
    }

    /// Events since the last call.
    ///
    /// # Errors
    ///
    /// [`Error::Events`] if the rings cannot be read.
    pub fn take_events(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.world.take_events()
    }

    /// Signals to the agent since the last call.
    ///
    /// # Errors
    ///
    /// As [`PacketNode::take_events`].
    pub fn take_signals(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.world.take_signals()
    }
}
