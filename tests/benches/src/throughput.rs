// SPDX-License-Identifier: Apache-2.0

//! Services from decoded watch events into maps, and out again.

use std::time::Instant;

use clap::Args;
use skep_loadbalancer_sources::Event;

use crate::report::{Report, Row, median};
use crate::world::{World, with_maps};
use crate::{Maps, alloc, objects, usage};

/// Most backends in one slice, as the controller of Kubernetes makes them.
pub(crate) const SLICE: u32 = 100;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Services, each with an IPv4 address and a TCP port.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    services: u32,
    /// Backends of each service.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    backends_per_service: u32,
    /// Where entries end up.
    #[arg(long, value_enum, default_value = "fake")]
    maps: Maps,
    /// How often to fill and empty tables and maps. The medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    iterations: u32,
}

/// Targets with real maps: services, backends of each, services/s, MiB at most.
const TARGETS: [(u32, u32, f64, Option<f64>); 3] = [
    (50_000, 1, 160_000.0, Some(148.0)),
    (50_000, 5, 65_000.0, Some(220.0)),
    (10_000, 20, 23_000.0, None),
];

struct Lap {
    insert: f64,
    delete: f64,
    allocated: f64,
    kept: f64,
    peak: f64,
    // Processor time of all threads, microseconds a service.
    time: f64,
}

pub(crate) fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let (services, backends) = (options.services, options.backends_per_service);
    let laps = with_maps(options.maps, services, backends, |maps| {
        let mut laps = Vec::new();
        for number in 1..=options.iterations {
            let lap = lap(maps.clone(), services, backends)?;
            let n = f64::from(services);
            println!(
                "iteration {number}: insert {:.3} s ({:.0}/s), delete {:.3} s ({:.0}/s), \
                 {:.2} µs of processor time, {:.0} bytes allocated and {:.0} kept a service, peak {:.1} MiB",
                lap.insert,
                n / lap.insert,
                lap.delete,
                n / lap.delete,
                lap.time,
                lap.allocated,
                lap.kept,
                lap.peak
            );
            laps.push(lap);
        }
        Ok(laps)
    })?;
    let kind = match options.maps {
        Maps::Fake => "fake",
        Maps::Bpf => "bpf",
    };
    let case = format!("{services}×{backends}, {kind} maps");
    let of = |get: fn(&Lap) -> f64| median(laps.iter().map(get).collect());
    let n = f64::from(services);
    let known = TARGETS
        .iter()
        .find(|(s, b, ..)| options.maps == Maps::Bpf && (*s, *b) == (services, backends));
    let rate = known.map(|(_, _, rate, _)| *rate);
    let memory = known.and_then(|(.., memory)| *memory);
    report.add(Row::rate(format!("services/s in, {case}"), n / of(|lap| lap.insert), "1/s").target(rate));
    report.add(Row::rate(
        format!("services/s out, {case}"),
        n / of(|lap| lap.delete),
        "1/s",
    ));
    report.add(Row::cost(
        format!("time in, {case}"),
        of(|lap| lap.insert) * 1e3,
        "ms",
    ));
    report.add(Row::cost(
        format!("processor time a service in, {case}"),
        of(|lap| lap.time),
        "µs",
    ));
    report.add(Row::cost(
        format!("allocated a service, {case}"),
        of(|lap| lap.allocated),
        "bytes",
    ));
    report.add(Row::cost(
        format!("kept a service, {case}"),
        of(|lap| lap.kept),
        "bytes",
    ));
    report.add(Row::cost(format!("peak resident memory, {case}"), of(|lap| lap.peak), "MiB").target(memory));
    Ok(())
}

fn lap(
    maps: std::sync::Arc<skep_loadbalancer_reconciler::maps::LoadBalancerMaps>,
    services: u32,
    backends: u32,
) -> anyhow::Result<Lap> {
    usage::reset_peak()?;
    let mut world = World::start(maps)?;
    let in_use = alloc::in_use();
    // Decoding is not part of what is measured; the memory of the decoded objects is.
    let events = parts(services, |number| {
        let slice = move |slice: u32| {
            let (first, last) = (slice * SLICE, ((slice + 1) * SLICE).min(backends));
            let pods = number * backends + first..number * backends + last;
            objects::slice_there(objects::slice(number, slice, pods, |_| true))
        };
        let service = objects::service_there(objects::service(number));
        std::iter::once(service).chain((0..backends.div_ceil(SLICE)).map(slice))
    });
    let allocated = alloc::allocated();
    let used = usage::processor_time();
    let begun = Instant::now();
    events.into_iter().flatten().for_each(|event| world.feed(event));
    world.settle()?;
    let insert = begun.elapsed().as_secs_f64();
    let time = (usage::processor_time() - used).as_secs_f64() * 1e6 / f64::from(services);
    let a_service = |bytes: u64| bytes as f64 / f64::from(services);
    let allocated = a_service(alloc::allocated() - allocated);
    let kept = a_service(alloc::in_use().saturating_sub(in_use));
    let peak = usage::peak_mib()?;
    world.check_done(services, backends)?;

    let events = parts(services, |number| {
        let slices = (0..backends.div_ceil(SLICE)).map(move |slice| objects::slice_gone(number, slice));
        std::iter::once(objects::service_gone(number)).chain(slices)
    });
    let begun = Instant::now();
    events.into_iter().flatten().for_each(|event| world.feed(event));
    world.settle()?;
    let delete = begun.elapsed().as_secs_f64();
    world.check_empty()?;
    Ok(Lap {
        insert,
        delete,
        allocated,
        kept,
        peak,
        time,
    })
}

/// Events of all services, in parts that are freed one after the other.
fn parts<E: Iterator<Item = Event>>(services: u32, events: impl Fn(u32) -> E) -> Vec<Vec<Event>> {
    const PART: usize = 256;
    (0..services)
        .step_by(PART)
        .map(|first| {
            let last = services.min(first + PART as u32);
            (first..last).flat_map(&events).collect()
        })
        .collect()
}
