// SPDX-License-Identifier: Apache-2.0

//! `skep lrp`: local redirect policies as the agent's API tells them.

use std::fmt::Write;

use serde_json::Value;

use crate::print;
use crate::service::address;

/// Policies in columns; below each a line for every frontend with the pods that take its traffic.
pub(crate) fn list(policies: &Value) -> String {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let mut rows = Vec::new();
    for policy in policies.as_array().into_iter().flatten() {
        rows.push(vec![
            text(policy, "namespace"),
            text(policy, "name"),
            text(policy, "frontend-type"),
            text(policy, "service-id"),
        ]);
        for mapping in policy["frontend-mappings"].as_array().into_iter().flatten() {
            let mut line = format!("{} -> ", address(&mapping["frontend-address"]));
            for backend in mapping["backends"].as_array().into_iter().flatten() {
                let at = address(&backend["backend-address"]);
                let at = at.rsplit_once('/').map_or(at.as_str(), |(at, _)| at);
                // Writing to a string does not fail.
                let _ = write!(line, "{at}({}), ", text(backend, "pod-id"));
            }
            rows.push(vec![String::new(), "|".to_owned(), line]);
        }
    }
    let titles = ["LRP namespace", "LRP name", "FrontendType", "Matching Service"];
    print::table(&titles, rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_policies_with_their_frontends_and_pods() {
        let policies = json!([
            {"uid": "u", "namespace": "kube-system", "name": "dns", "lrp-type": "svc", "service-id": "kube-system/kube-dns",
                "frontend-type": "clusterIP + all svc ports", "frontend-mappings": [{
                    "frontend-address": {"ip": "10.96.0.10", "port": 53, "protocol": "UDP", "scope": "external"},
                    "backends": [
                        {"pod-id": "kube-system/a", "backend-address": {"ip": "10.244.0.5", "port": 53, "protocol": "UDP"}},
                        {"pod-id": "kube-system/b", "backend-address": {"ip": "fd00::5", "port": 53, "protocol": "UDP"}}],
                }]},
            {"uid": "v", "namespace": "shop", "name": "meta", "lrp-type": "addr", "service-id": "", "frontend-type": "IP + port",
                "frontend-mappings": [{
                    "frontend-address": {"ip": "169.254.169.254", "port": 80, "protocol": "TCP"}, "backends": []}]},
        ]);

        let expected = [
            "LRP namespace   LRP name   FrontendType                Matching Service",
            "kube-system     dns        clusterIP + all svc ports   kube-system/kube-dns",
            "                |          10.96.0.10:53/UDP -> 10.244.0.5:53(kube-system/a), [fd00::5]:53(kube-system/b), ",
            "shop            meta       IP + port   ",
            "                |          169.254.169.254:80/TCP -> ",
            "",
        ];
        assert_eq!(list(&policies), expected.join("\n"));
    }
}
