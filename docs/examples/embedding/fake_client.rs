// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use hive::{Cell, Hive, testing};
use skep_base_settings::NodeName;
use skep_k8s_memory::FakeClient;
use skep_loadbalancer_model::Frontend;
use statedb::{Db, Table};

#[tokio::test]
async fn services_become_frontends() {
    let hive = Hive::new([
        skep_loadbalancer_reconciler::in_memory(),
        skep_loadbalancer_sources::cell(),
        skep_k8s_memory::fake_client_cell(),
        skep_k8s_reflectors::tables::cell(),
        Cell::module("node-name", "Name of the node").provide(|| NodeName::new("here")),
    ]);
    let (running, (api, db, frontends)) =
        testing::start_with_root::<(Arc<FakeClient>, Db, Table<Frontend>)>(hive).await;

    api.add(
        "{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {
            clusterIP: 10.96.0.1, ports: [{name: http, port: 80, protocol: TCP}]}}",
    )
    .unwrap();

    let names = loop {
        let snapshot = db.read();
        let (rows, watch) = frontends.all_watch(&snapshot);
        let names: Vec<String> = rows.map(|row| row.service_name().to_string()).collect();
        if !names.is_empty() {
            break names;
        }
        watch.closed().await;
    };
    assert_eq!(names, ["shop/web"]);
    testing::stop(running).await;
}
