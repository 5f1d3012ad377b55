// SPDX-License-Identifier: Apache-2.0

//! Metrics and health.

use std::time::Duration;

use skep_clustermesh_mesh::testing::{Logged, write_file};
use skep_clustermesh_types::{Kind, keys};
use tokio::time::sleep;

use crate::fixture::{World, eventually, ip, metric, node};

#[tokio::test(start_paused = true)]
async fn metrics_have_the_names_and_labels_of_cilium() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    for at in 1..=2 {
        let address = format!("10.4.1.{at}");
        alder.put(Kind::Ips, &address, ip(&alder, &address, 9)).await;
    }
    for name in ["a", "b", "c"] {
        alder.put_service(&alder.service(name, &["10.4.1.1"])).await;
    }
    world.join("alder");
    world.write("cedar", "bad");

    let of = |name: &str, cluster: &str| {
        metric(
            &world.metrics,
            &format!("remote_cluster_{name}{{target_cluster=\"{cluster}\"}}"),
        )
    };
    let is = |name: &str, value: &str| of(name, "alder").as_deref() == Some(value);
    eventually("the metrics are there", || {
        is("nodes", "1") && is("endpoints", "2") && is("services", "3") && is("readiness_status", "1")
    })
    .await;
    assert!(is("failures", "0"));
    eventually("the other one has failed", || {
        of("failures", "cedar").is_some_and(|value| value != "0")
    })
    .await;
    assert_eq!(of("readiness_status", "cedar").as_deref(), Some("0"));
    assert!(
        of("last_failure_ts", "cedar").is_some_and(|value| value.parse::<f64>().is_ok_and(|at| at > 1e9))
    );
    assert_eq!(metric(&world.metrics, "remote_clusters").as_deref(), Some("2"));
    world
        .mesh
        .wait_synced(&[Kind::Identities])
        .await
        .expect_err("one cannot be reached");
    let written = metric(
        &world.metrics,
        "remote_change_duration_seconds_count{kind=\"services\"}",
    );
    assert_eq!(written.as_deref(), Some("3"));

    world.leave("cedar");
    eventually("it is forgotten", || of("failures", "cedar").is_none()).await;
    assert_eq!(metric(&world.metrics, "remote_clusters").as_deref(), Some("1"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_cluster_has_a_health_of_its_own() {
    let world = World::start().await;
    world.cluster("alder", 7).await;
    world.join("alder");
    world.write("cedar", "bad");

    eventually("one is fine", || {
        world
            .health("clustermesh.alder")
            .is_some_and(|text| text.contains("Ready"))
    })
    .await;
    eventually("the other one is not", || {
        world.health("clustermesh.cedar").is_some_and(|text| {
            text.contains("cluster `cedar`: invalid configuration file: no store for `cedar`")
        })
    })
    .await;

    world.write("Maple", "maple");
    eventually("the file is reported", || {
        world
            .health("clustermesh.job-clustermesh-config")
            .is_some_and(|text| text.contains("invalid cluster name `Maple`"))
    })
    .await;
    world.leave("Maple");
    eventually("the directory is fine again", || {
        world
            .health("clustermesh.job-clustermesh-config")
            .is_some_and(|text| text.contains("2 remote clusters configured"))
    })
    .await;
    world.leave("cedar");
    eventually("what is gone has none", || {
        world.health("clustermesh.cedar").is_none()
    })
    .await;
    world.stop().await;
}

/// There were two lines an attempt, and one more each second until the next one.
#[tokio::test(start_paused = true)]
async fn each_failed_attempt_is_one_warning_with_its_cause() {
    let (logged, _logging) = Logged::start();
    let world = World::start_with_logged_health(&[], |_| {}).await;
    let alder = world.cluster("alder", 7).await;
    alder.delete_key(&keys::cluster_config("alder")).await;
    world.join("alder");
    world.write("cedar", "bad");
    let failures = |name: &str| world.status(name).map_or(0, |status| status.num_failures);

    eventually("both have failed several times", || {
        failures("alder") > 2 && failures("cedar") > 2
    })
    .await;

    for (name, cause) in [
        ("alder", "remote cluster configuration required but not found"),
        ("cedar", "invalid configuration file: no store for `cedar`"),
    ] {
        let warnings = logged.warnings(&format!("remote-etcd/{name}"));
        assert_eq!(warnings.len() as u64, failures(name), "{warnings:#?}");
        for warning in &warnings {
            assert!(warning.contains("Unable to read a remote cluster"), "{warning}");
            assert!(warning.contains(cause), "{warning}");
        }
    }
    world.stop().await;
}

/// There were two lines: one of the job, and one of its health.
#[tokio::test(start_paused = true)]
async fn clusters_that_do_not_become_complete_are_one_warning_with_its_cause() {
    let (logged, _logging) = Logged::start();
    let args = ["--clustermesh-sync-timeout=50s"];
    let world = World::start_with_logged_health(&args, |folder| write_file(folder, "alder", "alder")).await;

    sleep(Duration::from_secs(60)).await;

    let warnings = logged.warnings("alder");
    let warnings: Vec<&String> = warnings
        .iter()
        .filter(|line| !line.contains("remote-etcd/"))
        .collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for part in [
        "expect possible disruption of cross-cluster connections",
        "50s",
        "clustermesh-services",
    ] {
        assert!(warnings[0].contains(part), "{part}: {warnings:#?}");
    }
    world.stop().await;
}

/// The status was that of a cluster that is reached soon.
#[tokio::test(start_paused = true)]
async fn the_status_says_why_a_cluster_is_not_connected() {
    let world = World::start().await;
    world.write("cedar", "bad");
    eventually("it has failed", || {
        world
            .status("cedar")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;

    assert_eq!(
        world.status("cedar").expect("it is configured").status,
        "Waiting for initial connection to be established: \
         cluster `cedar`: invalid configuration file: no store for `cedar`"
    );

    world.cluster("cedar", 7).await;
    world.join("cedar");
    world.ready("cedar").await;
    let status = world.status("cedar").expect("it is configured").status;
    assert!(!status.contains("invalid"), "{status}");
    world.stop().await;
}
