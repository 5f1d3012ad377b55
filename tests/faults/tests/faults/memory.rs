// SPDX-License-Identifier: Apache-2.0

//! Memory of an agent that works for long.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::fs;

use skep_faults::{Agent, Api, Outcome, World, on_node, service, slice};

/// Rounds of adding and deleting all services, after which buffers and pools have the size that they need.
const WARM: u32 = 50;
/// Rounds in which memory does not grow.
const FLAT: u32 = 150;
/// Rounds at most: threads that come all the time are a leak, too.
const MOST: u32 = 1_000;
const SERVICES: u8 = 20;
/// Most growth in these rounds, in KiB.
const GROWTH: u64 = 512;

/// What a process has, by its status file.
#[derive(Debug, Clone, Copy)]
struct Use {
    threads: u64,
    /// Resident memory that is not of files, in KiB. Pages of the program are mapped when their code first runs.
    resident: u64,
}

impl Use {
    fn of(pid: u32) -> Outcome<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let number = |name: &str| -> Outcome<u64> {
            let mut lines = status.lines().filter_map(|line| line.strip_prefix(name));
            let value = lines.next().ok_or_else(|| format!("no {name}"))?;
            Ok(value.trim_end_matches("kB").trim().parse()?)
        };
        Ok(Self {
            threads: number("Threads:")?,
            resident: number("RssAnon:")?,
        })
    }
}

/// Adds all services and waits until they are in the maps, and the other way round.
async fn round(world: &World, api: &Api, round: u32) -> Outcome {
    let name = |number: u8| format!("churn-{number}");
    let backend = format!("10.244.{}.{}", round % 200, round % 250 + 1);
    for number in 0..SERVICES {
        api.put(&service(&name(number), &format!("10.96.1.{number}")))?;
        api.put(&slice(&name(number), &[&backend, "10.244.0.2"], 8080))?;
    }
    world.maps_until(|maps| maps.contains(&backend)).await?;
    for number in 0..SERVICES {
        api.delete(&service(&name(number), ""))?;
        api.delete(&slice(&name(number), &[], 1))?;
    }
    world.maps_until(|maps| !maps.contains("10.96.1.")).await?;
    Ok(())
}

#[test]
fn memory_is_flat_over_rounds_of_adding_and_deleting() {
    on_node("memory", async |world: World| {
        let api = Api::start().await?;
        let agent = Agent::well(&world, &api, &[]).await?;

        for number in 1..=WARM {
            round(&world, &api, number).await?;
        }
        // Threads for work that blocks come when much of it falls together, as on a busy machine, each with a stack and a heap:
        // what is compared is memory with as many threads.
        let mut warm = Use::of(agent.pid())?;
        let (mut number, mut flat) = (WARM, 0);
        let after = loop {
            number += 1;
            round(&world, &api, number).await?;
            let now = Use::of(agent.pid())?;
            flat += 1;
            if now.threads > warm.threads {
                (warm, flat) = (now, 0);
            }
            assert!(number < MOST, "threads come all the time: {now:?}");
            if flat == FLAT {
                break now;
            }
        };

        assert!(
            after.resident < warm.resident + GROWTH,
            "{warm:?} became {after:?} in {FLAT} rounds"
        );
        agent.kill()
    });
}
