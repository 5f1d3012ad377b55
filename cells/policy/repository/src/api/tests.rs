// SPDX-License-Identifier: Apache-2.0

//! Replays recorded requests to Cilium's agent.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{collections::BTreeMap, sync::Arc};

use axum::{body::Body, http::Request, response::Response};
use serde_json::{Value, json};
use skep_identity::{Labels, NumericIdentity};
use skep_identity_cache::SecurityIdentity;
use skep_policy_model::{Content, Context, IdentityLabels, PolicyObject, PolicySettings};
use skep_policy_sources::Origin;
use statedb::{Db, RwTable};

use super::*;
use crate::dns::Proxies;

const RECORDED: &str = include_str!("../../testdata/rest-policy.json");

/// Local endpoints with their identities and labels.
const PODS: [(u16, u32, &str, &str); 4] = [
    (1, 44165, "gc-shop", "cart"),
    (2, 42593, "gc-shop", "db"),
    (3, 15979, "gc-shop", "web"),
    (4, 20447, "gc-ops", "client"),
];

fn objects() -> Vec<Value> {
    let cnp = |name: &str, uid: &str, spec: Value| {
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"name": name, "namespace": "gc-shop", "uid": uid}, "spec": spec,
        })
    };
    let app = |name: &str| json!({"matchLabels": {"app": name}});
    vec![
        cnp(
            "cart-in",
            "458cf7c8-eaaa-431a-90b1-cde3ffe2dd8f",
            json!({
                "endpointSelector": app("cart"),
                "ingress": [
                    {"fromEndpoints": [app("web")], "toPorts": [{"ports": [
                        {"port": "8080", "protocol": "TCP"}, {"port": "dns", "protocol": "UDP"}]}]},
                    {"fromEntities": ["host"]},
                    {"fromCIDR": ["192.0.2.0/24"]},
                ],
                "egress": [
                    {"toEndpoints": [app("db")], "toPorts": [{"ports": [{"port": "5432", "protocol": "TCP"}]}]},
                    {"toCIDRSet": [{"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"]}]},
                ],
            }),
        ),
        cnp(
            "db-deny",
            "f1dc34dc-aaf1-4a69-8ae7-7cacfe895f4d",
            json!({
                "endpointSelector": app("db"),
                "ingress": [{"fromEndpoints": [{}]}],
                "ingressDeny": [{"fromEntities": ["world"]}],
            }),
        ),
        cnp(
            "web-fqdn",
            "dbb13ff8-61c3-4314-927f-60b943e2b273",
            json!({
                "endpointSelector": app("web"),
                "egress": [
                    {"toFQDNs": [{"matchName": "api.example.org"}, {"matchPattern": "*.example.net"}]},
                    {"toEndpoints": [app("cart")], "toPorts": [{
                        "ports": [{"port": "53"}], "rules": {"dns": [{"matchPattern": "*"}]}}]},
                ],
            }),
        ),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "np", "namespace": "gc-ops", "uid": "9eb09f38-71f7-4442-9b73-0c24b16d526b"},
            "spec": {
                "podSelector": app("client"),
                "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]}],
            },
        }),
    ]
}

fn policies() -> Policies {
    let db = Db::new();
    let identities: RwTable<SecurityIdentity> = RwTable::builder("identities")
        .primary(SecurityIdentity::BY_ID)
        .build(&db)
        .unwrap();
    let rows: RwTable<PolicyRow> = RwTable::builder("network-policies")
        .primary(PolicyRow::BY_KEY)
        .build(&db)
        .unwrap();
    let computations = crate::computations::new_table(db.clone()).unwrap();
    let settings = PolicySettings {
        dual_stack: true,
        ..PolicySettings::default()
    };
    let repository = Repository::new(db.clone(), identities.reader(), computations, settings);
    let mut txn = db.write(&[&rows]);
    let mut state = repository.0.state.lock();
    for object in objects() {
        let context = Context {
            settings: state.policies.settings(),
            services: &[],
        };
        let parsed = PolicyObject::parse(&object, &context).unwrap();
        let Content::Rules(set) = &parsed.content else {
            panic!()
        };
        state.policies.replace(&parsed.resource, Some(set));
        let row = PolicyRow {
            origin: Origin::CustomResource,
            kind: parsed.kind.name(),
            namespace: parsed.namespace,
            name: parsed.name,
            object: Arc::new(object),
        };
        rows.insert(&mut txn, row).unwrap();
    }
    txn.commit();
    let labels = |text: &str| Arc::new(IdentityLabels::from(&text.parse::<Labels>().unwrap()));
    let mut peers = vec![(NumericIdentity::new(1), labels("reserved:host=;"))];
    for (endpoint, identity, namespace, app) in PODS {
        let team = if namespace == "gc-shop" { "blue" } else { "red" };
        let labels = labels(&format!(
            "k8s:app={app};k8s:io.cilium.k8s.namespace.labels.team={team};k8s:io.cilium.k8s.policy.cluster=default;\
             k8s:io.kubernetes.pod.namespace={namespace};"
        ));
        let identity = NumericIdentity::new(identity);
        peers.push((identity, labels.clone()));
        state
            .policies
            .set_endpoint(endpoint, identity, labels, Default::default());
    }
    state.policies.update_identities(peers, [], &Proxies::default());
    state.policies.refresh(&Proxies::default());
    drop(state);
    Policies {
        repository,
        objects: rows.reader(),
    }
}

async fn answer(policies: &Policies, method: &str, path: &str) -> (u16, Value) {
    let routes = OpenApiRouter::new()
        .routes(routes!(get))
        .routes(routes!(selectors))
        .routes(routes!(subject_selectors))
        .routes(routes!(explain))
        .with_state(policies.clone());
    let (router, _) = OpenApiRouter::<()>::new().nest("/v1", routes).split_for_parts();
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::empty()).unwrap();
    let response: Response = tower::ServiceExt::oneshot(skep_base_api::with_errors(router), request)
        .await
        .unwrap();
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// Sorted rules, or selectors by text with what does not depend on pods that are not in the test.
fn comparable(value: &Value) -> Value {
    if let Some(text) = value["policy"].as_str() {
        let mut rules: Vec<Value> = serde_json::from_str(text).unwrap();
        rules.sort_by_key(Value::to_string);
        return json!([rules, value["revision"]]);
    }
    let Some(list) = value.as_array() else {
        return value.clone();
    };
    let mappings: BTreeMap<&str, Value> = list
        .iter()
        .map(|mapping| {
            let local = |identity: &&Value| {
                let id = identity.as_u64().unwrap_or_default();
                PODS.iter().any(|pod| u64::from(pod.1) == id) || id == 1
            };
            let identities: Vec<&Value> = mapping["identities"]
                .as_array()
                .unwrap()
                .iter()
                .filter(local)
                .collect();
            let text = mapping["selector"].as_str().unwrap();
            (text, json!([identities, mapping["users"], mapping["labels"]]))
        })
        .collect();
    json!(mappings)
}

#[tokio::test]
async fn recorded_requests_have_the_recorded_answers() {
    let file: Value = serde_json::from_str(RECORDED).unwrap();
    let mut text = file["requests"].to_string();
    for (name, value) in file["bindings"].as_object().unwrap() {
        let value = value.as_str().unwrap();
        let place = format!("${{{name}}}");
        if name.starts_with("ID_") {
            text = text.replace(&format!("\"{place}\""), value);
        }
        text = text.replace(&place, value);
    }
    let requests: Vec<Value> = serde_json::from_str(&text).unwrap();
    let policies = policies();

    for step in requests {
        let (request, response) = (&step["request"], &step["response"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let path = text(&request["path"]);
        let (status, found) = answer(&policies, &text(&request["method"]), &path).await;

        assert_eq!(u64::from(status), response["status"].as_u64().unwrap(), "{path}");
        assert_eq!(comparable(&found), comparable(&response["json"]), "{path}");
    }
}

/// Of `GET /v1/endpoint/<id>` in the recorded scene.
#[test]
fn endpoints_have_the_recorded_policies() {
    let policies = policies();
    let text =
        |endpoint| serde_json::to_value(policies.repository.endpoint_policy(endpoint).unwrap()).unwrap();

    let client = text(4);
    assert_eq!(client["policy-enabled"], "ingress");
    assert_eq!(client["allowed-egress-identities"], json!([0]));
    assert_eq!(
        client["allowed-ingress-identities"],
        json!([1, 15979, 42593, 44165])
    );
    assert_eq!(client["denied-ingress-identities"], Value::Null);
    assert_eq!(client["l4"]["egress"], json!([]));
    let host = "&LabelSelector{MatchLabels:map[string]string{reserved:host: ,},MatchExpressions:[]LabelSelectorRequirement{},}";
    assert_eq!(
        client["l4"]["ingress"][1],
        json!({
            "derived-from-rules": [["reserved:io.cilium.policy.derived-from=allow-localhost-ingress"]],
            "rule": format!(
                "{{\"tier\":255,\"port\":0,\"protocol\":\"ANY\",\"l7-rules\":[{{\"\\u0026{}\":{{\"priority\":10}}}}]}}",
                &host[1..]
            ),
            "rules-by-selector": {host: [["reserved:io.cilium.policy.derived-from=allow-localhost-ingress"]]},
        })
    );
    let web = text(3);
    let rules: Vec<&str> = web["l4"]["egress"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect();
    assert_eq!(
        rules[0],
        r#"{"tier":200,"port":0,"protocol":"ANY","l7-rules":[{"MatchName: , MatchPattern: *.example.net":null},{"MatchName: api.example.org, MatchPattern: ":null}]}"#
    );
    assert!(
        rules[1].starts_with(r#"{"tier":200,"port":53,"protocol":"TCP","l7-rules":[{"\u0026Label"#),
        "{}",
        rules[1]
    );
    assert!(
        rules[1].ends_with(r#"":{"listenerPriority":121,"dns":[{"matchPattern":"*"}]}}]}"#),
        "{}",
        rules[1]
    );
}

#[tokio::test]
async fn decisions_are_explained_at_both_ends() {
    let policies = policies();
    let path = "/v1/policy/explain?source=endpoint:1&destination=identity:42593&port=5432";
    let (status, found) = answer(&policies, "GET", path).await;

    assert_eq!(status, 200);
    assert_eq!(
        [&found[0]["direction"], &found[0]["decision"]],
        ["egress", "allow"]
    );
    assert_eq!(
        found[0]["rules"][0]["rule"],
        "cnp/gc-shop/cart-in: spec.egress[0]"
    );
    assert_eq!(
        [&found[1]["direction"], &found[1]["decision"]],
        ["ingress", "allow"]
    );
    assert_eq!(
        found[1]["rules"][0]["rule"],
        "cnp/gc-shop/db-deny: spec.ingress[0]"
    );

    let path = "/v1/policy/explain?source=reserved:host&destination=endpoint:4&port=1&protocol=UDP";
    let (_, found) = answer(&policies, "GET", path).await;
    assert_eq!(found[0]["rules"][0]["rule"], "default allow-localhost-ingress");
    assert_eq!(
        found[0]["selecting"],
        json!(["netpol/gc-ops/np: spec.ingress[0].from[0]"])
    );

    for (query, status) in [
        ("source=endpoint:9&destination=identity:1", 400),
        ("source=host&destination=endpoint:1", 400),
        ("source=identity:5&destination=identity:6", 404),
    ] {
        let path = format!("/v1/policy/explain?{query}");
        assert_eq!(answer(&policies, "GET", &path).await.0, status, "{query}");
    }
}
