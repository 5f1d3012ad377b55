// SPDX-License-Identifier: Apache-2.0

//! Tables of Kubernetes objects, with a clock that stands still: every age is `60s`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hive::Cell;
use hive_script::Retry;
use jiff::{SignedDuration, Timestamp};
use skep_k8s_apiserver::fake_client_cell;
use skep_k8s_reflectors::tables::{LocalPod, NamespaceRow};
use skep_node::NodeName;
use statedb::Table;
use statedb::clock::Clock;
use statedb::testing::FixedClock;

use crate::{Assembly, AssemblyError, Parts, Setup, Suite, base_cells};

pub(super) const SUITE: Suite = Suite {
    name: "k8s-tables",
    summary: "Tables of pods and namespaces",
    retry: Retry {
        interval: Duration::from_millis(100),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

/// 2000-01-01T10:30:00Z, in seconds since the epoch.
const NOW: Timestamp = Timestamp::constant(946_722_600, 0);

fn assemble(_: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    Assembly::new(|| {
        let mut cells = base_cells();
        cells.push(fake_client_cell());
        cells.push(skep_k8s_reflectors::tables::cell());
        cells.push(
            Cell::module("test-node", "Name and clock for tests")
                .provide(new_name)
                .provide(new_clock),
        );
        cells
    })
    .variable("TZ", "")
    .root::<Table<LocalPod>>()
    .root::<Table<NamespaceRow>>()
    .build()
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
