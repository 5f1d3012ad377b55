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

/// The path of a request, which is routed without the `/` at its end.
#[derive(Clone)]
struct Requested(String);

async fn not_found(request: Request) -> Response {
    let requested = request.extensions().get::<Requested>();
    let path = requested.map_or(request.uri().path(), |Requested(path)| path);
    error(StatusCode::NOT_FOUND, &format!("path {path} was not found"))
}

/// Redirects from a path with empty parts.
fn redirect(request: &Request) -> Option<Response> {
    let path = request.uri().path();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if !path.contains("//") {
        return None;
    }
    let query = request.uri().query().map(|query| format!("?{query}"));
    let location = format!("/{}{}", parts.join("/"), query.unwrap_or_default());
    let page = format!("<a href=\"{location}\">Temporary Redirect</a>.\n\n");
    let kind = (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned());
    let headers = [kind, (header::LOCATION, location)];
    Some((StatusCode::TEMPORARY_REDIRECT, headers, page).into_response())
}

/// Removes the `/` at the end of the path.
fn trim(request: &mut Request) {
    let uri = request.uri();
    let Some(path) = uri.path().strip_suffix('/').filter(|path| !path.is_empty()) else {
        return;
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let Ok(trimmed) = format!("{path}{query}").parse() else {
        return;
    };
    let requested = Requested(uri.path().to_owned());
    request.extensions_mut().insert(requested);
    *request.uri_mut() = trimmed;
}

async fn methods(mut request: Request, next: Next) -> Response {
    if let Some(redirect) = redirect(&request) {
        return redirect;
    }
    trim(&mut request);
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
