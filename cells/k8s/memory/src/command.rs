// SPDX-License-Identifier: Apache-2.0

//! Script commands of the fake client (`k8s/...`).

use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use hive_script::text::yaml;
use hive_script::{Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec};
use serde_json::{Map, Value, json};

use crate::fake::{FakeClient, FakeError};
use crate::gvr::Gvr;
use crate::object;

/// The commands for `fake`.
pub fn commands(fake: &Arc<FakeClient>) -> Vec<CommandHandle> {
    let verbs = [
        Verb::Add,
        Verb::Update,
        Verb::Delete,
        Verb::Get,
        Verb::List,
        Verb::Summary,
        Verb::Resources,
        Verb::Resync,
    ];
    verbs.into_iter().map(|verb| handle(verb, fake)).collect()
}

/// The command `k8s/svc/update-status`, which only the suite of the client itself has.
pub fn update_status_command(fake: &Arc<FakeClient>) -> CommandHandle {
    handle(Verb::UpdateStatus, fake)
}

fn handle(verb: Verb, fake: &Arc<FakeClient>) -> CommandHandle {
    Arc::new(KubernetesCommand {
        spec: spec(verb),
        verb,
        fake: fake.clone(),
    })
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Add,
    Update,
    Delete,
    Get,
    List,
    Summary,
    Resources,
    Resync,
    UpdateStatus,
}

struct KubernetesCommand {
    spec: Spec,
    verb: Verb,
    fake: Arc<FakeClient>,
}

fn spec(verb: Verb) -> Spec {
    let none: [&str; 0] = [];
    let print = |spec: Spec| {
        spec.flag(Flag::string("out", "", "File to write to instead of stdout").short('o'))
            .flag(Flag::list(
                "show-redacted",
                none,
                "Fields to show that change between runs (resource-version, uid)",
            ))
    };
    match verb {
        Verb::Add => {
            Spec::new("k8s/add", "Add Kubernetes objects, replacing those that exist").args("file...")
        }
        Verb::Update => Spec::new("k8s/update", "Update Kubernetes objects")
            .args("file...")
            .flag(Flag::bool(
                "strict",
                "Fail unless the resource version is the current one",
            )),
        Verb::Delete => Spec::new("k8s/delete", "Delete Kubernetes objects").args("file..."),
        Verb::Get => print(Spec::new("k8s/get", "Show a Kubernetes object").args("resource namespace/name"))
            .detail("The resource may be a part of its name: 'services' for 'v1.services'."),
        Verb::List => print(Spec::new("k8s/list", "List Kubernetes objects").args("resource namespace"))
            .detail("An empty namespace ('') lists all namespaces."),
        Verb::Summary => Spec::new("k8s/summary", "Count the Kubernetes objects").args("[file]"),
        Verb::Resources => Spec::new("k8s/resources", "List the resources in use"),
        Verb::Resync => Spec::new(
            "k8s/resync",
            "Replace all objects of a resource and end its watches",
        )
        .args("resource [file...]"),
        Verb::UpdateStatus => {
            Spec::new("k8s/svc/update-status", "Update the status of a service").args("file")
        }
    }
}

#[async_trait]
impl Command for KubernetesCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        let fake = &self.fake;
        match self.verb {
            Verb::Add => each_file(cx, &inv, |yaml| fake.add(yaml)),
            Verb::Update => {
                let strict = inv.bool("strict");
                each_file(cx, &inv, |yaml| fake.update(yaml, strict))
            }
            Verb::Delete => each_file(cx, &inv, |yaml| fake.delete(yaml)),
            Verb::UpdateStatus => {
                let [_] = inv.args() else {
                    return Err(CommandError::usage("expected a file"));
                };
                each_file(cx, &inv, |yaml| fake.update_status(yaml))
            }
            Verb::Get => {
                let [resource, key] = inv.args() else {
                    return Err(CommandError::usage("expected resource and namespace/name"));
                };
                let gvr = resolve(cx, fake, resource)?;
                let (namespace, name) = key.split_once('/').unwrap_or(("", key));
                let object = fake.get(&gvr, namespace, name).map_err(CommandError::new)?;
                print(cx, &inv, &redacted(&object, &inv))
            }
            Verb::List => {
                let [resource, namespace] = inv.args() else {
                    return Err(CommandError::usage("expected resource and namespace"));
                };
                let gvr = resolve(cx, fake, resource)?;
                let (objects, revision) = fake.list(&gvr, namespace);
                let items: Vec<Value> = objects.iter().map(|o| redacted(o, &inv)).collect();
                let metadata = if shows(&inv, "resource-version") {
                    json!({ "resourceVersion": revision.to_string() })
                } else {
                    json!({})
                };
                print(cx, &inv, &json!({ "items": items, "metadata": metadata }))
            }
            Verb::Summary => summary(cx, &inv, fake),
            Verb::Resources => {
                let lines: String = fake.resources().iter().map(|name| format!("{name}\n")).collect();
                Ok(Outcome::stdout(lines))
            }
            Verb::Resync => resync(cx, &inv, fake),
        }
    }
}

/// Reads a file of the script, or one beside the process.
fn read(cx: &Context<'_>, file: &str) -> Result<String, CommandError> {
    cx.read_file(file)
        .or_else(|error| {
            std::fs::read(file)
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .map_err(|_| error)
        })
        .map_err(|error| {
            let cause = CommandError::io("open", file, &error);
            CommandError::new(format_args!("failed to read {file}: {cause}"))
        })
}

fn each_file(
    cx: &Context<'_>,
    inv: &Invocation,
    f: impl Fn(&str) -> Result<(), FakeError>,
) -> Result<Outcome, CommandError> {
    if inv.args().is_empty() {
        return Err(CommandError::usage("expected at least one file"));
    }
    for file in inv.args() {
        f(&read(cx, file)?).map_err(CommandError::new)?;
    }
    Ok(Outcome::Silent)
}

fn resolve(cx: &mut Context<'_>, fake: &FakeClient, text: &str) -> Result<Gvr, CommandError> {
    let (gvr, is_close) = fake.resource(text).map_err(CommandError::new)?;
    if is_close {
        cx.log(format!("Using closest match {:?}\n", gvr.dotted()));
    }
    Ok(gvr)
}

fn shows(inv: &Invocation, field: &str) -> bool {
    inv.list("show-redacted").iter().any(|shown| shown == field)
}

/// Without what changes between runs.
fn redacted(object: &Value, inv: &Invocation) -> Value {
    let mut copy = sorted(object);
    let metadata = object::metadata_mut(&mut copy);
    // They have the times of changes.
    metadata.shift_remove("managedFields");
    for (key, name) in [("uid", "uid"), ("resourceVersion", "resource-version")] {
        if !shows(inv, name) {
            metadata.shift_remove(key);
        }
    }
    copy
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            Value::Object(
                entries
                    .into_iter()
                    .map(|(k, v)| (k.clone(), sorted(v)))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn print(cx: &Context<'_>, inv: &Invocation, value: &Value) -> Result<Outcome, CommandError> {
    let text = yaml::emit_v2(value).map_err(CommandError::new)?;
    match inv.string("out") {
        "" => Ok(Outcome::stdout(text)),
        file => {
            cx.write_file(file, text)
                .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
            Ok(Outcome::Output(Output::default()))
        }
    }
}

fn summary(cx: &mut Context<'_>, inv: &Invocation, fake: &FakeClient) -> Result<Outcome, CommandError> {
    let text = fake.summary();
    match inv.args() {
        [] => cx.log(text),
        [file, ..] => {
            // Not truncated: what is longer than the summary stays behind it.
            let written = std::fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(cx.path(file))
                .and_then(|mut f| f.write_all(text.as_bytes()));
            written.map_err(|error| CommandError::io("open", cx.path(file), &error))?;
        }
    }
    Ok(Outcome::Silent)
}

fn resync(cx: &mut Context<'_>, inv: &Invocation, fake: &FakeClient) -> Result<Outcome, CommandError> {
    let [resource, files @ ..] = inv.args() else {
        return Err(CommandError::usage("expected resource and files"));
    };
    let gvr = resolve(cx, fake, resource)?;
    let mut texts = Vec::new();
    for file in files {
        texts.push((file.clone(), read(cx, file)?));
    }
    let done = fake.resync(&gvr, &texts).map_err(CommandError::new)?;
    cx.log(format!(
        "Restarted {} watch(es) for {} at revision {} with {} replacement object(s)\n",
        done.watches,
        gvr.dotted(),
        done.revision,
        done.objects
    ));
    Ok(Outcome::Silent)
}
