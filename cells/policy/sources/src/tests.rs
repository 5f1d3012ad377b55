// SPDX-License-Identifier: Apache-2.0

//! Objects and files in, rows out.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{fs, path::Path, sync::Arc, time::Duration};

use hive::{Cell, Hive, Running, Settings};
use serde_json::{Value, json};
use skep_k8s_client::Client;
use skep_k8s_crds::definitions;
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use statedb::{Db, Table};
use tokio::time::{Instant, sleep};

use crate::{
    PolicyRow,
    kubernetes::{CiliumCIDRGroup, CiliumNetworkPolicy, NetworkPolicy, PolicyKind as _},
};

async fn start(cluster: &TestCluster, flags: &[String]) -> Running {
    let client = cluster.client().clone();
    let cells = [
        statedb::cell(),
        Cell::group([]).provide(move || -> Arc<dyn Client> { client.clone() }),
        crate::cell(),
    ];
    let hive = Hive::new(cells).root::<Db>().root::<Table<PolicyRow>>();
    hive::testing::start_with(hive, Settings::new().args(flags.iter().cloned())).await
}

fn rows(running: &Running) -> Vec<String> {
    let (db, table): (Db, Table<PolicyRow>) = (running.get().unwrap(), running.get().unwrap());
    let snapshot = db.read();
    table
        .all(&snapshot)
        .map(|row| format!("{} {}", row.key(), row.object["spec"]["n"]))
        .collect()
}

async fn expect(running: &Running, wanted: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while rows(running) != wanted {
        assert!(
            Instant::now() < deadline,
            "{:?}, wanted {wanted:?}",
            rows(running)
        );
        sleep(Duration::from_millis(10)).await;
    }
}

async fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    let kinds = [
        definitions::cilium_network_policy(),
        definitions::cilium_cidr_group(),
    ];
    skep_k8s_crds::register_all(&**cluster.client(), &kinds)
        .await
        .unwrap();
    cluster.namespace("shop").await;
    cluster
}

fn policy(n: u32) -> Value {
    json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": {"endpointSelector": {}, "description": n.to_string()}})
}

#[tokio::test]
async fn objects_of_the_enabled_kinds_are_rows() {
    let cluster = cluster().await;
    cluster.create(&CiliumNetworkPolicy::KIND, policy(1)).await;
    let running = start(&cluster, &[]).await;
    expect(&running, &["CiliumNetworkPolicy/shop/p null"]).await;

    let group =
        json!({"metadata": {"name": "g", "labels": {"a": "b"}}, "spec": {"externalCIDRs": ["10.0.0.0/8"]}});
    cluster.create(&CiliumCIDRGroup::KIND, group).await;
    let kubernetes = json!({"metadata": {"name": "np", "namespace": "shop"}, "spec": {"podSelector": {}}});
    cluster.create(&NetworkPolicy::KIND, kubernetes).await;

    let all = [
        "CiliumCIDRGroup//g null",
        "CiliumNetworkPolicy/shop/p null",
        "NetworkPolicy/shop/np null",
    ];
    expect(&running, &all).await;
    let (db, table): (Db, Table<PolicyRow>) = (running.get().unwrap(), running.get().unwrap());
    table.wait_initialized(&db).await;
    let before = table.revision(&db.read());
    cluster
        .patch(
            &NetworkPolicy::KIND,
            "shop",
            "np",
            json!({"metadata": {"annotations": {"a": "b"}}}),
        )
        .await;
    cluster.delete(&CiliumNetworkPolicy::KIND, "shop", "p").await;
    expect(&running, &[all[0], all[2]]).await;
    let changed = table.by_revision(&db.read(), before + 1).count();
    assert_eq!(changed, 0, "an annotation changes no row");
    let snapshot = db.read();
    let row = table
        .get(&snapshot, PolicyRow::BY_KEY.key("NetworkPolicy/shop/np"))
        .unwrap();
    assert_eq!(row.object["kind"], "NetworkPolicy");
    assert!(row.object["metadata"]["managedFields"].is_null());

    let cluster = cluster_with_both().await;
    let running = start(&cluster, &["--enable-k8s-networkpolicy=false".to_owned()]).await;
    expect(&running, &["CiliumNetworkPolicy/shop/p null"]).await;
}

async fn cluster_with_both() -> TestCluster {
    let cluster = cluster().await;
    cluster.create(&CiliumNetworkPolicy::KIND, policy(1)).await;
    let kind: Kind = NetworkPolicy::KIND;
    let kubernetes = json!({"metadata": {"name": "np", "namespace": "shop"}, "spec": {"podSelector": {}}});
    cluster.create(&kind, kubernetes).await;
    cluster
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    let new = directory.join(format!(".{name}.new"));
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn files_are_rows_and_a_broken_one_keeps_what_it_held() {
    let (cluster, directory) = (cluster().await, tempfile::tempdir().unwrap());
    let path = directory.path();
    let text = |n: u32| {
        format!("kind: CiliumNetworkPolicy\nmetadata: {{name: a, namespace: shop}}\nspec: {{n: {n}}}\n")
    };
    write(path, "a.yaml", &text(1));
    write(path, "README", "no policy");
    write(path, "Not_A_Name.yaml", &text(9));
    let running = start(&cluster, &[format!("--static-cnp-path={}", path.display())]).await;
    let row = |name: &str, n: u32| format!("file/{}/{name} {n}", path.display());
    expect(&running, &[&row("a.yaml", 1)]).await;

    write(path, "b.yaml", &text(2));
    write(path, "a.yaml", "kind: [");

    expect(&running, &[&row("a.yaml", 1), &row("b.yaml", 2)]).await;
    write(path, "a.yaml", &text(3));
    fs::remove_file(path.join("b.yaml")).unwrap();
    expect(&running, &[&row("a.yaml", 3)]).await;
}
