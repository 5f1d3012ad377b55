// SPDX-License-Identifier: Apache-2.0

//! State files, for nodes without Kubernetes, that hold garbage.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::fs;

use serde_json::json;
use skep_faults::{Agent, Echo, Flow, World, calls, on_node, service, slice};

#[test]
fn garbage_keeps_the_last_good_state_and_is_told() {
    on_node("statefile", async |world: World| {
        let echo = Echo::start("10.244.0.1")?;
        let path = world.directory.join("state.json");
        let good = |ip: &str| {
            let (service, slice) = (service("web", ip), slice("web", &["10.244.0.1"], echo.port));
            json!({"services": [service], "endpoints": [slice]}).to_string()
        };
        // A writer that is interrupted leaves no half of a file: it renames.
        let put = |text: &[u8]| {
            let beside = world.directory.join("state.new");
            fs::write(&beside, text)?;
            fs::rename(&beside, &path)
        };
        put(good("10.96.0.1").as_bytes())?;
        let file = format!("--lb-state-file={}", path.display());
        let flags = ["--enable-k8s=false", "--lb-state-file-interval=50ms", &file];
        let mut agent = Agent::start(&world, &flags)?;
        agent.wait_well(&world).await?;
        world.maps_until(|maps| maps.contains("10.96.0.1:80/UDP")).await?;
        world.served("10.96.0.1:80").await?;
        let flow = Flow::start("10.96.0.1:80".parse()?)?;
        let maps = world.maps()?;

        let half = good("10.96.0.1");
        let garbage: [&[u8]; 5] = [
            b"]",
            b"{\"services\": 7}",
            b"\xff\xfe\x00",
            &half.as_bytes()[..half.len() / 2],
            b"{\"services\": [{\"kind\": \"Service\", \"metadata\": {\"name\": \"x\", \"namespace\": \"y\"}, \"spec\": {\"ports\": [{\"port\": \"z\"}]}}]}",
        ];
        for text in garbage {
            put(text)?;
            let health = world
                .health_until(|health| health.contains("Cannot use the state file"))
                .await?;
            assert!(health.contains("state.json"), "{health}");
            assert_eq!(world.maps()?, maps, "{}", String::from_utf8_lossy(text));
            put(half.as_bytes())?;
            world
                .health_until(|health| !health.contains("Cannot use the state file"))
                .await?;
        }
        flow.finish()?;

        // Garbage at start: what earlier runs left in the maps serves on.
        agent.kill()?;
        put(b"]")?;
        let agent = Agent::start(&world, &flags)?;
        world
            .health_until(|health| health.contains("Cannot use the state file"))
            .await?;
        assert_eq!(world.maps()?, maps);
        assert!(calls("10.96.0.1:80".parse()?));

        put(good("10.96.0.2").as_bytes())?;
        world
            .maps_until(|maps| maps.contains("10.96.0.2:80/UDP") && !maps.contains("10.96.0.1:"))
            .await?;
        agent.kill()
    });
}
