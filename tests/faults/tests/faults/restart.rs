// SPDX-License-Identifier: Apache-2.0

//! Agents that are killed at any moment.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{collections::BTreeSet, time::Duration};

use skep_faults::{Agent, Api, Echo, Flow, Outcome, World, calls, calls_udp, on_node, service, slice};

/// How often the agent is killed.
const KILLS: u64 = 12;
/// Services that come, go and change meanwhile.
const CHURNING: u64 = 40;

/// Lines of the dump of all maps that start with `kind`.
fn dump(world: &World, kind: &str) -> Outcome<BTreeSet<String>> {
    let text = world.skep(&["shell", "lb/maps-dump"])?;
    Ok(text
        .lines()
        .filter(|line| line.starts_with(kind))
        .map(str::to_owned)
        .collect())
}

/// Ids and addresses of the services that stay.
fn ids(world: &World) -> Outcome<BTreeSet<String>> {
    let mut all = dump(world, "REV:")?;
    all.retain(|line| line.contains("=10.96.0."));
    Ok(all)
}

/// The value of a field of a dump's line.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The state of a churning service after so many steps, the same for every run.
fn step(api: &Api, step: u64, port: u16) -> Outcome {
    let number = step * 7 % CHURNING;
    let (name, ip) = (format!("churn-{number}"), format!("10.96.1.{number}"));
    match step % 3 {
        0 | 1 => {
            let addresses: &[&str] = if step.is_multiple_of(2) {
                &["10.244.0.1", "10.244.0.2"]
            } else {
                &["10.244.0.2"]
            };
            api.put(&service(&name, &ip))?;
            api.put(&slice(&name, addresses, port))
        }
        _ => {
            // It may not be there.
            let _ = api.delete(&service(&name, &ip));
            let _ = api.delete(&slice(&name, &[], 1));
            Ok(())
        }
    }
}

#[test]
fn killed_at_any_moment_it_converges_keeps_ids_and_fails_no_call() {
    on_node("killed", async |world: World| {
        let api = Api::start().await?;
        let (echo, other) = (Echo::start("10.244.0.1")?, Echo::start("10.244.0.2")?);
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        api.serve("last", "10.96.0.2", &["10.244.0.1"], echo.port)?;
        let mut agent = Agent::well(&world, &api, &[]).await?;
        world
            .maps_until(|maps| maps.contains("10.96.0.1:80/UDP") && maps.contains("10.96.0.2:80/UDP"))
            .await?;
        let before = ids(&world)?;
        assert_eq!(before.len(), 4, "{before:?}");
        world.served("10.96.0.1:80").await?;
        world.served("10.96.0.2:80").await?;
        let flow = Flow::start("10.96.0.1:80".parse()?)?;

        let mut at = 0;
        for kill in 0..KILLS {
            // From long before it is up to well into its work: start, restore, first reconciliation, churn.
            let alive = Duration::from_millis(20 + kill * kill * 97 % 700);
            let end = tokio::time::Instant::now() + alive;
            while tokio::time::Instant::now() < end {
                step(&api, at, other.port)?;
                at += 1;
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            agent.kill()?;
            assert!(calls("10.96.0.1:80".parse()?) && calls_udp("10.96.0.2:80".parse()?));
            agent = Agent::following(&world, &api, &[])?;
        }
        agent.wait_well(&world).await?;
        assert!(at > 100, "{at}");

        // An object written last has been through everything before it.
        api.serve("end", "10.96.0.9", &["10.244.0.1"], echo.port)?;
        world.maps_until(|maps| maps.contains("10.96.0.9:80/UDP")).await?;
        flow.finish()?;
        let after = ids(&world)?;
        assert!(after.is_superset(&before), "{before:?} became {after:?}");

        // The maps hold what the tables say, and nothing besides.
        let table = world
            .frontends_until(|table| !table.contains("Pending") && !table.contains("Error"))
            .await?;
        let wanted: BTreeSet<&str> = table
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|word| word.contains("/TCP") || word.contains("/UDP"))
            .collect();
        let prune = world.skep(&["shell", "lb/prune"])?;
        assert_eq!(prune, "");
        let masters = dump(&world, "SVC:")?;
        let served: BTreeSet<&str> = masters
            .iter()
            .filter(|line| field(line, "SLOT") == Some("0"))
            .filter_map(|line| field(line, "ADDR"))
            .filter(|address| !address.contains(":0/"))
            .collect();
        assert_eq!(served, wanted);
        assert_eq!(dump(&world, "REV:")?.len(), wanted.len(), "numbers leak");
        assert!(dump(&world, "BE:")?.len() <= 6, "backends leak");
        agent.kill()
    });
}
