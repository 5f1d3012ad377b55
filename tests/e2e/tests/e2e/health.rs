// SPDX-License-Identifier: Apache-2.0

//! Nodes see each other, and each other's health endpoint, until one is cut off.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::Value;
use skep_e2e::TestLab;

/// Probes of `c1-n1` to a node: whether each has succeeded; none while there are too few.
async fn probes(lab: &TestLab, node: &str) -> Vec<bool> {
    let text = lab
        .run("c1-n1", &["skep", "health", "status", "-o", "json"])
        .await;
    let status: Value = serde_json::from_str(&text).unwrap();
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let Some(found) = nodes.iter().find(|found| found["name"] == node) else {
        return Vec::new();
    };
    let stacks = [&found["host"], &found["health-endpoint"]];
    let paths = stacks.iter().flat_map(|stack| {
        let secondary = stack["secondary-addresses"].as_array().into_iter().flatten();
        std::iter::once(&stack["primary-address"]).chain(secondary)
    });
    let results = paths.flat_map(|path| [&path["icmp"], &path["http"]]);
    let probed = results.filter(|result| result["lastProbed"].is_string());
    probed.map(|result| result.get("status").is_none()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_is_unreachable() {
    let lab = TestLab::up("health", 2, &["connectivity-probe-frequency-ratio=0"]).await;

    // Node and endpoint, IPv4 and IPv6, ICMP and HTTP.
    for node in ["c1-n1", "c1-n2"] {
        lab.wait(&format!("{node} is healthy"), || async {
            let found = probes(&lab, node).await;
            found.len() == 8 && found.iter().all(|is_well| *is_well)
        })
        .await;
    }
    let text = lab.run("c1-n1", &["skep", "status", "--all-nodes"]).await;
    assert!(text.contains("2/2 reachable"), "{text}");
    assert!(text.contains("  c1-n1 (localhost)"), "{text}");

    // The endpoint survives the agent.
    let endpoints = || lab.run("c1-n1", &["skep", "endpoint", "list"]);
    let line = |text: &str| {
        let found = text.lines().find(|line| line.contains("reserved:health"));
        found.map(|line| line.split_whitespace().next().unwrap().to_owned())
    };
    let id = line(&endpoints().await).expect("a health endpoint");
    let before = lab.agent("c1-n1");
    lab.run("c1-n1", &["kill", "-KILL", &before.to_string()]).await;
    lab.wait_agent("c1-n1", before).await;
    assert_eq!(line(&endpoints().await), Some(id));

    lab.run("c1-n2", &["ip", "link", "set", "eth0", "down"]).await;
    let is_cut = || async {
        let found = probes(&lab, "c1-n2").await;
        found.len() == 8 && found.iter().all(|is_well| !*is_well)
    };
    // A round of 22 s, and 10 s for the last probe.
    let _ = lab.session.wait("the round is over", is_cut).await;
    lab.wait("the other node is unreachable", is_cut).await;
    let text = lab.run("c1-n1", &["skep", "status"]).await;
    assert!(text.contains("1/2 reachable"), "{text}");
    assert!(text.contains("  c1-n2 "), "{text}");
    let own = probes(&lab, "c1-n1").await;
    assert!(own.iter().all(|is_well| *is_well), "{own:?}");
}
