// SPDX-License-Identifier: Apache-2.0

//! `db/show`, `db/get`, `db/list`, `db/prefix`, `db/lowerbound`, `db/empty`.

use hive_script::{CommandError, Context, Invocation, Outcome};

use super::{find, first_table, output, print::Format};
use crate::{AnyTable, BoxRow, Db, DynError, Match};

pub(super) fn show(db: &Db, cx: &Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    let table = first_table(db, inv)?;
    let format = Format::of(&*table, inv)?;
    output(cx, inv, format.print(&table.rows(&db.read()))?)
}

pub(super) fn query(
    db: &Db,
    cx: &mut Context<'_>,
    inv: &Invocation,
    how: Match,
    only_first: bool,
) -> Result<Outcome, CommandError> {
    let [_, key] = inv.args() else {
        return Err(CommandError::usage("expected table and key"));
    };
    let table = first_table(db, inv)?;
    let format = Format::of(&*table, inv)?;
    let index = Some(inv.string("index")).filter(|name| !name.is_empty());
    let found = table.query(&db.read(), index, key, how);
    let mut rows = found.map_err(|err| CommandError::new(format_args!("query: {err}")))?;
    if only_first {
        rows.truncate(1);
    }
    if inv.bool("delete") {
        let deleted =
            delete(db, &*table, &rows).map_err(|err| CommandError::new(format_args!("delete: {err}")))?;
        cx.log(format!("Deleted {deleted} objects\n"));
    }
    output(cx, inv, format.print(&rows)?)
}

fn delete(db: &Db, table: &dyn AnyTable, rows: &[BoxRow]) -> Result<usize, DynError> {
    let mut txn = db.write(&[&Locked(table)]);
    let mut deleted = 0;
    for row in rows {
        deleted += usize::from(table.delete_row(&mut txn, &**row)?);
    }
    txn.commit();
    Ok(deleted)
}

/// Lets a table behind a trait object be locked.
pub(super) struct Locked<'a>(pub(super) &'a dyn AnyTable);

impl crate::WriteTarget for Locked<'_> {
    fn target(&self) -> crate::Target<'_> {
        self.0.target()
    }
}

pub(super) fn empty(db: &Db, inv: &Invocation) -> Result<Outcome, CommandError> {
    if inv.args().is_empty() {
        return Err(CommandError::new("missing table name"));
    }
    let snapshot = db.read();
    for name in inv.args() {
        let objects = find(db, name)?.objects(&snapshot);
        if objects > 0 {
            // The spelling is what scripts compare.
            return Err(CommandError::new(format_args!(
                "table \"{name}\" not empty, found {objects} obects"
            )));
        }
    }
    Ok(Outcome::Silent)
}
