// SPDX-License-Identifier: Apache-2.0

//! Metrics of requests, with Cilium's names. Labels hold paths without names of objects and namespaces.

use http::{Method, StatusCode, Uri};
use skep_base_metrics::{CounterVec, Histogram, HistogramVec, Metrics};
use tokio::time::Instant;

use crate::error::ApiError;

/// The code of a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Requests of this process to the API server.
#[derive(Debug, Metrics)]
#[metrics(prefix = "k8s_client")]
pub struct ClientMetrics {
    /// Duration of requests to the API server; of watches, until the response begins.
    #[metric(name = "api_latency_time_seconds", labels = ["path", "method"])]
    latency: HistogramVec,
    /// Rate limiter latency of requests to the API server.
    #[metric(name = "rate_limiter_duration_seconds", labels = ["path", "method"])]
    waited: HistogramVec,
    /// Requests to the API server by response status; `<error>` without a response.
    #[metric(name = "api_calls_total", labels = ["host", "method", "return_code"])]
    calls: CounterVec,
}

impl ClientMetrics {
    /// Measures a request from now on.
    pub(super) fn measure(&self, method: &Method, uri: &Uri) -> Running {
        Running::new(&self.latency, method, uri.path())
    }

    /// Measures how long a request waits for the rate limit, from now on.
    pub(super) fn measure_wait(&self, method: &Method, uri: &str) -> Running {
        let path = uri.split('?').next().unwrap_or_default();
        Running::new(&self.waited, method, path)
    }

    /// Counts a request that was sent.
    pub(super) fn count(&self, host: &str, method: &Method, status: Result<StatusCode, &ApiError>) {
        let code = status.as_ref().map_or(NO_ANSWER, StatusCode::as_str);
        self.calls.with([host, method.as_str(), code]).inc();
    }
}

/// Observes a duration when it is dropped: a request that is given up took long, too.
pub(super) struct Running {
    histogram: Histogram,
    since: Instant,
}

impl Running {
    fn new(family: &HistogramVec, method: &Method, path: &str) -> Self {
        Self {
            histogram: family.with([&*template(path), method.as_str()]),
            since: Instant::now(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.histogram.observe_duration(self.since.elapsed());
    }
}

/// A path without names: `/api/v1/namespaces/{namespace}/pods/{name}`.
fn template(path: &str) -> String {
    let mut segments: Vec<&str> = path.split('/').collect();
    // Before the kind: nothing, `api` or `apis`, the group, the version.
    let mut kind = match segments.get(1) {
        Some(&"api") => 3,
        Some(&"apis") => 4,
        _ => return path.to_owned(),
    };
    if let Some(["namespaces", namespace, inside, ..]) = segments.get_mut(kind..)
        && !["status", "finalize"].contains(inside)
    {
        *namespace = "{namespace}";
        kind += 2;
    }
    if let Some(name) = segments.get_mut(kind + 1) {
        *name = "{name}";
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_no_names() {
        let templates = [
            ("/version", "/version"),
            ("/apis", "/apis"),
            ("/apis/cilium.io/v2", "/apis/cilium.io/v2"),
            ("/api/v1/pods", "/api/v1/pods"),
            ("/api/v1/nodes/n1", "/api/v1/nodes/{name}"),
            ("/api/v1/nodes/n1/status", "/api/v1/nodes/{name}/status"),
            ("/api/v1/namespaces", "/api/v1/namespaces"),
            ("/api/v1/namespaces/shop", "/api/v1/namespaces/{name}"),
            (
                "/api/v1/namespaces/shop/status",
                "/api/v1/namespaces/{name}/status",
            ),
            (
                "/api/v1/namespaces/shop/pods",
                "/api/v1/namespaces/{namespace}/pods",
            ),
            (
                "/apis/cilium.io/v2/namespaces/shop/ciliumendpoints/cart/status",
                "/apis/cilium.io/v2/namespaces/{namespace}/ciliumendpoints/{name}/status",
            ),
            (
                "/apis/cilium.io/v2/ciliumnodes/namespaces",
                "/apis/cilium.io/v2/ciliumnodes/{name}",
            ),
        ];

        for (path, expected) in templates {
            assert_eq!(template(path), expected);
        }
    }
}
