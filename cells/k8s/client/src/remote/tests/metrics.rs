// SPDX-License-Identifier: Apache-2.0

//! Requests as Prometheus reads them.

use hive::{Hive, Settings as Flags};
use skep_base_metrics::{Registry, exposition};

use super::*;
use crate::ListOptions;

#[tokio::test]
async fn requests_are_counted_and_measured_without_names() {
    let server = Server::start().await;
    let flags = Flags::new().flag("k8s-api-server-urls", server.url.clone());
    let hive = Hive::new([crate::remote::cell(), skep_base_metrics::cell()])
        .root::<Arc<dyn Client>>()
        .root::<Arc<Registry>>();
    let running = hive::testing::start_with(hive, flags).await;
    let client = running.get::<Arc<dyn Client>>().unwrap();
    let registry = running.get::<Arc<Registry>>().unwrap();
    server.json(200, r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#);
    client
        .list(&Pod::kind(), "shop", &ListOptions::default())
        .await
        .unwrap();
    client.get(&Pod::kind(), "shop", "cart").await.unwrap_err();
    let _events = server.stream();
    let _watch = client
        .watch(&Service::kind(), "", &WatchOptions::default())
        .await
        .unwrap();

    let text = exposition(&registry);
    let host = server.url.strip_prefix("http://").unwrap();
    let expected = [
        // The version when the hive started, the list, the watch.
        format!("api_calls_total{{host=\"{host}\",method=\"GET\",return_code=\"200\"}} 3"),
        format!("api_calls_total{{host=\"{host}\",method=\"GET\",return_code=\"404\"}} 1"),
        "api_latency_time_seconds_count{method=\"GET\",path=\"/version\"} 1".to_owned(),
        "api_latency_time_seconds_count{method=\"GET\",path=\"/api/v1/namespaces/{namespace}/pods\"} 1"
            .to_owned(),
        "api_latency_time_seconds_count{method=\"GET\",path=\"/api/v1/namespaces/{namespace}/pods/{name}\"} 1"
            .to_owned(),
        "api_latency_time_seconds_count{method=\"GET\",path=\"/api/v1/services\"} 1".to_owned(),
        "rate_limiter_duration_seconds_count{method=\"GET\",path=\"/api/v1/services\"} 1".to_owned(),
    ];
    for line in expected {
        assert!(
            text.contains(&format!("cilium_k8s_client_{line}\n")),
            "{line}\n{text}"
        );
    }
    assert!(!text.contains("cart"), "{text}");
    let probes = "rate_limiter_duration_seconds_count{method=\"GET\",path=\"/version\"}";
    assert!(!text.contains(probes), "probes are not limited\n{text}");

    drop(server);
    client.get(&Pod::kind(), "shop", "cart").await.unwrap_err();

    let text = exposition(&registry);
    assert!(
        text.contains("method=\"GET\",return_code=\"<error>\"} "),
        "{text}"
    );
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_for_the_rate_limit_is_measured() {
    let metrics = Arc::new(crate::remote::ClientMetrics::default());
    let settings = Settings {
        qps: 0.5,
        burst: 1,
        ..Settings::default()
    };
    let client = RemoteClient::with_metrics(Target::Urls(Vec::new()), settings, metrics.clone()).unwrap();

    for _ in 0..2 {
        client.admit(&http::Method::GET, "/api/v1/nodes/n1?x=y").await;
    }

    let registry = Registry::new(skep_base_metrics::MetricSet::metrics(&*metrics), &[]).unwrap();
    let text = exposition(&registry);
    let series = "cilium_k8s_client_rate_limiter_duration_seconds";
    let labels = "method=\"GET\",path=\"/api/v1/nodes/{name}\"";
    for line in [
        format!("{series}_bucket{{{labels},le=\"0.005\"}} 1\n"),
        format!("{series}_bucket{{{labels},le=\"2.5\"}} 2\n"),
        format!("{series}_count{{{labels}}} 2\n"),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
}
