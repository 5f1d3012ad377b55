// SPDX-License-Identifier: Apache-2.0

//! Nodes and CiliumNodes → table `nodes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use hive::{Job, JobCtx, Jobs, SpawnError};
use skep_ipcache::{Source, SourceGuard};
use skep_k8s_client::{Api, ApiError, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::{DecodeError, Resource};
use skep_node::LocalNodeStore;

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
    /// Registers the job.
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
    /// The last valid state stays.
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
