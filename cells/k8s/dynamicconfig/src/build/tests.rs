// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::path::Path;

use hive::{Hive, Settings};
use serde_json::{Value, json};
use skep_k8s_client::WriteOptions;
use skep_k8s_client::testing::FaultyClient;
use skep_k8s_types::slim::Node;

use super::*;
use crate::tests::{client, create};
use skep_k8s_types::Resource;

/// Runs the cell; its error, if it fails.
async fn build(client: &Arc<FaultyClient>, dest: &Path, flags: &[&str]) -> Result<(), String> {
    let client: Arc<dyn Client> = client.clone();
    let surroundings = Cell::module("test", "Client and node")
        .provide(move || client.clone())
        .provide(|| NodeName::new("n1"));
    let mut args = vec![format!("--dest={}", dest.display())];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let plan = Hive::new([surroundings, cell()]).plan(Settings::new().args(args));
    let built = plan.map_err(|report| report.to_string())?.build();
    let running = built
        .unwrap()
        .start()
        .await
        .map_err(|error| hive::error_chain(&error))?;
    hive::testing::stop(running).await;
    Ok(())
}

/// What the agent reads: files and links to files by name.
fn read(dest: &Path) -> Value {
    let mut found = serde_json::Map::new();
    for entry in fs::read_dir(dest).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(text) = fs::read_to_string(&path) {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            found.insert(name, text.into());
        }
    }
    found.into()
}

async fn create_node(client: &FaultyClient) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n1", "labels": { "gpu": "yes" },
            "annotations": { "config.cilium.io/mtu": "1400" } },
    });
    let (kind, options) = (Node::kind(), WriteOptions::default());
    client.inner().create(&kind, "", node, &options).await.unwrap();
}

async fn create_node_config(client: &FaultyClient, name: &str, gpu: &str, defaults: Value) {
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfig",
        "metadata": { "name": name, "namespace": "kube-system" },
        "spec": { "defaults": defaults, "nodeSelector": { "matchLabels": { "gpu": gpu } } },
    });
    let (kind, options) = (crate::object::NodeConfig::kind(), WriteOptions::default());
    let created = client.inner().create(&kind, "kube-system", object, &options);
    created.await.unwrap();
}

#[tokio::test]
async fn later_sources_override_earlier_ones_where_they_may() {
    let (client, folder) = (client(), tempfile::tempdir().unwrap());
    let dest = folder.path().join("config-map");
    // Neither the kind of CiliumNodeConfigs nor the ConfigMap is there.
    build(&client, &dest, &[]).await.unwrap();
    assert_eq!(read(&dest)["config-sources"], "[]");

    create(
        &client,
        "cilium-config",
        json!({"debug": "false", "mtu": "1500", "tofqdns": "x"}),
    )
    .await;
    let definition = [skep_k8s_crds::definitions::cilium_node_config()];
    let registered = skep_k8s_crds::register_all(&**client.inner(), &definition);
    registered.await.unwrap();
    create_node_config(&client, "b", "yes", json!({"debug": "b", "mtu": "9000"})).await;
    create_node_config(&client, "a", "yes", json!({"debug": "a"})).await;
    create_node_config(&client, "other", "no", json!({"debug": "other"})).await;

    let error = build(&client, &dest, &[]).await.unwrap_err();
    assert!(error.contains("cannot read node/n1"), "{error}");
    create_node(&client).await;
    build(&client, &dest, &["--deny-config-keys=mtu"]).await.unwrap();

    let sources = concat!(
        r#"[{"kind":"config-map","namespace":"kube-system","name":"cilium-config"},"#,
        r#"{"kind":"cilium-node-config","namespace":"kube-system","name":"a"},"#,
        r#"{"kind":"cilium-node-config","namespace":"kube-system","name":"b"}]"#
    );
    let expected = json!({
        "debug": "b", "mtu": "1500", "tofqdns": "x", "config-sources": sources,
        "config-sources-overrides": r#"{"allowConfigKeys":[],"denyConfigKeys":["mtu"]}"#,
    });
    assert_eq!(read(&dest), expected);

    // Keys that are gone go, and what was written before.
    let sources = "--source=cilium-node-config:kube-system/other,node:";
    build(&client, &dest, &[sources]).await.unwrap();
    let found = read(&dest);
    assert_eq!(
        (&found["debug"], &found["mtu"]),
        (&json!("other"), &json!("1400"))
    );
    assert_eq!(found.as_object().unwrap().len(), 4, "{found}");
    let hidden = fs::read_dir(&dest).unwrap().filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("..")
    });
    assert_eq!(hidden.count(), 2, "`..data` and where it leads");
    assert_eq!(fs::read_link(dest.join("mtu")).unwrap(), Path::new("..data/mtu"));
}

#[tokio::test]
async fn invalid_sources_and_directories_are_named() {
    let (client, folder) = (client(), tempfile::tempdir().unwrap());
    let dest = folder.path().join("file");
    fs::write(&dest, "").unwrap();

    let error = build(&client, &dest, &["--source=secret:x"]).await.unwrap_err();
    assert!(error.contains("`secret:x` is not config-map:NAME"), "{error}");

    let error = build(&client, &dest, &[]).await.unwrap_err();
    assert!(
        error.contains(&format!("cannot make {}", dest.display())),
        "{error}"
    );
}
