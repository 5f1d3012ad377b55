// SPDX-License-Identifier: Apache-2.0

//! Jumps of the wall clock end no flow, and keep none.
//!
//! The wall clock of a machine belongs to all of it, so this program has its own: it defines `clock_gettime`, which the
//! standard library calls, and shifts the wall clock only.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]
#![allow(unsafe_code, reason = "stands in for a function of the C library")]

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hive::{Cell, Hive, Member, Settings};
use rustix::time::{ClockId, Timespec};
use skep_bpf_maps::{
    MapSizes,
    conntrack::{CT_ANY_MAX, CT_TCP_MAX, CT_TCP4, CtEntry, CtKey4, OWNER},
    nat::NAT_MAX,
};
use skep_bpf_sys::{clock::kernel_seconds, testing::Node};
use skep_datapath_conntrack::Conntrack;
use skep_datapath_maps::{MapOwner, Maps};
use zerocopy::{FromZeros as _, network_endian::U16};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Seconds that the wall clock of this program is ahead.
static AHEAD: AtomicI64 = AtomicI64::new(0);

const REALTIME: i32 = 0;
const MONOTONIC: i32 = 1;
const YEAR: i64 = 365 * 24 * 3600;

// SAFETY: the name, types and meaning are those of the function of the C library; nothing else here defines it.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: i32, time: *mut Timespec) -> i32 {
    let mut now = match clock {
        REALTIME => rustix::time::clock_gettime(ClockId::Realtime),
        MONOTONIC => rustix::time::clock_gettime(ClockId::Monotonic),
        _ => rustix::time::clock_gettime(ClockId::Boottime),
    };
    if clock == REALTIME {
        now.tv_sec += AHEAD.load(Ordering::Relaxed);
    }
    // SAFETY: callers pass a place for the time.
    unsafe { time.write(now) };
    0
}

fn flow(last: u8) -> CtKey4 {
    CtKey4 {
        daddr: [10, 0, 1, last],
        saddr: [203, 0, 113, 5],
        dport: U16::new(443),
        sport: U16::new(40_000),
        proto: 6,
        flags: 0,
    }
}

fn ending(lifetime: u64) -> CtEntry {
    CtEntry {
        lifetime: lifetime as u32,
        ..CtEntry::new_zeroed()
    }
}

fn owner() -> Member<MapOwner> {
    let sizes = MapSizes::default()
        .with(CT_TCP_MAX, 1024)
        .with(CT_ANY_MAX, 1024)
        .with(NAT_MAX, 1024);
    Member(MapOwner::new(OWNER).sizes(sizes))
}

async fn jumps(root: String) -> Outcome {
    let hive = Hive::new([
        skep_base_settings::cell(),
        skep_datapath_maps::cell(),
        skep_datapath_conntrack::cell(),
        Cell::module("packets", "Programs at interfaces").provide(owner),
    ]);
    let flags = [
        format!("--bpf-root={root}"),
        "--conntrack-gc-interval=1s".to_owned(),
    ];
    let plan = hive.root::<Arc<Conntrack>>().root::<Arc<Maps>>();
    let running = plan.plan(Settings::new().args(flags))?.build()?.start().await?;
    let tracked = running.get::<Arc<Maps>>().unwrap().handle(&CT_TCP4);
    tracked.update(&flow(1), &ending(kernel_seconds()? + 600))?;

    for years in [30, -50, 0] {
        AHEAD.store(years * YEAR, Ordering::Relaxed);
        let year = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs() as i64 / YEAR);
        assert!(
            if years > 0 { year > 80 } else { year < 80 },
            "the wall clock did not jump"
        );
        tracked.update(&flow(2), &ending(kernel_seconds()? - 1))?;

        // Passes go on, each second.
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while tracked.keys().is_ok_and(|keys| keys.len() > 1) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });

        assert!(
            waited.await.is_ok(),
            "{years} years: the flow that ended is still there"
        );
        assert_eq!(tracked.keys()?, [flow(1)], "{years} years");
    }
    running.stop().await?;
    Ok(())
}

#[test]
fn jumps_of_the_wall_clock_end_no_flow_and_keep_none() {
    let result = Node::run("wall-clock", |node| {
        let root = node.bpf_root().display().to_string();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(jumps(root))
    });
    if let Err(error) = result {
        panic!("{}", hive::error_chain(&*error));
    }
}
