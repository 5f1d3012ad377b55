// SPDX-License-Identifier: Apache-2.0

//! Claims that follow from other tables.

use std::collections::{BTreeMap, BTreeSet};

use hive::JobCtx;
use statedb::{Change, Db, Row, Snapshot, Table, WriteTxn};

use crate::{Claim, Owner, Prefix, Source, SourceGuard, Writer};

#[derive(Debug, Default)]
pub struct Published(BTreeSet<(Prefix, Owner)>);

impl Published {
    /// Makes these the claims of the publisher: upserts them, and deletes its earlier ones that are not among them.
    ///
    /// # Errors
    ///
    /// If the transaction is not one of [`Writer::write`].
    pub fn replace(
        &mut self,
        writer: &Writer,
        txn: &mut WriteTxn,
        claims: Vec<(Prefix, Claim)>,
    ) -> Result<(), statedb::Error> {
        let now: BTreeSet<(Prefix, Owner)> = claims
            .iter()
            .map(|(prefix, claim)| (*prefix, claim.owner.clone()))
            .collect();
        // New claims first: a prefix whose source changes is never without one.
        for (prefix, claim) in claims {
            writer.upsert(txn, prefix, claim)?;
        }
        for (prefix, owner) in self.0.difference(&now) {
            writer.delete(txn, *prefix, owner)?;
        }
        self.0 = now;
        Ok(())
    }
}

/// Claims of source [`Source::Local`] that follow from one table.
#[derive(Debug)]
pub struct Publisher {
    pub ipcache: Writer,
    /// Its registration, done once the table is initialized.
    pub guard: SourceGuard,
    /// Kind of the resources that claim. No other publisher has it.
    pub kind: &'static str,
}

impl Publisher {
    /// Deletes the claims of an earlier run of the job, and then keeps the claims equal to `claims` of the table. Does not
    /// return before it fails.
    pub async fn follow<T: Row>(
        &self,
        db: &Db,
        table: &Table<T>,
        claims: impl Fn(&Snapshot) -> Vec<(Prefix, Claim)>,
        cx: &JobCtx,
    ) -> Result<(), statedb::Error> {
        let mut published = Published::default();
        self.delete_earlier_claims()?;
        loop {
            let snapshot = db.read();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let changed = table.table_watch(&snapshot);
            self.publish(&mut published, claims(&snapshot), is_complete)?;
            drop(snapshot);
            cx.health.ok("Running");
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    /// As [`follow`](Self::follow), where the claims of a row follow from it alone: a change takes as long as its row does,
    /// however many others there are. `key` identifies a row.
    pub async fn follow_rows<T: Row, K: Ord + Clone>(
        &self,
        db: &Db,
        table: &Table<T>,
        key: impl Fn(&T) -> K,
        claims: impl Fn(&T) -> Vec<(Prefix, Claim)>,
        cx: &JobCtx,
    ) -> Result<(), statedb::Error> {
        let mut published: BTreeMap<K, Published> = BTreeMap::new();
        let mut changes = table.follow(db);
        self.delete_earlier_claims()?;
        loop {
            let snapshot = db.read();
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            let mut due: BTreeMap<K, Vec<(Prefix, Claim)>> = BTreeMap::new();
            let (round, changed) = changes.next_watch(&snapshot);
            for change in round {
                match change {
                    Change::Relist => due = published.keys().map(|key| (key.clone(), Vec::new())).collect(),
                    Change::Upsert(row) => {
                        due.insert(key(&row), claims(&row));
                    }
                    Change::Delete { object, .. } => {
                        due.insert(key(&object), Vec::new());
                    }
                }
            }
            self.publish_rows(&mut published, due, is_complete)?;
            drop(snapshot);
            cx.health.ok("Running");
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    fn publish_rows<K: Ord>(
        &self,
        published: &mut BTreeMap<K, Published>,
        due: BTreeMap<K, Vec<(Prefix, Claim)>>,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.ipcache.write();
        // Rows that claim something first, see `Published::replace`.
        let (gone, here): (Vec<_>, Vec<_>) = due.into_iter().partition(|(_, claims)| claims.is_empty());
        for (key, claims) in here {
            let of_row = published.entry(key).or_default();
            of_row.replace(&self.ipcache, &mut txn, claims)?;
        }
        for (key, claims) in gone {
            if let Some(mut of_row) = published.remove(&key) {
                of_row.replace(&self.ipcache, &mut txn, claims)?;
            }
        }
        if is_complete {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }

    fn publish(
        &self,
        published: &mut Published,
        claims: Vec<(Prefix, Claim)>,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.ipcache.write();
        published.replace(&self.ipcache, &mut txn, claims)?;
        if is_complete {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        Ok(())
    }

    fn delete_earlier_claims(&self) -> Result<(), statedb::Error> {
        let is_ours = |owner: &Owner| owner.source == Source::Local && owner.resource.kind() == self.kind;
        let mut txn = self.ipcache.write();
        self.ipcache.delete_owned(&mut txn, is_ours, |_| false)?;
        txn.commit();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use hive::{Cell, Hive, Job, Jobs, Running};
    use skep_identity::Reserved;
    use statedb::{Index, RwTable};

    use super::*;
    use crate::ResourceId;

    /// A row that claims a network.
    struct Row {
        id: u32,
        network: &'static str,
    }

    impl Row {
        const BY_ID: Index<Self, u32> = Index::new("id", |row, keys| keys.add(&row.id));

        fn claims(&self) -> Vec<(Prefix, Claim)> {
            let owner = Owner::new(Source::Local, ResourceId::new("row", "", &self.id.to_string()));
            vec![(
                self.network.parse().unwrap(),
                Claim::labels(owner, Reserved::Host),
            )]
        }
    }

    impl statedb::Row for Row {
        fn header() -> &'static [&'static str] {
            &["Id"]
        }

        fn cells(&self) -> Vec<String> {
            vec![self.id.to_string()]
        }
    }

    fn rows(db: &Db) -> RwTable<Row> {
        RwTable::builder("rows").primary(Row::BY_ID).build(db).unwrap()
    }

    #[derive(Clone, Copy, Debug)]
    enum Way {
        Table,
        Rows,
    }

    /// Runs a publisher of claims of rows as a job.
    async fn start(
        way: Way,
        writer: &Writer,
        rows: &RwTable<Row>,
        claims: impl Fn(&Row) -> Vec<(Prefix, Claim)> + Clone + Send + Sync + 'static,
    ) -> Running {
        let publisher = Arc::new(Publisher {
            ipcache: writer.clone(),
            guard: writer.register_source("rows").unwrap(),
            kind: "row",
        });
        let table = rows.reader();
        let start = move |jobs: Jobs| {
            let (publisher, table, claims) = (publisher.clone(), table.clone(), claims.clone());
            jobs.spawn(Job::once("follow", move |cx: JobCtx| {
                let (publisher, table, claims) = (publisher.clone(), table.clone(), claims.clone());
                async move {
                    let db = publisher.ipcache.db();
                    let of_all =
                        |snapshot: &Snapshot| table.all(snapshot).flat_map(|row| claims(row)).collect();
                    let work = async {
                        match way {
                            Way::Table => publisher.follow(db, &table, of_all, &cx).await,
                            Way::Rows => {
                                let key = |row: &Row| row.id;
                                publisher.follow_rows(db, &table, key, &claims, &cx).await
                            }
                        }
                    };
                    cx.until_cancelled(work).await.unwrap_or(Ok(()))
                }
            }))
        };
        hive::testing::start(Hive::new([Cell::module("test", "Claims").run(start)])).await
    }

    /// Lets the job do what it can: time is paused, and goes on when the job waits.
    async fn settle() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }

    fn prefixes(writer: &Writer) -> Vec<String> {
        let (txn, table) = (writer.db().read(), writer.table());
        table.all(&txn).map(|row| row.prefix.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_an_earlier_run_of_the_job_are_deleted() {
        for way in [Way::Table, Way::Rows] {
            let db = Db::new();
            let writer = Writer::with_table(&db).unwrap();
            let mut txn = writer.write();
            for (network, source, kind) in [
                ("10.7.0.0/24", Source::Local, "row"),
                ("10.8.0.0/24", Source::Local, "node"),
                ("10.9.0.0/24", Source::Generated, "row"),
            ] {
                let owner = Owner::new(source, ResourceId::new(kind, "", "7"));
                let claim = Claim::labels(owner, Reserved::Host);
                writer.upsert(&mut txn, network.parse().unwrap(), claim).unwrap();
            }
            txn.commit();

            let running = start(way, &writer, &rows(&db), Row::claims).await;
            settle().await;

            assert_eq!(prefixes(&writer), ["10.8.0.0/24", "10.9.0.0/24"], "{way:?}");
            hive::testing::stop(running).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_source_has_delivered_when_its_table_is_initialized() {
        for way in [Way::Table, Way::Rows] {
            let db = Db::new();
            let writer = Writer::with_table(&db).unwrap();
            let rows = rows(&db);
            let mut txn = db.write(&[&rows]);
            let initializer = rows.register_initializer(&mut txn, "list").unwrap();
            let network = "10.7.0.0/24";
            rows.insert(&mut txn, Row { id: 7, network }).unwrap();
            txn.commit();
            let pending = || writer.table().pending_initializers(&db.read());

            let running = start(way, &writer, &rows, Row::claims).await;
            settle().await;
            assert_eq!(prefixes(&writer), [network], "{way:?}");
            assert_eq!(pending(), ["rows"], "{way:?}");

            let mut txn = db.write(&[&rows]);
            txn.initialized(&initializer).unwrap();
            txn.commit();
            settle().await;
            assert_eq!(pending(), [""; 0], "{way:?}");
            hive::testing::stop(running).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rows_are_asked_for_their_claims_when_they_change() {
        let db = Db::new();
        let writer = Writer::with_table(&db).unwrap();
        let rows = rows(&db);
        let upsert = |changed: &[(u32, &'static str)], deleted: &[u32]| {
            let mut txn = db.write(&[&rows]);
            for (id, network) in changed {
                rows.insert(&mut txn, Row { id: *id, network }).unwrap();
            }
            for id in deleted {
                rows.delete_by(&mut txn, Row::BY_ID.key(id)).unwrap();
            }
            txn.commit();
        };
        let networks: Vec<&'static str> = (0..200).map(|n| &*format!("10.{n}.0.0/24").leak()).collect();
        let all: Vec<(u32, &'static str)> = (0..).zip(networks).collect();
        upsert(&all, &[]);
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let claims = move |row: &Row| {
            counted.fetch_add(1, Ordering::Relaxed);
            row.claims()
        };
        let running = start(Way::Rows, &writer, &rows, claims).await;
        let claimed = |network: &str| {
            let prefix: Prefix = network.parse().unwrap();
            let txn = db.read();
            let table = writer.table();
            let mut rows = table.all(&txn);
            rows.find(|row| row.prefix == prefix).map(|row| {
                let owners = row.claims.iter().map(|claim| claim.owner.resource.to_string());
                owners.collect::<Vec<_>>()
            })
        };
        settle().await;
        assert_eq!(asked.load(Ordering::Relaxed), 200);

        // One changes its network, one is deleted, and another takes over the network of that.
        upsert(&[(7, "10.250.0.0/24"), (300, "10.8.0.0/24")], &[8]);
        settle().await;

        assert_eq!(asked.load(Ordering::Relaxed), 202);
        assert_eq!(claimed("10.7.0.0/24"), None);
        let owner = |id: u32| Some(vec![ResourceId::new("row", "", &id.to_string()).to_string()]);
        assert_eq!(claimed("10.250.0.0/24"), owner(7));
        assert_eq!(claimed("10.8.0.0/24"), owner(300));
        assert_eq!(claimed("10.9.0.0/24"), owner(9));
        hive::testing::stop(running).await;
    }

    #[test]
    fn claims_that_are_replaced_are_deleted() {
        let db = Db::new();
        let writer = Writer::with_table(&db).unwrap();
        let mut published = Published::default();
        let mut replace = |names: &[(&str, &str)]| {
            let claims = names.iter().map(|(prefix, owner)| {
                let owner = Owner::new(Source::Local, ResourceId::new("test", "", owner));
                (prefix.parse().unwrap(), Claim::labels(owner, Reserved::Host))
            });
            let mut txn = writer.write();
            published.replace(&writer, &mut txn, claims.collect()).unwrap();
            txn.commit();
            let txn = db.read();
            let rows = writer.table().all(&txn).cloned().collect::<Vec<_>>();
            rows.iter()
                .map(|row| (row.prefix.to_string(), row.claims.iter().count()))
                .collect::<Vec<_>>()
        };

        assert_eq!(
            replace(&[("10.0.1.1", "a"), ("10.0.1.2", "b")]),
            [("10.0.1.1".to_owned(), 1), ("10.0.1.2".to_owned(), 1)]
        );
        assert_eq!(
            replace(&[("10.0.1.2", "c"), ("10.0.1.3", "b")]),
            [("10.0.1.2".to_owned(), 1), ("10.0.1.3".to_owned(), 1)]
        );
        assert_eq!(replace(&[]), []);
    }
}
