// SPDX-License-Identifier: Apache-2.0

//! Hooks that fail, maps that are full, agents that end between two steps.

use super::world::{ENDPOINT_ROUTES, World, spec};
use crate::{EndpointRouting, EndpointState, WaitError};

#[tokio::test]
async fn an_endpoint_whose_hook_fails_is_not_delivered_to_and_tried_again() {
    let world = World::new();
    let agent = world.start();

    let id = agent.create(7);
    let error = agent.endpoints.wait_ready(id).await.unwrap_err();

    assert_eq!(
        error,
        WaitError::Failed {
            id,
            cause: "no interface lxc7".to_owned()
        }
    );
    assert_eq!(world.is_delivered("10.0.1.7"), None);
    assert_eq!(agent.get(id).unwrap().state(), EndpointState::NotReady);
    world.plug(7);
    while agent.get(id).unwrap().state() != EndpointState::Ready {
        tokio::task::yield_now().await;
    }
    world.assert_nothing_dangles();
}

#[tokio::test]
async fn a_full_map_is_named_and_hurts_the_new_endpoint_alone() {
    let world = World::with_room(2);
    world.plug(7);
    world.plug(8);
    let agent = world.start();
    let first = agent.ready(7).await.id;

    let second = agent.create(8);
    let error = agent.endpoints.wait_ready(second).await.unwrap_err();

    assert_eq!(
        error.to_string(),
        format!("endpoint {second} is not ready: map cilium_lxc is full (2 entries)")
    );
    assert_eq!(world.is_delivered("10.0.1.7"), Some(first));
    agent.delete(first).await;
    while agent.get(second).unwrap().state() != EndpointState::Ready {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.is_delivered("10.0.1.8"), Some(second));
}

#[tokio::test]
async fn one_endpoint_of_a_round_fails_alone() {
    let world = World::new();
    world.plug(7);
    world.plug(9);
    let agent = world.start();

    let ids = [7, 8, 9].map(|number| agent.create(number));

    for id in [ids[0], ids[2]] {
        agent.endpoints.wait_ready(id).await.unwrap();
    }
    let error = agent.endpoints.wait_ready(ids[1]).await.unwrap_err().to_string();
    assert!(error.ends_with("no interface lxc8"), "{error}");
    assert_eq!(world.delivered().len(), 4);
}

#[tokio::test]
async fn an_endpoint_whose_policy_is_not_realized_is_not_ready() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    world.budget.set(0);

    let id = agent.create(7);
    let error = agent.endpoints.wait_ready(id).await.unwrap_err().to_string();

    assert!(error.contains(&format!("cilium_policy_v2_{id:05}")), "{error}");
    assert!(world.hooks.attached().is_empty());
    world.budget.set(usize::MAX);
    while agent.get(id).unwrap().state() != EndpointState::Ready {
        tokio::task::yield_now().await;
    }
    world.assert_nothing_dangles();
}

/// Most writes of one endpoint's way up or down, with a route of its own and without.
const WRITES: usize = 12;

/// Each number of writes, on nodes of both kinds.
fn interruptions() -> impl Iterator<Item = (usize, World)> {
    let both = [EndpointRouting::default(), ENDPOINT_ROUTES];
    both.into_iter().flat_map(|routing| {
        (0..=WRITES).map(move |writes| {
            let world = World::new();
            (writes, World { routing, ..world })
        })
    })
}

#[tokio::test]
async fn an_agent_may_end_after_any_step_of_the_way_up() {
    for (writes, world) in interruptions() {
        world.plug(7);
        let agent = world.start();
        world.budget.set(writes);
        let id = agent.create(7);
        agent.settle().await;
        agent.end().await;
        world.assert_nothing_dangles();

        world.budget.set(usize::MAX);
        let agent = world.start();

        agent.endpoints.wait_ready(id).await.unwrap();
        assert_eq!(world.is_delivered("fd00::7"), Some(id), "after {writes} writes");
        world.assert_nothing_dangles();
        agent.delete(id).await;
        world.assert_empty();
    }
}

#[tokio::test]
async fn an_agent_may_end_after_any_step_of_the_way_down() {
    for (writes, world) in interruptions() {
        world.plug(7);
        let agent = world.start();
        let id = agent.ready(7).await.id;
        world.budget.set(writes);
        assert!(agent.endpoints.disconnect(id).unwrap());
        agent.settle().await;
        agent.end().await;
        world.assert_nothing_dangles();
        world.unplug(7);

        world.budget.set(usize::MAX);
        let agent = world.start();
        agent.settle().await;

        agent.remove_disconnected().await;
        agent.prune().await;
        assert!(agent.get(id).is_none(), "after {writes} writes");
        world.assert_empty();
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_named() {
    let world = World::new();
    world.plug(7);
    let agent = world.start();
    std::fs::write(world.folder.path().join("state"), "a file, not a folder").unwrap();

    let row = agent
        .endpoints
        .create(spec(7), Some(7), Some(skep_identity::NumericIdentity::INIT))
        .unwrap();
    let error = agent.endpoints.wait_ready(row.id).await.unwrap_err().to_string();

    assert!(error.contains("/state/7"), "{error}");
    assert!(world.hooks.attached().is_empty());
}
