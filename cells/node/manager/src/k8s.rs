// SPDX-License-Identifier: Apache-2.0

//! Nodes and CiliumNodes → table `nodes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use hive::{Job, JobCtx, Jobs, SpawnError};
use skep_ipcache::{Source, SourceGuard};
use skep_k8s_client::{Api, ApiError, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::{DecodeError, Resource};
use skep_node_local::LocalNodeStore;

use crate::convert::{Converted, InvalidPart};
use crate::manager::NodeManager;
use crate::node::{DEFAULT_CLUSTER, NodeKey};

/// Events that share a transaction at most.
const BATCH: usize = 512;

/// A kind of objects that are nodes.
pub(crate) struct Watch<T> {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) manager: NodeManager,
    pub(crate) local: LocalNodeStore,
    pub(crate) guard: SourceGuard,
    pub(crate) source: Source,
    pub(crate) convert: fn(&T, &str) -> Converted,
}

impl<T: Resource> Watch<T> {
    pub(crate) fn spawn(self, jobs: &Jobs) -> Result<(), SpawnError> {
        let watch = Arc::new(self);
        let name = format!("watch-{}", T::kind().plural);
        jobs.spawn(Job::once(name, move |cx: JobCtx| {
            let watch = watch.clone();
            async move {
                let token = cx.token.clone();
                tokio::select! {
                    () = token.cancelled() => Ok(()),
                    result = watch.run(&cx) => result,
                }
            }
        }))
    }

    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let api = Api::<T>::all(self.client.clone());
        let mut batches = watcher(Arc::new(api), Backoff::default()).ready_chunks(BATCH);
        let mut faults = ObjectFaults::default();
        while let Some(batch) = batches.next().await {
            let mut txn = self.manager.write();
            for event in batch {
                self.apply(&mut txn, event, &mut faults)?;
            }
            txn.commit();
            faults.report(cx);
        }
        Ok(())
    }

    fn cluster(&self) -> String {
        let cluster = self.local.get().map(|node| node.cluster.to_string());
        cluster
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| DEFAULT_CLUSTER.to_owned())
    }

    fn apply(
        &self,
        txn: &mut statedb::WriteTxn,
        event: WatcherEvent<T>,
        faults: &mut ObjectFaults,
    ) -> Result<(), statedb::Error> {
        let cluster = self.cluster();
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                faults.clear();
                invalid.iter().for_each(|error| faults.undecoded(error));
                let nodes: Vec<_> = items
                    .iter()
                    .map(|object| faults.converted((self.convert)(object, &cluster)))
                    .collect();
                let is_kept = |key: &NodeKey| {
                    invalid
                        .iter()
                        .any(|error| error.object.name.as_str() == key.name.as_str())
                };
                self.manager.replace(txn, &cluster, self.source, nodes, is_kept)?;
                self.guard.done(txn)?;
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => {
                let node = faults.converted((self.convert)(&object, &cluster));
                self.manager.upsert(txn, node)?;
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                faults.forget(&key.name);
                let key = NodeKey::new(&cluster, &key.name);
                self.manager.delete(txn, &key, self.source)?;
            }
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => faults.undecoded(&error),
            WatcherEvent::Failing(error) => {
                // The kind is not registered: there are no objects of it until it is.
                if error.is_not_found() {
                    self.guard.done(txn)?;
                }
                faults.server = Some(error);
            }
            WatcherEvent::Working => faults.server = None,
            WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
        }
        Ok(())
    }
}

/// What is wrong with objects and their server.
#[derive(Default)]
struct ObjectFaults {
    server: Option<Arc<ApiError>>,
    invalid: BTreeMap<String, Fault>,
}

enum Fault {
    Undecoded(DecodeError),
    /// The rest of the node is in use.
    Part(InvalidPart),
}

impl ObjectFaults {
    fn clear(&mut self) {
        self.server = None;
        self.invalid.clear();
    }

    fn forget(&mut self, name: &str) {
        self.invalid.remove(name);
    }

    fn undecoded(&mut self, error: &DecodeError) {
        let name = error.object.name.to_string();
        self.invalid.insert(name, Fault::Undecoded(error.clone()));
    }

    fn converted(&mut self, converted: Converted) -> crate::Node {
        let Converted { node, invalid } = converted;
        self.forget(&node.key.name);
        if let Some(part) = invalid.into_iter().next() {
            self.invalid.insert(node.key.name.to_string(), Fault::Part(part));
        }
        node
    }

    fn report(&self, cx: &JobCtx) {
        if let Some(error) = &self.server {
            match error.is_not_found() {
                true => cx.health.ok("The kind is not registered"),
                false => cx
                    .health
                    .degraded("Waiting for the Kubernetes API server", &**error),
            }
            return;
        }
        let message = || format!("{} invalid", self.invalid.len());
        match self.invalid.values().next() {
            None => cx.health.ok("Watching"),
            Some(Fault::Undecoded(error)) => cx.health.degraded(message(), error),
            Some(Fault::Part(error)) => cx.health.degraded(message(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use skep_base_settings::NodeName;
    use skep_k8s_client::{Change, DisabledClient, Status};
    use skep_k8s_types::RawObject;
    use skep_k8s_types::slim::CiliumNode;
    use statedb::Db;

    use super::*;
    use crate::convert;

    struct Bench {
        watch: Watch<CiliumNode>,
        faults: ObjectFaults,
    }

    impl Bench {
        fn new() -> Self {
            let db = Db::new();
            let manager = NodeManager::with_table(&db).unwrap();
            let watch = Watch {
                client: Arc::new(DisabledClient),
                guard: manager.register_source("ciliumnodes").unwrap(),
                manager,
                local: LocalNodeStore::new(&db, &NodeName::new("n1")).unwrap(),
                source: Source::CustomResource,
                convert: convert::cilium_node,
            };
            Self {
                watch,
                faults: ObjectFaults::default(),
            }
        }

        fn apply(&mut self, event: WatcherEvent<CiliumNode>) {
            let mut txn = self.watch.manager.write();
            self.watch.apply(&mut txn, event, &mut self.faults).unwrap();
            txn.commit();
        }

        fn boot_ids(&self) -> Vec<String> {
            let snapshot = self.watch.manager.db().read();
            let nodes = self.watch.manager.nodes(&snapshot);
            nodes
                .iter()
                .map(|node| format!("{} {}", node.key.name, node.boot_id))
                .collect()
        }

        fn is_synced(&self) -> bool {
            let table = self.watch.manager.table();
            table.is_initialized(&self.watch.manager.db().read())
        }
    }

    fn event(name: &str, boot_id: Value) -> ObjectEvent<CiliumNode> {
        let object = json!({"metadata": {"name": name}, "spec": {"bootid": boot_id}});
        ObjectEvent::decode(Change::Modified, RawObject::from_value(Arc::new(object)))
    }

    fn applied(name: &str, boot_id: &str) -> Arc<CiliumNode> {
        match event(name, json!(boot_id)) {
            ObjectEvent::Applied(object) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn object_that_cannot_be_decoded_keeps_its_last_state() {
        let mut bench = Bench::new();
        let items = vec![applied("n2", "1"), applied("n3", "1"), applied("n4", "1")];
        bench.apply(WatcherEvent::Replaced {
            items,
            invalid: Vec::new(),
        });
        assert!(bench.is_synced());

        bench.apply(WatcherEvent::Object(event("n2", json!({"a": 1}))));
        assert_eq!(bench.boot_ids(), ["n2 1", "n3 1", "n4 1"]);
        assert!(matches!(
            bench.faults.invalid.get("n2"),
            Some(Fault::Undecoded(error)) if error.to_string().contains("bootid")
        ));
        let ObjectEvent::Invalid(invalid) = event("n3", json!([])) else {
            panic!("it is valid")
        };
        bench.apply(WatcherEvent::Replaced {
            items: vec![applied("n2", "2")],
            invalid: vec![invalid],
        });

        assert_eq!(bench.boot_ids(), ["n2 2", "n3 1"]);
        let faults: Vec<&String> = bench.faults.invalid.keys().collect();
        assert_eq!(faults, ["n3"]);
    }

    #[test]
    fn kind_that_is_not_registered_has_no_objects() {
        let mut bench = Bench::new();
        let failing = |code, reason: &str| {
            let status = Status {
                code,
                reason: reason.into(),
                ..Status::default()
            };
            WatcherEvent::Failing(Arc::new(ApiError::Status(status)))
        };

        bench.apply(failing(503, "ServiceUnavailable"));
        assert!(!bench.is_synced());
        bench.apply(failing(404, "NotFound"));

        assert!(bench.is_synced());
    }
}
