// SPDX-License-Identifier: Apache-2.0

//! Requests to Cilium's agent, and its answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use skep_identity::{IdentityRange, NumericIdentity};
use skep_identity_allocator::testing::MemoryIdentities;
use skep_k8s_memory::{
    Settings, in_process_client,
    testing::{TestCluster, api_server_with},
};
use skep_k8s_types::Kind;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::{ask, pods::Cluster};
use crate::{EndpointSpec, Mac, tests::hive::Kernel};

const RECORDED: &str = include_str!("../../../testdata/rest-endpoint.json");

/// Values of `${NAME}`.
#[derive(Default)]
struct Bindings(BTreeMap<String, String>);

impl Bindings {
    /// Takes over the values of a file, except those that an agent chooses.
    fn of_file(&mut self, file: &Value) {
        for (name, value) in file["bindings"].as_object().unwrap() {
            let is_chosen = ["ID_", "EP_PUT", "EP_HOST"]
                .iter()
                .any(|start| name.starts_with(start));
            if !is_chosen {
                self.0.insert(name.clone(), value.as_str().unwrap().to_owned());
            }
        }
    }

    fn fill(&self, text: &str) -> String {
        let values = self.0.iter();
        values.fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        })
    }

    fn fill_all(&self, value: &Value) -> Value {
        match value {
            Value::Array(list) => list.iter().map(|value| self.fill_all(value)).collect(),
            Value::Object(object) => {
                let filled = object
                    .iter()
                    .map(|(key, value)| (key.clone(), self.fill_all(value)));
                filled.collect()
            }
            Value::String(text) => {
                let filled = self.fill(text);
                let number = filled.parse::<i64>().ok().filter(|_| text.starts_with("${"));
                number.map_or(filled.into(), Into::into)
            }
            other => other.clone(),
        }
    }

    /// Compares; binds names without a value.
    fn compare(&mut self, recorded: &Value, found: &Value, place: &str) -> Result<(), String> {
        let differs = |wanted: &str| Err(format!("{place}: {found}, not {wanted}"));
        match (recorded, found) {
            (Value::String(recorded), Value::String(_) | Value::Number(_)) => {
                let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
                let name = recorded
                    .strip_prefix("${")
                    .and_then(|rest| rest.strip_suffix('}'));
                match name.filter(|name| !self.0.contains_key(*name)) {
                    Some(name) => _ = self.0.insert(name.to_owned(), found),
                    None if self.fill(recorded) == found => {}
                    None => return differs(&self.fill(recorded)),
                }
            }
            (Value::Object(recorded), Value::Object(found)) => {
                let keys = |object: &Map<String, Value>| object.keys().cloned().collect::<BTreeSet<_>>();
                if keys(recorded) != keys(found) {
                    return differs(&format!("with {:?}", keys(recorded)));
                }
                for (key, value) in recorded {
                    self.compare(value, &found[key], &format!("{place}/{key}"))?;
                }
            }
            (Value::Array(recorded), Value::Array(found)) => {
                if recorded.len() != found.len() {
                    return differs(&format!("{} items", recorded.len()));
                }
                // Lists have any order.
                let sorted = |list: &[Value]| {
                    let mut list = list.to_vec();
                    list.sort_by_key(key);
                    list
                };
                for (one, other) in sorted(recorded).iter().zip(&sorted(found)) {
                    self.compare(one, other, place)?;
                }
            }
            _ if recorded == found => {}
            _ => return differs(&recorded.to_string()),
        }
        Ok(())
    }
}

/// Endpoints by their interfaces, all else by its text.
fn key(value: &Value) -> String {
    let interface = value["status"]["networking"]["interface-name"].as_str();
    interface.map_or_else(|| value.to_string(), str::to_owned)
}

/// What is compared of the options of an endpoint: an earlier recording had set `debug`, and numbers of levels have no effect
/// in Cilium.
fn options(mut value: Value) -> Value {
    if let Some(options) = value["realized"]["options"].as_object_mut() {
        _ = ["debug", "MonitorAggregationLevel"].map(|key| options.remove(key));
    }
    value
}

/// A model without what is compared elsewhere.
fn reduced(mut value: Value) -> Value {
    match &mut value {
        Value::Array(list) => list.iter().cloned().map(reduced).collect(),
        Value::Object(object) if object.contains_key("spec") => {
            if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
                _ = ["controllers", "policy", "log"].map(|key| status.remove(key));
            }
            value
        }
        _ => value,
    }
}

/// Labels of a pod, of those of its endpoint.
fn pod_labels(status: &Value) -> Map<String, Value> {
    let lists = ["derived", "security-relevant"].map(|kind| status["labels"][kind].as_array());
    let texts = lists.into_iter().flatten().flatten().filter_map(Value::as_str);
    let own = texts.filter_map(|text| text.strip_prefix("k8s:").filter(|text| !text.starts_with("io.")));
    own.map(|text| {
        let (key, value) = text.split_once('=').unwrap();
        (key.to_owned(), value.into())
    })
    .collect()
}

/// Makes the pods and the endpoints of a recorded list.
async fn create_all(cluster: &Cluster, models: &Value) {
    cluster.bench.endpoints().accepting().await;
    for model in models.as_array().unwrap() {
        let status = &model["status"];
        let (network, names) = (&status["networking"], &status["external-identifiers"]);
        let addressing = &network["addressing"][0];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let index = network["interface-index"].as_u64().unwrap() as u32;
        let interface = text(&network["interface-name"]);
        let mac: Mac = text(&network["mac"]).parse().unwrap();
        cluster.bench.plug_as(&interface, index, mac);
        let id = model["id"].as_u64().and_then(|id| u16::try_from(id).ok());
        if interface == "lxc_health" {
            let spec = EndpointSpec {
                interface,
                ifindex: index,
                mac,
                host_mac: text(&network["host-mac"]).parse().unwrap(),
                ipv4: text(&addressing["ipv4"]).parse().ok(),
                ipv6: text(&addressing["ipv6"]).parse().ok(),
                ipv4_pool: "default".into(),
                ipv6_pool: "default".into(),
                ..EndpointSpec::default()
            };
            let created = cluster
                .bench
                .endpoints()
                .create(spec, id, Some(NumericIdentity::HEALTH));
            cluster
                .bench
                .endpoints()
                .wait_ready(created.unwrap().id)
                .await
                .unwrap();
        }
        let (Some(namespace), Some(pod)) = (names["k8s-namespace"].as_str(), names["k8s-pod-name"].as_str())
        else {
            continue;
        };
        let labels = status["labels"]["security-relevant"].as_array().unwrap();
        let account = labels.iter().find_map(|label| {
            let label = label.as_str()?;
            label.strip_prefix("k8s:io.cilium.k8s.policy.serviceaccount=")
        });
        let named = status["namedPorts"].as_array().into_iter().flatten();
        let ports: Vec<Value> = named
            .map(|port| json!({"name": port["name"], "containerPort": port["port"], "protocol": port["protocol"]}))
            .collect();
        let object = json!({
            "metadata": {"name": pod, "namespace": namespace, "labels": pod_labels(status)},
            "spec": {"nodeName": "n1", "serviceAccountName": account,
                "containers": [{"name": "c", "image": "i", "ports": ports}]},
        });
        cluster.objects.create(&Kind::POD, object).await;
        let body = json!({
            "id": model["id"], "container-id": names["container-id"], "k8s-namespace": namespace, "k8s-pod-name": pod,
            "container-interface-name": network["container-interface-name"], "interface-name": network["interface-name"],
            "interface-index": index, "mac": network["mac"], "host-mac": network["host-mac"], "addressing": addressing,
            "state": "waiting-for-identity", "sync-build-endpoint": true,
        });
        let (status, made) = ask(&cluster.bench, "PUT", "endpoint/cilium-local:0", body).await;
        assert_eq!(status, 201, "{made}");
    }
}

/// Sends a recorded request.
async fn send(cluster: &Cluster, request: &Value, bindings: &Bindings) -> (u16, Value) {
    let mut stream = UnixStream::connect(cluster.bench.folder().join("agent.sock"))
        .await
        .unwrap();
    let body = match (&request["raw_body"], &request["body"]) {
        (Value::String(raw), _) => raw.clone(),
        (_, Value::Null) => String::new(),
        (_, body) => bindings.fill_all(body).to_string(),
    };
    let mut head = format!(
        "{} {} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {}\r\n",
        request["method"].as_str().unwrap(),
        bindings.fill(request["path"].as_str().unwrap()),
        body.len()
    );
    if request["raw_body"].is_null() && !body.is_empty() {
        head += "content-type: application/json\r\n";
    }
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        head += &format!("{name}: {}\r\n", value.as_str().unwrap());
    }
    stream
        .write_all(format!("{head}\r\n{body}").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn recorded_requests_have_the_recorded_answers() {
    let files: Value = serde_json::from_str(RECORDED).unwrap();
    let server = api_server_with(Settings {
        admits_service_accounts: false,
        ..Settings::default()
    });
    let objects = TestCluster::of(Arc::new(in_process_client(&server)));
    for (namespace, team) in [("gc-shop", "blue"), ("gc-ops", "red")] {
        let metadata = json!({"name": namespace, "labels": {"team": team}});
        objects
            .create(&Kind::NAMESPACE, json!({"metadata": metadata}))
            .await;
    }
    let identities = MemoryIdentities::new(IdentityRange::between(
        NumericIdentity::FIRST_ALLOCATED,
        NumericIdentity::new(65_535),
    ));
    let limit = "--api-rate-limit=endpoint-create=skip-initial:1000,endpoint-get=skip-initial:1000,\
        endpoint-list=skip-initial:1000,endpoint-patch=skip-initial:1000";
    let flags = ["--enable-source-ip-verification=false", limit];
    let cluster = Cluster::start_in(Kernel::new(), objects, identities, &flags).await;
    let node = |node: &mut skep_node_local::LocalNode| {
        node.labels = [("kubernetes.io/hostname", "n1"), ("pool", "blue")]
            .into_iter()
            .collect();
    };
    cluster.bench.local_node().update(node).unwrap();
    let mut bindings = Bindings::default();
    bindings.of_file(&files[0]);
    create_all(&cluster, &bindings.fill_all(&files[0]["steps"][0]["json"])).await;
    let endpoints = cluster.bench.endpoints();
    let host = || {
        endpoints
            .table()
            .all(&endpoints.db().read())
            .any(|row| row.is_host && row.is_written)
    };
    cluster.bench.until("the host endpoint", |_| host()).await;

    let mut failed = Vec::new();
    for file in files.as_array().unwrap() {
        bindings.of_file(file);
        for step in file["steps"].as_array().unwrap() {
            let what = step["what"].as_str().unwrap();
            if what.starts_with("good: own labels") {
                let index = bindings.0["IFINDEX2"].parse().unwrap();
                cluster.bench.plug_as("lxcgcput", index, Mac::default());
            }
            let (status, body) = send(&cluster, &step["request"], &bindings).await;
            let place = format!("{} {what}", file["file"]);
            if step["status"] != status {
                failed.push(format!("{place}: {status}, not {}: {body}", step["status"]));
                continue;
            }
            let (mut wanted, mut found) = (reduced(step["json"].clone()), reduced(body));
            if what == "read back" && wanted["realized"].is_object() {
                (wanted, found) = (options(wanted), options(found));
            }
            let compared = bindings.compare(&wanted, &found, &place);
            failed.extend(compared.err());
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
