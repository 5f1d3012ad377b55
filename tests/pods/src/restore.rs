// SPDX-License-Identifier: Apache-2.0

//! `state-*.json`, `cni-states.json`, `replay.json`: directories of endpoints, restored by an agent.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use skep_bpf_sys::testing::Node;

use crate::{
    Boxed, Error, Options, Report,
    bindings::{Bindings, Mismatch},
    cluster::Cluster,
};

const STATE: &str = "/run/cilium/state";
const QUEUE: &str = "/run/cilium/deleteQueue";
/// What of an endpoint must be as before.
const KEPT: [&str; 4] = ["id", "external-identifiers", "networking", "identity"];

pub(crate) fn run(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let name = recording["name"].as_str().unwrap_or_default().to_owned();
    let run = |node: &Node| -> Result<Vec<Report>, Boxed> {
        let mut bindings = Bindings::of(recording);
        let mut cluster = Cluster::new(node, recording)?;
        for (number, mut config) in configurations(recording) {
            cluster.restorable(&mut config, &mut bindings)?;
            let directory = Path::new(STATE).join(bindings.fill_text(&number));
            fs::create_dir_all(&directory)?;
            fs::write(
                directory.join("ep_config.json"),
                bindings.fill(&config).to_string(),
            )?;
        }
        fs::create_dir_all(QUEUE)?;
        for (file, content) in recording["queue"].as_object().into_iter().flatten() {
            let content = content.as_str().unwrap_or_default();
            fs::write(Path::new(QUEUE).join(file), bindings.fill_text(content))?;
        }
        cluster.start()?;
        let mut reports = Vec::new();
        for (pod, expected) in endpoints(recording) {
            let scenario = format!("{name}/{pod}");
            if !scenario.contains(&options.only) {
                continue;
            }
            let mut differing = Vec::new();
            let id = bindings.fill_text(expected["id"].as_str().unwrap_or_default());
            let found = cluster.ask("GET", &format!("/v1/endpoint/{id}"))?.body;
            bindings.compare("", &expected, &reduced(&kept(&found), &expected), &mut differing);
            reports.push(Report::new(scenario, differing));
        }
        if let Some(expected) = recording["queue_after"].as_array() {
            let left = || -> Vec<String> {
                let files = fs::read_dir(QUEUE).into_iter().flatten().flatten();
                let mut names: Vec<String> = files
                    .map(|file| file.file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                names
            };
            let _ = cluster.until("the queue is worked off", |_| {
                (left().len() <= expected.len()).then_some(())
            });
            let differing = match json!(left()) == json!(expected) {
                true => Vec::new(),
                false => vec![Mismatch {
                    place: "queue_after".to_owned(),
                    expected: json!(expected),
                    found: json!(left()),
                }],
            };
            reports.push(Report::new(format!("{name}/queue"), differing));
        }
        Ok(reports)
    };
    Node::run("restore", run).map_err(Error::Run)
}

/// The directories of a recording of the plugin, if it has any.
pub(crate) fn directories(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let mut steps = recording["steps"].as_array().into_iter().flatten();
    match steps.any(|step| step["action"] == "endpoint directory") {
        true => run(recording, options),
        false => Ok(Vec::new()),
    }
}

/// `ep_config.json` by the number of its endpoint, in any of the three kinds of files.
fn configurations(recording: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut add = |config: Value| {
        if let Some(id) = config["ID"]
            .as_str()
            .map(ToOwned::to_owned)
            .or_else(|| Some(config["ID"].as_u64()?.to_string()))
        {
            found.insert(id, config);
        }
    };
    for file in recording["files"].as_array().into_iter().flatten() {
        let path = PathBuf::from(file["path"].as_str().unwrap_or_default());
        if path.ends_with("ep_config.json") {
            add(document(file));
        }
    }
    for step in recording["steps"].as_array().into_iter().flatten() {
        if step["action"] == "endpoint directory" {
            add(document(&step["files"]["ep_config.json"]));
        }
    }
    for config in recording["ep_config_before"]
        .as_object()
        .into_iter()
        .flat_map(|all| all.values())
    {
        add(config.clone());
    }
    found
}

/// The JSON of a recorded file: parsed by the recorder, or its text.
fn document(file: &Value) -> Value {
    match (&file["json"], file["text"].as_str()) {
        (Value::Null, Some(text)) => serde_json::from_str(text).unwrap_or_default(),
        (json, _) => json.clone(),
    }
}

/// Endpoints of pods after the restore.
fn endpoints(recording: &Value) -> Vec<(String, Value)> {
    let models = recording["endpoints"].as_array().into_iter().flatten();
    let steps = recording["steps"].as_array().into_iter().flatten();
    let models = models.chain(steps.map(|step| &step["model"]));
    let named = models.filter_map(|model| {
        let pod = model["status"]["external-identifiers"]["k8s-pod-name"].as_str()?;
        Some((pod.to_owned(), kept(model)))
    });
    let after = recording["endpoints_after"].as_array().into_iter().flatten();
    let after = after
        .filter(|endpoint| !endpoint["container-id"].is_null())
        .map(|endpoint| {
            let pod = endpoint["pod"].as_str().unwrap_or_default().to_owned();
            let identifiers = json!({"container-id": endpoint["container-id"]});
            let kept = json!({"id": endpoint["id"], "external-identifiers": identifiers});
            (pod, kept)
        });
    named.chain(after).collect()
}

/// The keys of an object that another one has, two levels deep: some recordings have no more.
fn reduced(found: &Value, expected: &Value) -> Value {
    let (Value::Object(found), Value::Object(expected)) = (found, expected) else {
        return found.clone();
    };
    let kept = expected.iter().filter_map(|(key, expected)| {
        let found = found.get(key)?;
        Some((
            key.clone(),
            match (found, expected) {
                (Value::Object(inner), Value::Object(expected)) => {
                    let inner = inner.iter().filter(|(key, _)| expected.contains_key(*key));
                    inner.map(|(key, value)| (key.clone(), value.clone())).collect()
                }
                _ => found.clone(),
            },
        ))
    });
    Value::Object(kept.collect())
}

fn kept(model: &Value) -> Value {
    let part = |key: &str| match key {
        "id" => model["id"].clone(),
        key => model["status"][key].clone(),
    };
    KEPT.map(|key| (key.to_owned(), part(key)))
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into()
}
