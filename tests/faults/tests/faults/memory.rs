// SPDX-License-Identifier: Apache-2.0

//! Memory of an agent that works for long.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::fs;

use skep_faults::{Agent, Api, Outcome, World, on_node, service, slice};

/// Rounds of adding and deleting all services.
const ROUNDS: u32 = 200;
/// Rounds after which buffers and pools have the size that they need.
const WARM: u32 = 50;
/// Services of a round.
const SERVICES: u8 = 20;
/// Most growth from the warm agent to the last round, in KiB.
const GROWTH: u64 = 512;

/// Resident memory of a process that is not of files, in KiB. Pages of the program are mapped when their code first runs.
fn resident(pid: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .ok_or("no resident memory")?;
    Ok(line.trim_end_matches("kB").trim().parse()?)
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

        let mut warm = 0;
        for number in 1..=ROUNDS {
            round(&world, &api, number).await?;
            if number == WARM {
                warm = resident(agent.pid())?;
            }
        }

        let after = resident(agent.pid())?;
        assert!(
            after < warm + GROWTH,
            "{warm} KiB after {WARM} rounds became {after} KiB after {ROUNDS}"
        );
        agent.kill()
    });
}
