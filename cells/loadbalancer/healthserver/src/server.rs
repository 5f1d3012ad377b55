// SPDX-License-Identifier: Apache-2.0

//! HTTP answers to health checks.

use std::convert::Infallible;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use skep_listen::http::Http1;
use skep_listen::{BoundTcp, Server};
use tokio_util::sync::CancellationToken;

/// Connections served at once; more wait in the kernel's queue. Load balancers need a handful.
const MAX_CONNECTIONS: usize = 256;

/// Answers every request on `listener` with `respond`, until `stop`.
pub(crate) async fn serve<F>(listener: BoundTcp, stop: CancellationToken, respond: F)
where
    F: Fn(&Request<Incoming>) -> Response<String> + Clone + Send + Sync + 'static,
{
    let service = service_fn(move |request| {
        let response = respond(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let server = Server::new("health checks", listener).connections(MAX_CONNECTIONS);
    // Header names as those of Cilium, whose HTTP library is Go's.
    Http1::new()
        .title_case_headers()
        .serve_all(server, service, stop)
        .await;
}
