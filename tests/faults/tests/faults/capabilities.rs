// SPDX-License-Identifier: Apache-2.0

//! What the agent must be allowed, as `docs/requirements.md` lists it: no more, and no less.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use rustix::thread::CapabilitySet;
use skep_faults::{Agent, Api, Echo, World, on_node, patience, slice};

const LISTED: [(&str, CapabilitySet); 3] = [
    ("CAP_BPF", CapabilitySet::BPF),
    ("CAP_PERFMON", CapabilitySet::PERFMON),
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
];

/// The DNS proxy wants CAP_NET_RAW.
const NO_PROXY: &str = "--enable-l7-proxy=false";

fn listed() -> CapabilitySet {
    LISTED.into_iter().map(|(_, bit)| bit).collect()
}

#[test]
fn the_documentation_lists_the_capabilities() {
    let text = include_str!("../../../../docs/requirements.md");
    let named: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "## Capabilities")
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .take_while(|name| *name != "CAP_SYS_ADMIN")
        .collect();
    assert_eq!(named, LISTED.map(|(name, _)| name));
}

#[test]
fn with_the_listed_capabilities_services_work_without_root() {
    on_node("capable", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        world.give_to_nobody()?;

        let mut agent = Agent::with_capabilities(&world, &api, &[NO_PROXY], listed())?;
        agent.wait_well(&world).await?;
        world.served("10.96.0.1:80").await?;

        // The next one takes over what this one left.
        agent.kill()?;
        let mut agent =
            Agent::with_capabilities(&world, &api, &[NO_PROXY, "--bpf-lb-algorithm=maglev"], listed())?;
        agent.wait_well(&world).await?;
        world.served("10.96.0.1:80").await?;
        let health = world
            .health_until(|health| health.contains("attached to"))
            .await?;
        assert!(!health.contains("Degraded"), "{health}");

        // Sockets of a dead backend are ended.
        let client = UdpSocket::bind("0.0.0.0:0")?;
        client.connect("10.96.0.1:80")?;
        api.put(&slice("web", &["10.244.0.2"], echo.port))?;
        client.set_read_timeout(Some(Duration::from_millis(50)))?;
        let deadline = Instant::now() + patience();
        loop {
            let error = client.recv(&mut [0; 1]).unwrap_err();
            if error.kind() == std::io::ErrorKind::ConnectionAborted {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "the socket lives on: {error}\n{}",
                agent.log()
            );
        }
        agent.kill()
    });
}

#[test]
fn a_missing_capability_is_named() {
    on_node("incapable", async |world: World| {
        let api = Api::start().await?;
        world.give_to_nobody()?;
        for (name, bit) in LISTED {
            let exit = Agent::with_capabilities(&world, &api, &[], listed().difference(bit))?
                .wait_exit()
                .await?;
            assert_eq!(exit.code, Some(69), "without {name}: {}", exit.log);
            assert!(
                exit.log.contains(&format!("no {name} (")),
                "without {name}: {}",
                exit.log
            );
            for (other, _) in LISTED.into_iter().filter(|(other, _)| *other != name) {
                assert!(
                    !exit.log.contains(&format!("no {other} (")),
                    "{other}: {}",
                    exit.log
                );
            }
        }

        let exit = Agent::with_capabilities(&world, &api, &[], CapabilitySet::empty())?
            .wait_exit()
            .await?;
        assert_eq!(exit.code, Some(69), "{}", exit.log);
        for (name, _) in LISTED {
            assert!(exit.log.contains(&format!("no {name} (")), "{name}: {}", exit.log);
        }
        Ok(())
    });
}

#[test]
fn what_is_to_be_mounted_needs_another_capability_and_says_so() {
    on_node("mounting", async |world: World| {
        let api = Api::start().await?;
        world.give_to_nobody()?;
        let empty = world.directory.join("empty");
        let flag = format!("--bpf-root={}", empty.display());

        let exit = Agent::with_capabilities(&world, &api, &[&flag], listed())?
            .wait_exit()
            .await?;

        assert_eq!(exit.code, Some(69), "{}", exit.log);
        assert!(exit.log.contains(empty.to_str().unwrap()), "{}", exit.log);
        assert!(exit.log.contains("CAP_SYS_ADMIN"), "{}", exit.log);
        Ok(())
    });
}
