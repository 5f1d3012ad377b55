// SPDX-License-Identifier: Apache-2.0

//! Objects of an API server in, claims in the ipcache out.

mod endpoints;
mod random;
mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use skep_base_settings::NodeName;
use skep_ipcache::{ClaimedIdentity, IpcacheEntry, Writer};
use skep_k8s_client::Client;
use skep_k8s_client::testing::FaultyClient;
use skep_k8s_memory::FakeClient;
use skep_k8s_types::slim::NodeAddressType;
use skep_node_local::LocalNodeStore;
use statedb::Db;

const THIS: &str = "172.30.1.1";

struct Bench {
    hive: Running,
    ipcache: Writer,
    local: LocalNodeStore,
    kubernetes: Arc<FakeClient>,
    faults: Arc<FaultyClient>,
}

impl Bench {
    async fn start(flags: &[&str]) -> Self {
        let kubernetes = FakeClient::new(Db::new()).unwrap();
        Self::start_with(kubernetes, flags).await
    }

    async fn start_with(kubernetes: Arc<FakeClient>, flags: &[&str]) -> Self {
        let faults = FaultyClient::new(Arc::new(kubernetes.client()));
        Self::start_on(kubernetes, faults, flags).await
    }

    async fn start_on(kubernetes: Arc<FakeClient>, faults: Arc<FaultyClient>, flags: &[&str]) -> Self {
        let client: Arc<dyn Client> = faults.clone();
        let hive = Hive::new([
            statedb::cell(),
            skep_base_settings::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_ipcache::cell(),
            skep_node_local::cells::local_node(),
            Cell::module("test-node", "This node").provide(|| NodeName::new("n1")),
            Cell::group([]).provide(move || client.clone()),
            crate::cell(),
        ])
        .root::<Writer>()
        .root::<LocalNodeStore>();
        let hive = hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await;
        let local: LocalNodeStore = hive.get().unwrap();
        let address = (NodeAddressType::InternalIp, THIS.parse().unwrap());
        local.update(|node| node.addresses = vec![address]).unwrap();
        Self {
            ipcache: hive.get().unwrap(),
            local,
            hive,
            kubernetes,
            faults,
        }
    }

    fn add(&self, yaml: &str) {
        self.kubernetes.add(yaml).unwrap();
    }

    fn delete(&self, yaml: &str) {
        self.kubernetes.delete(yaml).unwrap();
    }

    /// What addresses are: the entry of the map, and its pod.
    fn resolved(&self) -> BTreeMap<String, String> {
        let snapshot = self.ipcache.db().read();
        let table = self.ipcache.table();
        let rows = table.all(&snapshot).filter_map(|row| {
            let resolved = row.resolve()?;
            let pod = row.claims.iter().next()?.pod.clone()?;
            let peer = row.claims.iter().next()?.tunnel_peer;
            let peer = peer.map(|peer| format!(" via {peer}")).unwrap_or_default();
            let key = row.claims.iter().next()?.encrypt_key;
            let key = key.map(|key| format!(" key {key}")).unwrap_or_default();
            Some((
                row.prefix.to_string(),
                format!("{} {pod}{peer}{key}", resolved.identity.get()),
            ))
        });
        rows.collect()
    }

    fn claims(&self) -> BTreeSet<(String, String, u32)> {
        let snapshot = self.ipcache.db().read();
        let table = self.ipcache.table();
        let of_row = |row: &IpcacheEntry| {
            let claims = row.claims.iter().filter_map(|claim| match &claim.identity {
                ClaimedIdentity::Number(identity) => Some((
                    row.prefix.to_string(),
                    claim.owner.resource.to_string(),
                    identity.get(),
                )),
                ClaimedIdentity::Labels(_) => None,
            });
            claims.collect::<Vec<_>>()
        };
        table.all(&snapshot).flat_map(|row| of_row(row)).collect()
    }

    #[track_caller]
    fn expect<'a>(&'a self, wanted: &'a [(&'a str, &'a str)]) -> impl Future<Output = ()> + 'a {
        let wanted: BTreeMap<String, String> = wanted
            .iter()
            .map(|(address, text)| ((*address).to_owned(), (*text).to_owned()))
            .collect();
        let caller = std::panic::Location::caller();
        async move {
            self.wait(
                || self.resolved() == wanted,
                || format!("{caller}: {:#?}, wanted {wanted:#?}", self.resolved()),
            )
            .await;
        }
    }

    async fn wait(&self, is_true: impl Fn() -> bool, what: impl Fn() -> String) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !is_true() {
            assert!(tokio::time::Instant::now() < deadline, "{}", what());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_synced(&self) -> bool {
        let table = self.ipcache.table();
        table.is_initialized(&self.ipcache.db().read())
    }

    fn health(&self) -> String {
        let entries = self.hive.health().entries();
        let watches = entries
            .iter()
            .filter(|entry| entry.id.to_string().contains("job-watch-"));
        watches.map(|entry| format!("{entry:?}")).collect()
    }

    async fn wait_health(&self, text: &str) {
        self.wait(|| self.health().contains(text), || self.health()).await;
    }

    async fn end(self) {
        hive::testing::stop(self.hive).await;
    }
}
