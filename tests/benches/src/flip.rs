// SPDX-License-Identifier: Apache-2.0

//! One endpoint of a service comes and goes.

use std::time::{Duration, Instant};

use clap::Args;

use crate::report::{Report, Row, median};
use crate::throughput::SLICE;
use crate::world::{World, with_maps};
use crate::{Maps, objects, usage};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where entries end up.
    #[arg(long, value_enum, default_value = "bpf")]
    maps: Maps,
    /// Changes to measure.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    changes: u32,
    /// Only for this number of backends.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    backends: Option<u32>,
}

/// Numbers of backends.
const CASES: [u32; 3] = [10, 100, 1000];

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let cases = match options.backends {
        None => CASES.to_vec(),
        Some(backends) => vec![backends],
    };
    for backends in cases {
        let found = with_maps(options.maps, 1, backends, |maps| {
            flips(World::start(maps)?, backends, options.changes)
        })?;
        let case = format!("one endpoint of {backends} flips");
        report.add(Row::cost(
            format!("{case}: latency until in the maps"),
            found.latency,
            "µs",
        ));
        if options.maps == Maps::Bpf {
            report.add(Row::cost(format!("{case}: bpf() calls"), found.calls, "calls"));
        }
        report.add(Row::cost(format!("{case}: processor time"), found.time, "µs").target(100.0));
    }
    Ok(())
}

struct Found {
    latency: f64,
    calls: f64,
    time: f64,
}

fn flips(mut world: World, backends: u32, changes: u32) -> anyhow::Result<Found> {
    world.feed(objects::service_there(objects::service(0)));
    let part = |slice: u32| slice * SLICE..((slice + 1) * SLICE).min(backends);
    for slice in 0..backends.div_ceil(SLICE) {
        world.feed(objects::slice_there(objects::slice(
            0,
            slice,
            part(slice),
            |_| true,
        )));
    }
    world.settle()?;
    world.check_done(1, backends)?;
    // Somewhere in the middle. Events are decoded already when they come.
    let flipping = backends / 2;
    let slice = flipping / SLICE;
    let events = [false, true].map(|is_there| {
        objects::slice_there(objects::slice(0, slice, part(slice), |pod| {
            is_there || pod != flipping
        }))
    });
    for number in 0..100 {
        world.feed(events[number % 2].clone());
        world.settle()?;
    }
    let calls = skep_bpf_sys::calls();
    // Rounds of the reconciler are not more frequent than this; nothing waits for the next one.
    let pause = Duration::from_millis(2);
    let event = move |number: u32| events[number as usize % 2].clone();
    let (world, measured) = world.feed_each(changes, pause, event, || {
        (Instant::now(), usage::processor_time())
    })?;
    let calls = skep_bpf_sys::calls() - calls;
    world.check_done(1, backends - changes % 2)?;
    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
    let latencies = measured
        .iter()
        .map(|(from, to)| microseconds(to.0 - from.0))
        .collect();
    let time: Duration = measured.iter().map(|(from, to)| to.1 - from.1).sum();
    Ok(Found {
        latency: median(latencies),
        calls: calls as f64 / f64::from(changes),
        time: microseconds(time) / f64::from(changes),
    })
}
