// SPDX-License-Identifier: Apache-2.0

//! `db`, `db/initialized`, `db/watch`, `db/dump`.

use std::{fmt::Write, sync::Arc, time::Duration};

use hive_script::{
    CommandError, Context, Invocation, Outcome,
    text::{TabWriter, json},
};
use tokio::time::Instant;

use super::{find, first_table, output};
use crate::{AnyChange, AnyTable, Db, LastWrite};

/// Shortest pause between two batches of `db/watch`.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

pub(super) fn overview(db: &Db, cx: &mut Context<'_>) -> Result<Outcome, CommandError> {
    let snapshot = db.read();
    let mut out = TabWriter::new();
    out.row([
        "Name",
        "Object count",
        "Zombie objects",
        "Indexes",
        "Initializers",
        "Go type",
        "Last WriteTxn",
    ]);
    for table in db.tables() {
        let mut indexes = table.indexes();
        indexes.sort_unstable();
        out.row([
            table.name().to_owned(),
            table.objects(&snapshot).to_string(),
            table.zombies(&snapshot).to_string(),
            indexes.join(", "),
            format!("[{}]", table.pending_initializers(&snapshot).join(" ")),
            table.type_name().to_owned(),
            last_write(&table.last_write()),
        ]);
    }
    cx.log(out.finish());
    Ok(Outcome::Silent)
}

fn last_write(last: &LastWrite) -> String {
    let Some(opened) = last.opened else {
        return String::new();
    };
    match last.held {
        Some(held) => {
            let ago = opened.elapsed().saturating_sub(held);
            format!("{} ({} ago, locked for {})", last.handle, short(ago), short(held))
        }
        None => format!("{} (locked for {})", last.handle, short(opened.elapsed())),
    }
}

/// One decimal and the largest unit of which there is at least one: `181.2us`.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s < 1e-3 => format!("{:.1}us", s * 1e6),
        s if s < 1.0 => format!("{:.1}ms", s * 1e3),
        s if s < 60.0 => format!("{s:.1}s"),
        s if s < 3600.0 => format!("{:.1}m", s / 60.0),
        s => format!("{:.1}h", s / 3600.0),
    }
}

pub(super) async fn initialized(
    db: &Db,
    cx: &mut Context<'_>,
    inv: &Invocation,
) -> Result<Outcome, CommandError> {
    let tables: Vec<Arc<dyn AnyTable>> = if inv.args().is_empty() {
        db.tables()
    } else {
        inv.args()
            .iter()
            .map(|name| find(db, name))
            .collect::<Result<_, _>>()?
    };
    let deadline = Instant::now() + inv.duration("timeout");
    for table in tables {
        loop {
            let snapshot = db.read();
            let watch = table.initializers_watch(&snapshot);
            let pending = table.pending_initializers(&snapshot);
            if pending.is_empty() {
                break;
            }
            cx.log(format!(
                "Waiting for {} to initialize ([{}])...\n",
                table.name(),
                pending.join(" ")
            ));
            let closed = cx
                .until_interrupted(tokio::time::timeout_at(deadline, watch.closed()))
                .await?;
            if closed.is_err() {
                return Err(CommandError::new("timed out"));
            }
        }
        cx.log(format!("{} initialized\n", table.name()));
    }
    Ok(Outcome::Silent)
}

pub(super) async fn watch(db: &Db, cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let table = first_table(db, inv)?;
    let mut changes = table.follow(db);
    let mut header = Some(table.header());
    loop {
        let (batch, watch) = changes.next(&db.read());
        if !batch.is_empty() || header.is_some() {
            cx.log(lines(header.take(), &batch));
        }
        cx.until_interrupted(tokio::time::sleep(WATCH_PAUSE)).await?;
        cx.until_interrupted(watch.closed()).await?;
    }
}

/// Changes laid out as a table; deleted rows are struck through.
fn lines(header: Option<&'static [&'static str]>, batch: &[AnyChange]) -> String {
    let mut out = TabWriter::new();
    if let Some(header) = header {
        out.row(header.iter().copied());
    }
    let mut deleted = Vec::new();
    for change in batch {
        match change {
            AnyChange::Upsert(row) => out.row(row.cells()),
            AnyChange::Delete(row) => out.row(row.cells()),
            AnyChange::Relist => out.row(["(all objects follow again)"]),
        }
        deleted.push(matches!(change, AnyChange::Delete(_)));
    }
    let text = out.finish();
    let mut marks = deleted.into_iter();
    let mut result = String::new();
    for (at, line) in text.lines().enumerate() {
        let struck = !(at == 0 && header.is_some()) && marks.next().unwrap_or(false);
        let _ = match struck {
            true => writeln!(result, "\u{1b}[9m{line}\u{1b}[0m (deleted)"),
            false => writeln!(result, "{line}"),
        };
    }
    result
}

pub(super) fn dump(db: &Db, cx: &Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let snapshot = db.read();
    let mut tables = Vec::new();
    for table in db.tables() {
        let mut objects = Vec::new();
        for row in table.rows(&snapshot) {
            let value = table.json_of(&*row);
            objects.push(format!(
                "    {}",
                json::compact(&value).map_err(CommandError::new)?
            ));
        }
        let mut text = format!(
            "  {}: [\n",
            json::compact(table.name()).map_err(CommandError::new)?
        );
        if !objects.is_empty() {
            text.push_str(&objects.join(",\n"));
            text.push('\n');
        }
        text.push_str("  ]");
        tables.push(text);
    }
    output(cx, inv, format!("{{\n{}\n}}\n", tables.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_decimal() {
        let texts = [
            (181_200, "181.2us"),
            (1_500_000, "1.5ms"),
            (2_000_000_000, "2.0s"),
            (90_000_000_000, "1.5m"),
        ];
        for (nanos, text) in texts {
            assert_eq!(short(Duration::from_nanos(nanos)), text);
        }
        assert_eq!(short(Duration::from_secs(7200)), "2.0h");
    }
}
