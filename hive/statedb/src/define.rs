// SPDX-License-Identifier: Apache-2.0

//! Tables described by their row type.

use crate::{Db, Error, PrimaryBuilder, Row, RwTable};

/// A row type that knows its table: derived with `#[derive(Table)]`.
///
/// `#[table(name = "...")]` names the table. A field marked `#[index]` becomes a constant `BY_<FIELD>`, an
/// [`Index`](crate::Index) with the name of the field:
///
/// * `#[index(primary)]`: identifies the row; exactly one field.
/// * `#[index(unique)]`: no two rows may have the same value.
/// * `#[index(each)]`: the field is a collection or an `Option`; each element is a key.
/// * `#[index(name = "...")]`: another name of the index.
///
/// ```
/// use statedb::{Db, Define, RwTable, Table};
///
/// #[derive(Clone, Table)]
/// #[table(name = "pods")]
/// struct Pod {
///     #[index(primary)]
///     name: String,
///     #[index(unique)]
///     ip: std::net::IpAddr,
///     #[index(each, name = "label")]
///     labels: Vec<String>,
/// }
///
/// # fn main() -> Result<(), statedb::Error> {
/// let db = Db::new();
/// let pods: RwTable<Pod> = Pod::define().build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// let pod = Pod { name: "web-0".into(), ip: [10, 0, 0, 1].into(), labels: vec!["app=web".into()] };
/// pods.insert(&mut txn, pod.clone())?;
/// assert!(pods.insert(&mut txn, Pod { name: "web-1".into(), ..pod }).is_err(), "the address is taken");
/// let snapshot = txn.commit();
///
/// assert_eq!(pods.get(&snapshot, Pod::BY_NAME.key("web-0")).unwrap().labels.len(), 1);
/// assert_eq!(pods.list(&snapshot, Pod::BY_LABELS.key("app=web")).count(), 1);
/// # Ok(())
/// # }
/// ```
pub trait Define: Sized + Send + Sync + 'static {
    /// Name of the table.
    const TABLE: &'static str;

    /// Returns the builder of the table with its indexes; further ones may be added.
    fn define() -> PrimaryBuilder<Self>;

    /// Creates the table and registers it with the database.
    ///
    /// # Errors
    /// As [`PrimaryBuilder::build`].
    fn table(db: &Db) -> Result<RwTable<Self>, Error>
    where
        Self: Row,
    {
        Self::define().build(db)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Index, Table};

    #[derive(Debug, Clone, Table)]
    #[table(name = "derived")]
    struct Thing {
        #[index(primary)]
        id: i32,
        #[index(unique, name = "serial")]
        serial_number: u64,
        #[index]
        home_town: String,
        #[index(each)]
        tags: BTreeSet<String>,
        #[index(each)]
        owner: Option<u8>,
        weight: f64,
    }

    impl Thing {
        const BY_WEIGHT: Index<Self, u64> = Index::new("weight", |row, keys| keys.add(&(row.weight as u64)));
    }

    fn thing(id: i32, owner: Option<u8>) -> Thing {
        Thing {
            id,
            serial_number: id.unsigned_abs().into(),
            home_town: "Bern".into(),
            tags: BTreeSet::from(["a".into(), "b".into()]),
            owner,
            weight: 1.5,
        }
    }

    #[test]
    fn derived_table_has_the_marked_indexes() {
        let db = Db::new();
        let things = Thing::define().index(Thing::BY_WEIGHT).build_plain(&db).unwrap();
        assert_eq!(things.name(), Thing::TABLE);
        assert_eq!(
            db.table("derived").unwrap().indexes(),
            ["id", "serial", "home-town", "tags", "owner", "weight"]
        );

        let mut txn = db.write(&[&things]);
        for id in [-1, 3] {
            things.insert(&mut txn, thing(id, None)).unwrap();
        }
        things.insert(&mut txn, thing(2, Some(7))).unwrap();
        assert!(matches!(
            things.insert(&mut txn, thing(1, None)),
            Err(Error::Conflict { index: "serial", .. })
        ));
        let found = txn.commit();

        let ids = |query| things.list(&found, query).map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(Thing::BY_TAGS.key("b")), [-1, 2, 3]);
        assert_eq!(ids(Thing::BY_HOME_TOWN.key("Bern")), [-1, 2, 3]);
        assert_eq!(ids(Thing::BY_OWNER.key(&7)), [2]);
        assert_eq!(ids(Thing::BY_SERIAL_NUMBER.key(&3)), [3]);
        assert_eq!(ids(Thing::BY_WEIGHT.key(&1)), [-1, 2, 3]);
        assert_eq!(things.get(&found, Thing::BY_ID.key(&-1)).unwrap().id, -1);
    }
}
