// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/map`: maps, their entries and their last writes, in the form of Cilium's agent API.

use std::{
    io::{self, Write},
    sync::Arc,
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use hive::{Cell, Member};
use serde::Deserialize;
use skep_base_api::Routes;
use skep_base_api_types::{BpfMap, BpfMapEntry, BpfMapEvent, BpfMapList};
use skep_bpf_maps::{Dump, Family};
use tokio::sync::{broadcast::error::RecvError, mpsc};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{MapEvent, Maps, OpenMap};

hive::catalogue!(cell);

/// The maps, for the agent's API.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("bpf-maps-api", "BPF maps in the API of the agent").provide(api)
}

fn api(maps: Arc<Maps>) -> Member<Routes> {
    let routes = OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(one))
        .routes(routes!(events));
    Member(Routes::new(routes.with_state(maps)))
}

/// Lists all maps with their entries.
#[utoipa::path(get, path = "/map", responses((status = 200, description = "The maps", body = BpfMapList)))]
async fn list(State(maps): State<Arc<Maps>>) -> Response {
    document(move |out| {
        out.write_all(b"{\"maps\":[")?;
        let shown = maps.all().into_iter().filter(|map| map.is_pinned());
        for (at, map) in shown.enumerate() {
            if at > 0 {
                out.write_all(b",\n")?;
            }
            write_map(&map, out)?;
        }
        out.write_all(b"]}\n")
    })
}

/// Returns a map with its entries.
#[utoipa::path(get, path = "/map/{name}", params(("name" = String, Path, description = "Name of the map")), responses(
    (status = 200, description = "The map", body = BpfMap), (status = 404, description = "No such map")))]
async fn one(State(maps): State<Arc<Maps>>, Path(name): Path<String>) -> Response {
    match maps.get(&name).filter(|map| map.is_pinned()) {
        Some(map) => document(move |out| write_map(&map, out)),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Follow {
    follow: bool,
}

/// Returns the last writes of a map as JSON lines; with `follow`, streams new ones.
#[utoipa::path(get, path = "/map/{name}/events", params(
    ("name" = String, Path, description = "Name of the map"),
    ("follow" = Option<bool>, Query, description = "Stream new writes")), responses(
    (status = 200, description = "JSON lines", body = BpfMapEvent, content_type = "application/octet-stream"),
    (status = 404, description = "No such map, or no event buffer", body = String)))]
async fn events(
    State(maps): State<Arc<Maps>>,
    Path(name): Path<String>,
    Query(Follow { follow }): Query<Follow>,
) -> Response {
    let Some(map) = maps.get(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let Some(buffer) = map.events() else {
        return missing(format!(
            "writes of map {name} are not kept (see bpf-map-event-buffers)"
        ));
    };
    let family = map.family();
    let (kept, next) = buffer.follow();
    let kept = stream::iter(kept);
    let next = stream::unfold(next, async |mut next| {
        loop {
            match next.recv().await {
                Ok(event) => return Some((event, next)),
                // The reader is slow: it misses some.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let lines = move |event| line(family, &event);
    let body = if follow {
        Body::from_stream(kept.chain(next).map(lines))
    } else {
        Body::from_stream(kept.map(lines))
    };
    ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response()
}

fn missing(text: String) -> Response {
    (StatusCode::NOT_FOUND, Json(text)).into_response()
}

fn line(family: &Family, event: &MapEvent) -> Result<Bytes, serde_json::Error> {
    let mut text = serde_json::to_vec(&BpfMapEvent {
        timestamp: event.time.to_string(),
        action: event.action.name().to_owned(),
        key: family.key.text(&event.key),
        value: value_text(family, &event.value),
        desired_action: if event.error.is_some() {
            event.action.desired().to_owned()
        } else {
            "sync".to_owned()
        },
        last_error: event.error.clone().unwrap_or_default(),
    })?;
    text.push(b'\n');
    Ok(text.into())
}

fn value_text(family: &Family, value: &[u8]) -> String {
    if value.is_empty() {
        String::new()
    } else {
        family.value.text(value)
    }
}

/// Maps whose entries have a state even if nothing failed, as in Cilium.
const STATEFUL: [&str; 2] = ["cilium_ipcache_v2", "cilium_lxc"];

/// Writes a [`BpfMap`]: what is in it, then what should be and is not.
fn write_map(map: &OpenMap, out: &mut Pieces) -> io::Result<()> {
    let family = map.family();
    let path = map.path().display().to_string();
    let dump = match map.dump() {
        Ok(dump) => dump,
        Err(error) if Dump::is_unreadable(&error) => {
            return Ok(serde_json::to_writer(out, &BpfMap { path, cache: None })?);
        }
        Err(error) => return Err(error),
    };
    out.write_all(b"{\"path\":")?;
    serde_json::to_writer(&mut *out, &path)?;
    out.write_all(b",\"cache\":[")?;
    let mut failed = map.failed();
    let is_stateful = STATEFUL.iter().any(|name| path.ends_with(name));
    let state = if is_stateful { "sync" } else { "" };
    let mut separator: &[u8] = b"\n";
    let mut write = |entry: &BpfMapEntry| -> io::Result<()> {
        out.write_all(separator)?;
        separator = b",\n";
        Ok(serde_json::to_writer(&mut *out, entry)?)
    };
    for (key, value) in dump.iter() {
        let failure = failed.remove(key);
        write(&BpfMapEntry {
            key: family.key.text(key),
            value: family.value.text(value),
            desired_action: failure
                .as_ref()
                .map_or(state, |entry| entry.action.desired())
                .to_owned(),
            last_error: failure.map(|entry| entry.error).unwrap_or_default(),
        })?;
    }
    for (key, entry) in failed {
        write(&BpfMapEntry {
            key: family.key.text(&key),
            value: value_text(family, &entry.value),
            desired_action: entry.action.desired().to_owned(),
            last_error: entry.error,
        })?;
    }
    out.write_all(b"]}")
}

/// A piece of the body is sent when it is this long.
const PIECE: usize = 64 << 10;

/// A JSON document that `write` makes while it is sent, on a thread that may wait for the kernel. One that cannot be
/// made whole breaks the connection, so that no client takes a part for it.
fn document(write: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static) -> Response {
    let (sender, receiver) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces {
            piece: Vec::with_capacity(PIECE),
            sender,
        };
        let result = write(&mut pieces).and_then(|()| pieces.flush());
        if let Err(error) = result {
            // The client is gone, or gets the error now.
            let _ = pieces.sender.blocking_send(Err(error));
        }
    });
    let body = Body::from_stream(stream::unfold(receiver, async |mut receiver| {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    }));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

struct Pieces {
    piece: Vec<u8>,
    sender: mpsc::Sender<io::Result<Bytes>>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.sender
            .blocking_send(Ok(piece.into()))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}
