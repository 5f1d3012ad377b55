// SPDX-License-Identifier: Apache-2.0

//! Rates of pods, on a kernel that cannot pace, and on one that seems to.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::json;
use skep_e2e::{AT_PACKETS, TestLab};
use skep_lab::session::{client_pod, echo_pod};

/// Settings of the kernel as they are, with a default queueing discipline, which namespaces of nodes do not show.
fn settings(folder: &Path) {
    let net = folder.join("sys/net");
    fs::create_dir_all(net.join("core")).unwrap();
    fs::write(net.join("core/default_qdisc"), "fq").unwrap();
    symlink("/proc/sys/kernel", folder.join("sys/kernel")).unwrap();
    for family in ["ipv4", "ipv6"] {
        symlink(format!("/proc/sys/net/{family}"), net.join(family)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_send_no_faster_than_their_annotation() {
    let folder = tempfile::tempdir().unwrap();
    settings(folder.path());
    let lab = TestLab::up("bandwidth", 2, &[AT_PACKETS]).await;
    let line = |status: &str| {
        let found = status.lines().find(|line| line.starts_with("BandwidthManager:"));
        found.unwrap_or_default().trim_end().to_owned()
    };
    // The agent is not well, as it was asked for what this kernel cannot do.
    let restart = async || {
        let agent = lab.agent("c1-n1");
        lab.run("c1-n1", &["kill", "-KILL", &agent.to_string()]).await;
    };
    lab.configure("c1-n1", "enable-bandwidth-manager", "true");
    restart().await;
    lab.wait("health says that rates are not enforced", || async {
        let status = lab.session.run("c1-n1", &["skep", "status", "--verbose"]).await;
        status.is_ok_and(|status| {
            line(&status).ends_with("Disabled")
                && status.contains("bandwidth of pods is not limited")
                && !status.contains("starting:")
        })
    })
    .await;

    lab.configure("c1-n1", "procfs", folder.path().to_str().unwrap());
    restart().await;
    let mut client = client_pod("client", "c1-n1");
    client["metadata"]["annotations"] = json!({"kubernetes.io/egress-bandwidth": "8k"});
    lab.create_all([client, echo_pod("far", "shop", "c1-n2")]).await;

    lab.wait("programs enforce the rate", || async {
        let status = lab.session.run("c1-n1", &["skep", "status"]).await;
        let limits = lab
            .session
            .run("c1-n1", &["skep", "bpf", "bandwidth", "list"])
            .await;
        let is_limited = limits.is_ok_and(|text| {
            let mut words = text
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>());
            words.any(|words| words.len() == 4 && words[1..] == ["Egress", "0", "8k"])
        });
        is_limited && status.is_ok_and(|status| line(&status).contains("EDT with BPF [CUBIC]"))
    })
    .await;
    let endpoints = lab.endpoints("c1-n2", 1).await;
    let far = endpoints.iter().find_map(|endpoint| {
        let name = &endpoint["status"]["external-identifiers"]["k8s-pod-name"];
        let address = endpoint["status"]["networking"]["addressing"][0]["ipv4"].as_str()?;
        (name == "far").then(|| address.to_owned())
    });
    let far = far.unwrap();

    lab.wait("packets beyond the horizon are dropped", || async {
        // A second and a half each.
        let flood = format!("for n in 1 2 3 4; do head -c 1400 /dev/zero > /dev/udp/{far}/9; done");
        let _ = lab.session.run("default/client", &["bash", "-c", &flood]).await;
        let metrics = lab
            .session
            .run("c1-n1", &["skep", "bpf", "metrics", "list"])
            .await;
        metrics.is_ok_and(|text| text.contains("Reached EDT rate-limiting drop horizon"))
    })
    .await;
}
