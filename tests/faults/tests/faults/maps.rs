// SPDX-License-Identifier: Apache-2.0

//! Maps that are full, or of another version.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use serde_json::Value;
use skep_bpf_maps::lb::{BACKENDS4, SERVICES4};
use skep_bpf_sys::{MapFlags, MapKind, MapSpec, MapStore};
use skep_faults::{Agent, Api, Echo, Flow, Outcome, World, on_node, service, slice};

/// Samples of a metric about the IPv4 service map.
fn samples(world: &World, metric: &str) -> Outcome<Vec<Value>> {
    let text = world.skep(&["metrics", "list", "-o", "json", "-p", metric])?;
    let all: Vec<Value> = serde_json::from_str(&text)?;
    Ok(all
        .into_iter()
        .filter(|sample| sample["labels"]["map_name"] == "lb4_services_v2")
        .collect())
}

/// How often an entry was not written, as the metrics say.
fn failed_updates(world: &World) -> Outcome<u64> {
    let all = samples(world, "cilium_bpf_map_ops_total")?;
    let failed = all
        .iter()
        .filter(|sample| sample["labels"]["outcome"] == "fail" && sample["labels"]["operation"] == "update");
    Ok(failed.filter_map(|sample| sample["value"].as_u64()).sum())
}

/// How full the map is, as the metrics say.
fn pressure(world: &World) -> Outcome<String> {
    let all = samples(world, "cilium_bpf_map_pressure")?;
    Ok(all
        .first()
        .map_or_else(String::new, |sample| sample["value"].to_string()))
}

#[test]
fn a_full_map_is_the_status_of_what_does_not_fit_until_there_is_room() {
    on_node("full", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        let names: Vec<(String, String)> = (1..=9)
            .map(|number| (format!("web-{number}"), format!("10.96.0.{number}")))
            .collect();
        // Two ports with a backend each are four entries and a wildcard: three services fit, nine do not.
        let flags = ["--bpf-lb-map-max=16", "--lb-pressure-metrics-interval=100ms"];
        let agent = Agent::well(&world, &api, &flags).await?;
        for (name, ip) in &names {
            api.serve(name, ip, &["10.244.0.1"], echo.port)?;
            if ip == "10.96.0.1" {
                // It comes first: the others find the map as it leaves it.
                world.served("10.96.0.1:80").await?;
            }
        }

        let table = world
            .frontends_until(|table| !table.contains("Pending") && table.contains("Error"))
            .await?;
        assert!(table.contains("is full (16 entries, see "), "{table}");
        assert!(table.contains("Done"), "{table}");
        world.served("10.96.0.1:80").await?;
        let health = world
            .health_until(|health| health.contains("Degraded") && health.contains("reconcile"))
            .await?;
        assert!(health.contains("is full"), "{health}");
        assert!(failed_updates(&world)? > 0);
        world
            .wait(
                "pressure",
                || pressure(&world),
                |found| found.parse::<f64>().is_ok_and(|part| part > 0.8),
            )
            .await?;
        let listed = world.skep(&["map", "list", "-o", "json"])?;
        let listed: Value = serde_json::from_str(&listed)?;
        let services = listed["maps"]
            .as_array()
            .and_then(|maps| {
                let is_services = |path: &str| path.ends_with("/cilium_lb4_services_v2");
                maps.iter()
                    .find(|map| map["path"].as_str().is_some_and(is_services))
            })
            .unwrap_or_else(|| panic!("{listed}"));
        let entries = services["cache"].as_array().cloned().unwrap_or_default();
        let (missing, there): (Vec<&Value>, Vec<&Value>) = entries
            .iter()
            .partition(|entry| entry["desired-action"] == "to-be-inserted");
        assert!(there.len() > 8, "{services}");
        assert!(!missing.is_empty(), "{services}");
        assert!(
            missing.iter().all(|entry| entry["last-error"].is_string()),
            "{services}"
        );

        // Room is made: everything that is left fits, by itself.
        for (name, ip) in &names[..7] {
            api.delete(&service(name, ip))?;
            api.delete(&slice(name, &[], 1))?;
        }
        world
            .frontends_until(|table| {
                table.contains("10.96.0.9:80/UDP")
                    && !table.contains("10.96.0.7:")
                    && !table.contains("Error")
                    && !table.contains("Pending")
            })
            .await?;
        for ip in ["10.96.0.8:80", "10.96.0.9:80"] {
            world.served(ip).await?;
        }
        world.health_until(|health| !health.contains("is full")).await?;
        agent.kill()?;

        // What is pinned can be read without it.
        let down = world.skep(&["status", "--brief"])?;
        assert!(down.contains("daemon unreachable"), "{down}");
        let listed = world.skep(&["map", "list"])?;
        assert!(
            listed.contains("cilium_lb4_services_v2") && listed.contains("unknown"),
            "{listed}"
        );
        assert!(world.maps()?.contains("10.96.0.9:80/UDP"));
        Ok(())
    });
}

#[test]
fn a_full_backend_map_is_reported_too() {
    on_node("full-backends", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        let agent = Agent::well(&world, &api, &["--bpf-lb-service-backend-map-max=8"]).await?;
        api.serve("small", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        world
            .frontends_until(|table| table.contains("10.96.0.1:80/UDP") && !table.contains("Pending"))
            .await?;
        api.put(&service("large", "10.96.0.2"))?;
        let addresses: Vec<String> = (1..=20).map(|last| format!("10.244.1.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        api.put(&slice("large", &addresses, echo.port))?;

        let table = world
            .frontends_until(|table| {
                table.contains("is full (8 entries, see bpf-lb-service-backend-map-max)")
            })
            .await?;
        assert!(table.contains("cilium_lb4_backends_v3"), "{table}");
        world.served("10.96.0.1:80").await?;

        api.put(&slice("large", &["10.244.0.1"], echo.port))?;
        world
            .frontends_until(|table| !table.contains("Error") && !table.contains("Pending"))
            .await?;
        world.served("10.96.0.2:80").await?;
        agent.kill()
    });
}

#[test]
fn maps_of_another_size_are_replaced_without_a_failed_call() {
    on_node("sizes", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &[]).await?;
        world.maps_until(|maps| maps.contains("10.96.0.1:80/UDP")).await?;
        world.served("10.96.0.1:80").await?;
        let flow = Flow::start("10.96.0.1:80".parse()?)?;
        agent.kill()?;

        for max in ["2048", "512"] {
            let size = format!("--bpf-lb-map-max={max}");
            let agent = Agent::well(&world, &api, &[&size]).await?;
            let found = world
                .wait(
                    "size",
                    || {
                        let store = MapStore::new(&world.bpf_root);
                        let map = store
                            .open::<skep_bpf_maps::lb::Service4Key, skep_bpf_maps::lb::ServiceValue>(
                                "cilium_lb4_services_v2",
                            )?;
                        Ok(map.max_entries().to_string())
                    },
                    |found| found == max,
                )
                .await?;
            assert_eq!(found, max);
            assert!(
                agent.log().contains("Replacing pinned map, keeping its entries"),
                "{}",
                agent.log()
            );
            agent.kill()?;
        }
        flow.finish()?;
        Ok(())
    });
}

#[test]
fn leftovers_of_another_version_under_our_names_are_replaced_and_named() {
    on_node("leftovers", async |world: World| {
        let store = MapStore::new(&world.bpf_root);
        // Another type, other sizes of keys and values, other flags.
        store.provide(
            MapSpec::<u32, u64>::new("cilium_lb4_services_v2", MapKind::Array, 3, MapFlags::NONE).raw(),
        )?;
        store.provide(
            MapSpec::<[u8; 12], [u8; 40]>::new("cilium_lb4_backends_v3", MapKind::Hash, 1024, MapFlags::NONE)
                .raw(),
        )?;
        store.provide(
            MapSpec::<u16, [u8; 6]>::new("cilium_lb4_maglev", MapKind::Hash, 10, MapFlags::NONE).raw(),
        )?;
        store.provide(
            MapSpec::<u32, u32>::new("cilium_ipcache_v2", MapKind::Hash, 10, MapFlags::NONE).raw(),
        )?;
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;

        let agent = Agent::well(&world, &api, &[]).await?;
        world.maps_until(|maps| maps.contains("10.96.0.1:80/UDP")).await?;
        world.served("10.96.0.1:80").await?;
        for name in [
            "cilium_lb4_services_v2",
            "cilium_lb4_backends_v3",
            "cilium_lb4_maglev",
            "cilium_ipcache_v2",
        ] {
            assert!(
                agent.log().contains(name),
                "{name} is not named:\n{}",
                agent.log()
            );
        }
        agent.kill()
    });
}

#[test]
fn entries_of_earlier_versions_without_protocol_are_taken_over() {
    on_node("any", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &[]).await?;
        world.maps_until(|maps| maps.contains("10.96.0.1:80/UDP")).await?;
        agent.kill()?;

        // Protocol 0 in keys and backends, as versions wrote that did not tell protocols apart.
        let store = MapStore::new(&world.bpf_root);
        let services =
            store.open::<skep_bpf_maps::lb::Service4Key, skep_bpf_maps::lb::ServiceValue>(SERVICES4.name)?;
        let backends =
            store.open::<skep_bpf_maps::lb::BackendKey, skep_bpf_maps::lb::Backend4>(BACKENDS4.name)?;
        for (key, value) in services.entries()? {
            services.delete(&key)?;
            if key.proto == 6 {
                services.update(&skep_bpf_maps::lb::Service4Key { proto: 0, ..key }, &value)?;
            }
        }
        for (key, value) in backends.entries()? {
            backends.update(&key, &skep_bpf_maps::lb::Backend4 { proto: 0, ..value })?;
        }

        let agent = Agent::well(&world, &api, &[]).await?;
        let maps = world
            .maps_until(|maps| {
                maps.contains("10.96.0.1:80/TCP")
                    && maps.contains("10.96.0.1:80/UDP")
                    && !maps.contains("80/ANY")
            })
            .await?;
        assert!(!maps.contains("/NONE"), "{maps}");
        world.served("10.96.0.1:80").await?;
        agent.kill()
    });
}
