// SPDX-License-Identifier: Apache-2.0

//! `skep map`: maps, their entries and their last writes. The agent knows which writes failed; without it, maps are
//! read from where they are pinned.

use std::{io, path::Path};

use serde_json::Value;
use skep_base_api_client::{Client, ClientError};
use skep_base_api_types::{BpfMap, BpfMapEntry, BpfMapEvent, BpfMapList};

use crate::{
    agent::{self, ApiError},
    maps::{Entry, MapsError, Pinned},
    print::{self, Format},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum InventoryError {
    /// The agent answers with an error.
    #[error(transparent)]
    Agent(#[from] ApiError),
    /// The pinned maps cannot be read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The answer cannot be printed in this form.
    #[error("cannot print the maps")]
    Print(#[from] serde_json::Error),
}

/// Where the entries of maps come from.
struct Known {
    what: Value,
    /// The agent, which knows which writes failed.
    by_agent: bool,
}

/// All maps; with `verbose`, with their entries.
pub(crate) fn list(
    agent: &Client,
    pinned: &Pinned,
    verbose: bool,
    format: Format,
) -> Result<String, InventoryError> {
    let known = match agent.get("map", &[]) {
        Ok(what) => Known { what, by_agent: true },
        Err(ClientError::Unreachable { .. }) => Known {
            what: serde_json::to_value(all_pinned(pinned)?)?,
            by_agent: false,
        },
        Err(error) => return Err(agent::LIST_MAPS.failed("map", error).into()),
    };
    if format != Format::Text {
        return Ok(print::api(&known.what, "BPFMapList", format));
    }
    let BpfMapList { maps } = serde_json::from_value(known.what)?;
    Ok(match verbose {
        true => maps.iter().map(details).collect(),
        false => overview(&maps, known.by_agent),
    })
}

pub(crate) fn get(
    agent: &Client,
    pinned: &Pinned,
    name: &str,
    format: Format,
) -> Result<String, InventoryError> {
    let path = format!("map/{}", agent::escaped(name));
    let map: Value = match agent.get(&path, &[]) {
        Ok(map) => map,
        // Not a map of the agent, or no agent: it may be pinned all the same.
        Err(error @ (ClientError::Unreachable { .. } | ClientError::Refused { status: 404, .. })) => {
            let entries = match pinned.entries(name) {
                Err(MapsError::NotPinned { .. }) if error.status().is_some() => {
                    return Err(agent::GET_MAP.failed(&path, error).into());
                }
                entries => entries?,
            };
            serde_json::to_value(BpfMap {
                path: pinned.path(name),
                cache: Some(cache(entries)),
            })?
        }
        Err(error) => return Err(agent::GET_MAP.failed(&path, error).into()),
    };
    Ok(match format {
        Format::Text => entries(&serde_json::from_value(map)?),
        _ => print::api(&map, "BPFMap", format),
    })
}

/// Passes the last writes of a map to `write`, a line each; with `follow`, also those that come.
pub(crate) fn events(
    agent: &Client,
    name: &str,
    follow: bool,
    format: Format,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ClientError> {
    let mut rest = Vec::new();
    agent.follow(&format!("map/{name}/events?follow={follow}"), |piece| {
        rest.extend_from_slice(piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            match format {
                Format::Text => write(event(&serde_json::from_slice(&line)?).as_bytes())?,
                _ => write(&line)?,
            }
        }
        Ok(())
    })
}

/// A write as a line, with the names of Cilium's command.
fn event(event: &BpfMapEvent) -> String {
    let error = match event.last_error.as_str() {
        "" => "<nil>",
        error => error,
    };
    format!(
        "key={:?} value={:?} time={} action={} desiredState={} lastError={error:?}\n",
        event.key, event.value, event.timestamp, event.action, event.desired_action
    )
}

fn all_pinned(pinned: &Pinned) -> Result<BpfMapList, MapsError> {
    let mut maps = Vec::new();
    for name in pinned.names()? {
        let cache = match pinned.entries(&name) {
            Ok(entries) => Some(cache(entries)),
            Err(MapsError::Unknown { .. }) => None,
            // Gone since the directory was read.
            Err(MapsError::NotPinned { .. }) => continue,
            Err(error) => return Err(error),
        };
        let path = pinned.path(&name);
        maps.push(BpfMap { path, cache });
    }
    Ok(BpfMapList { maps })
}

/// Entries that were read from the kernel: their state is that they are there.
fn cache(entries: Vec<Entry>) -> Vec<BpfMapEntry> {
    entries
        .into_iter()
        .map(|(key, values)| BpfMapEntry {
            key,
            value: values.join(" "),
            desired_action: "sync".to_owned(),
            last_error: String::new(),
        })
        .collect()
}

fn name(map: &BpfMap) -> String {
    let name = Path::new(&map.path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn overview(maps: &[BpfMap], by_agent: bool) -> String {
    print::table(
        &["Name", "Num entries", "Num errors", "Cache enabled"],
        maps.iter().map(|map| {
            let entries = map.cache.as_deref();
            let errors = entries
                .unwrap_or_default()
                .iter()
                .filter(|entry| !entry.last_error.is_empty());
            vec![
                name(map),
                entries.map_or_else(|| "unknown".to_owned(), |all| all.len().to_string()),
                if by_agent {
                    errors.count().to_string()
                } else {
                    "unknown".to_owned()
                },
                (by_agent && entries.is_some()).to_string(),
            ]
        }),
    )
}

fn details(map: &BpfMap) -> String {
    format!("## Map: {}\n{}\n", name(map), entries(map))
}

fn entries(map: &BpfMap) -> String {
    let cache = match map.cache.as_deref() {
        None => return "Cache is disabled\n\n".to_owned(),
        Some([]) => return "Cache is empty\n\n".to_owned(),
        Some(cache) => cache,
    };
    print::table(
        &["Key", "Value", "State", "Error"],
        cache.iter().map(|entry| {
            vec![
                entry.key.clone(),
                entry.value.clone(),
                entry.desired_action.clone(),
                entry.last_error.clone(),
            ]
        }),
    )
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixListener,
    };

    use super::*;

    const MAPS: &str = r#"{"maps":[
        {"path": "/sys/fs/bpf/tc/globals/cilium_events"},
        {"path": "/sys/fs/bpf/tc/globals/cilium_lb4_services_v2", "cache": [
            {"key": "10.96.0.1:80/TCP (0)", "value": "0 1", "desired-action": "sync"},
            {"key": "10.96.0.2:80/TCP (0)", "value": "0 2", "desired-action": "to-be-inserted", "last-error": "full"}]}
    ]}"#;

    /// An agent that answers one request, which the thread returns.
    fn agent(folder: &Path, answer: &'static str) -> (Client, std::thread::JoinHandle<String>) {
        let socket = folder.join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all((head + answer).as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (Client::at(&socket), thread)
    }

    #[test]
    fn the_agent_counts_what_it_could_not_write() {
        let folder = tempfile::tempdir().unwrap();
        let (agent, _) = agent(folder.path(), MAPS);

        let text = list(&agent, &Pinned::below(folder.path()), false, Format::Text).unwrap();

        let expected = [
            "Name                     Num entries   Num errors   Cache enabled",
            "cilium_events            unknown       0            false",
            "cilium_lb4_services_v2   2             1            true",
            "",
        ];
        assert_eq!(text, expected.join("\n"));
    }

    #[test]
    fn json_is_the_model_of_the_api() {
        let folder = tempfile::tempdir().unwrap();
        let (agent, _) = agent(folder.path(), MAPS);

        let text = list(&agent, &Pinned::below(folder.path()), false, Format::Json).unwrap();

        let found: Value = serde_json::from_str(&text).unwrap();
        let expected: Value = serde_json::from_str(MAPS).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn entries_show_their_state_and_error() {
        let folder = tempfile::tempdir().unwrap();
        let map = r#"{"path": "/x/cilium_ipcache_v2", "cache": [
            {"key": "10.0.0.1/32", "value": "identity=1", "desired-action": "to-be-deleted", "last-error": "no"}]}"#;
        let (agent, asked) = agent(folder.path(), map);

        let pinned = Pinned::below(folder.path());
        let text = get(&agent, &pinned, "cilium_ipcache_v2", Format::Text).unwrap();

        let expected = [
            "Key           Value        State           Error",
            "10.0.0.1/32   identity=1   to-be-deleted   no",
            "",
        ];
        assert_eq!(text, expected.join("\n"));
        let request = asked.join().unwrap();
        assert!(
            request.starts_with("GET /v1/map/cilium_ipcache_v2 HTTP"),
            "{request}"
        );
    }

    #[test]
    fn events_are_lines() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"{"timestamp":"2026-01-02T03:04:05Z","action":"update","key":"10.0.0.1/32","value":"identity=1","desired-action":"sync"}
"#;
        let (agent, asked) = agent(folder.path(), line);
        let mut text = String::new();

        let written = events(&agent, "cilium_ipcache_v2", true, Format::Text, |line| {
            text.push_str(&String::from_utf8_lossy(line));
            Ok(())
        });

        written.unwrap();
        assert_eq!(
            text,
            "key=\"10.0.0.1/32\" value=\"identity=1\" time=2026-01-02T03:04:05Z action=update desiredState=sync \
             lastError=\"<nil>\"\n"
        );
        let request = asked.join().unwrap();
        assert!(
            request.starts_with("GET /v1/map/cilium_ipcache_v2/events?follow=true HTTP"),
            "{request}"
        );
    }
}
