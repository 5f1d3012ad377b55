// SPDX-License-Identifier: Apache-2.0

//! Script suite `operator-nodesgc`: keys of nodes, without pauses.

use std::time::Duration;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};

use crate::nodes::{self, NodeTimes};

hive_script::suite!(
    Suite::new(
        "operator-nodesgc",
        "Keys of nodes that left the cluster",
        "testdata/nodesgc",
        assemble
    )
    .retry_interval(Duration::from_millis(10))
);

fn assemble(setup: Setup) -> Assembling {
    Assembly::new(hive).flags(&setup).ignore_arguments().build()
}

fn hive() -> Hive {
    super::hive()
        .with(skep_operator_gc::tables::cell())
        .with(skep_operator_gc::agents::cell())
        .with(nodes::cell())
        .with(times())
        // The namespace of agents is that of the operator by default.
        .with(Cell::group([]).config::<skep_operator_leader::Config>())
}

fn times() -> Cell {
    Cell::module("test-times", "When nodes are judged").provide(new_times)
}

fn new_times() -> NodeTimes {
    NodeTimes {
        after_upsert: Duration::ZERO,
    }
}
