// SPDX-License-Identifier: Apache-2.0

//! Bodies that are written while they are sent: a large table is never held as text.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{Stream, stream};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{AnyChange, AnyChanges, AnyTable, BoxRow, Db, Watch};

/// Objects in one piece of a body.
const PIECE: usize = 256;
/// Silence after which a stream of changes sends a sign of life.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long changes gather before they are sent.
const SETTLE: Duration = Duration::from_millis(50);

type Piece = Result<Vec<u8>, Infallible>;

/// Appends a line: the kind of a change, a row with its revision, or both.
fn write_line(
    text: &mut Vec<u8>,
    change: Option<&'static str>,
    row: Option<(&(dyn AnyTable + 'static), &BoxRow)>,
) {
    let mut separator = "{";
    if let Some(change) = change {
        text.extend_from_slice(format!("{separator}\"change\":\"{change}\"").as_bytes());
        separator = ",";
    }
    if let Some((table, row)) = row {
        let revision = row.revision();
        text.extend_from_slice(format!("{separator}\"revision\":{revision},\"object\":").as_bytes());
        table.write_json_of(&**row, text);
    }
    text.extend_from_slice(b"}\n");
}

pub(super) fn objects(table: Arc<dyn AnyTable>, rows: Vec<BoxRow>) -> impl Stream<Item = Piece> + Send {
    stream::unfold(rows.into_iter(), move |mut rows| {
        let mut text = Vec::new();
        for row in rows.by_ref().take(PIECE) {
            write_line(&mut text, None, Some((&*table, &row)));
        }
        std::future::ready((!text.is_empty()).then_some((Ok(text), rows)))
    })
}

/// A stream of changes under way.
struct Following {
    changes: Box<dyn AnyChanges>,
    batch: std::vec::IntoIter<AnyChange>,
    watch: Option<Watch>,
    /// Whether initialisers of the table are pending.
    awaits_sources: bool,
    sources: Option<Watch>,
    /// Whether `initialized` follows this batch.
    initialized: bool,
}

pub(super) fn changes(
    db: Db,
    table: Arc<dyn AnyTable>,
    stop: CancellationToken,
) -> impl Stream<Item = Piece> + Send {
    let following = Following {
        changes: table.follow(&db),
        batch: Vec::new().into_iter(),
        watch: None,
        awaits_sources: true,
        sources: None,
        initialized: false,
    };
    stream::unfold(following, move |mut following| {
        let (db, table, stop) = (db.clone(), Arc::clone(&table), stop.clone());
        async move {
            let text = following.next(&db, &*table, &stop).await?;
            Some((Ok(text), following))
        }
    })
}

impl Following {
    /// Returns the next piece; none when the server stops.
    async fn next(
        &mut self,
        db: &Db,
        table: &(dyn AnyTable + 'static),
        stop: &CancellationToken,
    ) -> Option<Vec<u8>> {
        loop {
            let mut text = Vec::new();
            self.write(table, &mut text);
            if text.is_empty() && std::mem::take(&mut self.initialized) {
                write_line(&mut text, Some("initialized"), None);
            }
            if !text.is_empty() {
                return Some(text);
            }
            if let Some(watch) = self.watch.take() {
                let sources = self.sources.take();
                tokio::select! {
                    () = watch.closed() => {}
                    () = closed(sources.as_ref()) => {}
                    () = stop.cancelled() => return None,
                    () = tokio::time::sleep(KEEP_ALIVE) => {
                        (self.watch, self.sources) = (Some(watch), sources);
                        return Some(b"\n".to_vec());
                    }
                }
                tokio::time::sleep(SETTLE).await;
            }
            let snapshot = db.read();
            let (batch, watch) = self.changes.next(&snapshot);
            self.batch = batch.into_iter();
            self.watch = Some(watch);
            if self.awaits_sources {
                self.awaits_sources = !table.pending_initializers(&snapshot).is_empty();
                self.initialized = !self.awaits_sources;
                self.sources = self.awaits_sources.then(|| table.initializers_watch(&snapshot));
            }
        }
    }

    fn write(&mut self, table: &(dyn AnyTable + 'static), text: &mut Vec<u8>) {
        for change in self.batch.by_ref().take(PIECE) {
            let (name, row) = match &change {
                AnyChange::Upsert(row) => ("upsert", Some(row)),
                AnyChange::Delete(row) => ("delete", Some(row)),
                AnyChange::Relist => ("relist", None),
            };
            write_line(text, Some(name), row.map(|row| (table, row)));
        }
    }
}

/// Waits for a watch, if there is one.
async fn closed(watch: Option<&Watch>) {
    match watch {
        Some(watch) => watch.closed().await,
        None => std::future::pending().await,
    }
}

/// Returns all tables as one JSON document, a table at a time.
pub(super) fn dump(db: Db) -> impl Stream<Item = Piece> + Send {
    let snapshot = db.read();
    let mut tables = db.tables().into_iter();
    let mut rows: Option<(Arc<dyn AnyTable>, std::vec::IntoIter<BoxRow>)> = None;
    let (mut first_table, mut first_row, mut ended) = (true, true, false);
    stream::iter(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut text = Vec::new();
        if first_table && rows.is_none() {
            text.push(b'{');
        }
        match &mut rows {
            None => match tables.next() {
                Some(table) => {
                    let separator = if first_table { "\n" } else { ",\n" };
                    let name = Value::from(table.name());
                    text.extend_from_slice(format!("{separator}{name}: [").as_bytes());
                    let all = table.rows(&snapshot).into_iter();
                    (first_table, first_row) = (false, true);
                    rows = Some((table, all));
                }
                None => {
                    text.extend_from_slice(b"\n}\n");
                    ended = true;
                }
            },
            Some((table, left)) => {
                for row in left.by_ref().take(PIECE) {
                    let separator: &[u8] = if first_row { b"\n  " } else { b",\n  " };
                    text.extend_from_slice(separator);
                    first_row = false;
                    table.write_json_of(&*row, &mut text);
                }
                if left.as_slice().is_empty() {
                    text.push(b']');
                    rows = None;
                }
            }
        }
        Some(Ok(text))
    }))
}
