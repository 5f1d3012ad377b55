// SPDX-License-Identifier: Apache-2.0

//! `skep lrp`: local redirect policies from the agent's API.

use std::fmt::Write;

use skep_base_api_types::LrpSpec;

use crate::{print, service};

/// Policies in columns; below each, a line per frontend with the pods that it is redirected to.
pub(crate) fn list(policies: &[LrpSpec]) -> String {
    let mut table = print::Table::new(["LRP namespace", "LRP name", "FrontendType", "Matching Service"]);
    for policy in policies {
        table.row([
            &*policy.namespace,
            &policy.name,
            &policy.frontend_type,
            &policy.service_id,
        ]);
        for mapping in &policy.frontend_mappings {
            let mut line = format!("{} -> ", service::frontend(&mapping.frontend_address));
            for backend in &mapping.backends {
                let at = service::backend(&backend.backend_address);
                // Writing to a string does not fail.
                let _ = write!(line, "{at}({}), ", backend.pod_id);
            }
            table.row(["", "|", &line]);
        }
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn lists_policies_with_their_frontends_and_pods() {
        let policies: Vec<LrpSpec> = from_value(json!([
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
        ]))
        .unwrap();

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
