// SPDX-License-Identifier: Apache-2.0

//! Agents that cannot start say why, and leave alone what is there.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::fs;

use skep_faults::{Agent, Api, Echo, Flow, World, calls, on_node};

#[test]
fn a_wrong_cgroup_root_is_named() {
    on_node("cgroup", async |world: World| {
        let api = Api::start().await?;
        let plain = world.directory.join("plain");
        fs::create_dir(&plain)?;
        fs::write(plain.join("file"), "")?;

        let flag = format!("--cgroup-root={}", plain.display());
        let exit = Agent::following(&world, &api, &[&flag])?.wait_exit().await?;
        assert_eq!(exit.code, Some(69), "{}", exit.log);
        assert!(exit.log.contains("cgroup-root"), "{}", exit.log);
        assert!(exit.log.contains(plain.to_str().unwrap()), "{}", exit.log);

        let exit = Agent::following(&world, &api, &["--cgroup-root=/proc/nowhere"])?
            .wait_exit()
            .await?;
        assert_eq!(exit.code, Some(69), "{}", exit.log);
        assert!(exit.log.contains("/proc/nowhere"), "{}", exit.log);
        assert!(!world.socket().exists(), "a socket is left");
        Ok(())
    });
}

#[test]
fn a_wrong_bpf_root_is_named() {
    on_node("bpfroot", async |world: World| {
        let api = Api::start().await?;
        let exit = Agent::following(&world, &api, &["--bpf-root=/proc"])?
            .wait_exit()
            .await?;
        assert_eq!(exit.code, Some(69), "{}", exit.log);
        assert!(exit.log.contains("bpf-root: /proc is a"), "{}", exit.log);
        Ok(())
    });
}

#[test]
fn a_second_agent_on_the_node_is_refused_and_the_first_goes_on() {
    on_node("second", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let first = Agent::well(&world, &api, &[]).await?;
        let to = "10.96.0.1:80".parse()?;
        world.maps_until(|maps| maps.contains("10.244.0.1:")).await?;
        world.served("10.96.0.1:80").await?;
        let maps = world.maps()?;
        let flow = Flow::start(to)?;

        // Sockets of its own: nothing but the maps is shared.
        let (socket, shell) = (
            format!("--socket-path={}", world.directory.join("2.sock").display()),
            format!(
                "--shell-sock-path={}",
                world.directory.join("2-shell.sock").display()
            ),
        );
        let flags = [socket.as_str(), &shell, "--agent-health-port=0"];
        let exit = Agent::following(&world, &api, &flags)?.wait_exit().await?;
        assert_eq!(exit.code, Some(69), "{}", exit.log);
        let owner = format!("belongs to process {}", first.pid());
        assert!(exit.log.contains(&owner), "{}", exit.log);
        assert!(exit.log.contains("does another agent run"), "{}", exit.log);

        // With the same sockets, those may be what it meets first.
        let exit = Agent::following(&world, &api, &[])?.wait_exit().await?;
        assert_eq!(exit.code, Some(69), "{}", exit.log);
        assert!(exit.log.contains("does another agent run"), "{}", exit.log);

        assert_eq!(world.maps()?, maps);
        assert_eq!(world.skep(&["status", "--brief"])?, "OK\n");
        flow.finish()?;

        // Killed, it holds nothing back.
        first.kill()?;
        let next = Agent::well(&world, &api, &[]).await?;
        assert!(calls(to));
        next.kill()
    });
}

#[test]
fn garbage_in_flags_and_files_is_refused_all_at_once() {
    on_node("garbage", async |world: World| {
        let config = world.directory.join("config");
        fs::create_dir(&config)?;
        let keys: [(&str, &[u8]); 5] = [
            ("bpf-lb-map-max", b"many"),
            ("node-port-range", b"32767,30000"),
            ("k8s-heartbeat-timeout", b"soon"),
            ("enable-ipv6", b"\xff\xfe"),
            ("bpf-lb-algorithm", b"fair"),
        ];
        for (key, value) in keys {
            fs::write(config.join(key), value)?;
        }
        let dir = format!("--config-dir={}", config.display());
        let exit = Agent::start(&world, &[&dir, "--enable-ipv4=perhaps"])?
            .wait_exit()
            .await?;
        // The harness gives this flag; the file must win nothing.
        assert_eq!(exit.code, Some(78), "{}", exit.log);
        for text in [
            "node-port-range",
            "32767 is not smaller than 30000",
            "32767,30000",
            "k8s-heartbeat-timeout",
            "`soon`",
            "enable-ipv6",
            "bpf-lb-algorithm",
            "random or maglev",
            "enable-ipv4",
            "`perhaps`",
            config.to_str().unwrap(),
        ] {
            assert!(exit.log.contains(text), "no {text} in\n{}", exit.log);
        }

        let exit = Agent::start(&world, &["--bpf-lb-map-maximum=7"])?
            .wait_exit()
            .await?;
        assert_eq!(exit.code, Some(64), "{}", exit.log);
        assert!(exit.log.contains("--bpf-lb-map-maximum"), "{}", exit.log);
        assert!(exit.log.contains("bpf-lb-map-max"), "{}", exit.log);

        let exit = Agent::start(&world, &["--config-dir=/proc/nowhere"])?
            .wait_exit()
            .await?;
        assert_eq!(exit.code, Some(78), "{}", exit.log);
        assert!(exit.log.contains("/proc/nowhere"), "{}", exit.log);

        let file = world.directory.join("config.yaml");
        fs::write(&file, ": : {[")?;
        let exit = Agent::start(&world, &[&format!("--config={}", file.display())])?
            .wait_exit()
            .await?;
        assert_eq!(exit.code, Some(78), "{}", exit.log);
        assert!(exit.log.contains("config.yaml"), "{}", exit.log);
        Ok(())
    });
}

#[test]
fn a_config_map_of_cilium_mounts_and_what_is_not_served_is_told() {
    on_node("configmap", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let config = world.directory.join("config");
        fs::create_dir(&config)?;
        for (key, value) in [
            ("routing-mode", "tunnel"),
            ("tunnel-protocol", "vxlan"),
            ("bpf-lb-acceleration", "native"),
            ("bpf-lb-mode", "dsr"),
            ("enable-ipv4-masquerade", "true"),
            ("enable-bpf-masquerade", "false"),
            ("enable-policy", "default"),
            ("monitor-aggregation", "medium"),
            ("monitor-aggregation-interval", "5s"),
            ("monitor-aggregation-flags", "all"),
            ("enable-bpf-clock-probe", "false"),
            ("identity-allocation-mode", "crd"),
            ("operator-api-serve-addr", "127.0.0.1:9234"),
        ] {
            fs::write(config.join(key), value)?;
        }

        let dir = format!("--config-dir={}", config.display());
        let agent = Agent::well(&world, &api, &[&dir]).await?;
        world.served("10.96.0.1:80").await?;
        let status = world
            .wait(
                "status",
                || world.skep(&["status"]),
                |status| status.contains("unsupported-config"),
            )
            .await?;
        for setting in [
            "routing-mode=tunnel: packets to backends on other nodes get the node's source address",
            "enable-ipv4-masquerade=true: ",
        ] {
            assert!(status.contains(setting), "no {setting} in\n{status}");
        }
        assert!(
            !status.contains("enable-bpf-masquerade=") && !status.contains("bpf-lb-acceleration="),
            "{status}"
        );
        assert!(!status.contains("enable-policy="), "{status}");
        agent.kill()?;

        // Nothing is asked for that is not there.
        let agent = Agent::well(&world, &api, &[]).await?;
        let health = world
            .health_until(|health| health.contains("All settings are supported"))
            .await?;
        assert!(!health.contains("Degraded"), "{health}");
        agent.kill()
    });
}
