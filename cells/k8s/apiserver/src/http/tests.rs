// SPDX-License-Identifier: Apache-2.0

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use skep_k8s_memory::testing::api_server;
use tokio_util::sync::CancellationToken;

use super::audit::Audit;
use super::respond::Body;
use super::route::Router;

pub(super) fn router(token: &str) -> Router {
    Router {
        api: api_server(),
        token: token.to_owned(),
        address: "127.0.0.1:1".to_owned(),
        pods: None,
        pods_hint: "look elsewhere".to_owned(),
        stop: CancellationToken::new(),
        audit: Audit::default(),
    }
}

pub(super) fn ask(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    router.answer(&parts, &Bytes::copy_from_slice(body))
}

pub(super) async fn json_of(response: Response<Body>) -> Value {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn answers_with_the_right_codes() {
    let router = router("");
    let services = "/api/v1/namespaces/default/services";
    let service = json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": 80 }] } }).to_string();
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, u16);
    let cases: &[Case<'_>] = &[
        ("GET", "/healthz", &[], "", 200),
        ("GET", "/readyz", &[], "", 200),
        ("GET", "/livez", &[], "", 200),
        ("GET", "/version", &[], "", 200),
        ("GET", "/nonsense", &[], "", 404),
        ("GET", "/apis/none", &[], "", 404),
        ("GET", "/apis/apps/v9", &[], "", 404),
        ("GET", "/api/v1/nothings", &[], "", 404),
        ("POST", services, &[JSON], &service, 201),
        ("POST", services, &[JSON], &service, 409),
        ("POST", services, &[JSON], "{", 400),
        ("POST", services, &[JSON], "[]", 400),
        ("POST", services, &[("content-type", "text/plain")], "x", 415),
        ("POST", "/api/v1/services", &[JSON], &service, 405),
        ("PUT", services, &[JSON], &service, 405),
        (
            "PATCH",
            "/api/v1/namespaces/default/services/a",
            &[JSON],
            "{}",
            415,
        ),
        (
            "GET",
            services,
            &[("accept", "application/vnd.kubernetes.protobuf")],
            "",
            406,
        ),
        ("GET", "/api/v1/namespaces/default/nodes", &[], "", 404),
        ("GET", "/api/v1/nodes/x/status", &[], "", 404),
        ("GET", "/api/v1/configmaps?limit=x", &[], "", 400),
        ("GET", "/api/v1/configmaps?resourceVersion=x", &[], "", 400),
        (
            "GET",
            "/api/v1/configmaps?labelSelector=a%20near%20b(",
            &[],
            "",
            400,
        ),
        (
            "GET",
            "/api/v1/configmaps?resourceVersionMatch=Exact",
            &[],
            "",
            422,
        ),
        ("GET", "/api/v1/configmaps?resourceVersion=99999", &[], "", 504),
        ("DELETE", "/api/v1/namespaces/default", &[], "", 403),
        ("DELETE", "/api/v1/namespaces/default/services/a", &[], "", 200),
    ];
    for (method, path, headers, body, expected) in cases {
        let response = ask(&router, method, path, headers, body.as_bytes());
        assert_eq!(response.status(), *expected, "{method} {path}");
    }
}

#[tokio::test]
async fn warns_of_unknown_fields() {
    let router = router("");
    let config = br#"{"metadata": {"name": "a"}, "dat": {}}"#;
    let path = "/api/v1/namespaces/default/configmaps";

    let response = ask(&router, "POST", path, &[JSON], config);
    assert_eq!(
        response.headers()["warning"],
        "299 - \"unknown field \\\"dat\\\"\""
    );
    let strict = ask(
        &router,
        "POST",
        &format!("{path}?fieldValidation=Strict"),
        &[JSON],
        config,
    );
    let status = json_of(strict).await;
    assert_eq!(
        status["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dat\""
    );
}

#[tokio::test]
async fn streams_watches_line_by_line_until_the_stop() {
    let router = router("");
    let mut response = ask(&router, "GET", "/api/v1/namespaces?watch=true", &[], b"");
    let frame = response
        .body_mut()
        .frame()
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap();
    let event: Value = serde_json::from_slice(&frame).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["kind"]),
        (&json!("ADDED"), &json!("Namespace"))
    );
    assert!(frame.ends_with(b"\n"));

    router.stop.cancel();

    let rest = tokio::time::timeout(std::time::Duration::from_secs(30), response.into_body().collect()).await;
    assert!(rest.is_ok(), "the watch did not end");
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("metadata".to_owned()),
        Just("name".to_owned()),
        Just("spec".to_owned()),
        Just("status".to_owned()),
        Just("ports".to_owned()),
        Just("port".to_owned()),
        Just("clusterIP".to_owned()),
        Just("clusterIPs".to_owned()),
        Just("ipFamilies".to_owned()),
        Just("type".to_owned()),
        Just("labels".to_owned()),
        Just("finalizers".to_owned()),
        Just("managedFields".to_owned()),
        Just("fieldsV1".to_owned()),
        Just("$patch".to_owned()),
        Just("versions".to_owned()),
        Just("names".to_owned()),
        "[a-z]{1,6}",
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn any_body_gets_an_answer(
        body in prop_oneof![json_value().prop_map(|v| v.to_string().into_bytes()), prop::collection::vec(any::<u8>(), 0..300)],
        method in prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]),
        path in prop::sample::select(vec![
            "/api/v1/namespaces/default/services",
            "/api/v1/namespaces/default/services/a",
            "/api/v1/namespaces/default/services/a/status",
            "/api/v1/namespaces/default/pods/a/eviction",
            "/apis/apps/v1/namespaces/default/deployments/d/scale",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        ]),
        kind in prop::sample::select(vec![
            "application/json", "application/yaml", "application/json-patch+json", "application/merge-patch+json",
            "application/strategic-merge-patch+json", "application/apply-patch+yaml",
            "application/vnd.kubernetes.protobuf", "",
        ]),
        accept in prop::sample::select(vec!["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let router = router("");
        let service = json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": 80 }] } }).to_string();
        ask(&router, "POST", "/api/v1/namespaces/default/services", &[JSON], service.as_bytes());
        let query = format!("{path}?fieldManager=fuzz&force=true");

        let response = ask(&router, method, &query, &[("content-type", kind), ("accept", accept)], &body);

        prop_assert!(response.status().as_u16() < 500 || response.status() == 504, "{}", response.status());
    }

    #[test]
    fn any_path_and_query_gets_an_answer(path in "/[a-z0-9/%?&=,.!+]{0,60}", query in "[ -~&&[^ #\"<>`{}|^\\\\]]{0,60}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let router = router("");
        for base in [path.as_str(), "/api/v1/services"] {
            let uri = format!("{base}?{query}");
            if uri.parse::<http::Uri>().is_ok() {
                let response = ask(&router, "GET", &uri, &[], b"");
                prop_assert!(response.status().as_u16() < 500 || response.status() == 504);
            }
        }
    }
}
