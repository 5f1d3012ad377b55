// SPDX-License-Identifier: Apache-2.0

//! Two clusters as one, with real processes: agents, etcd, the clustermesh-apiserver, kvstoremesh.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use skep_e2e::{TestLab, lab_options};
use skep_k8s_client::Subresource;
use skep_lab::{
    command,
    lab_options::LabOptions,
    session::{CallMode, Session, at, client_pod, cluster_ips, dual_stack_service, echo_pod, finish},
};

const CLIENT: &str = "default/client";

/// A lab of two clusters with one node each, and the second one.
async fn meshed(test: &str, config: &[&str], kvstoremesh: bool) -> (TestLab, Session) {
    let lab_options = LabOptions {
        clusters: 2,
        kvstoremesh,
        ..lab_options(1, config, None)
    };
    let lab = TestLab::up_with(test, lab_options).await;
    let other = Session::open(lab.name(), "c2").unwrap();
    (lab, other)
}

/// The global service `shop` in both clusters, with a backend in the second; its address in the first.
async fn deploy(lab: &TestLab, other: &Session) -> String {
    let mut service = dual_stack_service("shop", &json!({}));
    service["metadata"]["annotations"] = json!({"service.cilium.io/global": "true"});
    lab.session.create(client_pod("client", "c1-n1")).await.unwrap();
    other.create(echo_pod("web-c2", "shop", "c2-n1")).await.unwrap();
    other.create(service.clone()).await.unwrap();
    let service = lab.session.create(service).await.unwrap();
    let to = at(&cluster_ips(&service)[0], 80);
    answered_by(lab, &to, &["web-c2"]).await;
    to
}

async fn answered_by(lab: &TestLab, to: &str, servers: &[&str]) {
    lab.call_until(CLIENT, to, CallMode::TCP, 20, |outcome| {
        outcome.failed == 0 && outcome.servers.keys().eq(servers)
    })
    .await;
}

async fn status(lab: &TestLab) -> String {
    let run = lab.session.run("c1-n1", &["skep", "clustermesh", "status"]);
    run.await.unwrap_or_else(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_restarts_without_the_remote_etcd_keeps_remote_backends() {
    let (lab, other) = meshed("mesh-restart", &[], false).await;
    let to = deploy(&lab, &other).await;
    let mesh = command::mesh(lab.name()).unwrap();
    let state = lab.session.state().unwrap();
    let agent = state.agents["c1-n1"];

    let calls = lab
        .session
        .keep_calling(CLIENT, &to, CallMode::TCP, Duration::from_secs(8))
        .unwrap();
    mesh.stop_etcd("c2").unwrap();
    let kill = ["kill", "-KILL", &agent.to_string()];
    lab.session.run("c1-n1", &kill).await.unwrap();
    lab.session
        .wait("the agent is back", || async {
            lab.session.state().unwrap().agents["c1-n1"] != agent
        })
        .await
        .unwrap();
    // The new agent has not read the cluster, so that it must not delete what the last one wrote. It says that it is well
    // when the maps are complete.
    lab.session
        .wait("the status tells it", || async {
            status(&lab).await.contains("c2: not-ready")
        })
        .await
        .unwrap();
    let outcome = finish(calls).await.unwrap();
    assert_eq!((outcome.failed, outcome.answered > 100), (0, true), "{outcome}");

    mesh.restart_etcd("c2").unwrap();
    lab.session
        .wait("the cluster is read", || async {
            status(&lab).await.contains("c2: ready")
        })
        .await
        .unwrap();
    other.delete(&echo_pod("web-c2", "shop", "c2-n1")).await.unwrap();
    other
        .create(echo_pod("web-c2-again", "shop", "c2-n1"))
        .await
        .unwrap();
    answered_by(&lab, &to, &["web-c2-again"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kvstoremesh_brings_remote_backends_and_affinity_chooses_them() {
    let (lab, other) = meshed("mesh-cached", &[], true).await;
    let to = deploy(&lab, &other).await;
    assert!(
        status(&lab).await.contains("kvstoremesh=true"),
        "{}",
        status(&lab).await
    );

    lab.create_all([echo_pod("web-c1", "shop", "c1-n1")]).await;
    answered_by(&lab, &to, &["web-c1", "web-c2"]).await;
    let affinity = async |value: Value| {
        let change = json!({"metadata": {"annotations": {"service.cilium.io/affinity": value}}});
        let service = dual_stack_service("shop", &json!({}));
        lab.session
            .merge(&service, Subresource::None, change)
            .await
            .unwrap();
    };
    affinity(json!("local")).await;
    answered_by(&lab, &to, &["web-c1"]).await;
    affinity(json!("remote")).await;
    answered_by(&lab, &to, &["web-c2"]).await;

    // No cluster is told of a service that is not shared any longer.
    let change = json!({"metadata": {"annotations": {"service.cilium.io/shared": "false"}}});
    let service = dual_stack_service("shop", &json!({}));
    other.merge(&service, Subresource::None, change).await.unwrap();
    answered_by(&lab, &to, &["web-c1"]).await;

    let mesh = command::mesh(lab.name()).unwrap();
    mesh.leave("c2").unwrap();
    lab.session
        .wait("no cluster is left", || async {
            !status(&lab).await.contains("c2:")
        })
        .await
        .unwrap();
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

fn replace_folder(from: &Path, to: &Path) {
    fs::remove_dir_all(to).unwrap();
    copy_folder(from, to);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_with_old_or_foreign_data_changes_nothing_until_it_tells_the_truth() {
    let (lab, other) = meshed("mesh-data", &[], false).await;
    let to = deploy(&lab, &other).await;
    let mesh = command::mesh(lab.name()).unwrap();
    let [mine, theirs] = ["c1", "c2"].map(|cluster| mesh.folder_of(cluster).join("etcd"));
    let old = mesh.folder_of("c2").join("snapshot");
    mesh.stop_etcd("c2").unwrap();
    copy_folder(&theirs, &old);
    mesh.restart_etcd("c2").unwrap();
    let ready = async || {
        let is_ready = lab.session.wait("the cluster is read", || async {
            status(&lab).await.contains("c2: ready")
        });
        is_ready.await.unwrap();
    };
    ready().await;
    other
        .create(echo_pod("web-c2-new", "shop", "c2-n1"))
        .await
        .unwrap();
    answered_by(&lab, &to, &["web-c2", "web-c2-new"]).await;
    other.delete(&echo_pod("web-c2", "shop", "c2-n1")).await.unwrap();
    answered_by(&lab, &to, &["web-c2-new"]).await;
    let calls = lab
        .session
        .keep_calling(CLIENT, &to, CallMode::TCP, Duration::from_secs(20))
        .unwrap();

    // The data of the other cluster: nothing of it is taken for that of c2.
    mesh.stop_etcd("c2").unwrap();
    replace_folder(&mine, &theirs);
    mesh.restart_etcd("c2").unwrap();
    lab.session
        .wait("the cluster is not read", || async {
            status(&lab).await.contains("c2: not-ready")
        })
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    answered_by(&lab, &to, &["web-c2-new"]).await;

    // Data from before the change: what publishes the state of c2 mends it, and no call fails meanwhile but those to the
    // backend that is gone.
    mesh.stop_etcd("c2").unwrap();
    replace_folder(&old, &theirs);
    mesh.restart_etcd("c2").unwrap();
    ready().await;
    answered_by(&lab, &to, &["web-c2-new"]).await;
    let outcome = finish(calls).await.unwrap();
    assert!(outcome.answered > 100, "{outcome}");
    assert!(outcome.servers.keys().eq(["web-c2-new"]), "{outcome}");

    other
        .create(echo_pod("web-c2-last", "shop", "c2-n1"))
        .await
        .unwrap();
    answered_by(&lab, &to, &["web-c2-last", "web-c2-new"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clusters_and_a_missing_mesh_are_told() {
    let run = async |name: &str, words: &[&str]| {
        let mut command = tokio::process::Command::new(skep_e2e::program("skep-lab"));
        let output = command.args(["--name", name]).args(words).output().await.unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let name = format!("mesh-wrong-{}", std::process::id());
    let error = run(&name, &["up", "--clusters", "2", "--mesh", "c1,c7"]).await;
    assert!(error.contains("no cluster called `c7`; it has c1, c2"), "{error}");

    let lab = TestLab::up("mesh-none", 1, &[]).await;
    let error = run(lab.name(), &["mesh", "join", "c1"]).await;
    assert!(error.contains("has no cluster mesh"), "{error}");
}
