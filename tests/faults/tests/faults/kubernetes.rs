// SPDX-License-Identifier: Apache-2.0

//! API servers that go away or forget, and objects that make no sense.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::time::Duration;

use serde_json::{Value, json};
use skep_faults::{Agent, Api, Echo, Flow, World, calls, calls_udp, on_node, service, slice};

#[test]
fn services_work_while_the_api_server_is_away_and_changes_arrive_when_it_is_back() {
    on_node("away", async |world: World| {
        let mut api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        api.serve("old", "10.96.0.2", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &["--k8s-heartbeat-timeout=1s"]).await?;
        world
            .maps_until(|maps| maps.contains("10.96.0.1:80/TCP") && maps.contains("10.96.0.2:80/UDP"))
            .await?;
        world.served("10.96.0.1:80").await?;
        world.served("10.96.0.2:80").await?;
        let ids = world.maps()?;
        let flow = Flow::start("10.96.0.1:80".parse()?)?;

        api.go_away().await?;
        world
            .health_until(|health| health.contains("Kubernetes API server does not respond"))
            .await?;
        world
            .wait(
                "status",
                || world.skep(&["status", "--brief"]),
                |said| said.to_lowercase().contains("kubernetes"),
            )
            .await?;
        api.serve("new", "10.96.0.3", &["10.244.0.1"], echo.port)?;
        api.delete(&service("old", "10.96.0.2"))?;
        api.delete(&slice("old", &[], 1))?;
        // Each heartbeat that fails is reported.
        let failures = || {
            agent
                .log()
                .matches("Kubernetes API server does not respond")
                .count()
        };
        let before = failures();
        world
            .wait(
                "more heartbeats fail",
                || Ok((failures() - before).to_string()),
                |more| more.parse().is_ok_and(|more: usize| more >= 2),
            )
            .await?;
        assert_eq!(world.maps()?, ids);
        assert!(calls("10.96.0.2:80".parse()?), "nothing is withdrawn on a guess");

        api.listen().await?;
        let maps = world
            .maps_until(|maps| maps.contains("10.96.0.3:80/TCP") && !maps.contains("10.96.0.2"))
            .await?;
        let kept = ids
            .lines()
            .find(|line| line.contains("10.96.0.1:80/TCP"))
            .unwrap();
        assert!(maps.contains(kept), "{kept} is not in\n{maps}");
        world.served("10.96.0.3:80").await?;
        world
            .wait(
                "status",
                || world.skep(&["status", "--brief"]),
                |said| said == "OK\n",
            )
            .await?;
        world
            .health_until(|health| {
                !health.contains("does not answer") && !health.contains("Waiting for the Kub")
            })
            .await?;
        flow.finish()?;
        agent.kill()
    });
}

#[test]
fn an_agent_that_restarts_without_api_server_leaves_services_as_they_are() {
    on_node("restart-away", async |world: World| {
        let mut api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &[]).await?;
        world.maps_until(|maps| maps.contains("10.244.0.1:")).await?;
        world.served("10.96.0.1:80").await?;
        let before = world.maps()?;
        let flow = Flow::start("10.96.0.1:80".parse()?)?;
        agent.kill()?;
        api.go_away().await?;

        let mut agent = Agent::following(&world, &api, &[])?;
        // It has no sockets before it knows its node.
        world
            .wait(
                "the API server is missed",
                || Ok(agent.log()),
                |log| log.contains("API server does not respond"),
            )
            .await?;
        assert_eq!(world.maps()?, before);
        assert_ne!(world.skep(&["status", "--brief"])?, "OK\n");

        api.listen().await?;
        agent.wait_well(&world).await?;
        assert_eq!(world.maps()?, before);
        flow.finish()?;
        agent.kill()
    });
}

#[test]
fn a_history_that_is_gone_is_made_up_for_by_a_list() {
    on_node("gone", async |world: World| {
        let mut api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &[]).await?;
        world.maps_until(|maps| maps.contains("10.244.0.1:")).await?;

        for round in 0..3 {
            let (old, new) = (format!("10.96.1.{round}"), format!("10.96.1.{}", round + 1));
            if round % 2 == 0 {
                // Watches end with 410, and what they would resume from is gone.
                api.forget_history();
                api.put(&service("moving", &new))?;
                api.forget_history();
            } else {
                api.go_away().await?;
                api.put(&service("moving", &new))?;
                api.forget_history();
                api.listen().await?;
            }
            world
                .maps_until(|maps| {
                    maps.contains(&format!("{new}:80/TCP")) && !maps.contains(&format!("{old}:80/TCP"))
                })
                .await?;
            assert!(calls("10.96.0.1:80".parse()?));
        }
        world
            .health_until(|health| !health.contains("too old") && !health.contains("Degraded"))
            .await?;
        agent.kill()
    });
}

#[test]
fn of_two_services_with_one_address_the_second_waits_until_the_first_is_gone() {
    on_node("shared", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        api.serve("first", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &[]).await?;
        world
            .frontends_until(|table| table.contains("shop/first") && table.contains("Done"))
            .await?;
        api.serve("second", "10.96.0.1", &["10.244.0.2"], echo.port)?;

        let health = world
            .health_until(|health| health.contains("frontend already owned by another service (shop/first)"))
            .await?;
        assert!(health.contains("shop/second"), "{health}");
        let maps = world.maps()?;
        assert!(
            maps.contains("10.244.0.1:") && !maps.contains("10.244.0.2:"),
            "{maps}"
        );
        assert!(calls("10.96.0.1:80".parse()?));

        api.delete(&service("first", "10.96.0.1"))?;
        let maps = world
            .maps_until(|maps| maps.contains("10.244.0.2:") && !maps.contains("10.244.0.1:"))
            .await?;
        assert!(maps.contains("10.96.0.1:80/UDP"), "{maps}");
        world
            .health_until(|health| !health.contains("frontend already owned"))
            .await?;
        agent.kill()
    });
}

#[test]
fn one_port_by_two_protocols_and_one_node_port_of_two_services_do_not_mix() {
    on_node("ports", async |world: World| {
        let api = Api::start().await?;
        let (tcp, udp) = (Echo::start("10.244.0.1")?, Echo::start("10.244.0.2")?);
        let mut web = service("web", "10.96.0.1");
        web["spec"]["ports"] = json!([{"name": "web", "port": 80, "protocol": "TCP", "nodePort": 30080}]);
        web["spec"]["type"] = json!("NodePort");
        // The same cluster IP, port and node port, by another protocol: no collision.
        let mut dns = service("dns", "10.96.0.1");
        dns["spec"]["ports"] = json!([{"name": "dns", "port": 80, "protocol": "UDP", "nodePort": 30080}]);
        dns["spec"]["type"] = json!("NodePort");
        // The node port of the first: a collision, of this service alone.
        let mut thief = service("thief", "10.96.0.9");
        thief["spec"]["ports"] = json!([{"name": "web", "port": 81, "protocol": "TCP", "nodePort": 30080}]);
        thief["spec"]["type"] = json!("NodePort");
        // Twice the same port in one service: the API refuses that; whatever comes of it must not harm others.
        let mut twice = service("twice", "10.96.0.8");
        twice["spec"]["ports"] = json!([
            {"name": "a", "port": 82, "protocol": "TCP"}, {"name": "b", "port": 82, "protocol": "TCP"},
            {"name": "c", "port": 83, "protocol": "SCTP"}, {"name": "d", "port": 84, "protocol": "QUIC"},
        ]);
        api.put(&web)?;
        api.put(&slice("web", &["10.244.0.1"], tcp.port))?;
        api.put(&dns)?;
        api.put(&slice("dns", &["10.244.0.2"], udp.port))?;
        let agent = Agent::well(&world, &api, &[]).await?;
        world.frontends_until(|table| table.contains("shop/web")).await?;
        api.put(&thief)?;
        api.put(&slice("thief", &["10.244.0.2"], udp.port))?;
        api.put(&twice)?;

        let health = world
            .health_until(|health| health.contains("shop/thief") && health.contains("shop/web"))
            .await?;
        assert!(
            health.contains("frontend already owned by another service (shop/web)"),
            "{health}"
        );
        let to = "10.96.0.1:80".parse()?;
        world.served("10.96.0.1:80").await?;

        api.delete(&web)?;
        world
            .frontends_until(|table| table.contains("10.96.0.9:81/TCP") && !table.contains("shop/web"))
            .await?;
        assert!(calls_udp(to));
        world
            .health_until(|health| !health.contains("frontend already owned"))
            .await?;
        agent.kill()
    });
}

/// Pointers of every field below `metadata.labels`, `metadata.annotations`, `spec` and so on; names of objects are
/// left out, or it would be another object.
fn fields(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, out: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value))
                .collect(),
            Value::Array(list) => list
                .iter()
                .enumerate()
                .map(|(at, value)| (at.to_string(), value))
                .collect(),
            _ => Vec::new(),
        };
        for (key, child) in children {
            let path = format!("{at}/{key}");
            walk(child, &path, out);
            out.push(path);
        }
    }
    let mut all = Vec::new();
    walk(value, "", &mut all);
    let names = [
        "/kind",
        "/apiVersion",
        "/metadata",
        "/metadata/name",
        "/metadata/namespace",
    ];
    all.retain(|path| !names.contains(&path.as_str()));
    all
}

/// What a field is set to: other types, other meanings, too much, too little.
fn garbage() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(70000),
        json!(1.5e300),
        json!(""),
        json!("None"),
        json!("::ffff:10.0.0.1"),
        json!("256.1.1.1/99"),
        json!("\u{0}\u{202e}x".repeat(200)),
        json!([]),
        json!([null, {"x": []}]),
        json!({}),
        json!({"": {"": null}}),
    ]
}

fn full_service() -> Value {
    let mut object = service("victim", "10.96.0.7");
    object["metadata"]["labels"] = json!({"app": "web"});
    object["metadata"]["annotations"] = json!({
        "service.cilium.io/type": "LoadBalancer", "service.cilium.io/node-selector": "a in (b)",
        "service.cilium.io/forwarding-mode": "dsr", "service.kubernetes.io/topology-mode": "auto",
    });
    for (key, value) in [
        ("type", json!("LoadBalancer")),
        ("externalIPs", json!(["198.51.100.1"])),
        ("sessionAffinity", json!("ClientIP")),
        (
            "sessionAffinityConfig",
            json!({"clientIP": {"timeoutSeconds": 10}}),
        ),
        ("loadBalancerSourceRanges", json!(["10.0.0.0/8"])),
        ("externalTrafficPolicy", json!("Local")),
        ("internalTrafficPolicy", json!("Cluster")),
        ("healthCheckNodePort", json!(31000)),
        ("ipFamilies", json!(["IPv4"])),
        ("loadBalancerClass", json!("class")),
        ("trafficDistribution", json!("PreferClose")),
    ] {
        object["spec"][key] = value;
    }
    object["status"] =
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP", "hostname": "h"}]}});
    object
}

fn full_slice(port: u16) -> Value {
    let mut object = slice("victim", &["10.244.0.2"], port);
    object["endpoints"] = json!([{
        "addresses": ["10.244.0.2"], "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": "here", "zone": "a", "hints": {"forZones": [{"name": "a"}]},
        "deprecatedTopology": {"kubernetes.io/hostname": "here"},
    }]);
    object
}

#[test]
fn objects_with_any_field_broken_harm_nobody_and_are_well_again_when_mended() {
    on_node("malformed", async |world: World| {
        let api = Api::start().await?;
        let echo = Echo::start("10.244.0.1")?;
        let victim = Echo::start("10.244.0.2")?;
        api.serve("web", "10.96.0.1", &["10.244.0.1"], echo.port)?;
        let agent = Agent::well(&world, &api, &["--lb-reflector-wait-time=1ms"]).await?;
        world.maps_until(|maps| maps.contains("10.244.0.1:")).await?;
        world.served("10.96.0.1:80").await?;
        let flow = Flow::start("10.96.0.1:80".parse()?)?;

        let whole = [full_service(), full_slice(victim.port)];
        for object in &whole {
            for field in fields(object) {
                for value in garbage() {
                    let mut broken = object.clone();
                    *broken.pointer_mut(&field).unwrap() = value;
                    api.put_malformed(&broken)?;
                    // It is seen broken in each way, not only in the last.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        let mut broken = full_service();
        broken["spec"]["ports"][0]["port"] = json!("eighty");
        api.put_malformed(&broken)?;
        let health = world
            .health_until(|health| health.contains("shop/victim"))
            .await?;
        assert!(health.contains("Degraded"), "{health}");

        for object in whole {
            api.put(&object)?;
        }
        world
            .maps_until(|maps| maps.contains("192.0.2.1:80/TCP") && maps.contains("10.244.0.2:"))
            .await?;
        world
            .health_until(|health| !health.contains("shop/victim"))
            .await?;
        flow.finish()?;
        let log = agent.log();
        assert!(!log.contains("panicked"), "{log}");
        agent.kill()
    });
}
