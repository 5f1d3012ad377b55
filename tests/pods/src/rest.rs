// SPDX-License-Identifier: Apache-2.0

//! `rest-*.json`: requests to the agent, in their order. `config-*.json`: its settings.

use std::path::Path;

use serde_json::{Value, json};
use skep_bpf_sys::testing::Node;

use crate::{
    Boxed, Error, Options, Report,
    bindings::Bindings,
    cluster::{Cluster, request, without_default_account},
};

const SOCKET: &str = "/run/cilium/cilium.sock";

/// Counters, which depend on what the agent did before.
const COUNTERS: [&str; 4] = ["success-count", "failure-count", "refCount", "resourceVersion"];

pub(crate) fn requests(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let file = recording["name"].as_str().unwrap_or_default().to_owned();
    let profile = recording["agent_profile"].as_str().unwrap_or_default();
    let steps = recording["requests"].as_array().into_iter().flatten();
    let steps: Vec<&Value> = steps.collect();
    let run = |node: &Node| -> Result<Vec<Report>, Boxed> {
        let mut cluster = Cluster::new(node, profile)?;
        cluster.start()?;
        if profile.starts_with('S') || profile.starts_with("CP") {
            cluster.scene()?;
        }
        let mut bindings = Bindings::of(recording);
        cluster.bind(&mut bindings)?;
        let mut reports = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let what = step["description"].as_str().unwrap_or_default();
            let name = format!("{file}/{index} {what}");
            reports.push(exchange(name, step, &mut bindings)?);
        }
        Ok(reports)
    };
    let mut reports = Node::run("rest", run).map_err(Error::Run)?;
    reports.retain(|report| report.scenario.contains(&options.only));
    Ok(reports)
}

fn exchange(name: String, step: &Value, bindings: &mut Bindings) -> Result<Report, Boxed> {
    let (asked, expected) = (&step["request"], &step["response"]);
    let path = bindings.fill_text(asked["path"].as_str().unwrap_or_default());
    let method = asked["method"].as_str().unwrap_or_default();
    let filled = bindings.fill(&asked["body"]);
    let body = match (&asked["raw_body"], filled) {
        (Value::String(raw), _) => Some(raw.clone()),
        (_, Value::Null) => None,
        (_, body) => Some(body.to_string()),
    };
    let mut headers: Vec<(&str, &str)> = Vec::new();
    let given = asked["headers"].as_object().into_iter().flatten();
    headers.extend(given.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))));
    if asked["raw_body"].is_null() && body.is_some() {
        headers.push(("Content-Type", "application/json"));
    }
    let mut trial = bindings.clone();
    let found = request(Path::new(SOCKET), method, &path, &headers, body.as_deref())?;
    let mut differing = Vec::new();
    trial.compare(
        "status",
        &expected["status"],
        &json!(found.status),
        &mut differing,
    );
    if let Some(kind) = expected["content_type"].as_str() {
        let found = found.content_type.as_deref().unwrap_or_default();
        let found = found.split(';').next().unwrap_or_default();
        trial.compare("content_type", &kind.into(), &found.into(), &mut differing);
    }
    match expected.get("json") {
        Some(json) => {
            let expected = without_counters(json);
            trial.compare(
                "json",
                &expected,
                &without_default_account(&without_counters(&found.body)),
                &mut differing,
            );
        }
        None => {
            let text = found.text.as_str().into();
            trial.compare("text", &expected["text"], &text, &mut differing);
        }
    }
    bindings.adopt(trial, differing.is_empty());
    Ok(Report::new(name, differing))
}

fn without_counters(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(without_counters).collect(),
        Value::Object(object) => {
            let kept = object.iter().filter(|(key, _)| !COUNTERS.contains(&key.as_str()));
            Value::Object(
                kept.map(|(key, value)| (key.clone(), without_counters(value)))
                    .collect(),
            )
        }
        // The recorded program has no version.
        Value::String(text) => text.replace(" (v-)", env!("CARGO_PKG_VERSION")).into(),
        other => other.clone(),
    }
}

/// The answer to `GET /v1/config` in a profile, which the name of the file has.
pub(crate) fn configuration(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let name = recording["name"].as_str().unwrap_or_default().to_owned();
    if !name.contains(&options.only) {
        return Ok(Vec::new());
    }
    let profile = name.strip_prefix("config-").unwrap_or(&name).to_owned();
    let run = |node: &Node| -> Result<Report, Boxed> {
        let mut cluster = Cluster::new(node, &profile)?;
        cluster.start()?;
        let found = cluster.ask("GET", "/v1/config")?.body;
        let (mut bindings, mut differing) = (Bindings::of(recording), Vec::new());
        bindings.compare("", &recording["body"], &found, &mut differing);
        Ok(Report::new(name, differing))
    };
    Ok(vec![Node::run("config", run).map_err(Error::Run)?])
}
