// SPDX-License-Identifier: Apache-2.0

//! Fabric, nodes and pods, made for real in namespaces.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{process::Stdio, time::Duration};

use skep_lab::{
    cgroup,
    enter::Placement,
    lab_options::{LabOptions, PodNetwork},
    machine::{Fabric, Machine},
    paths::LabPaths,
    plan::{Lab, PodPlace},
    process::Process,
};

/// Removes the lab of a test, also when the test fails.
struct Cleanup(LabPaths);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = cgroup::remove(&self.0.cgroup, Duration::from_secs(30));
        let _ = std::fs::remove_dir_all(&self.0.folder);
    }
}

fn program() -> std::ffi::OsString {
    env!("CARGO_BIN_EXE_skep-lab").into()
}

async fn call(placement: &Placement, to: &str, transport: &str) -> String {
    let mut placement = placement.clone();
    placement.program = [
        program().to_str().unwrap(),
        "call",
        to,
        "--transport",
        transport,
        "--count",
        "2",
    ]
    .map(Into::into)
    .to_vec();
    let output = tokio::process::Command::new(program())
        .args(placement.arguments())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_different_nodes_reach_each_other_over_both_families() {
    // The library starts its own program again; in a test that is this one.
    let lab = Lab::plan(&format!("t{}", std::process::id()), 1, 2).unwrap();
    let paths = LabPaths::of(&lab.name).unwrap();
    let _cleanup = Cleanup(paths.clone());
    skep_lab::process::use_program(program());
    let fabric = Fabric::create(&paths, &lab).await.unwrap();
    let machine = async |at: usize| {
        let node = &lab.clusters[0].nodes[at];
        let created = Machine::create(&paths, &lab, node, &fabric, &LabOptions::default()).await;
        created.unwrap()
    };
    let (first, second) = (machine(0).await, machine(1).await);
    let place = PodPlace {
        id: "web".into(),
        hostname: "web".into(),
        namespace: "default".into(),
        uid: "web".into(),
        slot: 2,
    };
    let serve = [
        program().to_str().unwrap(),
        "echo",
        "--name",
        "web",
        "--tcp",
        "80",
        "--udp",
        "53",
    ]
    .map(Into::into)
    .to_vec();

    let (web, _): (Process, _) = first
        .start_pod(&place, PodNetwork::Unmanaged, Vec::new(), serve)
        .await
        .unwrap();
    let shell = second.placement("tools", Vec::new()).unwrap();

    for address in first.node.pod_addresses(2) {
        for (port, transport) in [(80, "tcp"), (53, "udp")] {
            let to = std::net::SocketAddr::from((address, port)).to_string();
            let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
            loop {
                let said = call(&shell, &to, transport).await;
                if said.contains("2 answered, 0 failed") && said.contains("web: 2") {
                    break;
                }
                assert!(tokio::time::Instant::now() < deadline, "{to} {transport}: {said}");
            }
        }
    }

    web.kill().await;
    first.clean_pod(&place, PodNetwork::Unmanaged).await.unwrap();
    assert!(!first.pod_cgroup(&place).exists());
}

// Where the machine has one at the same place, as nearly all do, agents would meet two and refuse to choose.
#[test]
fn a_node_has_one_bpf_file_system_whatever_the_machine_has() {
    let node = |words: &[&str]| {
        let placement = Placement {
            new_node: true,
            program: words.iter().map(Into::into).collect(),
            ..Placement::default()
        };
        let mut command = std::process::Command::new(program());
        command.args(placement.arguments()).stdin(Stdio::null());
        command
    };
    let inner: Vec<String> = std::iter::once(program())
        .chain(node(&["cat", "/proc/self/mountinfo"]).get_args().map(Into::into))
        .map(|word| word.into_string().unwrap())
        .collect();
    let outer = format!("mount -t bpf bpf /sys/fs/bpf && exec {}", inner.join(" "));

    let output = node(&["sh", "-c", &outer]).output().unwrap();

    let mounts = String::from_utf8_lossy(&output.stdout);
    let bpf = mounts.lines().filter(|line| line.contains(" /sys/fs/bpf "));
    assert_eq!(
        bpf.count(),
        1,
        "{mounts}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
