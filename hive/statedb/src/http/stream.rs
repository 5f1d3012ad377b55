// SPDX-License-Identifier: Apache-2.0

//! Bodies made while they are sent: a table may be larger than what one wants to hold as text.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{Stream, stream};
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{AnyChange, AnyChanges, AnyTable, BoxRow, Db, Revision, Watch};

/// Objects in one piece of a body.
const PIECE: usize = 256;
/// Silence after which a stream of changes says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long changes gather before they are sent.
const SETTLE: Duration = Duration::from_millis(50);

type Piece = Result<String, Infallible>;

#[derive(Serialize, Default)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<Revision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Value>,
}

impl Line {
    fn of(table: &(dyn AnyTable + 'static), row: &BoxRow) -> Self {
        Self {
            change: None,
            revision: Some(row.revision()),
            object: Some(table.json_of(&**row)),
        }
    }

    fn change(name: &'static str) -> Self {
        Self {
            change: Some(name),
            ..Self::default()
        }
    }

    fn write(&self, text: &mut String) {
        // A tree of JSON values whose keys are texts always has a text.
        if let Ok(line) = serde_json::to_string(self) {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

pub(super) fn objects(table: Arc<dyn AnyTable>, rows: Vec<BoxRow>) -> impl Stream<Item = Piece> + Send {
    stream::unfold(rows.into_iter(), move |mut rows| {
        let mut text = String::new();
        for row in rows.by_ref().take(PIECE) {
            Line::of(&*table, &row).write(&mut text);
        }
        std::future::ready((!text.is_empty()).then_some((Ok(text), rows)))
    })
}

/// A stream of changes under way.
struct Following {
    changes: Box<dyn AnyChanges>,
    batch: std::vec::IntoIter<AnyChange>,
    watch: Option<Watch>,
    /// Whether sources of the table have not delivered their first content.
    awaits_sources: bool,
    sources: Option<Watch>,
    /// Whether `initialized` is to be said after this batch.
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
    /// The next piece; none when the server stops.
    async fn next(
        &mut self,
        db: &Db,
        table: &(dyn AnyTable + 'static),
        stop: &CancellationToken,
    ) -> Option<String> {
        loop {
            let mut text = String::new();
            self.write(table, &mut text);
            if text.is_empty() && std::mem::take(&mut self.initialized) {
                Line::change("initialized").write(&mut text);
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
                        return Some("\n".to_owned());
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

    fn write(&mut self, table: &(dyn AnyTable + 'static), text: &mut String) {
        for change in self.batch.by_ref().take(PIECE) {
            let (name, row) = match &change {
                AnyChange::Upsert(row) => ("upsert", Some(row)),
                AnyChange::Delete(row) => ("delete", Some(row)),
                AnyChange::Relist => ("relist", None),
            };
            let line = row.map_or_else(Line::default, |row| Line::of(table, row));
            Line {
                change: Some(name),
                ..line
            }
            .write(text);
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

/// All tables as one JSON document, a table at a time.
pub(super) fn dump(db: Db) -> impl Stream<Item = Piece> + Send {
    let snapshot = db.read();
    let mut tables = db.tables().into_iter();
    let mut rows: Option<(Arc<dyn AnyTable>, std::vec::IntoIter<BoxRow>)> = None;
    let (mut first_table, mut first_row, mut ended) = (true, true, false);
    stream::iter(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut text = String::new();
        if first_table && rows.is_none() {
            text.push('{');
        }
        match &mut rows {
            None => match tables.next() {
                Some(table) => {
                    text.push_str(if first_table { "\n" } else { ",\n" });
                    text.push_str(&Value::from(table.name()).to_string());
                    text.push_str(": [");
                    let all = table.rows(&snapshot).into_iter();
                    (first_table, first_row) = (false, true);
                    rows = Some((table, all));
                }
                None => {
                    text.push_str("\n}\n");
                    ended = true;
                }
            },
            Some((table, left)) => {
                for row in left.by_ref().take(PIECE) {
                    text.push_str(if first_row { "\n  " } else { ",\n  " });
                    first_row = false;
                    text.push_str(&table.json_of(&*row).to_string());
                }
                if left.as_slice().is_empty() {
                    text.push(']');
                    rows = None;
                }
            }
        }
        Some(Ok(text))
    }))
}
