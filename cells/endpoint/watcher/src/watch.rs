// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoints or CiliumEndpointSlices → endpoints.

use std::sync::Arc;

use hive::{Cfg, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_base_settings::AddressFamilies;
use skep_ipcache::{SourceGuard, Writer};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{Feed, Rejected, Sink, State};
use skep_k8s_types::ObjectKey;
use skep_node_local::LocalNodeStore;
use statedb::WriteTxn;

use crate::convert;
use crate::endpoints::{Endpoints, View};
use crate::objects::EndpointObject;

pub(crate) struct Watch {
    pub(crate) ipcache: Writer,
    pub(crate) guard: SourceGuard,
    pub(crate) local: LocalNodeStore,
    pub(crate) families: Cfg<AddressFamilies>,
    /// Locked within transactions only, or without one.
    pub(crate) endpoints: Mutex<Endpoints>,
}

impl Watch {
    pub(crate) fn spawn<T: EndpointObject>(
        self,
        client: Arc<dyn Client>,
        jobs: &Jobs,
    ) -> Result<(), SpawnError> {
        let watch = Arc::new(self);
        jobs.keep("follow-local-node", watch.clone(), Self::follow_local_node)?;
        let job = format!("watch-{}", T::kind().plural);
        let ready = watch.clone();
        Feed::new(&job, Arc::new(Api::<T>::all(client)), Claimed(watch))
            .optional_kind()
            .after(move || ready.clone().local_node())
            .spawn(jobs)
    }

    /// Which endpoints are on this node is known before the first claim.
    async fn local_node(self: Arc<Self>) {
        self.local.table().wait_initialized(self.ipcache.db()).await;
    }

    /// Claims anew when the addresses of this node change.
    async fn follow_local_node(&self, _: &JobCtx) -> Result<(), statedb::Error> {
        let table = self.local.table();
        loop {
            let changed = table.table_watch(&self.ipcache.db().read());
            let view = self.view();
            if *self.endpoints.lock().view() != view {
                let mut txn = self.ipcache.write();
                self.endpoints.lock().set_view(&mut txn, view)?;
                txn.commit();
            }
            changed.closed().await;
        }
    }

    fn view(&self) -> View {
        let node = self.local.get();
        let addresses = node.iter().flat_map(|node| &node.addresses);
        View {
            local: addresses.map(|(_, address)| *address).collect(),
            ipv4: self.families.ipv4,
            ipv6: self.families.ipv6,
        }
    }
}

/// Claims what objects say of endpoints.
struct Claimed(Arc<Watch>);

impl<T: EndpointObject> Sink<T> for Claimed {
    fn write(&mut self) -> WriteTxn {
        self.0.ipcache.write()
    }

    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, T>,
    ) -> Result<Option<Rejected>, statedb::Error> {
        let mut now = Vec::new();
        let mut rejected = None;
        if let State::Applied(object) = state {
            for described in object.endpoints() {
                match convert::endpoint(&described) {
                    Ok(Some(endpoint)) => now.push((described.key, Some(endpoint))),
                    Ok(None) => {}
                    Err(error) => {
                        now.push((described.key, None));
                        rejected.get_or_insert_with(|| Rejected::new(&error));
                    }
                }
            }
        }
        self.0.endpoints.lock().set(txn, key.clone(), now)?;
        Ok(rejected)
    }

    fn objects(&self) -> Vec<ObjectKey> {
        self.0.endpoints.lock().objects()
    }

    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        self.0.guard.done(txn)
    }

    fn summary(&self) -> String {
        format!("{} endpoints", self.0.endpoints.lock().len())
    }
}
