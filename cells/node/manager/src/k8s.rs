// SPDX-License-Identifier: Apache-2.0

//! Nodes and CiliumNodes → table `nodes`.

use std::sync::Arc;

use hive::{Jobs, SpawnError};
use skep_ipcache::{Source, SourceGuard};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{Feed, Rejected, Sink, State};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{ObjectKey, Resource};
use skep_node_local::LocalNodeStore;
use statedb::WriteTxn;

use crate::convert::Converted;
use crate::manager::NodeManager;
use crate::node::{DEFAULT_CLUSTER, NodeKey};

/// A kind of objects that are nodes.
pub(crate) struct NodeObjects<T> {
    pub(crate) manager: NodeManager,
    pub(crate) local: LocalNodeStore,
    pub(crate) guard: SourceGuard,
    pub(crate) source: Source,
    pub(crate) convert: fn(&T, &str) -> Converted,
}

impl<T: Resource> NodeObjects<T> {
    pub(crate) fn spawn(self, client: Arc<dyn Client>, jobs: &Jobs) -> Result<(), SpawnError> {
        let name = format!("watch-{}", T::kind().plural);
        Feed::new(&name, Arc::new(Api::<T>::all(client)), self)
            .optional_kind()
            .spawn(jobs)
    }

    fn cluster(&self) -> String {
        let cluster = self.local.get().map(|node| node.cluster.to_string());
        cluster
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| DEFAULT_CLUSTER.to_owned())
    }
}

impl<T: Resource> Sink<T> for NodeObjects<T> {
    fn write(&mut self) -> WriteTxn {
        self.manager.write()
    }

    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, T>,
    ) -> Result<Option<Rejected>, statedb::Error> {
        let cluster = self.cluster();
        let State::Applied(object) = state else {
            let key = NodeKey::new(&cluster, &key.name);
            self.manager.delete(txn, &key, self.source)?;
            return Ok(None);
        };
        let Converted { node, invalid } = (self.convert)(object, &cluster);
        self.manager.upsert(txn, node)?;
        // The rest of the node is in use.
        Ok(invalid.first().map(|part| Rejected::new(part)))
    }

    fn objects(&self) -> Vec<ObjectKey> {
        let cluster = self.cluster();
        let snapshot = self.manager.db().read();
        let table = self.manager.table();
        let own = table
            .all(&snapshot)
            .filter(|row| row.source == self.source && row.key.cluster == cluster);
        let key = |name: &str| ObjectKey {
            namespace: Str::default(),
            name: Str::new(name),
        };
        own.map(|row| key(&row.key.name)).collect()
    }

    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        self.guard.done(txn)
    }

    fn summary(&self) -> String {
        format!("{} nodes", self.objects().len())
    }
}

#[cfg(test)]
mod tests {
    use skep_base_settings::NodeName;
    use skep_k8s_types::slim::CiliumNode;
    use statedb::Db;

    use super::*;
    use crate::convert;
    use crate::node::Node;

    #[test]
    fn lists_replace_the_nodes_of_their_cluster_and_source_only() {
        let db = Db::new();
        let manager = NodeManager::with_table(&db).unwrap();
        let mut txn = manager.write();
        for (cluster, name, source) in [
            (DEFAULT_CLUSTER, "n1", Source::CustomResource),
            (DEFAULT_CLUSTER, "n2", Source::Kubernetes),
            ("alder", "n3", Source::CustomResource),
        ] {
            let node = Node::new(NodeKey::new(cluster, name), source);
            manager.upsert(&mut txn, node).unwrap();
        }
        txn.commit();

        let nodes = NodeObjects::<CiliumNode> {
            guard: manager.register_source("ciliumnodes").unwrap(),
            manager,
            local: LocalNodeStore::new(&db, &NodeName::new("n1")).unwrap(),
            source: Source::CustomResource,
            convert: convert::cilium_node,
        };

        let names: Vec<String> = nodes.objects().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["n1"]);
    }
}
