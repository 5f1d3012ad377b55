// SPDX-License-Identifier: Apache-2.0

//! Who reaches whom in a lab of two nodes, with pods `client` and `near` on the first one and `far` on the other.

use serde_json::Value;
use skep_e2e::TestLab;
use skep_lab::{
    plan::OUTSIDE,
    session::{CallMode, at, cluster_ips, node_port},
};

/// The server at `to` answers by TCP and UDP.
pub(crate) async fn all_answer(lab: &TestLab, from: &str, to: &str) {
    for mode in [CallMode::TCP, CallMode::UDP] {
        lab.call_until(from, to, mode, 5, |outcome| outcome.failed == 0)
            .await;
    }
}

/// Pods at their addresses, the service `shop` at its ClusterIPs and, from outside, at its ports of `nodes`.
pub(crate) async fn all_reach(lab: &TestLab, shop: &Value, near: &[String], far: &[String], nodes: &[&str]) {
    for address in near.iter().chain(far) {
        for from in ["default/client", "c1-n1", "c1-n2"] {
            all_answer(lab, from, &at(address, 8080)).await;
        }
    }
    for address in cluster_ips(shop) {
        for from in ["default/client", "default/far", "c1-n1"] {
            all_answer(lab, from, &at(&address, 80)).await;
        }
    }
    for (mode, protocol) in [(CallMode::TCP, "TCP"), (CallMode::UDP, "UDP")] {
        for address in nodes {
            let to = at(address, node_port(shop, protocol));
            lab.call_until(OUTSIDE, &to, mode, 20, |outcome| {
                outcome.failed == 0 && outcome.servers.len() == 2
            })
            .await;
        }
    }
}
