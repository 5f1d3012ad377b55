// SPDX-License-Identifier: Apache-2.0

//! Health: fixed reports at a fixed time, and their history.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hive::{Cell, Health, HealthSink, ModulePath};
use hive_script::Retry;
use jiff::{SignedDuration, Timestamp};
use statedb::clock::Clock;
use statedb::testing::FixedClock;

use crate::{Assembly, AssemblyError, Parts, Setup, Suite};

pub(super) const SUITE: Suite = Suite {
    name: "health",
    summary: "Commands on the health of components",
    retry: Retry {
        interval: Duration::from_millis(100),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(60),
    assemble,
};

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    let history = setup.state_dir.join("health-history.log");
    Assembly::new(|| {
        vec![
            statedb::cell(),
            skep_health::cell(),
            skep_health::history_cell(),
            Cell::module("test-reports", "Reports that never change")
                .provide(new_clock)
                .run(report),
        ]
    })
    .preset("health-history-file", history.to_string_lossy())
    .build()
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
    stopped.ok("running");
    stopped.stopped("now stopped");
}
