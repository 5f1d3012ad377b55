// SPDX-License-Identifier: Apache-2.0

//! `db/insert` and `db/delete`.

use hive_script::{CommandError, Context, Invocation, Outcome};

use super::{find, query::Locked};
use crate::{AnyTable, Db, DynError, WriteTxn};

pub(super) fn insert(db: &Db, cx: &Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    each_object(db, cx, inv, "Insert", |table, txn, yaml| {
        table.insert_yaml(txn, yaml)
    })
}

pub(super) fn delete(db: &Db, cx: &Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
    each_object(db, cx, inv, "Delete", |table, txn, yaml| {
        table.delete_yaml(txn, yaml).map(drop)
    })
}

/// Does something with each object of the files, all in one transaction that is undone on the first error.
fn each_object(
    db: &Db,
    cx: &Context<'_>,
    inv: &Invocation,
    verb: &str,
    act: impl Fn(&dyn AnyTable, &mut WriteTxn, &str) -> Result<(), DynError>,
) -> Result<Outcome, CommandError> {
    let [name, paths @ ..] = inv.args() else {
        return Err(CommandError::usage("expected table and path(s)"));
    };
    if paths.is_empty() {
        return Err(CommandError::usage("expected table and path(s)"));
    }
    let table = find(db, name)?;
    let mut texts = Vec::new();
    for path in paths {
        let text = cx.read_file(path);
        let text = text.map_err(|err| {
            CommandError::new(format_args!(
                "ReadFile({path}): {}",
                CommandError::io("open", cx.path(path), &err)
            ))
        })?;
        texts.push((path, text));
    }
    let mut txn = db.write(&[&Locked(&*table)]);
    for (path, text) in &texts {
        for part in text.split("---") {
            act(&*table, &mut txn, part).map_err(|err| match err {
                DynError::Parse(err) => CommandError::new(format_args!("Unmarshal({path}): {err}")),
                other => CommandError::new(format_args!("{verb}({path}): {other}")),
            })?;
        }
    }
    txn.commit();
    Ok(Outcome::Silent)
}
