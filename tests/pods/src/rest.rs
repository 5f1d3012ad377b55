// SPDX-License-Identifier: Apache-2.0

//! `rest-*.json`: requests to the agent, in their order. `config-*.json`: its settings.

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use serde_json::{Value, json};
use skep_base_net::{LinkSpec, Netlink};
use skep_bpf_sys::testing::Node;

use crate::{
    Boxed, Error, Options, Report,
    bindings::Bindings,
    cluster::{Cluster, request, request_url, without_default_account},
    differences, text,
};

const SOCKET: &str = "/run/cilium/cilium.sock";

/// Names of ids of clients: this, and the recorded id.
const CLIENT: &str = "client-id ";

/// Counters, which depend on what the agent did before.
const COUNTERS: [&str; 5] = [
    "success-count",
    "failure-count",
    "refCount",
    "resourceVersion",
    // The port is random.
    "proxy-port",
];

/// Agents that are started until no random address is one that requests name.
const ATTEMPTS: usize = 5;

pub(crate) fn requests(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let run = |node: &Node| -> Result<(Vec<Report>, bool), Boxed> {
        let mut cluster = Cluster::new(node, recording)?;
        cluster.start()?;
        if cluster.has_scene() {
            cluster.scene()?;
        }
        let mut bindings = Bindings::of(recording);
        cluster.bind(&mut bindings)?;
        let reports = exchanges(recording, &mut bindings)?;
        Ok((reports, has_named_address(recording, &bindings)))
    };
    let mut attempts = 1;
    let mut reports = loop {
        let (reports, is_ambiguous) = Node::run("rest", run).map_err(Error::Run)?;
        if !is_ambiguous || attempts == ATTEMPTS {
            break reports;
        }
        attempts += 1;
    };
    reports.retain(|report| report.scenario.contains(&options.only));
    Ok(reports)
}

/// The agent chose an address that stands in the path of a request, which then means another one.
fn has_named_address(recording: &Value, bindings: &Bindings) -> bool {
    let steps = recording["requests"].as_array().into_iter().flatten();
    let paths = steps.filter_map(|step| step["request"]["path"].as_str());
    let named: BTreeSet<IpAddr> = paths
        .flat_map(|path| path.split(['/', '?', '&', '=']))
        .filter_map(|part| part.parse().ok())
        .collect();
    let mut bound = bindings.values().filter_map(|value| value.parse::<IpAddr>().ok());
    bound.any(|address| named.contains(&address))
}

/// The requests of a recording, in their order.
pub(crate) fn exchanges(recording: &Value, bindings: &mut Bindings) -> Result<Vec<Report>, Boxed> {
    let file = recording["name"].as_str().unwrap_or_default();
    let steps = recording["requests"].as_array().into_iter().flatten();
    let named = steps.enumerate().map(|(index, step)| {
        let asked = &step["request"];
        let what = [&step["description"], &asked["url"], &asked["path"]];
        let what = what.into_iter().find_map(Value::as_str).unwrap_or_default();
        (format!("{file}/{index} {what}"), step)
    });
    let mut changes = false;
    named
        .map(|(name, step)| {
            let asked = &step["request"];
            let report = match asked["url"].as_str() {
                Some(url) => over_tcp(name, url, step, bindings),
                None => exchange(name, step, changes, bindings),
            };
            changes |= asked["method"].as_str().is_some_and(|method| method != "GET");
            report
        })
        .collect()
}

/// A request that was recorded as the text of the answer, or as none if nothing listened.
fn over_tcp(name: String, url: &str, step: &Value, bindings: &mut Bindings) -> Result<Report, Boxed> {
    let lines = step["request"]["headers"].as_array().into_iter().flatten();
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.as_str()?.split_once(": ")).collect();
    let method = step["request"]["method"].as_str().unwrap_or("GET");
    let found = request_url(method, &bindings.fill_text(url), &headers)?;
    let found =
        found.map(|found| json!({"status": found.status, "type": found.content_type, "text": found.text}));
    let recorded = step["response_text"]
        .as_str()
        .unwrap_or_default()
        .replace('\r', "");
    let expected = recorded.split_once("\n\n").map(|(head, text)| {
        let status = head.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok());
        let kind = head.lines().find_map(|line| line.strip_prefix("Content-Type: "));
        json!({"status": status, "type": kind, "text": text})
    });
    let mut differing = Vec::new();
    bindings.compare("response", &json!(expected), &json!(found), &mut differing);
    Ok(Report::new(name, differing))
}

/// A request to a socket; `changes_before`: others before it changed something.
fn exchange(
    name: String,
    step: &Value,
    changes_before: bool,
    bindings: &mut Bindings,
) -> Result<Report, Boxed> {
    interface(step, bindings)?;
    let (asked, expected) = (&step["request"], &step["response"]);
    let path = bindings.fill_text(asked["path"].as_str().unwrap_or_default());
    let method = asked["method"].as_str().unwrap_or_default();
    let filled = bindings.fill(&asked["body"]);
    let body = match (&asked["raw_body"], filled) {
        (Value::String(raw), _) => Some(raw.clone()),
        (_, Value::Null) => None,
        (_, body) => Some(body.to_string()),
    };
    let given = asked["headers"].as_object().into_iter().flatten();
    let given: Vec<(&str, String)> = given
        .filter_map(|(key, value)| {
            let value = value.as_str()?;
            // A client's id is that of an answer before.
            let own = bindings.known(&format!("${{{CLIENT}{value}}}"));
            Some((key.as_str(), own.unwrap_or_else(|| value.to_owned())))
        })
        .collect();
    let mut headers: Vec<(&str, &str)> = given.iter().map(|(key, value)| (*key, value.as_str())).collect();
    if asked["raw_body"].is_null() && body.is_some() {
        headers.push(("Content-Type", "application/json"));
    }
    let mut trial = bindings.clone();
    let socket = match asked["socket"].as_str() {
        Some(socket) => Path::new("/run/cilium").join(socket),
        None => SOCKET.into(),
    };
    let found = request(&socket, method, &path, &headers, body.as_deref())?;
    let mut differing = Vec::new();
    trial.compare(
        "status",
        &expected["status"],
        &json!(found.status),
        &mut differing,
    );
    if let Some(kind) = expected["content_type"].as_str() {
        let found = found.content_type.as_deref().unwrap_or_default();
        let plain = |kind: &str| kind.split(';').next().unwrap_or_default().to_owned();
        let (kind, found) = (plain(kind), plain(found));
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
        None if expected.get("text").is_some() => {
            let text = found.text.as_str().into();
            trial.compare("text", &expected["text"], &text, &mut differing);
        }
        None => {}
    }
    bindings.adopt(trial, differing.is_empty());
    if let id @ Value::Number(_) = &expected["json"]["client-id"] {
        bindings.bind(&format!("{CLIENT}{id}"), &found.body["client-id"]);
    }
    if let Some(name) = differences::of_request(step, changes_before) {
        for mismatch in differing
            .iter_mut()
            .filter(|mismatch| mismatch.place.starts_with("json"))
        {
            mismatch.place = format!("{name}/{}", mismatch.place);
        }
    }
    Ok(Report::new(name, differing))
}

/// Makes the interface of a pod that a request is about, if the recorded one became ready.
fn interface(step: &Value, bindings: &mut Bindings) -> Result<(), Boxed> {
    let asked = &step["request"]["body"];
    let Some(name) = asked["interface-name"].as_str() else {
        return Ok(());
    };
    let net = Netlink::open()?;
    if step["response"]["json"]["status"]["state"] != "ready" || net.link(name).is_ok() {
        return Ok(());
    }
    net.add_link(LinkSpec::veth(name, LinkSpec::new().name("gc-peer")))?;
    let link = net.link(name)?;
    net.set_link(&link, LinkSpec::new().up())?;
    if let Some(index) = asked["interface-index"]
        .as_str()
        .and_then(|text| text.strip_prefix("${"))
    {
        bindings.bind(index.trim_end_matches('}'), &link.index.into());
    }
    Ok(())
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
        Value::String(text) => text::redirects(&text.replace(" (v-)", env!("CARGO_PKG_VERSION"))).into(),
        other => other.clone(),
    }
}

/// The answer to `GET /v1/config` in a profile, which the name of the file has.
pub(crate) fn configuration(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let name = recording["name"].as_str().unwrap_or_default().to_owned();
    if !name.contains(&options.only) {
        return Ok(Vec::new());
    }
    let run = |node: &Node| -> Result<Report, Boxed> {
        let mut cluster = Cluster::new(node, recording)?;
        cluster.start()?;
        let found = cluster.ask("GET", "/v1/config")?.body;
        let (mut bindings, mut differing) = (Bindings::of(recording), Vec::new());
        bindings.compare("", &recording["body"], &found, &mut differing);
        Ok(Report::new(name, differing))
    };
    Ok(vec![Node::run("config", run).map_err(Error::Run)?])
}
