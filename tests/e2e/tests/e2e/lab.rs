// SPDX-License-Identifier: Apache-2.0

//! The lab itself, as its users treat it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Command as Blocking, Output, Stdio},
    time::Duration,
};

use skep_e2e::{TestLab, program};
use skep_lab::{cgroup, paths::LabPaths, plan, state::State};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

async fn skep_lab(name: &str, words: &[&str]) -> Output {
    let mut command = Command::new(program("skep-lab"));
    let run = command.args(["--name", name]).args(words).output();
    run.await.unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lab_that_is_up_is_not_brought_up_again() {
    let lab = TestLab::up("twice", 1, &[]).await;
    let before = lab.session.state().unwrap();

    let again = skep_lab(lab.name(), &["up", "--nodes", "1"]).await;

    assert!(!again.status.success());
    assert!(said(&again).contains("is up; take it down"), "{}", said(&again));
    assert_eq!(lab.session.state().unwrap().supervisor, before.supervisor);
    assert!(skep_lab(lab.name(), &["status"]).await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lab_whose_supervisor_died_says_so_and_can_be_replaced() {
    let lab = TestLab::up("orphan", 1, &[]).await;
    let state = lab.session.state().unwrap();
    // In the node's namespaces, which share process ids with this machine.
    lab.session
        .run("c1-n1", &["kill", "-KILL", &state.supervisor.to_string()])
        .await
        .unwrap();
    let supervisor = LabPaths::of(lab.name()).unwrap().cgroup.join("supervisor");
    lab.session
        .wait("the supervisor is gone", || async {
            cgroup::processes(&supervisor).is_empty()
        })
        .await
        .unwrap();

    let status = skep_lab(lab.name(), &["status"]).await;
    assert!(!status.status.success());
    assert!(
        said(&status).contains("failed (the process that ran it is gone"),
        "{}",
        said(&status)
    );

    let up = skep_lab(lab.name(), &["up", "--nodes", "1"]).await;
    assert!(up.status.success(), "{}", said(&up));
    assert_ne!(lab.session.state().unwrap().supervisor, state.supervisor);
    assert!(skep_lab(lab.name(), &["status"]).await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_start_leaves_nothing() {
    for signal in ["INT", "TERM", "HUP"] {
        let name = format!("{}-{}", signal.to_lowercase(), std::process::id());
        let mut up = Command::new(program("skep-lab"))
            .args(["--name", &name, "up", "--clusters", "2", "--nodes", "3"])
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(up.stderr.take().unwrap()).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("node c1-n2") {
                break;
            }
        }

        let pid = up.id().unwrap().to_string();
        Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .await
            .unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(30), up.wait()).await;

        let paths = LabPaths::of(&name).unwrap();
        let left = (paths.cgroup.exists(), paths.folder.exists());
        skep_lab::command::down(&name).unwrap();
        assert!(!ended.unwrap().unwrap().success());
        assert_eq!(left, (false, false), "{signal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_on_nodes_end_as_they_would_in_a_shell() {
    let lab = TestLab::up("exec", 1, &[]).await;
    let exec = async |words: &[&str]| {
        let words: Vec<&str> = ["exec", "n1", "--"].iter().chain(words).copied().collect();
        skep_lab(lab.name(), &words).await
    };

    assert_eq!(said(&exec(&["hostname"]).await), "c1-n1\n");
    assert_eq!(exec(&["sh", "-c", "exit 7"]).await.status.code(), Some(7));
    let missing = exec(&["no-such-program"]).await;
    assert_eq!(missing.status.code(), Some(127), "{}", said(&missing));
    assert_eq!(exec(&["/etc"]).await.status.code(), Some(126));
    let killed = exec(&["sh", "-c", "kill -KILL $$"]).await;
    assert_eq!(killed.status.code(), Some(137));
    let nowhere = skep_lab(lab.name(), &["exec", "c9-n9", "--", "true"]).await;
    assert!(
        said(&nowhere).contains("no node or running pod called `c9-n9`; it has outside, beyond, c1-n1"),
        "{}",
        said(&nowhere)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_start_is_reported_at_once_with_what_it_says() {
    let name = format!("setting-{}", std::process::id());
    let began = std::time::Instant::now();

    let up = skep_lab(
        &name,
        &["up", "--nodes", "1", "--agent-config", "bpf-lb-map-max=abc"],
    )
    .await;

    let took = began.elapsed();
    skep_lab::command::down(&name).unwrap();
    assert!(!up.status.success());
    let said = said(&up);
    assert!(
        said.contains("the agent of c1-n1 ended")
            && said.contains("`bpf-lb-map-max`")
            && said.contains("`abc`"),
        "{said}"
    );
    // It is not the time that agents have to become well.
    assert!(took < Duration::from_secs(40), "{took:?}");
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let name = format!("interrupted-{}", std::process::id());
    let mut up = Blocking::new(program("skep-lab"))
        .args(["--name", &name, "up", "--nodes", "8", "--agent"])
        .arg(program("skep-agent"))
        .spawn()
        .unwrap();
    let folder = plan::folder_of(&name);
    while !folder.join("state.json").exists() {
        assert!(
            up.try_wait().unwrap().is_none(),
            "the lab was up or failed before it was interrupted"
        );
        std::thread::sleep(Duration::from_millis(1));
    }

    let interrupted = Blocking::new("kill")
        .args(["-INT", &up.id().to_string()])
        .status()
        .unwrap();

    assert!(interrupted.success());
    assert!(!up.wait().unwrap().success());
    assert!(!folder.exists());
    assert!(!LabPaths::of(&name).unwrap().cgroup.exists());
}

#[test]
fn down_finds_what_a_crashed_lab_left() {
    let name = format!("crashed-{}", std::process::id());
    let lab = |words: &[&str]| {
        Blocking::new(program("skep-lab"))
            .args(["--name", &name])
            .args(words)
            .status()
            .unwrap()
    };
    assert!(lab(&["up", "--nodes", "1"]).success());
    let supervisor = State::read(&name).unwrap().supervisor;
    let killed = Blocking::new("kill")
        .args(["-KILL", &supervisor.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());

    assert!(lab(&["down"]).success());

    assert!(!plan::folder_of(&name).exists());
    assert!(!LabPaths::of(&name).unwrap().cgroup.exists());
}

#[test]
fn who_is_not_root_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    // Where it may not be started.
    let copy = folder.path().join("skep-lab");
    fs::copy(program("skep-lab"), &copy).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();

    for words in [["up"].as_slice(), &["down"], &["exec", "n1", "--", "true"]] {
        let output = Blocking::new(&copy).args(words).uid(65534).output().unwrap();

        assert!(!output.status.success());
        assert!(
            said(&output).contains("run skep-lab as root"),
            "{}",
            said(&output)
        );
    }
}
