// SPDX-License-Identifier: Apache-2.0

//! What a health-check port answers.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

/// Header by which load balancers weigh nodes.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");
const CONTENT_TYPE_OPTIONS: HeaderName = HeaderName::from_static("x-content-type-options");

#[derive(Serialize)]
struct Body<'a> {
    service: ServiceRef<'a>,
    #[serde(rename = "localEndpoints")]
    local_endpoints: usize,
}

#[derive(Serialize)]
struct ServiceRef<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// The answer for a service with `local_endpoints` backends on this node: 200, or 503 if there is none.
///
/// A newline ends the body and counts in `Content-Length`. (What is known of Cilium's answer is contradictory here. Its
/// scripts compare what `http/get` wrote, which is the body as it came, with parts of txtar archives, and those always end
/// in a newline: without one in the body no such comparison could hold.)
pub(crate) fn answer(namespace: &str, name: &str, local_endpoints: usize) -> Response<String> {
    let body = Body {
        service: ServiceRef { namespace, name },
        local_endpoints,
    };
    let mut body = serde_json::to_string(&body).expect("texts and a number always encode");
    body.push('\n');
    let mut response = Response::new(body);
    *response.status_mut() = if local_endpoints > 0 {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(WEIGHT, HeaderValue::from(local_endpoints));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_backends_are_here() {
        let response = answer("shop", "web", 2);

        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(
            response.body(),
            "{\"service\":{\"namespace\":\"shop\",\"name\":\"web\"},\"localEndpoints\":2}\n"
        );
        assert_eq!(response.headers()["x-load-balancing-endpoint-weight"], "2");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        assert_eq!(response.headers()["content-type"], "application/json");
    }

    #[test]
    fn is_unavailable_without_local_backend() {
        assert_eq!(answer("shop", "web", 0).status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn quotes_names() {
        assert!(answer("a\"b", "c", 0).body().contains(r#""namespace":"a\"b""#));
    }
}
