// SPDX-License-Identifier: Apache-2.0

//! The multi-cluster services API against an API server and remote clusters in memory.

use serde_json::json;
use skep_clustermesh_types::Kind as Values;

use super::world::{
    World, capabilities, exports, imports, namespaces, publish, remote_export, services, slices,
};

const MCS: &str = "--clustermesh-enable-mcs-api";
const DERIVED: &str = "derived-bsqa4s8pq5";
const VALID: &str = "Conflict=False NoConflicts, Ready=True Ready, Valid=True Valid";

fn ports(number: u16) -> serde_json::Value {
    json!({ "ports": [{ "name": format!("p{number}"), "port": number, "appProtocol": "http" }] })
}

#[tokio::test(start_paused = true)]
async fn an_export_of_a_remote_cluster_is_imported() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    let operator = world.operator(&[MCS]).await;

    world
        .until("Ready=True Ready".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;

    let import = world.get(&imports(), "cart");
    let service = world.get(&services(), DERIVED);
    assert_eq!(
        import["metadata"]["annotations"],
        json!({
            "clustermesh.cilium.io/supported-ip-families": "IPv4",
            "multicluster.kubernetes.io/derived-service": DERIVED,
        })
    );
    assert_eq!(
        import["spec"],
        json!({
            "type": "ClusterSetIP",
            "ports": [{ "name": "p80", "protocol": "TCP", "port": 80 }],
            "ips": [service["spec"]["clusterIP"]],
            "ipFamilies": ["IPv4"],
            "sessionAffinity": "None",
        })
    );
    assert_eq!(import["status"]["clusters"], json!([{ "cluster": "alder" }]));
    assert_eq!(import["status"]["endpointSliceObjects"], "Absent");
    let metadata = &service["metadata"];
    assert_eq!(
        metadata["annotations"],
        json!({
            "service.cilium.io/global": "true",
            "clustermesh.cilium.io/supported-ip-families": "IPv4",
            "multicluster.kubernetes.io/derived-service": DERIVED,
        })
    );
    assert_eq!(
        metadata["labels"],
        json!({ "multicluster.kubernetes.io/service-name": "cart" })
    );
    let owner = &metadata["ownerReferences"][0];
    assert_eq!(owner["kind"], "ServiceImport");
    assert_eq!(owner["uid"], import["metadata"]["uid"]);
    assert_eq!(owner["controller"], true);
    assert_eq!(service["spec"]["ipFamilyPolicy"], "PreferDualStack");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 80);
    assert_eq!(service["spec"]["selector"], json!(null));
    assert_eq!(world.slices_of(DERIVED).len(), 0);

    // What is as it should be is not written again, also not after a restart.
    world.settle().await;
    operator.stop().await.unwrap();
    world.client.take_writes();
    let operator = world.operator(&[MCS]).await;
    world.settle().await;
    assert_eq!(world.client.take_writes(), [""; 0]);

    alder.delete(Values::ServiceExports, "shop/cart").await;
    world.until(false, |w| w.has(&imports(), "cart")).await;
    world.until(false, |w| w.has(&services(), DERIVED)).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn exports_of_this_and_of_remote_clusters_are_merged() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    let mut export = remote_export(&alder, "cart", 80);
    export.labels.insert("team".to_owned(), "a".to_owned());
    publish(&alder, &export).await;
    world.join("alder");
    world.service("cart", ports(81));
    world.export("cart", json!({ "exportedLabels": { "team": "a" } }));
    let operator = world.operator(&[MCS]).await;

    world
        .until("alder birch".to_owned(), |w| w.clusters("cart"))
        .await;
    world
        .until(VALID.to_owned(), |w| w.conditions(&exports(), "cart"))
        .await;
    assert_eq!(world.ports("cart"), [80, 81]);
    let labels = &world.get(&services(), DERIVED)["metadata"]["labels"];
    assert_eq!(labels["team"], "a");

    // A port of the local Service goes: the import follows.
    world.patch(&services(), "shop", "cart", json!({ "spec": ports(82) }));
    world.until(vec![80, 82], |w| w.ports("cart")).await;
    world
        .until(json!(82), |w| {
            w.get(&services(), DERIVED)["spec"]["ports"][1]["port"].clone()
        })
        .await;

    // The local export goes, that of the other cluster stays.
    world.delete(&exports(), "shop", "cart");
    world.until("alder".to_owned(), |w| w.clusters("cart")).await;
    assert_eq!(world.ports("cart"), [80]);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn local_slices_are_copied_to_the_derived_service() {
    let world = World::new();
    world.service("cart", ports(80));
    world.slice("cart-abc", "cart", &["10.0.0.1", "10.0.0.2"]);
    world.slice("own", "cart", &["10.0.0.3"]);
    world.export("cart", json!({ "exportedLabels": { "team": "a" } }));
    let operator = world.operator(&[MCS]).await;
    let copy = format!("{DERIVED}-abc");

    world.until(true, |w| w.has(&slices(), &copy)).await;
    world
        .until(true, |w| w.has(&slices(), &format!("{DERIVED}-own")))
        .await;

    let (source, copied) = (world.get(&slices(), "cart-abc"), world.get(&slices(), &copy));
    assert_eq!(copied["endpoints"], source["endpoints"]);
    assert_eq!(copied["ports"], source["ports"]);
    assert_eq!(copied["addressType"], "IPv4");
    assert_eq!(
        copied["metadata"]["labels"],
        json!({
            "endpointslice.kubernetes.io/managed-by": "endpointslice-local-mcsapi-controller.cilium.io",
            "kubernetes.io/service-name": DERIVED,
            "multicluster.kubernetes.io/service-name": "cart",
            "multicluster.kubernetes.io/source-cluster": "birch",
            "service.cilium.io/local-endpointslice": "cart-abc",
            "team": "a",
        })
    );
    let owner = &copied["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], world.get(&services(), DERIVED)["metadata"]["uid"]);

    // Changes of the slice are copied, those of the copy are undone.
    world.settle().await;
    world.client.take_writes();
    world.patch(
        &slices(),
        "shop",
        "cart-abc",
        json!({ "endpoints": [{ "addresses": ["10.0.0.9"] }] }),
    );
    world
        .until(json!("10.0.0.9"), |w| {
            w.get(&slices(), &copy)["endpoints"][0]["addresses"][0].clone()
        })
        .await;
    world.settle().await;
    assert_eq!(
        world.client.take_writes(),
        [format!("update endpointslices/{copy}")]
    );
    world.patch(&slices(), "shop", &copy, json!({ "endpoints": [] }));
    world
        .until(json!("10.0.0.9"), |w| {
            w.get(&slices(), &copy)["endpoints"][0]["addresses"][0].clone()
        })
        .await;

    world.delete(&slices(), "shop", "own");
    world.until(1, |w| w.slices_of(DERIVED).len()).await;
    // Without an export there is nothing left.
    world.delete(&exports(), "shop", "cart");
    world.until(0, |w| w.slices_of(DERIVED).len()).await;
    world.until(false, |w| w.has(&services(), DERIVED)).await;
    assert!(world.has(&slices(), "cart-abc"));
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_export_that_is_invalid_says_why() {
    let world = World::new();
    world.export("cart", json!({}));
    world.service(
        "web",
        json!({ "type": "ExternalName", "externalName": "example.org" }),
    );
    world.export("web", json!({}));
    let operator = world.operator(&[MCS]).await;

    world
        .until("Ready=False Pending, Valid=False NoService".to_owned(), |w| {
            w.conditions(&exports(), "cart")
        })
        .await;
    world
        .until(
            "Ready=False Failed, Valid=False InvalidServiceType".to_owned(),
            |w| w.conditions(&exports(), "web"),
        )
        .await;
    assert!(!world.has(&imports(), "cart") && !world.has(&imports(), "web"));

    world.service("cart", ports(80));
    world
        .until(VALID.to_owned(), |w| w.conditions(&exports(), "cart"))
        .await;
    world.until("birch".to_owned(), |w| w.clusters("cart")).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_headless_service_is_derived_without_an_address() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    let mut export = remote_export(&alder, "cart", 80);
    export.kind = "Headless".to_owned();
    publish(&alder, &export).await;
    world.join("alder");
    let operator = world.operator(&[MCS]).await;

    world
        .until("Ready=True Ready".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    assert_eq!(world.get(&services(), DERIVED)["spec"]["clusterIP"], "None");
    assert_eq!(world.get(&imports(), "cart")["spec"]["ips"], json!(null));
    let slices = |w: &World| w.get(&imports(), "cart")["status"]["endpointSliceObjects"].clone();
    assert_eq!(slices(&world), "Present");
    let sync = "service.cilium.io/global-sync-endpoint-slices";
    for (value, expected) in [("false", "Absent"), ("TRUE", "Present")] {
        export.annotations = [(sync.to_owned(), value.to_owned())].into();
        publish(&alder, &export).await;
        world.until(json!(expected), slices).await;
    }

    // Another type needs another Service.
    export.kind = "ClusterSetIP".to_owned();
    publish(&alder, &export).await;
    world
        .until(true, |w| {
            let service = w.get(&services(), DERIVED);
            let ip = service["spec"]["clusterIP"].clone();
            ip.is_string() && ip != "None" && w.get(&imports(), "cart")["spec"]["ips"] == json!([ip])
        })
        .await;
    assert_eq!(slices(&world), "Present", "by the annotation");
    export.annotations.clear();
    publish(&alder, &export).await;
    world.until(json!("Absent"), slices).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn namespaces_that_are_not_shared_import_nothing() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    world.service("cart", ports(81));
    world.export("cart", json!({}));
    let operator = world
        .operator(&[MCS, "--clustermesh-default-global-namespace=false"])
        .await;
    let invalid = "Ready=False Failed, Valid=False NamespaceNotGlobal";

    world
        .until(invalid.to_owned(), |w| w.conditions(&exports(), "cart"))
        .await;
    world.settle().await;
    assert!(!world.has(&imports(), "cart"));

    let share =
        |value: &str| json!({ "metadata": { "annotations": { "clustermesh.cilium.io/global": value } } });
    world.patch(&namespaces(), "", "shop", share("true"));
    world
        .until("alder birch".to_owned(), |w| w.clusters("cart"))
        .await;
    world
        .until(VALID.to_owned(), |w| w.conditions(&exports(), "cart"))
        .await;

    world.patch(&namespaces(), "", "shop", share("false"));
    world
        .until("Ready=False NamespaceNotGlobal".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;
    assert_eq!(world.get(&imports(), "cart")["spec"]["ips"], json!(null));
    world.until(false, |w| w.has(&services(), DERIVED)).await;
    world
        .until(invalid.to_owned(), |w| w.conditions(&exports(), "cart"))
        .await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_import_follows_the_namespace_that_it_waits_for() {
    let world = World::empty();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    let operator = world.operator(&[MCS]).await;
    world.settle().await;
    assert_eq!(world.client.take_writes(), [""; 0]);

    world.create(&namespaces(), "", json!({ "metadata": { "name": "shop" } }));

    world.until("alder".to_owned(), |w| w.clusters("cart")).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn addresses_of_other_families_are_not_imported() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    let mut export = remote_export(&alder, "cart", 80);
    export.ip_families = vec!["IPv6".to_owned()];
    publish(&alder, &export).await;
    world.join("alder");
    let operator = world.operator(&[MCS]).await;

    world
        .until("Ready=False IPFamilyNotSupported".to_owned(), |w| {
            w.conditions(&imports(), "cart")
        })
        .await;

    assert_eq!(world.get(&imports(), "cart")["spec"]["ips"], json!(null));
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_not_known_yet_loses_nothing() {
    let world = World::new();
    let (alder, cedar) = (world.cluster("alder", 7).await, world.cluster("cedar", 8).await);
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    publish(&cedar, &remote_export(&cedar, "cart", 81)).await;
    publish(&cedar, &remote_export(&cedar, "only", 90)).await;
    world.join("alder");
    world.join("cedar");
    let operator = world.operator(&[MCS]).await;
    world
        .until("alder cedar".to_owned(), |w| w.clusters("cart"))
        .await;
    world.until("cedar".to_owned(), |w| w.clusters("only")).await;
    world.settle().await;
    operator.stop().await.unwrap();

    // Cedar cannot be reached when the operator starts again.
    cedar
        .delete_key(&skep_clustermesh_types::keys::cluster_config("cedar"))
        .await;
    let operator = world.operator(&[MCS]).await;
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    publish(&alder, &remote_export(&alder, "cart", 82)).await;
    publish(&alder, &remote_export(&alder, "new", 70)).await;

    // The others are not held up, and nothing of cedar is gone.
    world.until("alder".to_owned(), |w| w.clusters("new")).await;
    world.until(vec![80, 81, 82], |w| w.ports("cart")).await;
    assert_eq!(world.clusters("cart"), "alder cedar");
    assert_eq!(
        (world.clusters("only"), world.ports("only")),
        ("cedar".to_owned(), vec![90])
    );

    // It is back, with another state.
    cedar.delete(Values::ServiceExports, "shop/only").await;
    cedar.configure(capabilities(Some(true))).await;
    world
        .until(vec![82, 81], |w| {
            let mut ports = w.ports("cart");
            ports.sort_by(|a, b| b.cmp(a));
            ports
        })
        .await;
    world.until(false, |w| w.has(&imports(), "only")).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_removed_is_not_waited_for() {
    let world = World::new();
    let cedar = world.cluster("cedar", 8).await;
    publish(&cedar, &remote_export(&cedar, "cart", 81)).await;
    world.join("cedar");
    let operator = world.operator(&[MCS]).await;
    world.until("cedar".to_owned(), |w| w.clusters("cart")).await;
    operator.stop().await.unwrap();
    cedar
        .delete_key(&skep_clustermesh_types::keys::cluster_config("cedar"))
        .await;
    let operator = world.operator(&[MCS]).await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert!(world.has(&imports(), "cart"));

    world.leave("cedar");

    world.until(false, |w| w.has(&imports(), "cart")).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_exports_holds_up_nothing() {
    let world = World::new();
    let cedar = world.cluster("cedar", 8).await;
    cedar.configure(capabilities(None)).await;
    world.join("cedar");
    world.service("cart", ports(80));
    world.export("cart", json!({}));
    let operator = world.operator(&[MCS]).await;

    world.until("birch".to_owned(), |w| w.clusters("cart")).await;

    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn imports_of_others_stay() {
    let world = World::new();
    let spec = json!({ "type": "ClusterSetIP", "ports": [{ "port": 80 }] });
    world.create(
        &imports(),
        "shop",
        json!({ "metadata": { "name": "own" }, "spec": spec }),
    );
    let operator = world.operator(&[MCS]).await;

    world.settle().await;

    assert_eq!(world.client.take_writes(), [""; 0]);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_feature_nothing_is_connected() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    let operator = world.operator(&[]).await;

    world.settle().await;

    assert_eq!(world.client.take_writes(), [""; 0]);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn metrics_have_exports_imports_and_their_conditions() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, &remote_export(&alder, "cart", 80)).await;
    world.join("alder");
    world.service("cart", ports(81));
    world.export("cart", json!({}));
    let (operator, metrics) = world.measured_operator(&[MCS]).await;
    let has = |series: &str| metrics.text().contains(series);

    world
        .until("alder birch".to_owned(), |w| w.clusters("cart"))
        .await;
    world.settle().await;

    for series in [
        "cilium_operator_mcsapi_serviceexport_info{namespace=\"shop\",serviceexport=\"cart\"} 1",
        "cilium_operator_mcsapi_serviceimport_info{namespace=\"shop\",serviceimport=\"cart\"} 1",
        "cilium_operator_mcsapi_serviceimport_status_clusters{namespace=\"shop\",serviceimport=\"cart\"} 2",
    ] {
        assert!(has(series), "{series} in {}", metrics.text());
    }
    for (metric, condition) in [("serviceexport", "Valid"), ("serviceimport", "Ready")] {
        let text = metrics.text();
        let mut lines = text.lines();
        let prefix = format!("cilium_operator_mcsapi_{metric}_status_condition");
        let line = lines.find(|line| line.starts_with(&prefix) && line.contains(condition));
        let line = line.unwrap_or_default();
        assert!(line.contains("True") && line.ends_with(" 1"), "{text}");
    }

    world.delete(&exports(), "shop", "cart");
    alder.delete(Values::ServiceExports, "shop/cart").await;
    world.until(String::new(), |_| metrics.text()).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn definitions_that_others_install_are_required() {
    let installed = "--clustermesh-mcs-api-install-crds=false";

    assert_eq!(World::new().start_error(&[MCS, installed]).await, "none");
    let error = World::bare().start_error(&[MCS, installed]).await;
    assert!(
        error.contains("the API server does not have multicluster.x-k8s.io.v1beta1.serviceexports"),
        "{error}"
    );
}
