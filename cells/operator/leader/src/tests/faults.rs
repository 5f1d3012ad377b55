// SPDX-License-Identifier: Apache-2.0

//! Servers that fail, and leases that are lost.

use serde_json::json;
use skep_k8s_client::DeleteOptions;
use skep_k8s_client::testing::Fault;
use tokio::time::{Instant, sleep};

use super::world::{NAME, World, lose_answers, seconds, settings};
use crate::election::{Attempt, Election, Lost};
use crate::lease::LEASES;

#[tokio::test(start_paused = true)]
async fn a_leader_without_server_gives_up_before_its_lease_ends() {
    let world = World::new();
    let client = world.client();
    let mut leader = Election::new(client.clone(), settings("a"));
    leader.attempt().await.unwrap();
    let began = Instant::now();
    client.fail(Fault::Unreachable);
    let mut errors = 0;

    let lost = leader.renew(|_| errors += 1).await;

    assert!(matches!(&lost, Lost::Expired { cause: Some(_), .. }), "{lost:?}");
    let took = began.elapsed();
    assert!(took >= seconds(10) && took < seconds(15), "{took:?}");
    assert!(errors >= 4, "{errors}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_requests_hang_gives_up_before_its_lease_ends() {
    let world = World::new();
    let client = world.client();
    let mut leader = Election::new(client.clone(), settings("a"));
    leader.attempt().await.unwrap();
    let began = Instant::now();
    client.fail(Fault::Hangs);
    let mut texts = Vec::new();

    let lost = leader
        .renew(|renewed| texts.push(renewed.unwrap_err().to_string()))
        .await;

    assert!(matches!(lost, Lost::Expired { .. }), "{lost:?}");
    assert!(began.elapsed() < seconds(15), "{:?}", began.elapsed());
    let text = format!("lease `default/{NAME}`: no answer within 5s to the request to update it");
    assert_eq!(texts[0], text);
}

#[tokio::test(start_paused = true)]
async fn a_leader_outlives_a_short_failure() {
    let world = World::new();
    let client = world.client();
    let mut leader = Election::new(client.clone(), settings("a"));
    leader.attempt().await.unwrap();
    let mut reports = Vec::new();
    let outage = async {
        for _ in 0..3 {
            sleep(seconds(5)).await;
            client.fail(Fault::Unreachable);
            sleep(seconds(8)).await;
            client.heal();
            sleep(seconds(5)).await;
        }
    };

    tokio::select! {
        lost = leader.renew(|renewed| reports.push(renewed.is_ok())) => panic!("{lost:?}"),
        () = outage => {}
    }

    assert_eq!(reports.iter().filter(|is_ok| **is_ok).count(), 3, "{reports:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_took_is_lost_at_once() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let mut lease = world.lease().await;
    lease["spec"]["holderIdentity"] = json!("thief");
    world.put(lease).await;
    let began = Instant::now();

    let lost = leader.renew(|_| {}).await;

    assert!(
        matches!(&lost, Lost::Taken { holder } if holder == "thief"),
        "{lost:?}"
    );
    assert!(began.elapsed() <= seconds(3), "{:?}", began.elapsed());
    assert_eq!(world.holder().await, "thief");
}

#[tokio::test(start_paused = true)]
async fn an_edited_or_deleted_lease_is_renewed_all_the_same() {
    let world = World::new();
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let edits = async {
        sleep(seconds(1)).await;
        let mut lease = world.lease().await;
        lease["metadata"]["annotations"] = json!({ "note": "seen" });
        world.put(lease).await;
        sleep(seconds(3)).await;
        assert_eq!(world.lease().await["metadata"]["annotations"]["note"], "seen");
        let options = DeleteOptions::default();
        world
            .raw()
            .delete(&LEASES, "default", NAME, &options)
            .await
            .unwrap();
        sleep(seconds(20)).await;
    };

    tokio::select! {
        lost = leader.renew(|_| {}) => panic!("{lost:?}"),
        () = edits => {}
    }

    assert_eq!(world.holder().await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_is_no_loss() {
    let world = World::new();
    let client = world.client();
    let mut leader = Election::new(client.clone(), settings("a"));
    leader.attempt().await.unwrap();
    lose_answers(&client);
    assert!(leader.attempt().await.is_err());
    client.heal();

    assert_eq!(leader.attempt().await.unwrap(), Attempt::Leads);
    lose_answers(&client);
    assert!(leader.attempt().await.is_err());
    client.heal();
    leader.release().await.unwrap();

    assert_eq!(world.holder().await, "");
}

#[tokio::test(start_paused = true)]
async fn a_lease_acquired_by_a_dropped_attempt_is_released() {
    let world = World::new();
    let client = world.client();
    lose_answers(&client);
    let mut candidate = Election::new(client.clone(), settings("a"));
    let attempt = tokio::time::timeout(seconds(1), candidate.attempt()).await;
    assert!(attempt.is_err(), "dropped");
    assert_eq!(world.holder().await, "a");
    client.heal();

    candidate.release().await.unwrap();

    assert_eq!(world.holder().await, "");
}

#[tokio::test(start_paused = true)]
async fn a_follower_waits_for_a_server_that_is_down() {
    let world = World::new();
    let client = world.client();
    client.fail(Fault::Unreachable);
    let mut candidate = Election::new(client.clone(), settings("a"));
    let mut errors = 0;
    let recovers = async {
        sleep(seconds(120)).await;
        client.heal();
        Instant::now()
    };

    let ((), recovered) = tokio::join!(
        candidate.acquire(|news| errors += u32::from(news.is_err())),
        recovers
    );

    assert!(recovered.elapsed() < seconds(5), "{:?}", recovered.elapsed());
    assert!(errors > 10, "{errors}");
}
