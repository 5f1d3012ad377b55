// SPDX-License-Identifier: Apache-2.0

//! Tables derived from other tables.

use crate::{Change, Db, Error, Obj, RwTable, Table};

/// What a change of an input object means for the output table.
///
/// See [`derive_table`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Derived<O> {
    /// Insert or replace this object.
    Insert(O),
    /// Replace the object with this one's primary key, if there is one.
    Update(O),
    /// Delete the object with this one's primary key.
    Delete(O),
    /// Nothing.
    Skip,
}

/// Keeps `output` a function of `input` until the future is dropped; to be run as a job.
///
/// `transform` is given each object of the input and whether it was deleted. Changes are passed on in one
/// transaction per round. The output table is initialised once the input is and its content was passed on: an
/// initialiser called `name` is registered at once.
///
/// # Errors
/// When the output table refuses an object; what was passed on before stays.
///
/// ```
/// use statedb::{Db, Define, Derived, Table, derive_table};
///
/// #[derive(Clone, Table)]
/// #[table(name = "pods")]
/// struct Pod { #[index(primary)] name: String, node: String }
/// #[derive(Clone, Table)]
/// #[table(name = "local-pods")]
/// struct LocalPod { #[index(primary)] name: String }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), statedb::Error> {
/// let db = Db::new();
/// let (pods, local) = (Pod::define().build_plain(&db)?, LocalPod::define().build_plain(&db)?);
/// let keep = derive_table("local", &db, pods.reader(), local.clone(), |pod, is_deleted| {
///     let local = LocalPod { name: pod.name.clone() };
///     match is_deleted || pod.node != "here" {
///         true => Derived::Delete(local),
///         false => Derived::Insert(local),
///     }
/// })?;
/// let job = tokio::spawn(keep);
///
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, Pod { name: "web-0".into(), node: "here".into() })?;
/// pods.insert(&mut txn, Pod { name: "web-1".into(), node: "there".into() })?;
/// txn.commit();
/// let snapshot = local.wait_initialized(&db).await;
/// assert_eq!(local.all(&snapshot).map(|pod| &*pod.name).collect::<Vec<_>>(), ["web-0"]);
/// job.abort();
/// # Ok(())
/// # }
/// ```
pub fn derive_table<I, O, F>(
    name: &str,
    db: &Db,
    input: Table<I>,
    output: RwTable<O>,
    mut transform: F,
) -> Result<impl Future<Output = Result<(), Error>> + Send + use<I, O, F>, Error>
where
    I: Send + Sync + 'static,
    O: Send + Sync + 'static,
    F: FnMut(&Obj<I>, bool) -> Derived<O> + Send,
{
    let db = db.handle(name);
    let mut txn = db.write(&[&output]);
    let guard = output.register_initializer(&mut txn, name)?;
    txn.commit();

    Ok(async move {
        let mut changes = input.follow(&db);
        let mut guard = Some(guard);
        loop {
            let snapshot = db.read();
            let (initialized, init_watch) = input.initialized_watch(&snapshot);
            let watch = input.table_watch(&snapshot);
            {
                let mut txn = db.write(&[&output]);
                for change in changes.next(&snapshot) {
                    let derived = match change {
                        Change::Upsert(object) => transform(&object, false),
                        Change::Delete { object, .. } => transform(&object, true),
                        Change::Relist => {
                            output.delete_all(&mut txn)?;
                            Derived::Skip
                        }
                    };
                    match derived {
                        Derived::Insert(object) => {
                            output.insert(&mut txn, object)?;
                        }
                        Derived::Update(object) => {
                            let key = output.primary_key(&object)?;
                            if output.get_by_primary(&txn, &key).is_some() {
                                output.insert(&mut txn, object)?;
                            }
                        }
                        Derived::Delete(object) => {
                            output.delete(&mut txn, &object)?;
                        }
                        Derived::Skip => {}
                    }
                }
                if initialized && let Some(guard) = guard.take() {
                    txn.initialized(&guard)?;
                }
                txn.commit();
            }
            tokio::select! {
                () = watch.closed() => {}
                () = init_watch.closed(), if guard.is_some() => {}
            }
        }
    })
}
