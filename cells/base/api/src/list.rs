// SPDX-License-Identifier: Apache-2.0

//! Long answers, serialized while they are sent: neither the rows as models nor their text are held as a whole.

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use futures::stream;

/// A piece of the body is sent when it is this long: one write to the socket, and no more memory than that.
const PIECE: usize = 64 << 10;

/// A JSON list of `rows`; `write` appends the document of one of them. A row that cannot be written breaks the
/// connection, so that no client takes an incomplete list for a complete one.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let answer = skep_base_api::json_list(vec![1, 2], |row, out| serde_json::to_writer(out, row));
///
/// let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
/// assert_eq!(body, "[\n1,\n2\n]\n");
/// # });
/// ```
pub fn json_list<T, W>(rows: Vec<T>, write: W) -> Response
where
    T: Send + 'static,
    W: FnMut(&T, &mut Vec<u8>) -> Result<(), serde_json::Error> + Send + 'static,
{
    let body = Body::from_stream(stream::iter(pieces(rows, write)));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn pieces<T, W>(rows: Vec<T>, mut write: W) -> impl Iterator<Item = Result<Bytes, serde_json::Error>> + Send
where
    T: Send + 'static,
    W: FnMut(&T, &mut Vec<u8>) -> Result<(), serde_json::Error> + Send + 'static,
{
    let mut rows = rows.into_iter();
    let (mut separator, mut ended): (&[u8], bool) = (b"[\n", false);
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut piece = Vec::with_capacity(PIECE + PIECE / 8);
        while piece.len() < PIECE {
            let Some(row) = rows.next() else {
                let end: &[u8] = if separator == b"[\n" { b"[]\n" } else { b"\n]\n" };
                piece.extend_from_slice(end);
                ended = true;
                break;
            };
            piece.extend_from_slice(separator);
            separator = b",\n";
            if let Err(error) = write(&row, &mut piece) {
                ended = true;
                return Some(Err(error));
            }
        }
        Some(Ok(piece.into()))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn rows_are_written_as_the_body_is_read() {
        let written = Arc::new(AtomicUsize::new(0));
        let count = written.clone();
        let mut body = pieces((0..100_000_u32).collect(), move |row, out| {
            count.fetch_add(1, Ordering::Relaxed);
            serde_json::to_writer(out, row)
        });

        let first = body.next().unwrap().unwrap();
        let after_first = written.load(Ordering::Relaxed);
        let rest: Vec<Bytes> = body.map(Result::unwrap).collect();

        assert!(
            (PIECE..PIECE + PIECE / 8).contains(&first.len()),
            "{}",
            first.len()
        );
        assert!(after_first < 20_000, "{after_first} rows for {PIECE} bytes");
        assert!(rest.iter().all(|piece| piece.len() < PIECE + PIECE / 8));
        let whole = [&[first], &rest[..]].concat().concat();
        let numbers: Vec<u32> = serde_json::from_slice(&whole).unwrap();
        assert!(numbers.into_iter().eq(0..100_000));
    }

    #[test]
    fn no_rows_are_an_empty_list() {
        let body: Vec<Bytes> = pieces(Vec::<u32>::new(), |_, _| Ok(()))
            .map(Result::unwrap)
            .collect();

        assert_eq!(body.concat(), b"[]\n");
    }

    #[test]
    fn a_row_that_cannot_be_written_ends_the_body_with_an_error() {
        let mut body = pieces(vec![1, 2], |_, _| serde_json::from_str::<()>("nothing"));

        assert!(body.next().unwrap().is_err());
        assert!(body.next().is_none());
    }
}
