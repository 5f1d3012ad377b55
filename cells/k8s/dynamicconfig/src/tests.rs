// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Level, Running, Settings};
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_k8s_client::testing::{Fault, FaultyClient};
use skep_k8s_client::{Client, Patch, Subresource, WriteOptions};
use skep_k8s_memory::{ApiServer, Mode, Registry, Rows, Tracker, in_process_client};
use skep_k8s_types::Resource;
use statedb::{Db, Table};

use super::*;
use crate::object::{ConfigMap, NodeConfig};

pub(crate) fn client() -> Arc<FaultyClient> {
    let tracker = Tracker::new(Rows::new(&Db::new()).unwrap(), 1000, false);
    let mode = Mode::Real(skep_k8s_memory::Settings::default());
    let server = ApiServer::new(tracker, Registry::builtin(), mode);
    FaultyClient::new(Arc::new(in_process_client(&server)))
}

fn hive_of(client: Arc<dyn Client>) -> Hive {
    let surroundings = Cell::module("test", "Client and node")
        .provide(move || client.clone())
        .provide(|| NodeName::new("n1"));
    Hive::new([statedb::cell(), surroundings, cell()])
        .root::<Db>()
        .root::<Table<ConfigEntry>>()
}

async fn start(client: &Arc<FaultyClient>, flags: &[&str]) -> Running {
    let hive = hive_of(client.clone());
    hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await
}

pub(crate) async fn create(client: &FaultyClient, name: &str, data: Value) {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "kube-system" }, "data": data,
    });
    let (kind, options) = (ConfigMap::kind(), WriteOptions::default());
    let created = client.inner().create(&kind, "kube-system", object, &options);
    created.await.unwrap();
}

#[track_caller]
fn wait(check: impl Fn() -> Result<(), String>) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..3000 {
            if check().is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{caller}: {:?}", check());
    }
}

fn value(running: &Running, name: &str) -> Option<String> {
    let table = running.get::<Table<ConfigEntry>>().unwrap();
    let db = running.get::<Db>().unwrap();
    effective(&table, &db.read(), name).map(|entry| entry.value.clone())
}

fn expect(running: &Running, name: &str, expected: Option<&str>) -> Result<(), String> {
    let found = value(running, name);
    (found.as_deref() == expected)
        .then_some(())
        .ok_or(format!("{found:?}"))
}

fn health(running: &Running) -> String {
    let entries = running.health().entries();
    let of_sources = entries
        .iter()
        .filter(|entry| entry.id.to_string().contains("job-watch-source-"));
    let entry = of_sources.rev().max_by_key(|entry| entry.level != Level::Ok);
    entry.map_or_else(String::new, |entry| {
        let error = entry.error.as_ref().map(ToString::to_string).unwrap_or_default();
        let level = if entry.level == Level::Ok {
            "ok"
        } else {
            "degraded"
        };
        format!("{level}: {}: {error}", entry.message)
    })
}

#[tokio::test(start_paused = true)]
async fn the_value_of_the_last_source_counts() {
    let client = client();
    create(&client, "first", json!({ "debug": "1", "mtu": "1500" })).await;
    create(&client, "second", json!({ "debug": "2" })).await;
    let sources = r#"--config-sources=[{"kind":"config-map","namespace":"kube-system","name":"first"},{"kind":"config-map","namespace":"kube-system","name":"second"}]"#;

    let running = start(&client, &[sources]).await;

    wait(|| expect(&running, "debug", Some("2"))).await;
    wait(|| expect(&running, "mtu", Some("1500"))).await;
    assert_eq!(value(&running, "none"), None);
    wait(|| {
        (health(&running) == "ok: 2 entries of config-map/kube-system/first: ")
            .then_some(())
            .ok_or(health(&running))
    })
    .await;
    hive::testing::stop(running).await;
}

/// As the chart runs the agent in a namespace of its own: the ConfigMap does not name it, the environment does.
#[tokio::test(start_paused = true)]
async fn the_default_source_is_in_the_namespace_of_the_agents() {
    let client = client();
    create(&client, "cilium-config", json!({ "debug": "1" })).await;
    let hive = hive_of(client.clone());
    let env = [("CILIUM_K8S_NAMESPACE".to_owned(), "cilium".to_owned())];
    let settings = Settings::new().env_prefix("CILIUM").env(env);
    let running = hive::testing::start_with(hive, settings).await;

    let text = "ok: 0 entries of config-map/cilium/cilium-config: ";
    wait(|| (health(&running) == text).then_some(()).ok_or(health(&running))).await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_read_counts_while_the_server_is_gone() {
    let client = client();
    create(&client, "cilium-config", json!({ "debug": "1" })).await;
    let running = start(&client, &[]).await;
    wait(|| expect(&running, "debug", Some("1"))).await;
    hive::testing::stop(running).await;

    client.fail(Fault::Unreachable);
    let running = start(&client, &[]).await;
    let degraded = "degraded: Waiting for the Kubernetes API server: cannot reach";
    wait(|| {
        health(&running)
            .starts_with(degraded)
            .then_some(())
            .ok_or(health(&running))
    })
    .await;
    let table = running.get::<Table<ConfigEntry>>().unwrap();
    let db = running.get::<Db>().unwrap();
    assert!(!table.is_initialized(&db.read()));

    client.heal();
    wait(|| expect(&running, "debug", Some("1"))).await;
    assert!(table.is_initialized(&db.read()));
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_valid_keeps_its_last_values() {
    let client = client();
    let definition = [skep_k8s_crds::definitions::cilium_node_config()];
    skep_k8s_crds::register_all(&**client.inner(), &definition)
        .await
        .unwrap();
    let (kind, options) = (NodeConfig::kind(), WriteOptions::default());
    let config = |operator: &str, value: &str| {
        let expression = json!({ "key": "gpu", "operator": operator });
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfig",
            "metadata": { "name": "all", "namespace": "kube-system" },
            "spec": { "defaults": { "debug": value }, "nodeSelector": { "matchExpressions": [expression] } },
        })
    };
    let inner = client.inner();
    let created = inner.create(&kind, "kube-system", config("DoesNotExist", "1"), &options);
    created.await.unwrap();
    let sources = r#"--config-sources=[{"kind":"cilium-node-config","namespace":"kube-system"}]"#;
    let running = start(&client, &[sources]).await;
    wait(|| expect(&running, "debug", Some("1"))).await;

    let update = async |operator: &str, value: &str| {
        let (part, patch) = (Subresource::None, Patch::Merge(config(operator, value)));
        let patched = inner.patch(&kind, "kube-system", "all", part, &patch, &options);
        patched.await.unwrap();
    };
    update("Around", "2").await;
    let fault = "cilium-node-config/kube-system `all`: ";
    wait(|| {
        health(&running)
            .contains(fault)
            .then_some(())
            .ok_or(health(&running))
    })
    .await;
    assert_eq!(value(&running, "debug").as_deref(), Some("1"));

    update("DoesNotExist", "3").await;
    wait(|| expect(&running, "debug", Some("3"))).await;
    wait(|| {
        health(&running)
            .starts_with("ok")
            .then_some(())
            .ok_or(health(&running))
    })
    .await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_kind_has_no_node_configs() {
    let client = client();
    let sources = r#"--config-sources=[{"kind":"cilium-node-config","namespace":"kube-system"}]"#;

    let running = start(&client, &[sources]).await;

    wait(|| {
        (health(&running) == "ok: CiliumNodeConfig is not registered: ")
            .then_some(())
            .ok_or(health(&running))
    })
    .await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_flag_turns_it_off() {
    let client = client();
    let running = start(&client, &["--enable-dynamic-config=false"]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;

    assert_eq!(client.requests(), []);
    let table = running.get::<Table<ConfigEntry>>().unwrap();
    let db = running.get::<Db>().unwrap();
    assert!(table.is_initialized(&db.read()), "nothing to wait for");
    hive::testing::stop(running).await;
}

#[test]
fn only_the_first_source_may_set_all_keys() {
    let overrides = |text: &str| -> Overrides { serde_json::from_str(text).unwrap() };

    let allow = overrides(r#"{"allowConfigKeys":["a"],"denyConfigKeys":["a"]}"#);
    assert!(allow.permits("a") && !allow.permits("b"));
    let deny = overrides(r#"{"denyConfigKeys":["a"]}"#);
    assert!(!deny.permits("a") && deny.permits("b"));
    assert!(Overrides::default().permits("a"));
}

#[test]
fn sources_that_are_not_valid_stop_the_start() {
    for (flag, expected) in [
        (
            "--config-sources=cilium-config",
            "expected a JSON list of sources",
        ),
        (
            r#"--config-sources=[{"kind":"secret"}]"#,
            "unknown variant `secret`",
        ),
        (
            r#"--config-sources=[{"kind":"config-map","namespace":"x"}]"#,
            "source 1 requires `name`",
        ),
        (
            r#"--config-sources=[{"kind":"cilium-node-config"}]"#,
            "source 1 requires `namespace`",
        ),
        (
            "--config-sources-overrides=7",
            "expected a JSON object with lists of keys",
        ),
    ] {
        let client = client();
        let report = hive_of(client)
            .plan(Settings::new().args([flag]))
            .unwrap_err()
            .to_string();

        assert!(report.contains(expected), "{report}");
    }
}
