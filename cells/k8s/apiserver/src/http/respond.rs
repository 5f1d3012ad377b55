// SPDX-License-Identifier: Apache-2.0

//! Answers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use skep_k8s_memory::{ApiError, Kind, List, Watch, WatchEvent, WatchKind};
use tokio_util::sync::CancellationToken;

use super::negotiate::{Accept, Form};
use crate::print::{Include, partial, table};

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn build(code: u16, content_type: &str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let value = HeaderValue::from_str(content_type).unwrap_or(HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

/// A line of text.
pub(super) fn text(code: u16, text: &str) -> Response<Body> {
    build(code, "text/plain; charset=utf-8", full(text.to_owned()))
}

/// Text that goes on.
pub(super) fn stream(parts: impl stream::Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let frames = parts.map(|part| Ok::<_, Infallible>(Frame::data(part)));
    build(
        200,
        "text/plain; charset=utf-8",
        StreamBody::new(frames).boxed_unsync(),
    )
}

/// A value, in JSON unless the client wants YAML.
pub(super) fn value(code: u16, value: &Value, yaml: bool) -> Response<Body> {
    if yaml && let Ok(text) = serde_norway::to_string(value) {
        return build(code, "application/yaml", full(text));
    }
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b'\n');
    build(code, "application/json", full(bytes))
}

/// Aggregated discovery of this version.
pub(super) fn discovery(document: &Value, version: &str) -> Response<Body> {
    let content_type = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    build(200, &content_type, full(document.to_string()))
}

/// A failure.
pub(super) fn error(error: &ApiError) -> Response<Body> {
    let mut response = value(error.code, &error.status(), false);
    let seconds = error
        .details
        .as_ref()
        .and_then(|d| d.get("retryAfterSeconds"))
        .and_then(Value::as_u64);
    if let Some(seconds) = seconds {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds warnings for people.
pub(super) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let text = format!("299 - {:?}", warning.replace(|c: char| c.is_control(), " "));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append("warning", value);
        }
    }
}

/// An object in the form that the client wants.
pub(super) fn object(
    code: u16,
    kind: &Kind,
    object: &Value,
    accept: &Accept,
    include: Include,
) -> Response<Body> {
    match &accept.form {
        Form::Table(version) => {
            let metadata = json!({ "resourceVersion": skep_k8s_memory::object::resource_version(object) });
            value(
                code,
                &table(kind, &[object], metadata, include, version, true),
                accept.yaml,
            )
        }
        Form::Metadata => value(code, &partial(object), accept.yaml),
        _ => value(code, object, accept.yaml),
    }
}

/// A list in the form that the client wants.
pub(super) fn list(list: &List, accept: &Accept, include: Include) -> Response<Body> {
    match &accept.form {
        Form::Table(version) => {
            let objects: Vec<&Value> = list.items.iter().map(|o| &**o).collect();
            value(
                200,
                &table(&list.kind, &objects, list.metadata(), include, version, true),
                accept.yaml,
            )
        }
        Form::Metadata => {
            let items: Vec<Value> = list.items.iter().map(|o| partial(o)).collect();
            let document = json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": list.metadata(),
                "items": items,
            });
            value(200, &document, accept.yaml)
        }
        _ if accept.yaml => {
            let items: Vec<&Value> = list.items.iter().map(|o| &**o).collect();
            let document = json!({
                "kind": list.kind.list_kind.as_str(),
                "apiVersion": list.kind.api_version(),
                "metadata": list.metadata(),
                "items": items,
            });
            value(200, &document, true)
        }
        _ => {
            // Written piece by piece: no copy of the objects is made.
            let mut bytes = BytesMut::with_capacity(256 + list.items.len() * 1024).writer();
            let head = format!(
                "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{},\"items\":[",
                Value::from(list.kind.list_kind.as_str()),
                Value::from(list.kind.api_version()),
                list.metadata()
            );
            bytes.get_mut().put_slice(head.as_bytes());
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    bytes.get_mut().put_u8(b',');
                }
                if serde_json::to_writer(&mut bytes, &**item).is_err() {
                    return error(&ApiError::internal("an object could not be written"));
                }
            }
            bytes.get_mut().put_slice(b"]}\n");
            build(200, "application/json", full(bytes.into_inner().freeze()))
        }
    }
}

fn event_line(kind: &Kind, event: &WatchEvent, accept: &Accept, include: Include) -> Bytes {
    let object = &event.object;
    let shown;
    let shown: &Value = match (&accept.form, event.kind) {
        (_, WatchKind::Error) => object,
        (Form::Table(version), kind_of) => {
            let metadata = json!({ "resourceVersion": skep_k8s_memory::object::resource_version(object) });
            let objects: &[&Value] = if kind_of == WatchKind::Bookmark {
                &[]
            } else {
                &[object]
            };
            shown = table(kind, objects, metadata, include, version, true);
            &shown
        }
        (Form::Metadata, _) => {
            shown = partial(object);
            &shown
        }
        _ => object,
    };
    let mut bytes = BytesMut::with_capacity(1024).writer();
    bytes
        .get_mut()
        .put_slice(format!("{{\"type\":{:?},\"object\":", event.kind.name()).as_bytes());
    if serde_json::to_writer(&mut bytes, shown).is_err() {
        bytes.get_mut().put_slice(b"null");
    }
    bytes.get_mut().put_slice(b"}\n");
    bytes.into_inner().freeze()
}

/// Events as they come, until the watch or the server ends.
pub(super) fn watch(
    watch: Watch,
    accept: Accept,
    include: Include,
    stop: CancellationToken,
) -> Response<Body> {
    let kind: Arc<Kind> = watch.kind().clone();
    let events = stream::unfold(
        (watch, kind, accept, stop),
        move |(mut watch, kind, accept, stop)| async move {
            let event = tokio::select! {
                event = watch.next() => event?,
                () = stop.cancelled() => return None,
            };
            let line = event_line(&kind, &event, &accept, include);
            Some((
                Ok::<_, Infallible>(Frame::data(line)),
                (watch, kind, accept, stop),
            ))
        },
    );
    build(200, "application/json", StreamBody::new(events).boxed_unsync())
}
