// SPDX-License-Identifier: Apache-2.0

//! `crd-*.json`: what an agent writes to Kubernetes after changes of pods, namespaces and its own objects.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skep_bpf_sys::testing::Node;
use skep_k8s_memory::{DeleteOptions, Gvr, ListOptions, Patch, Subresource, WriteOptions};

use crate::{
    Boxed, Error, Options, Outcome, Report,
    bindings::{Bindings, Mismatch},
    cluster::{Cluster, kind_of, without_default_account},
    differences,
};

/// What the agent writes; the recorder and the operator write the rest.
const KINDS: [&str; 3] = ["CiliumEndpoint", "CiliumIdentity", "CiliumNode"];
/// Set by the API server.
const META: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
];
/// How much longer than recorded a change may take; once several have not come, only so long.
const PATIENCE: Duration = Duration::from_secs(5);
const HURRY: Duration = Duration::from_secs(1);

pub(crate) fn run(recording: &Value, options: &Options) -> Result<Vec<Report>, Error> {
    let file = recording["name"].as_str().unwrap_or_default().to_owned();
    let empty = Vec::new();
    let steps = recording["steps"].as_array().unwrap_or(&empty);
    let run = |node: &Node| -> Result<Vec<Report>, Boxed> {
        let mut cluster = Cluster::new(node, recording)?;
        cluster.start()?;
        cluster.scene()?;
        let mut bindings = Bindings::of(recording);
        cluster.bind(&mut bindings)?;
        let (mut reports, mut last, mut failed) = (Vec::new(), "", 0);
        for (index, step) in steps.iter().enumerate() {
            let action = step["action"].as_str().unwrap_or_default();
            if action != last {
                act(&cluster, action, &steps[index..], &bindings)?;
            }
            last = action;
            let waited = step["seconds_after_action"].as_f64().unwrap_or_default();
            let deadline = Instant::now()
                + match failed {
                    0..3 => PATIENCE + Duration::from_secs_f64(waited),
                    _ => HURRY,
                };
            let differing = loop {
                let mut trial = bindings.clone();
                let mut differing = compare(&cluster, step, &mut trial);
                // Identities have the names of the pods that had them when the recorder looked.
                let mut renamed = bindings.clone();
                rename(&cluster, &mut renamed);
                let now = compare(&cluster, step, &mut renamed);
                if now.len() < differing.len() {
                    (trial, differing) = (renamed, now);
                }
                if differing.is_empty() || Instant::now() > deadline {
                    bindings = trial;
                    break differing;
                }
                std::thread::sleep(Duration::from_millis(100));
            };
            let report = Report::new(format!("{file}/{index} {action}"), differing);
            failed += usize::from(matches!(report.outcome, Outcome::Failed(_)));
            reports.push(report);
        }
        Ok(reports)
    };
    let mut reports = Node::run("crd", run).map_err(Error::Run)?;
    reports.retain(|report| report.scenario.contains(&options.only));
    Ok(reports)
}

/// Binds names of identities to those of pods now.
fn rename(cluster: &Cluster<'_>, bindings: &mut Bindings) {
    let listed = cluster
        .api()
        .list(&gvr("CiliumEndpoint"), None, &ListOptions::default());
    for endpoint in listed.iter().flat_map(|list| list.items.iter()) {
        let name = endpoint["metadata"]["name"].as_str().unwrap_or_default();
        let name = format!("ID_{}", name.to_uppercase().replace(['-', '.'], "_"));
        bindings.bind(&name, &endpoint["status"]["identity"]["id"]);
    }
}

fn gvr(kind: &str) -> Gvr {
    let version = if kind.starts_with("Cilium") {
        "cilium.io/v2"
    } else {
        "v1"
    };
    kind_of(&json!({"apiVersion": version, "kind": kind}))
}

/// Compares objects by kind: each recorded one must be there, in any order; those that are gone must not.
fn compare(cluster: &Cluster<'_>, step: &Value, bindings: &mut Bindings) -> Vec<Mismatch> {
    let mut differing = Vec::new();
    for kind in KINDS {
        let listed = cluster.api().list(&gvr(kind), None, &ListOptions::default());
        let found: Vec<Value> = listed
            .map(|list| {
                let objects = list.items.iter();
                objects
                    .map(|object| without_default_account(&written(object)))
                    .collect()
            })
            .unwrap_or_default();
        let recorded = step["objects"].as_array().into_iter().flatten();
        for expected in recorded.filter(|object| object["kind"] == kind) {
            let expected = written(expected);
            // Other nodes' agents write theirs.
            if kind == "CiliumNode" && expected["metadata"]["name"] != "n1" {
                continue;
            }
            // Identities of earlier scenarios are not of this cluster.
            let name = bindings.known(expected["metadata"]["name"].as_str().unwrap_or_default());
            let Some(name) = name else {
                if kind == "CiliumIdentity" {
                    continue;
                }
                let matching = found.iter().any(|found| bindings.matches(&expected, found));
                if !matching {
                    differing.push(missing(kind, &expected));
                }
                continue;
            };
            match found
                .iter()
                .find(|found| found["metadata"]["name"] == name.as_str())
            {
                Some(found) => {
                    // The recorded look may have come before the object was written again.
                    let is_between = expected["status"]["state"] == "waiting-for-identity"
                        && found["status"]["state"] == "ready";
                    let before = if is_between {
                        differences::WRITTEN_AT_ONCE
                    } else {
                        ""
                    };
                    let place = format!("{before}{kind}/{name}");
                    bindings.compare(&place, &expected, found, &mut differing);
                }
                None => differing.push(missing(kind, &expected)),
            }
        }
        let gone = step["gone"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        for gone in gone.filter(|gone| gone.starts_with(&format!("{kind} "))) {
            let name = gone.rsplit([' ', '/']).next().unwrap_or_default();
            let name = bindings.known(name).unwrap_or_default();
            if let Some(found) = found
                .iter()
                .find(|found| found["metadata"]["name"] == name.as_str())
            {
                differing.push(Mismatch {
                    place: format!("{kind}/{name}"),
                    expected: Value::Null,
                    found: found.clone(),
                });
            }
        }
    }
    differing
}

fn missing(kind: &str, expected: &Value) -> Mismatch {
    Mismatch {
        place: kind.to_owned(),
        expected: expected.clone(),
        found: Value::Null,
    }
}

/// An object without what the API server sets.
fn written(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.retain(|key, _| !META.contains(&key.as_str()));
    }
    object
}

/// Does what the recorder did: `KIND NAMESPACE/NAME: CHANGE`, `CNI DEL of NAMESPACE/NAME`.
fn act(cluster: &Cluster<'_>, action: &str, steps: &[Value], bindings: &Bindings) -> Result<(), Boxed> {
    let (what, change) = action.split_once(": ").unwrap_or((action, ""));
    let words: Vec<&str> = what.split(' ').collect();
    let named = |name: &str| {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        (namespace.to_owned(), name.to_owned())
    };
    match words[..] {
        ["CNI", "DEL", "of", pod, ..] => {
            let (namespace, name) = named(pod);
            return cluster.delete(&namespace, &name);
        }
        ["pod", pod, "gone", ..] => return remove(cluster, "Pod", &named(pod)),
        ["CiliumEndpoint", name, "deleted", ..] => return remove(cluster, "CiliumEndpoint", &named(name)),
        ["CiliumIdentity", "of", pod, "deleted", ..] => {
            let (_, pod) = named(pod);
            let name = bindings.known(&format!("${{ID_{}}}", pod.to_uppercase().replace('-', "_")));
            return remove(
                cluster,
                "CiliumIdentity",
                &(String::new(), name.unwrap_or_default()),
            );
        }
        ["pod", pod, "deleted", ..] => {
            let (namespace, name) = named(pod);
            cluster.delete(&namespace, &name)?;
            return remove(cluster, "Pod", &(namespace, name));
        }
        _ => {}
    }
    let [kind @ ("pod" | "namespace" | "node" | "CiliumEndpoint"), name, ..] = words[..] else {
        // A look without an action.
        return Ok(());
    };
    let kind = match kind {
        "pod" => "Pod",
        "namespace" => "Namespace",
        "node" => "Node",
        other => other,
    };
    let change: Vec<&str> = change.split(' ').collect();
    let pair = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        json!({key: value})
    };
    let patch = match change[..] {
        ["label", key, "removed", ..] => json!({"metadata": {"labels": {key: null}}}),
        ["label", label, ..] => json!({"metadata": {"labels": pair(label)}}),
        ["labels", ..] => json!({"metadata": {"labels": {"pod-template-hash": "zzz"}}}),
        ["annotation", ..] => json!({"metadata": {"annotations": {"example.org/note": "1"}}}),
        ["status.identity.id", ..] => json!({"status": {"identity": {"id": 4711}}}),
        _ => return Ok(()),
    };
    let (namespace, name) = named(name);
    // The pod as it was afterwards, if the recording has it.
    let same = steps.iter().take_while(|step| step["action"] == action);
    let mut objects = same.flat_map(|step| step["objects"].as_array().into_iter().flatten());
    let after = objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name.as_str());
    let patch = match after.map(|object| &object["metadata"]["labels"]) {
        Some(Value::Object(labels)) if kind == "Pod" => {
            let mut labels = labels.clone();
            let before = cluster.api().get(&gvr(kind), &namespace, &name)?;
            for key in before["metadata"]["labels"]
                .as_object()
                .into_iter()
                .flat_map(|all| all.keys())
            {
                labels.entry(key.clone()).or_insert(Value::Null);
            }
            json!({"metadata": {"labels": labels}})
        }
        _ => patch,
    };
    let patched = cluster.api().patch(
        &gvr(kind),
        &namespace,
        &name,
        Subresource::None,
        &Patch::Merge(patch),
        &WriteOptions::default(),
    );
    Ok(patched.map(drop)?)
}

fn remove(cluster: &Cluster<'_>, kind: &str, (namespace, name): &(String, String)) -> Result<(), Boxed> {
    let deleted = cluster
        .api()
        .delete(&gvr(kind), namespace, name, &DeleteOptions::default());
    Ok(deleted.map(drop)?)
}
