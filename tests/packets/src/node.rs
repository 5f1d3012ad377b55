// SPDX-License-Identifier: Apache-2.0

//! A node with pods, as facts say, for tests that send packets of their own.

use std::path::Path;

use skep_bpf_programs::testing::run::SkBuff;
use skep_bpf_sys::testing::Node;

pub use crate::world::Called;
use crate::{Error, vectors::Facts, world::World};

/// The programs on a node.
pub struct PacketNode {
    world: World,
}

/// Makes the node of a file of facts, and runs `work` on it.
///
/// # Errors
///
/// [`Error`] if the file cannot be read or the node cannot be made, and those of `work`.
pub fn with_node<T: Send>(
    facts: &Path,
    work: impl FnOnce(&PacketNode) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let facts = Facts::read(facts)?;
    Node::run("node", |node| {
        work(&PacketNode {
            world: World::new(node, facts, "")?,
        })
    })
}

impl PacketNode {
    /// Runs a program on a packet at an interface.
    ///
    /// # Errors
    ///
    /// [`Error::Facts`] if there is no such program, [`Error::Kernel`] with what the kernel says of the packet.
    pub fn run(&self, program: &str, frame: &[u8], context: &SkBuff) -> Result<Called, Error> {
        self.world.run(program, frame, context)
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
}
