// SPDX-License-Identifier: Apache-2.0

//! Errors of requests that no handler takes, in the form of Cilium's servers.

use axum::{
    Json, Router,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// An error with code and message.
#[must_use]
pub fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({ "code": status.as_u16(), "message": message });
    (status, Json(body)).into_response()
}

/// Adds the errors of unknown paths, of methods that a path does not have, and of media types other than JSON.
pub fn with_errors(router: Router) -> Router {
    // A router around it: axum names the methods of a path outside of the path's own layers.
    Router::new()
        .fallback_service(router.fallback(not_found))
        .layer(middleware::from_fn(methods))
}

async fn not_found(request: Request) -> Response {
    let message = format!("path {} was not found", request.uri().path());
    error(StatusCode::NOT_FOUND, &message)
}

async fn methods(mut request: Request, next: Next) -> Response {
    let method = request.method().clone();
    if method == Method::HEAD {
        // No path has it, whereas axum would answer with the head of GET.
        *request.method_mut() = Method::TRACE;
    }
    let accepted = request.headers().get(header::ACCEPT).cloned();
    let response = next.run(request).await;
    match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => {
            let allowed = response.headers().get(header::ALLOW);
            let allowed = allowed.and_then(|value| value.to_str().ok()).unwrap_or_default();
            let mut allowed: Vec<&str> = allowed.split(',').filter(|one| *one != "HEAD").collect();
            allowed.sort_unstable();
            let allowed = allowed.join(",");
            let message = format!("method {method} is not allowed, but [{allowed}] are");
            let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, &message);
            if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                answer.headers_mut().insert(header::ALLOW, allowed);
            }
            answer
        }
        StatusCode::OK if !accepts(accepted.as_ref(), &response) => error(
            StatusCode::NOT_ACCEPTABLE,
            "unsupported media type requested, only [application/json] are available",
        ),
        _ => response,
    }
}

/// Whether the client takes the answer: anything but JSON, or JSON if it asks for it.
fn accepts(accepted: Option<&HeaderValue>, response: &Response) -> bool {
    const JSON: &str = "application/json";
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == JSON);
    let Some(accepted) = accepted.and_then(|value| value.to_str().ok()).filter(|_| is_json) else {
        return true;
    };
    let mut kinds = accepted
        .split(',')
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.any(|kind| [JSON, "application/*", "*/*", ""].contains(&kind))
}
