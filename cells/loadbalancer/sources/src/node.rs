// SPDX-License-Identifier: Apache-2.0

//! Name, zone and addresses of this node, for the writer.

use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use hive::{JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_loadbalancer_model::{AddressUse, Addresses, NodeAddresses, NodeFacts, Writer, WriterError};
use skep_node_local::{LocalNodeStore, NodeAddress};
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

    fn addresses(&self, snapshot: &Snapshot) -> Option<Arc<Addresses>> {
        let table = self.table.as_ref()?;
        let revision = table.revision(snapshot);
        let mut last = self.last.lock();
        if last.0 != revision {
            let addresses: Addresses = table.all(snapshot).map(|row| (row.addr, row.node_port)).collect();
            if addresses != *last.1 {
                last.1 = Arc::new(addresses);
            }
            last.0 = revision;
        }
        Some(last.1.clone())
    }
}

/// What of the node changes frontends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Addresses(AddressUse),
    Zone,
}

/// Watches the node for the writer.
pub(crate) struct NodeWatcher {
    writer: Writer,
    addresses: Option<Table<NodeAddress>>,
    node: Option<LocalNodeStore>,
    /// Done when the addresses are complete: before, what an earlier run left for node ports must not be pruned.
    complete: Option<InitGuard>,
}

async fn follow((watcher, part): &(Arc<NodeWatcher>, Part), _: &JobCtx) -> Result<(), WriterError> {
    watcher.follow_part(*part).await
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
                Part::Addresses(AddressUse::NodePorts),
                watcher.addresses.is_some(),
            ),
            (
                "wildcard-addr-reconciler",
                Part::Addresses(AddressUse::Wildcards),
                watcher.addresses.is_some(),
            ),
            ("zone-watcher", Part::Zone, has_topology && watcher.node.is_some()),
        ];
        for (name, part, _) in parts.into_iter().filter(|(_, _, is_watched)| *is_watched) {
            jobs.keep(name, (watcher.clone(), part), follow)?;
        }
        Ok(())
    }

    async fn follow_part(&self, part: Part) -> Result<(), WriterError> {
        let is_first = part == Part::Addresses(AddressUse::NodePorts);
        let mut is_incomplete = is_first;
        if let (true, Some(addresses)) = (is_first, &self.addresses) {
            addresses.wait_initialized(self.writer.db()).await;
        }
        loop {
            let snapshot = self.writer.db().read();
            let watch = match (part, &self.addresses, &self.node) {
                (Part::Zone, _, Some(node)) => node.table().table_watch(&snapshot),
                (Part::Addresses(_), Some(addresses), _) => addresses.table_watch(&snapshot),
                _ => return Ok(()),
            };
            self.note(part, &snapshot)?;
            if std::mem::take(&mut is_incomplete) {
                self.complete();
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

    fn complete(&self) {
        let Some(guard) = &self.complete else { return };
        let mut txn = self.writer.write();
        if let Err(error) = txn.initialized(guard) {
            tracing::error!(
                error = hive::error_chain(&error),
                "Cannot mark node addresses as initialized"
            );
        }
        txn.commit();
    }

    fn zone(&self, snapshot: &Snapshot) -> Option<CompactString> {
        let table = self.node.as_ref()?.table();
        let mut rows = table.all(snapshot);
        rows.next()?.zone().map(Into::into)
    }

    fn note(&self, part: Part, snapshot: &Snapshot) -> Result<(), WriterError> {
        if part == Part::Zone && self.writer.node(snapshot).zone == self.zone(snapshot) {
            // Something else of the node changed.
            return Ok(());
        }
        let mut txn = self.writer.write();
        match part {
            Part::Zone => {
                let zone = self.zone(snapshot);
                let facts = NodeFacts {
                    zone,
                    ..self.writer.node(&txn)
                };
                self.writer.set_node(&mut txn, facts)?;
            }
            Part::Addresses(of) => self.writer.reevaluate_addresses(&mut txn, of)?,
        }
        txn.commit();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use statedb::{Db, RwTable};

    use super::*;
    use skep_loadbalancer_model::{
        FrontendKind, FrontendParams, Service, ServiceName, Source, Tables, WriterSettings,
    };

    #[test]
    fn new_addresses_are_known_to_what_is_written_from_then_on() {
        let db = Db::new();
        let addresses: RwTable<NodeAddress> = RwTable::builder("node-addresses")
            .primary(NodeAddress::BY_ID)
            .build(&db)
            .unwrap();
        let (tables, settings) = (Tables::new(&db).unwrap(), WriterSettings::default());
        let local = Arc::new(LocalAddresses::new(None, Some(addresses.reader())));
        let writer = Writer::on_node(db.clone(), tables, settings, local);
        let add = |port: u16| {
            let name = ServiceName::new("shop", &format!("web-{port}"));
            let params = FrontendParams {
                address: format!("0.0.0.0:{port}/TCP").parse().unwrap(),
                kind: FrontendKind::NodePort,
                port_name: "".into(),
                service_port: 80,
            };
            let mut txn = writer.write();
            let service = Service::new(name, Source::Kubernetes);
            writer
                .upsert_service_and_frontends(&mut txn, service, vec![params])
                .unwrap();
            txn.commit();
        };
        let expansions = || -> Vec<usize> {
            let (frontends, snapshot) = (writer.frontends(), db.read());
            let rows = frontends.all(&snapshot);
            rows.map(|row| row.node_addresses.as_deref().unwrap_or_default().len())
                .collect()
        };
        add(30001);
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

        add(30002);
        let before = expansions();
        let mut txn = writer.write();
        writer
            .reevaluate_addresses(&mut txn, AddressUse::NodePorts)
            .unwrap();
        txn.commit();

        assert_eq!(before, [0, 1]);
        assert_eq!(expansions(), [1, 1]);
        let facts = writer.node(&db.read()).addresses;
        assert_eq!((facts.all.len(), facts.node_ports(true).len()), (3, 1));
    }

    // A script gave the node a zone and services right after: they were written with all backends first.
    #[tokio::test(start_paused = true)]
    async fn a_zone_is_known_at_once() {
        let db = Db::new();
        let node = LocalNodeStore::new(&db, &skep_base_settings::NodeName::new("n1")).unwrap();
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
            result = watcher.follow_part(Part::Zone) => result.unwrap(),
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
        let local = Arc::new(LocalAddresses::new(None, Some(addresses.reader())));
        let writer = Writer::on_node(db.clone(), tables, WriterSettings::default(), local);
        let watcher = NodeWatcher::new(writer.clone(), Some(addresses.reader()), None).unwrap();
        let frontends = writer.frontends().clone();
        let follow = watcher.follow_part(Part::Addresses(AddressUse::NodePorts));
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
            result = &mut follow => result.unwrap(),
            _ = frontends.wait_initialized(&db) => {}
        }

        assert!(early.is_err());
        assert_eq!(pending, ["node-addresses"]);
        assert_eq!(*writer.node(&db.read()).addresses.node_ports(false), [address]);
    }
}
