// SPDX-License-Identifier: Apache-2.0

//! Policies of the recorded cluster.

use serde_json::{Value, json};

/// The policies of a profile with the scene.
pub(super) fn policies(profile: &str) -> Vec<Value> {
    let cilium = |name: &str, app: &str, mut spec: Value| {
        spec["endpointSelector"] = json!({"matchLabels": {"app": app}});
        let meta = json!({"name": name, "namespace": "gc-shop"});
        json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": meta, "spec": spec})
    };
    let of = |app: &str| json!([{"matchLabels": {"app": app}}]);
    let cart = json!({
        "ingress": [
            {
                "fromEndpoints": of("web"),
                "toPorts": [{"ports": [
                    {"port": "8080", "protocol": "TCP"}, {"port": "dns", "protocol": "UDP"},
                ]}],
            },
            {"fromCIDR": ["192.0.2.0/24"]},
            {"fromEntities": ["host"]},
        ],
        "egress": [
            {"toEndpoints": of("db"), "toPorts": [{"ports": [{"port": "5432", "protocol": "TCP"}]}]},
            {"toCIDRSet": [{"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"]}]},
        ],
    });
    let db = json!({
        "ingress": [{"fromEndpoints": [{}]}],
        "ingressDeny": [{"fromEntities": ["world"]}],
    });
    let mut all = vec![
        cilium("cart-in", "cart", cart),
        cilium("db-deny", "db", db),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "np", "namespace": "gc-ops"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "client"}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]}],
            },
        }),
    ];
    if profile.starts_with('S') {
        let web = json!({
            "egress": [
                {"toFQDNs": [{"matchName": "api.example.org"}, {"matchPattern": "*.example.net"}]},
                {
                    "toEndpoints": of("cart"),
                    "toPorts": [{
                        "ports": [{"port": "53", "protocol": "ANY"}],
                        "rules": {"dns": [{"matchPattern": "*"}]},
                    }],
                },
            ],
        });
        all.push(cilium("web-fqdn", "web", web));
    }
    all
}
