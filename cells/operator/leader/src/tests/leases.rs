// SPDX-License-Identifier: Apache-2.0

//! Who leads, and what the Lease then says.

use serde_json::json;
use tokio::time::{Instant, advance, sleep};

use super::world::{NAME, World, follows, forbid_watches, seconds, settings};
use crate::election::{Attempt, Election};

#[tokio::test(start_paused = true)]
async fn a_new_lease_has_the_fields_that_kubernetes_knows() {
    let world = World::new();

    let first = world.candidate("node-a-tpdcq6vqxn").attempt().await.unwrap();

    assert_eq!(first, Attempt::Leads);
    let lease = world.lease().await;
    assert_eq!(lease["apiVersion"], "coordination.k8s.io/v1");
    assert_eq!(lease["metadata"]["name"], NAME);
    let spec = &lease["spec"];
    assert_eq!(spec["holderIdentity"], "node-a-tpdcq6vqxn");
    assert_eq!(spec["leaseDurationSeconds"], 15);
    assert_eq!(spec["leaseTransitions"], 0);
    for field in ["acquireTime", "renewTime"] {
        let time = spec[field].as_str().unwrap();
        assert_eq!(time.len(), "2026-06-01T10:14:14.825055Z".len(), "{time}");
        assert!(time.ends_with('Z') && time.as_bytes()[19] == b'.', "{time}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_keeps_when_it_was_acquired() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let before = world.lease().await;

    assert_eq!(leader.attempt().await.unwrap(), Attempt::Leads);

    let after = world.lease().await;
    assert_eq!(after["spec"]["acquireTime"], before["spec"]["acquireTime"]);
    assert_ne!(after["spec"]["renewTime"], before["spec"]["renewTime"]);
    assert_eq!(after["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn another_follows_until_the_lease_ends() {
    let world = World::new();
    world.candidate("a").attempt().await.unwrap();
    let mut second = world.candidate("b");
    assert_eq!(second.attempt().await.unwrap(), follows("a"));

    advance(seconds(14)).await;
    assert_eq!(second.attempt().await.unwrap(), follows("a"));
    advance(seconds(1)).await;

    assert_eq!(second.attempt().await.unwrap(), Attempt::Leads);
    assert_eq!(world.lease().await["spec"]["leaseTransitions"], 1);
}

#[tokio::test(start_paused = true)]
async fn takes_over_a_second_after_the_lease_of_a_dead_leader_at_the_latest() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let mut second = world.candidate("b");
    let waiting = second.acquire(|_| {});
    let dies = async {
        for _ in 0..5 {
            sleep(seconds(2)).await;
            leader.attempt().await.unwrap();
        }
        Instant::now()
    };

    let ((), died) = tokio::join!(waiting, dies);

    let took = died.elapsed();
    assert!(took >= seconds(15) && took <= seconds(16), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn takes_over_a_released_lease_at_once() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let mut second = world.candidate("b");
    let releases = async {
        sleep(seconds(7)).await;
        leader.release().await.unwrap();
        Instant::now()
    };

    let ((), released) = tokio::join!(second.acquire(|_| {}), releases);

    assert!(released.elapsed() < seconds(1), "{:?}", released.elapsed());
    assert_eq!(world.holder().await, "b");
}

#[tokio::test(start_paused = true)]
async fn polls_if_it_may_not_watch() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let client = world.client();
    forbid_watches(&client);
    let mut second = Election::new(client, settings("b"));
    let releases = async {
        sleep(seconds(7)).await;
        leader.release().await.unwrap();
        Instant::now()
    };

    let ((), released) = tokio::join!(second.acquire(|_| {}), releases);

    assert!(released.elapsed() < seconds(5), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_names_nobody_and_is_short() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();

    leader.release().await.unwrap();

    let spec = world.lease().await["spec"].clone();
    assert_eq!(spec["holderIdentity"], "");
    assert_eq!(spec["leaseDurationSeconds"], 1);
    assert!(!leader.leads());
    leader.release().await.unwrap();
    assert_eq!(world.lease().await["spec"], spec, "released once");
}

#[tokio::test(start_paused = true)]
async fn a_follower_releases_nothing() {
    let world = World::new();
    world.candidate("a").attempt().await.unwrap();
    let mut second = world.candidate("b");
    second.attempt().await.unwrap();

    second.release().await.unwrap();

    assert_eq!(world.holder().await, "a");
}

#[tokio::test(start_paused = true)]
async fn one_of_many_gets_the_lease_of_a_dead_leader() {
    let world = World::new();
    world.candidate("dead").attempt().await.unwrap();
    let mut candidates: Vec<_> = (0..8).map(|n| world.candidate(&format!("c{n}"))).collect();
    for candidate in &mut candidates {
        assert_eq!(candidate.attempt().await.unwrap(), follows("dead"));
    }
    advance(seconds(15)).await;

    let attempts = candidates.iter_mut().map(Election::attempt);
    let results = futures::future::join_all(attempts).await;

    let leaders = results
        .iter()
        .filter(|result| matches!(result, Ok(Attempt::Leads)))
        .count();
    assert_eq!(leaders, 1, "{results:?}");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_read_a_free_lease_too_early_follows() {
    let world = World::new();
    let (mut early, mut quick) = (world.candidate("early"), world.candidate("quick"));
    // Both have seen that there is no lease.
    assert_eq!(quick.attempt().await.unwrap(), Attempt::Leads);
    quick.release().await.unwrap();
    early.attempt().await.unwrap();
    early.release().await.unwrap();
    quick.attempt().await.unwrap();

    assert_eq!(early.attempt().await.unwrap(), follows("quick"));
}

#[tokio::test(start_paused = true)]
async fn clocks_of_other_nodes_do_not_count() {
    for time in [
        "1970-01-01T00:00:00.000000Z",
        "2999-01-01T00:00:00.000000Z",
        "noon",
    ] {
        let world = World::new();
        world.candidate("a").attempt().await.unwrap();
        let mut lease = world.lease().await;
        if time != "noon" {
            lease["spec"]["renewTime"] = json!(time);
        }
        world.put(lease).await;
        let mut second = world.candidate("b");

        assert_eq!(second.attempt().await.unwrap(), follows("a"), "{time}");
        advance(seconds(15)).await;
        assert_eq!(second.attempt().await.unwrap(), Attempt::Leads, "{time}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_duration_is_that_of_the_leader() {
    let world = World::new();
    let mut long = settings("a");
    long.lease_duration = seconds(60);
    Election::new(world.client(), long).attempt().await.unwrap();
    let mut second = world.candidate("b");
    second.attempt().await.unwrap();

    advance(seconds(59)).await;
    assert_eq!(second.attempt().await.unwrap(), follows("a"));
    advance(seconds(1)).await;
    assert_eq!(second.attempt().await.unwrap(), Attempt::Leads);
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_spec_is_free_and_what_is_not_ours_is_kept() {
    let world = World::new();
    world
        .put(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": NAME, "namespace": "default",
                "labels": { "team": "net" }, "finalizers": ["example.org/keep"],
            },
        }))
        .await;

    let attempt = world.candidate("a").attempt().await.unwrap();

    assert_eq!(attempt, Attempt::Leads);
    let lease = world.lease().await;
    assert_eq!(lease["metadata"]["labels"]["team"], "net");
    assert_eq!(lease["metadata"]["finalizers"], json!(["example.org/keep"]));
    assert_eq!(lease["spec"]["holderIdentity"], "a");
}
