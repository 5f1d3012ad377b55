// SPDX-License-Identifier: Apache-2.0

//! Recorded requests, with the addresses of the recorded node.

use std::collections::BTreeMap;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
};
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;
use crate::{infrastructure, tests::ranges};

/// Endpoint `cart-0` of the recording.
const ENDPOINT: u16 = 1178;

struct Users(IpAddr);

impl AddressUsers for Users {
    fn endpoint(&self, ip: IpAddr) -> Option<u16> {
        (ip == self.0).then_some(ENDPOINT)
    }
}

/// A node with these addresses and owners, of the networks of the recording.
fn node(owned: &[(&str, &str)]) -> (Ipam, Router) {
    let ipam = ranges(&["10.1.0.0/24", "fd00:10:1::/64"]);
    let db = Db::new();
    let table = infrastructure::new_table(db.clone()).unwrap();
    let mut txn = db.write(&[&table]);
    for (ip, owner) in owned {
        let ip: IpAddr = ip.parse().unwrap();
        ipam.allocate_ip(ip, owner, "default").unwrap();
        if *owner == "router" {
            let owner = NodeOwner::Router;
            table
                .insert(&mut txn, InfrastructureAddress { owner, ip })
                .unwrap();
        }
    }
    txn.commit();
    let cart = owned.iter().find(|(_, owner)| *owner == "gc-shop/cart-0");
    let users = cart.map(|(ip, _)| -> Arc<dyn AddressUsers> { Arc::new(Users(ip.parse().unwrap())) });
    let router = router(Api {
        ipam: ipam.clone(),
        db,
        node: table.reader(),
        users,
    });
    let (router, _) = OpenApiRouter::new().nest("/v1", router).split_for_parts();
    (ipam, router)
}

/// Values of `${NAME}`, bound at their first occurrence.
#[derive(Default)]
struct Bindings(BTreeMap<String, Value>);

impl Bindings {
    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value.as_str().unwrap_or_default())
        })
    }

    /// Compares; binds names without a value.
    #[track_caller]
    fn compare(&mut self, recorded: &Value, found: &Value, place: &str) {
        match (recorded, found) {
            (Value::String(recorded), found) => {
                let name = recorded
                    .strip_prefix("${")
                    .and_then(|rest| rest.strip_suffix('}'));
                match name.filter(|name| !self.0.contains_key(*name)) {
                    Some(name) => _ = self.0.insert(name.to_owned(), found.clone()),
                    None => assert_eq!(found, &self.fill(recorded), "{place}"),
                }
            }
            (Value::Object(recorded), Value::Object(found)) => {
                let names = |object: &serde_json::Map<String, Value>| -> Vec<String> {
                    let names = object.keys().map(|name| self.fill(name));
                    let mut names: Vec<String> = names.collect();
                    names.sort();
                    names
                };
                assert_eq!(names(recorded), names(found), "{place}");
                for (name, value) in recorded {
                    let name = self.fill(name);
                    self.compare(value, &found[&name], &format!("{place}/{name}"));
                }
            }
            // Lists are addresses, in any order.
            (Value::Array(recorded), Value::Array(found)) => {
                let texts = |list: &[Value]| {
                    let texts = list.iter().filter_map(Value::as_str).map(|text| self.fill(text));
                    let mut texts: Vec<String> = texts.collect();
                    texts.sort();
                    texts
                };
                assert_eq!(texts(recorded), texts(found), "{place}");
            }
            _ => assert_eq!(found, recorded, "{place}"),
        }
    }
}

async fn ask(router: &Router, request: &Value, path: String) -> (u16, Value) {
    let mut built = Request::builder()
        .method(request["method"].as_str().unwrap())
        .uri(path);
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        built = built.header(name, value.as_str().unwrap());
    }
    let response = router
        .clone()
        .oneshot(built.body(Body::empty()).unwrap())
        .await
        .unwrap();
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn recorded_requests_have_the_recorded_answers() {
    let recorded: Value = serde_json::from_str(include_str!("../../testdata/rest-ipam.json")).unwrap();
    let steps = recorded["requests"].as_array().unwrap();
    let status = steps
        .iter()
        .find(|step| step["request"]["path"] == "/v1/healthz")
        .unwrap();
    let mut bindings = Bindings::default();
    let mut owned = Vec::new();
    for (name, owner) in status["response"]["json"]["ipam"]["allocations"]
        .as_object()
        .unwrap()
    {
        let name = name.trim_start_matches("${").trim_end_matches('}');
        let ip = &recorded["bindings"][name];
        bindings.0.insert(name.to_owned(), ip.clone());
        owned.push((ip.as_str().unwrap(), owner.as_str().unwrap()));
    }
    bindings
        .0
        .insert("EP_CART_0".to_owned(), ENDPOINT.to_string().into());
    let (ipam, router) = node(&owned);
    let mut response = StatusResponse::default();
    IpamProbe(ipam).probe(&mut response).await;
    let before = serde_json::to_value(&response).unwrap();

    for step in steps {
        let (request, expected) = (&step["request"], &step["response"]);
        let place = step["description"].as_str().unwrap();
        if step == status {
            bindings.compare(&expected["json"]["ipam"], &before["ipam"], place);
            continue;
        }
        let path = bindings.fill(request["path"].as_str().unwrap());
        let (code, body) = ask(&router, request, path).await;
        assert_eq!(code, expected["status"], "{place}: {body}");
        // The body of 405 is the framework's.
        if code != 405 {
            bindings.compare(&expected["json"], &body, place);
        }
    }
}

#[tokio::test]
async fn a_node_that_is_full_or_starts_allocates_nothing() {
    let (_, starting) = node(&[]);
    let (ipam, router) = node(&[("10.1.0.9", "router"), ("fd00:10:1::9", "router")]);
    while ipam.allocate(Family::V4, "default/web", "").is_ok() {}
    let ipv6 = ipam.addresses(Family::V6).len();
    let request = json!({ "method": "POST" });

    let answers = [
        ask(&starting, &request, "/v1/ipam".to_owned()).await,
        ask(&router, &request, "/v1/ipam".to_owned()).await,
    ];

    let expected = [
        (500, json!("no IPv4 router address yet")),
        (502, json!("range is full")),
    ];
    assert_eq!(answers, expected);
    assert_eq!(
        ipam.addresses(Family::V6).len(),
        ipv6,
        "the IPv6 address is released"
    );
}
