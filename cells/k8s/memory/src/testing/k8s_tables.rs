// SPDX-License-Identifier: Apache-2.0

//! Suite `k8s-tables`: tables of Kubernetes objects, with a clock that stands still: every age is `60s`.

use std::sync::Arc;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use jiff::{SignedDuration, Timestamp};
use skep_base_health::testing::base_cells;
use skep_base_settings::NodeName;
use skep_k8s_reflectors::tables::{self, LocalPod, NamespaceRow};
use statedb::Table;
use statedb::clock::Clock;
use statedb::testing::FixedClock;

use crate::fake_client_cell;

hive_script::suite!(Suite::new(
    "k8s-tables",
    "Tables of pods and namespaces",
    "testdata/k8s-tables",
    assemble
));

/// 2000-01-01T10:30:00Z, in seconds since the epoch.
const NOW: Timestamp = Timestamp::constant(946_722_600, 0);

fn assemble(_: Setup) -> Assembling {
    Assembly::new(hive).variable("TZ", "").build()
}

fn hive() -> Hive {
    let node = Cell::module("test-node", "Name and clock for tests")
        .provide(new_name)
        .provide(new_clock);
    Hive::new(base_cells())
        .with(fake_client_cell())
        .with(tables::cell())
        .with(node)
        .root::<Table<LocalPod>>()
        .root::<Table<NamespaceRow>>()
}

fn new_name() -> NodeName {
    NodeName::new("testnode")
}

fn new_clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock {
        now: NOW,
        age: SignedDuration::from_mins(1),
    })
}
