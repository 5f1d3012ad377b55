// SPDX-License-Identifier: Apache-2.0

//! The `db` commands of scripts and of the shell.

mod compare;
mod overview;
mod print;
mod query;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec};
use tokio::time::Duration;

use crate::{AnyTable, Db, Match};

/// Returns all `db` commands for `db`; writes are attributed to the handle `script`.
///
/// ```
/// let commands = statedb::command::commands(&statedb::Db::new());
/// assert!(commands.iter().any(|command| command.spec().name() == "db/cmp"));
/// ```
pub fn commands(db: &Db) -> Vec<CommandHandle> {
    let db = db.handle("script");
    let kinds = [
        Kind::Overview,
        Kind::Show,
        Kind::Get,
        Kind::Query(Match::Exact),
        Kind::Query(Match::Prefix),
        Kind::Query(Match::LowerBound),
        Kind::Compare,
        Kind::Empty,
        Kind::Insert,
        Kind::Delete,
        Kind::Initialized,
        Kind::Watch,
        Kind::Dump,
    ];
    kinds
        .into_iter()
        .map(|kind| {
            Arc::new(DbCommand {
                spec: spec(kind),
                kind,
                db: db.clone(),
            }) as CommandHandle
        })
        .collect()
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Overview,
    Show,
    Get,
    Query(Match),
    Compare,
    Empty,
    Insert,
    Delete,
    Initialized,
    Watch,
    Dump,
}

struct DbCommand {
    spec: Spec,
    kind: Kind,
    db: Db,
}

fn spec(kind: Kind) -> Spec {
    let out = || Flag::string("out", "", "File to write to instead of stdout").short('o');
    let print = |spec: Spec| {
        let none: [&str; 0] = [];
        spec.flag(out())
            .flag(Flag::list(
                "columns",
                none,
                "Comma-separated list of columns to write",
            ))
            .flag(Flag::string("format", "table", "Format to write in (table, yaml or json)").short('f'))
    };
    let query = |spec: Spec| {
        print(spec.args("table key"))
            .flag(Flag::string("index", "", "Index to query, default is the primary index").short('i'))
            .flag(Flag::bool("delete", "Delete the objects found"))
            .detail("The key is given as text, for instance as an integer or an address.")
    };
    match kind {
        Kind::Overview => Spec::new("db", "Describe the tables")
            .detail("One line per table: objects, deleted objects kept for readers, indexes, initializers that are not done, type, latest write transaction."),
        Kind::Show => print(Spec::new("db/show", "Show a table").args("table")),
        Kind::Get => query(Spec::new("db/get", "Get the first object with a key")),
        Kind::Query(Match::Exact) => query(Spec::new("db/list", "List the objects with a key")),
        Kind::Query(Match::Prefix) => query(Spec::new("db/prefix", "List the objects whose key starts with a prefix")),
        Kind::Query(Match::LowerBound) => query(Spec::new("db/lowerbound", "List the objects from a key on")),
        Kind::Compare => Spec::new("db/cmp", "Compare a table with a file")
            .args("table file")
            .detail("The first line of the file names the columns, in any order and any subset. Cells start under their column's name. Repeated until both are equal or the time is over.")
            .flag(Flag::duration("timeout", Duration::from_secs(5), "Maximum time to wait"))
            .flag(Flag::string("grep", "", "Compare only the rows that match")),
        Kind::Empty => Spec::new("db/empty", "Check that tables are empty").args("table..."),
        Kind::Insert => Spec::new("db/insert", "Insert objects from YAML files")
            .args("table path...")
            .detail("Objects are separated by '---'. All are inserted in one transaction."),
        Kind::Delete => Spec::new("db/delete", "Delete objects given by YAML files")
            .args("table path...")
            .detail("Only the fields of the primary key matter."),
        Kind::Initialized => Spec::new("db/initialized", "Wait until tables are initialized")
            .args("[table...]")
            .flag(Flag::duration("timeout", Duration::from_secs(5), "Maximum time to wait")),
        Kind::Watch => Spec::new("db/watch", "Watch the changes of a table").args("table"),
        Kind::Dump => Spec::new("db/dump", "Dump all tables as JSON").flag(out()),
    }
}

#[async_trait]
impl Command for DbCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let db = &self.db;
        match self.kind {
            Kind::Overview => overview::overview(db, cx),
            Kind::Show => query::show(db, cx, &inv),
            Kind::Get => query::query(db, cx, &inv, Match::Exact, true),
            Kind::Query(how) => query::query(db, cx, &inv, how, false),
            Kind::Compare => compare::compare(db, cx, &inv).await,
            Kind::Empty => query::empty(db, &inv),
            Kind::Insert => write::insert(db, cx, &inv),
            Kind::Delete => write::delete(db, cx, &inv),
            Kind::Initialized => overview::initialized(db, cx, &inv).await,
            Kind::Watch => overview::watch(db, cx, &inv).await,
            Kind::Dump => overview::dump(db, cx, &inv),
        }
    }

    async fn complete(&self, _cx: &mut Context<'_>, partial: &str) -> Vec<String> {
        let takes_table = !matches!(self.kind, Kind::Overview | Kind::Dump);
        if !takes_table || partial.trim_start().contains(char::is_whitespace) {
            return Vec::new();
        }
        let names = self.db.tables().into_iter().map(|table| table.name().to_owned());
        names
            .filter(|name| name.starts_with(partial.trim_start()))
            .collect()
    }
}

fn find(db: &Db, name: &str) -> Result<Arc<dyn AnyTable>, CommandError> {
    db.table(name)
        .ok_or_else(|| CommandError::new(format_args!("table \"{name}\" not found")))
}

/// Returns the table named by the first argument.
fn first_table(db: &Db, inv: &Invocation) -> Result<Arc<dyn AnyTable>, CommandError> {
    find(
        db,
        inv.arg(0)
            .ok_or_else(|| CommandError::new("missing table name"))?,
    )
}

/// Output of a command with `--out`: into the file if there is one.
fn output(cx: &Context<'_>, inv: &Invocation, text: String) -> Result<Outcome, CommandError> {
    match inv.string("out") {
        "" => Ok(Outcome::stdout(text)),
        file => {
            cx.write_file(file, text)
                .map_err(|err| CommandError::io("open", cx.path(file), &err))?;
            Ok(Outcome::Output(Output::default()))
        }
    }
}

#[cfg(test)]
mod tests;
