// SPDX-License-Identifier: Apache-2.0

//! Commands: `health`, `health/ok`, `health/history`.

use std::sync::Arc;

use hive::{Member, Members};
use hive_script::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec, function};
use statedb::clock::{Clock, SystemClock};
use statedb::{Db, Table};

use crate::history::History;
use crate::status::{LevelName, Status};
use crate::table::BY_IDENTIFIER;
use crate::tree::tree;

pub(crate) fn commands(
    db: Db,
    table: Table<Status>,
    clock: Option<Arc<dyn Clock>>,
) -> Members<CommandHandle> {
    let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
    let source = Source { db, table, clock };
    let (show, ok) = (source.clone(), source);
    let matching = || Flag::string("match", "", "Only components whose identifier contains this").short('m');
    Members(vec![
        function(
            Spec::new("health", "Show the health of components as a tree")
                .args("[prefix]")
                .detail("A prefix selects the components whose identifier, module and component joined by dots, starts with it.")
                .flag(matching())
                .flag(Flag::list("levels", [] as [&str; 0], "Only these levels: ok, degraded, stopped").short('s'))
                .flag(Flag::string("output", "", "File to write to instead of the log").short('o')),
            move |cx, inv| show.show(cx, inv),
        ),
        function(
            Spec::new("health/ok", "Fail if a component is degraded").args("[prefix]").flag(matching()),
            move |cx, inv| ok.check(cx, inv),
        ),
    ])
}

pub(crate) fn history(history: Arc<History>) -> Member<CommandHandle> {
    let spec = Spec::new(
        "health/history",
        "Show the history of degraded, stopped and closed components",
    )
    .flag(Flag::string("output", "", "File to write to instead of the log").short('o'));
    Member(function(spec, move |cx, inv| {
        let text = history.read().map_err(|error| CommandError::chain(&error))?;
        write_out(cx, inv, &text)
    }))
}

fn write_out(cx: &mut Context<'_>, inv: &Invocation, text: &str) -> Result<Outcome, CommandError> {
    match inv.string("output") {
        "" => cx.log(text),
        file => cx
            .write_file(file, text)
            .map_err(|error| CommandError::io("open", cx.path(file), &error))?,
    }
    Ok(Outcome::Silent)
}

#[derive(Clone)]
struct Source {
    db: Db,
    table: Table<Status>,
    clock: Arc<dyn Clock>,
}

impl Source {
    /// The rows that prefix and `--match` select.
    fn select(&self, inv: &Invocation) -> Result<Vec<Status>, CommandError> {
        let prefix = match inv.args() {
            [] => "",
            [prefix] => prefix,
            _ => return Err(CommandError::usage("expected at most one prefix")),
        };
        let part = inv.string("match");
        let snapshot = self.db.read();
        let rows = self.table.prefix(&snapshot, BY_IDENTIFIER.key(prefix));
        Ok(rows
            .filter(|status| status.id.to_string().contains(part))
            .map(|status| Status::clone(status))
            .collect())
    }

    fn show(&self, cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
        let levels = inv.list("levels");
        let mut found = self.select(inv)?;
        if !levels.is_empty() {
            let wanted = |level: LevelName| {
                levels
                    .iter()
                    .any(|name| name.trim().eq_ignore_ascii_case(level.as_str()))
            };
            found.retain(|status| wanted(status.level));
        }
        if found.is_empty() && (!inv.args().is_empty() || !inv.string("match").is_empty()) {
            return Err(CommandError::new("no health status found for the filter"));
        }
        write_out(cx, inv, &tree(&found, self.clock.now()))
    }

    fn check(&self, cx: &mut Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
        let mut found = self.select(inv)?;
        found.retain(|status| status.level == LevelName::Degraded);
        if found.is_empty() {
            return Ok(Outcome::Silent);
        }
        cx.log(tree(&found, self.clock.now()));
        Err(CommandError::new(format_args!(
            "found {} degraded health reports",
            found.len()
        )))
    }
}
