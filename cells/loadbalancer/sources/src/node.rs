// SPDX-License-Identifier: Apache-2.0

//! Name, zone and addresses of this node, for the writer and the reconciler.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use hive::{Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_loadbalancer_model::{Addresses, NodeAddresses, Writer};
use skep_node::{LocalNodeStore, NodeAddress};
use statedb::{InitGuard, Revision, Snapshot, Table};

/// Shortest time between two changes of frontends because of the node.
const INTERVAL: Duration = Duration::from_secs(1);

/// The local node and the addresses in table `node-addresses`, where there are such.
pub struct LocalAddresses {
    node: Option<LocalNodeStore>,
    table: Option<Table<NodeAddress>>,
    last: Mutex<(Revision, Arc<Addresses>)>,
}

impl LocalAddresses {
    /// Reads the local node and a table.
    pub fn new(node: Option<LocalNodeStore>, table: Option<Table<NodeAddress>>) -> Self {
        Self {
            node,
            table,
            last: Mutex::default(),
        }
    }
}

impl NodeAddresses for LocalAddresses {
    fn name(&self) -> Arc<str> {
        let node = self.node.as_ref().and_then(LocalNodeStore::get);
        node.map_or_else(|| "".into(), |node| node.name.as_str().into())
    }

    fn addresses(&self, snapshot: &Snapshot) -> Arc<Addresses> {
        let Some(table) = &self.table else {
            return Arc::default();
        };
        let revision = table.revision(snapshot);
        let mut last = self.last.lock();
        if last.0 != revision {
            let mut addresses = Addresses::default();
            for row in table.all(snapshot) {
                let ports = match row.addr {
                    IpAddr::V4(_) => &mut addresses.node_port_v4,
                    IpAddr::V6(_) => &mut addresses.node_port_v6,
                };
                if row.node_port && !ports.contains(&row.addr) {
                    ports.push(row.addr);
                }
                addresses.all.insert(row.addr);
            }
            *last = (revision, Arc::new(addresses));
        }
        last.1.clone()
    }
}

/// What of the node changes frontends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    NodePorts,
    Wildcards,
    Zone,
}

/// Follows the node and lets the writer know.
pub(crate) struct NodeWatcher {
    writer: Writer,
    addresses: Option<Table<NodeAddress>>,
    node: Option<LocalNodeStore>,
    /// Told when the addresses are complete: before, what an earlier run left for node ports must not be pruned.
    complete: Option<InitGuard>,
}

/// Why the node cannot be watched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// Another source has the name.
    #[error("cannot register the node's addresses as a source")]
    Table(#[from] statedb::Error),
    /// A job did not start.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

impl NodeWatcher {
    /// Watches what is there. If addresses are, frontends are complete only with them.
    pub(crate) fn new(
        writer: Writer,
        addresses: Option<Table<NodeAddress>>,
        node: Option<LocalNodeStore>,
    ) -> Result<Self, statedb::Error> {
        let complete = addresses
            .is_some()
            .then(|| writer.register_initializer("node-addresses"))
            .transpose()?;
        Ok(Self {
            writer,
            addresses,
            node,
            complete,
        })
    }

    /// Registers the jobs.
    pub(crate) fn spawn(self, jobs: &Jobs, has_topology: bool) -> Result<(), SpawnError> {
        let watcher = Arc::new(self);
        let parts = [
            (
                "node-addr-reconciler",
                Part::NodePorts,
                watcher.addresses.is_some(),
            ),
            (
                "wildcard-addr-reconciler",
                Part::Wildcards,
                watcher.addresses.is_some(),
            ),
            ("zone-watcher", Part::Zone, has_topology && watcher.node.is_some()),
        ];
        for (name, part, _) in parts.into_iter().filter(|(_, _, is_watched)| *is_watched) {
            let watcher = watcher.clone();
            jobs.spawn(Job::once(name, move |cx: JobCtx| {
                let watcher = watcher.clone();
                async move {
                    tokio::select! {
                        () = watcher.follow(part) => {}
                        () = cx.cancelled() => {}
                    }
                }
            }))?;
        }
        Ok(())
    }

    async fn follow(&self, part: Part) {
        let mut untold = part == Part::NodePorts;
        if let (Part::NodePorts, Some(addresses)) = (part, &self.addresses) {
            addresses.wait_initialized(self.writer.db()).await;
        }
        loop {
            let snapshot = self.writer.db().read();
            let watch = match (part, &self.addresses, &self.node) {
                (Part::Zone, _, Some(node)) => node.table().table_watch(&snapshot),
                (Part::NodePorts | Part::Wildcards, Some(addresses), _) => addresses.table_watch(&snapshot),
                _ => return,
            };
            self.note(part, &snapshot);
            if std::mem::take(&mut untold) {
                self.tell_complete();
            }
            // At most once a second: each change makes frontends pending. But what is written after a change of the zone
            // is to know it, and zones hardly ever change.
            let pause = if part == Part::Zone {
                Duration::ZERO
            } else {
                INTERVAL
            };
            let rest = tokio::time::sleep(pause);
            watch.closed().await;
            rest.await;
        }
    }

    fn tell_complete(&self) {
        let Some(guard) = &self.complete else { return };
        let mut txn = self.writer.write();
        if let Err(error) = txn.initialized(guard) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "Cannot complete the node's addresses"
            );
        }
        txn.commit();
    }

    fn zone(&self, snapshot: &Snapshot) -> Option<CompactString> {
        let table = self.node.as_ref()?.table();
        let mut rows = table.all(snapshot);
        rows.next()?.zone().map(Into::into)
    }

    fn note(&self, part: Part, snapshot: &Snapshot) {
        if part == Part::Zone && self.writer.node(snapshot).zone == self.zone(snapshot) {
            // Something else of the node changed.
            return;
        }
        let mut txn = self.writer.write();
        let mut facts = self.writer.node(&txn);
        match part {
            Part::Zone => facts.zone = self.zone(snapshot),
            Part::NodePorts | Part::Wildcards => {
                let rows = self.addresses.iter().flat_map(|table| table.all(snapshot));
                let rows = rows.filter(|row| part == Part::Wildcards || row.node_port);
                let ips: Arc<[IpAddr]> = rows.map(|row| row.addr).collect();
                match part {
                    Part::Wildcards => facts.addresses = ips,
                    _ => facts.node_port_addresses = ips,
                }
            }
        }
        self.writer.set_node(&mut txn, facts);
        txn.commit();
    }
}

#[cfg(test)]
mod tests {
    use statedb::{Db, RwTable};

    use super::*;
    use skep_loadbalancer_model::{Tables, WriterSettings};

    #[test]
    fn new_addresses_are_known_before_the_watcher_tells() {
        let db = Db::new();
        let addresses: RwTable<NodeAddress> = RwTable::builder("node-addresses")
            .primary(NodeAddress::BY_ID)
            .build(&db)
            .unwrap();
        let (tables, settings) = (Tables::new(&db).unwrap(), WriterSettings::default());
        let local = Arc::new(LocalAddresses::new(None, Some(addresses.reader())));
        let writer = Writer::on_node(db.clone(), tables, settings, local);
        let mut txn = db.write(&[&addresses]);
        for (addr, node_port) in [("2001:db8::1", true), ("172.30.1.1", true), ("172.30.1.2", false)] {
            let row = NodeAddress {
                addr: addr.parse().unwrap(),
                node_port,
                primary: true,
                device_name: "eth0".to_owned(),
            };
            addresses.insert(&mut txn, row).unwrap();
        }
        txn.commit();

        let known: Vec<String> = writer
            .node_port_addresses(&db.read())
            .iter()
            .map(ToString::to_string)
            .collect();

        assert_eq!(known, ["172.30.1.1", "2001:db8::1"]);
        assert!(writer.node(&db.read()).node_port_addresses.is_empty());
    }

    // A script gave the node a zone and services right after: they were written with all backends first.
    #[tokio::test(start_paused = true)]
    async fn a_zone_is_known_at_once() {
        let db = Db::new();
        let node = LocalNodeStore::new(&db, &skep_k8s::node_name::NodeName::new("n1")).unwrap();
        let writer = Writer::new(db.clone(), Tables::new(&db).unwrap(), WriterSettings::default());
        let watcher = NodeWatcher::new(writer.clone(), None, Some(node.clone())).unwrap();
        let changes = async {
            for zone in ["east", "west"] {
                let label = ("topology.kubernetes.io/zone", zone);
                node.update(|node| node.labels = [label].into_iter().collect())
                    .unwrap();
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(writer.node(&db.read()).zone.as_deref(), Some(zone));
            }
        };

        tokio::select! {
            () = watcher.follow(Part::Zone) => {}
            () = changes => {}
        }
    }

    // A restarted agent pruned what its predecessor had left for the node's addresses, for it did not know them yet:
    // services had new numbers, and for a moment none.
    #[tokio::test(start_paused = true)]
    async fn frontends_are_complete_only_with_the_addresses_of_the_node() {
        let db = Db::new();
        let addresses: RwTable<NodeAddress> = RwTable::builder("node-addresses")
            .primary(NodeAddress::BY_ID)
            .build(&db)
            .unwrap();
        let mut txn = db.write(&[&addresses]);
        let devices = addresses.register_initializer(&mut txn, "devices").unwrap();
        txn.commit();
        let tables = Tables::new(&db).unwrap();
        let writer = Writer::new(db.clone(), tables, WriterSettings::default());
        let watcher = NodeWatcher::new(writer.clone(), Some(addresses.reader()), None).unwrap();
        let frontends = writer.frontends().clone();
        let follow = watcher.follow(Part::NodePorts);
        tokio::pin!(follow);

        let early = tokio::time::timeout(INTERVAL, &mut follow).await;
        let pending = frontends.pending_initializers(&db.read());
        let address = "172.30.1.1".parse().unwrap();
        let mut txn = db.write(&[&addresses]);
        let row = NodeAddress {
            addr: address,
            node_port: true,
            primary: true,
            device_name: "eth0".to_owned(),
        };
        addresses.insert(&mut txn, row).unwrap();
        txn.initialized(&devices).unwrap();
        txn.commit();
        tokio::select! {
            () = &mut follow => {}
            _ = frontends.wait_initialized(&db) => {}
        }

        assert!(early.is_err());
        assert_eq!(pending, ["node-addresses"]);
        assert_eq!(*writer.node(&db.read()).node_port_addresses, [address]);
    }
}
