// SPDX-License-Identifier: Apache-2.0

//! Script command `allocator/allocated-pools`: what a node has of each pool.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Member};
use hive_script::{Command, CommandError, CommandHandle, Context, Invocation, Outcome, Spec};
use serde_json::Value;

use crate::cell::Pools;
use crate::multipool::Allocation;

/// Provides the command: for tests.
pub(crate) fn cell() -> Cell {
    Cell::module("operator-ipam-commands", "Shows what is allocated to nodes").provide(command)
}

fn command(pools: Pools) -> Member<CommandHandle> {
    let spec = Spec::new("allocator/allocated-pools", "Show the allocations of a node").args("node");
    Member(Arc::new(AllocatedPools { spec, pools }))
}

struct AllocatedPools {
    spec: Spec,
    pools: Pools,
}

#[async_trait]
impl Command for AllocatedPools {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, _: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let [node] = inv.args() else {
            return Err(CommandError::usage("expected a node"));
        };
        let allocated = self.pools.0.lock().allocated(node);
        let value = allocated.map_or(Value::Null, |pools| {
            pools.iter().map(Allocation::to_json).collect()
        });
        Ok(Outcome::stdout(format!("{value:#}\n")))
    }
}
