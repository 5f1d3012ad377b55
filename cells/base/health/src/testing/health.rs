// SPDX-License-Identifier: Apache-2.0

//! Suite `health`: fixed reports at a fixed time, and their history.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Health, HealthSink, Hive, ModulePath};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use jiff::{SignedDuration, Timestamp};
use statedb::clock::Clock;
use statedb::testing::FixedClock;

hive_script::suite!(
    Suite::new(
        "health",
        "Commands on the health of components",
        "testdata/health",
        assemble
    )
    .timeout(Duration::from_secs(60))
);

fn assemble(setup: Setup) -> Assembling {
    let history = setup.state_dir.join("health-history.log");
    Assembly::new(hive)
        .preset("health-history-file", history.to_string_lossy())
        .build()
}

fn hive() -> Hive {
    Hive::new([
        statedb::cell(),
        crate::cell(),
        crate::history_cell(),
        Cell::module("test-reports", "Reports that never change")
            .provide(new_clock)
            .run(report),
    ])
}

/// Always one second after the epoch.
fn new_clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock {
        now: Timestamp::constant(1, 0),
        age: SignedDuration::ZERO,
    })
}

fn report(sink: Arc<dyn HealthSink>) {
    let agent = |module| Health::new(sink.clone(), ModulePath::root().child("agent").child(module));
    agent("m0").scope("c0").ok("ok");
    let closed = agent("m2").scope("degraded-closed");
    closed.degraded("broken", &io::Error::other("err2"));
    closed.close();
    agent("m2")
        .scope("degraded")
        .degraded("broken", &io::Error::other("err2"));
    let done = agent("m3").scope("done");
    done.ok("finished");
    done.close();
    let stopped = agent("m4").scope("stopped");
    stopped.ok("ok");
    stopped.stopped("now stopped");
}
