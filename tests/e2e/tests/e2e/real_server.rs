// SPDX-License-Identifier: Apache-2.0

//! Labs with an API server of their own processes: from a folder as `KUBEBUILDER_ASSETS` names it, with a stand-in for
//! `kube-apiserver`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::json;
use skep_e2e::{TestLab, lab_options, program};
use skep_lab::{
    cgroup, command, plan,
    session::{CallMode, at, client_pod, cluster_ips, echo_pod},
};

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder with etcd and the given program as `kube-apiserver`.
fn assets(server: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "etcd", "exec etcd \"$@\"");
    script(folder.path(), "kube-apiserver", server);
    folder
}

fn stand_in() -> tempfile::TempDir {
    assets(&format!(
        "exec {} \"$@\"",
        program("examples/kube-apiserver").display()
    ))
}

fn log(lab: &str, name: &str) -> String {
    fs::read_to_string(plan::folder_of(lab).join("logs").join(name)).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_pods_work_with_a_server_over_tls() {
    let assets = stand_in();
    let lab = TestLab::up_with("tls", lab_options(1, &[], Some(assets.path().into()))).await;

    let folder = plan::folder_of(lab.name());
    let flags = fs::read_to_string(folder.join("control-plane/c1/generated/flags")).unwrap();
    for flag in [
        "--etcd-servers=http://172.30.1.250:2379",
        "--bind-address=172.30.1.250",
        "--secure-port=6443",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.101.0.0/16,fd00:100:1::/112",
        "--disable-admission-plugins=ServiceAccount",
    ] {
        assert!(
            flags.lines().any(|line| line == flag),
            "{flag} is not in\n{flags}"
        );
    }
    let state = lab.session.state().unwrap();
    assert!(state.servers["c1"].starts_with("https://127.0.0.1:"), "{state:?}");
    let kubeconfig = fs::read_to_string(state.kubeconfig("c1").unwrap()).unwrap();
    assert!(kubeconfig.contains("certificate-authority-data: ") && kubeconfig.contains("token: "));

    // No node is named: the lab's scheduler binds the pods.
    let mut web = echo_pod("web-0", "shop", "");
    web["spec"].as_object_mut().unwrap().remove("nodeName");
    lab.create_all([web, client_pod("client", "c1-n1")]).await;
    let service = lab.create_shop(json!({})).await;
    for ip in cluster_ips(&service) {
        lab.call_until("default/client", &at(&ip, 80), CallMode::TCP, 5, |outcome| {
            outcome.failed == 0 && outcome.answered == 5
        })
        .await;
    }
    // The agents log in, and trust only the lab's authority.
    let status = lab.run("c1-n1", &["skep", "status", "-o", "json"]).await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["kubernetes"]["state"], "Ok", "{status}");

    let (paths, name) = (
        skep_lab::paths::LabPaths::of(lab.name()).unwrap(),
        lab.name().to_owned(),
    );
    drop(lab);
    assert!(!paths.cgroup.exists() && !paths.folder.exists());
    assert!(cgroup::processes(&paths.cgroup).is_empty(), "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_is_started_again_while_etcd_goes_on() {
    let assets = stand_in();
    let lab = TestLab::up_with("restarts", lab_options(1, &[], Some(assets.path().into()))).await;
    let group = skep_lab::paths::LabPaths::of(lab.name())
        .unwrap()
        .cgroup
        .join("control-plane/c1");
    let command = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let pid_of = |part: &str| {
        let pids = cgroup::processes(&group);
        pids.into_iter().find(|pid| command(pid).contains(part))
    };
    let (server, etcd) = (pid_of("--secure-port").unwrap(), pid_of("--data-dir").unwrap());

    lab.session
        .run("c1-n1", &["kill", "-KILL", &server.to_string()])
        .await
        .unwrap();
    lab.session
        .wait("a new process that serves", || async {
            pid_of("--secure-port").is_some_and(|pid| pid != server)
                && log(lab.name(), "c1-kube-apiserver.log")
                    .matches("serving on")
                    .count()
                    == 2
        })
        .await
        .unwrap();

    assert_eq!(pid_of("--data-dir"), Some(etcd));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_is_reported_with_its_last_words() {
    let assets = assets("echo one >&2\necho 'Error: unknown flag: --bogus' >&2\nexit 1");
    skep_lab::process::use_program(program("skep-lab").into());
    let name = format!("crash-{}", std::process::id());

    let up = command::up(&name, &lab_options(1, &[], Some(assets.path().into())), |_| ()).await;
    let said = up.map(drop).unwrap_err().to_string();
    let left = skep_lab::paths::LabPaths::of(&name).unwrap().cgroup.exists();
    command::down(&name).unwrap();

    assert!(
        said.contains("kube-apiserver of cluster c1 ended")
            && said.contains("one\nError: unknown flag: --bogus"),
        "{said}"
    );
    assert!(!left, "processes are left");
    assert!(!plan::folder_of(&name).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_the_programs_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("none-{}", std::process::id());

    let up = command::up(&name, &lab_options(1, &[], Some(folder.path().into())), |_| ()).await;

    let said = up.map(drop).unwrap_err().to_string();
    assert!(said.contains("there is no etcd in"), "{said}");
    assert!(!plan::folder_of(&name).exists());
}
