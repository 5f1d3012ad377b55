// SPDX-License-Identifier: Apache-2.0

//! A watch's body → events, a line at a time.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;
use skep_k8s_types::RawObject;
use skep_k8s_types::slim::{Labels, Str};

use crate::error::{ApiError, Status};
use crate::event::{Change, RawEvent};

/// Longest line: etcd takes objects of 1.5 MiB by default, JSON is at most some times larger than what it stores.
const LONGEST_LINE: usize = 32 << 20;

/// Annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Cuts a stream of bytes into lines. Holds at most one line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// Bytes of the buffer that have no line end.
    searched: usize,
}

/// A line that is longer than any object can be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    /// Adds bytes that arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole line, without its end; empty lines are skipped.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        loop {
            let Some(found) = self.buffer[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            else {
                self.searched = self.buffer.len();
                return if self.searched > LONGEST_LINE {
                    Err(TooLong)
                } else {
                    Ok(None)
                };
            };
            let mut line = self.buffer.split_to(self.searched + found + 1);
            self.searched = 0;
            line.truncate(line.len() - 1);
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some(line.freeze()));
            }
        }
    }

    /// The rest at the end of the stream: a last line without an end, or nothing.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        self.searched = 0;
        let rest = self.buffer.split().freeze();
        (!rest.iter().all(u8::is_ascii_whitespace)).then_some(rest)
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    #[serde(default)]
    resource_version: Str,
    #[serde(default)]
    annotations: Option<Labels>,
}

/// Reads a line of a watch. A status that the server sends as an event is an error.
pub(super) fn event(line: &Bytes, request: &str) -> Result<RawEvent, ApiError> {
    let garbled = |error: serde_json::Error| ApiError::Garbled {
        request: request.to_owned(),
        reason: error.to_string(),
    };
    let parsed: Line<'_> = serde_json::from_slice(line).map_err(garbled)?;
    let text = parsed.object.get();
    let object = |change| {
        Ok(RawEvent::Object(
            change,
            RawObject::from_json(line.slice_ref(text.as_bytes())),
        ))
    };
    match parsed.kind {
        "ADDED" => object(Change::Added),
        "MODIFIED" => object(Change::Modified),
        "DELETED" => object(Change::Deleted),
        "BOOKMARK" => {
            let bookmark: Bookmark = serde_json::from_str(text).map_err(garbled)?;
            let annotations = bookmark.metadata.annotations.unwrap_or_default();
            Ok(RawEvent::Bookmark {
                resource_version: bookmark.metadata.resource_version,
                initial_events_end: annotations.get(INITIAL_EVENTS_END) == Some("true"),
            })
        }
        "ERROR" => Err(ApiError::Status(
            serde_json::from_str::<Status>(text).map_err(garbled)?,
        )),
        other => Err(ApiError::Garbled {
            request: request.to_owned(),
            reason: format!(
                "event of unknown type `{}`",
                other.chars().take(40).collect::<String>()
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_whatever_way_they_are_cut() {
        let text = b"one\n\ntwo\r\n three \n";
        for step in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for part in text.chunks(step) {
                lines.push(part);
                while let Some(line) = lines.next().unwrap() {
                    found.push(String::from_utf8_lossy(&line).trim().to_owned());
                }
            }
            assert_eq!(found, ["one", "two", "three"]);
            assert_eq!(lines.rest(), None);
        }
    }

    #[test]
    fn endless_line_is_refused() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; LONGEST_LINE + 1]);

        assert_eq!(lines.next(), Err(TooLong));
    }

    #[test]
    fn reads_each_sort_of_event() {
        let read = |text: &'static str| event(&Bytes::from_static(text.as_bytes()), "watch");

        let added = read(r#"{"type":"ADDED","object":{"metadata":{"name":"web"}}}"#).unwrap();
        assert!(matches!(added, RawEvent::Object(Change::Added, _)));
        let bookmark = read(
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"12",
                "annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        );
        let Ok(RawEvent::Bookmark {
            resource_version,
            initial_events_end: true,
        }) = bookmark
        else {
            panic!("{bookmark:?}");
        };
        assert_eq!(resource_version, "12");
        let gone = read(
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#,
        );
        assert!(gone.unwrap_err().is_expired());
        assert!(matches!(read("<html>").unwrap_err(), ApiError::Garbled { .. }));
        assert!(matches!(
            read(r#"{"type":"X","object":{}}"#).unwrap_err(),
            ApiError::Garbled { .. }
        ));
    }
}
