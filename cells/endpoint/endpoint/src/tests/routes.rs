// SPDX-License-Identifier: Apache-2.0

//! Endpoints with routes of their own, and the program for what takes these.

use std::time::Duration;

use serde_json::{Value, json};
use skep_bpf_maps::endpoint::endpoint_flags;
use skep_identity::NumericIdentity;
use statedb::reconciler::StatusKind;

use super::world::{World, spec};
use crate::{DatapathConfiguration, EndpointRoutes as _, EndpointRouting, EndpointSpec};

/// What the file of an endpoint says of the datapath.
fn saved(world: &World, id: u16) -> (Value, Value) {
    let path = world.folder.path().join(format!("state/{id}/ep_config.json"));
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    (
        file["DatapathConfiguration"].clone(),
        file["RequestedDatapathConfiguration"].clone(),
    )
}

/// Whether programs leave the policy to the one at the interface `lxc7`.
fn is_flagged(world: &World) -> bool {
    flags(world) & endpoint_flags::EGRESS_PROGRAM != 0
}

/// What programs know of the interface `lxc7`.
fn flags(world: &World) -> u8 {
    world.maps.facts.lookup(&107).unwrap().unwrap().flags
}

#[tokio::test]
async fn routes_come_and_go_with_endpoints() {
    let world = World::with_endpoint_routes();
    world.plug(7);
    let agent = world.start();

    let id = agent.ready(7).await.id;

    assert_eq!(world.routes.to(107), ["10.0.1.7", "fd00::7"]);
    assert_eq!(world.hooks.attached_egress()[&id], "lxc7");
    assert!(is_flagged(&world));
    let effective =
        json!({"install-endpoint-route": true, "require-egress-prog": true, "require-routing": false});
    assert_eq!(saved(&world, id), (effective, json!({})));
    world.assert_nothing_dangles();
    agent.delete(id).await;
    world.assert_empty();
}

#[tokio::test]
async fn routes_that_vanished_are_restored_by_the_next_agent() {
    let world = World::with_endpoint_routes();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;
    agent.end().await;
    world.routes.set(107, &[]).unwrap();

    let agent = world.start();
    agent.endpoints.wait_ready(id).await.unwrap();

    assert_eq!(world.routes.to(107), ["10.0.1.7", "fd00::7"]);
    world.assert_nothing_dangles();
}

#[tokio::test]
async fn routes_are_asked_for_when_they_may_have_changed() {
    let world = World::with_endpoint_routes();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;
    assert_eq!(world.routes.asked(), 1);

    for identity in [300, 301] {
        agent
            .endpoints
            .set_identity(id, NumericIdentity::new(identity))
            .unwrap();
        agent.settle().await;
        assert_eq!(agent.get(id).unwrap().status.kind, StatusKind::Done);
    }
    assert_eq!(world.routes.asked(), 1);

    // An attempt that failed says nothing.
    world.routes.set(107, &[]).unwrap();
    world.budget.set(2);
    agent.refresh(id);
    agent.settle().await;
    assert!(world.routes.asked() > 1 && world.routes.to(107).is_empty());
    world.budget.set(usize::MAX);
    let retried = async {
        while agent.endpoints.wait_ready(id).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), retried)
        .await
        .unwrap();
    assert_eq!(world.routes.to(107), ["10.0.1.7", "fd00::7"]);

    agent.delete(id).await;
    world.assert_empty();
    // The next endpoint of the id has its own.
    world.plug(8);
    agent
        .endpoints
        .create(spec(8), Some(id), Some(NumericIdentity::INIT))
        .unwrap();
    agent.endpoints.wait_ready(id).await.unwrap();
    assert_eq!(world.routes.to(108).len(), 2);
}

#[tokio::test]
async fn a_restart_without_the_setting_removes_routes_and_programs() {
    let mut world = World::with_endpoint_routes();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;
    agent.end().await;

    world.routing = EndpointRouting::default();
    let agent = world.start();
    let row = agent.endpoints.wait_ready(id).await.unwrap();

    assert_eq!(row.spec.datapath, DatapathConfiguration::default());
    assert!(world.routes.to(107).is_empty());
    assert!(world.hooks.attached_egress().is_empty() && !is_flagged(&world));
    assert_eq!(world.hooks.attached().len(), 1);
    assert_eq!(saved(&world, id), (json!({}), Value::Null));
    world.assert_nothing_dangles();
}

#[tokio::test]
async fn a_restart_with_the_setting_adds_routes_and_programs() {
    let mut world = World::new();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;
    assert!(world.routes.to(107).is_empty() && !is_flagged(&world));
    agent.end().await;

    world.routing.endpoint_routes = true;
    let agent = world.start();
    agent.endpoints.wait_ready(id).await.unwrap();

    assert_eq!(world.routes.to(107), ["10.0.1.7", "fd00::7"]);
    assert!(is_flagged(&world));
    world.assert_nothing_dangles();
}

#[tokio::test]
async fn routes_of_endpoints_that_are_gone_are_removed() {
    let world = World::with_endpoint_routes();
    (7..=8).for_each(|number| world.plug(number));
    let agent = world.start();
    let (kept, gone) = (agent.ready(7).await.id, agent.ready(8).await.id);
    agent.end().await;
    world.files().remove(gone).unwrap();

    let agent = world.start();
    agent.endpoints.wait_ready(kept).await.unwrap();
    agent.handle.prune_and_wait().await.unwrap();

    assert_eq!(world.routes.to(107).len(), 2);
    assert!(world.routes.to(108).is_empty());
    assert_eq!(
        world.hooks.attached_egress().into_keys().collect::<Vec<_>>(),
        [kept]
    );
}

/// An endpoint whose interface a chained plugin has made, as Cilium's plugin requests it.
fn chained() -> EndpointSpec {
    EndpointSpec {
        datapath: DatapathConfiguration {
            external_ipam: true,
            install_endpoint_route: false,
            require_arp_passthrough: true,
            require_egress_prog: true,
            require_routing: Some(false),
        },
        ..spec(7)
    }
}

#[tokio::test]
async fn a_chained_endpoint_has_the_program_and_keeps_the_routes_of_its_plugin() {
    let external = EndpointRouting {
        endpoint_routes: true,
        external: true,
        unreachable: false,
    };
    for routing in [EndpointRouting::default(), external] {
        let world = World {
            routing,
            ..World::new()
        };
        world.plug(7);
        let of_plugin = ["10.0.1.7".parse().unwrap()];
        world.routes.set(107, &of_plugin).unwrap();
        let agent = world.start();
        let identity = Some(NumericIdentity::INIT);
        let id = agent.endpoints.create(chained(), None, identity).unwrap().id;
        agent.endpoints.wait_ready(id).await.unwrap();
        assert_eq!(world.hooks.attached_egress()[&id], "lxc7");
        assert!(is_flagged(&world));
        agent.end().await;

        let agent = world.start();
        let row = agent.endpoints.wait_ready(id).await.unwrap();

        assert_eq!(row.spec.datapath, chained().datapath, "as it was requested");
        assert!(flags(&world) & endpoint_flags::ARP_PASSTHROUGH != 0);
        assert_eq!(world.routes.to(107), ["10.0.1.7"], "{routing:?}");
        agent.delete(id).await;
        assert_eq!(world.routes.to(107), ["10.0.1.7"]);
    }
}

#[tokio::test]
async fn what_cilium_has_saved_for_endpoint_routes_is_no_request() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    let id = agent.ready(7).await.id;
    agent.end().await;
    let path = world.folder.path().join(format!("state/{id}/ep_config.json"));
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file["DatapathConfiguration"] = json!({
        "external-ipam": true,
        "install-endpoint-route": true,
        "require-arp-passthrough": true,
        "require-egress-prog": true
    });
    std::fs::write(&path, file.to_string()).unwrap();

    let agent = world.start();
    let row = agent.endpoints.wait_ready(id).await.unwrap();

    let requested = DatapathConfiguration {
        external_ipam: true,
        require_arp_passthrough: true,
        ..DatapathConfiguration::default()
    };
    assert_eq!(row.spec.datapath, requested);
    let expected = json!({"external-ipam": true, "require-arp-passthrough": true});
    assert_eq!(saved(&world, id), (expected, Value::Null));
    assert!(!is_flagged(&world));
}
